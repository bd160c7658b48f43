"""A test of something that the spec does not promise ends as "not promised"."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.skipping import promised

SPEC: Any = SimpleNamespace(
    criteria=SimpleNamespace(restart=SimpleNamespace(kills=("rank",), node=None), scaling=None),
    storage=SimpleNamespace(paths=()),
)


@pytest.mark.parametrize("key", ["scaling", "scaling.at_least", "restart.node", "storage.paths"])
def test_missing_keys_are_not_promised(key: str) -> None:
    with pytest.raises(pytest.skip.Exception, match=f"^not promised by the spec: {key}$"):
        promised(SPEC, key)


def test_a_promised_value_is_returned() -> None:
    assert promised(SPEC, "restart.kills") == ("rank",)


def test_a_key_that_no_spec_can_have_is_an_error() -> None:
    with pytest.raises(AttributeError):
        promised(SPEC, "restart.kils")
