"""A test of something that the spec does not promise ends as "not promised"."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mnode.skipping import promised
from pytest_mnode.spec import load_spec

SPEC = load_spec(Path("profile:rack"))


@pytest.mark.parametrize(
    "key", ["gang", "gang.nodes", "fabric.write_bandwidth", "storage.datasets"]
)
def test_missing_keys_are_not_promised(key: str) -> None:
    with pytest.raises(pytest.skip.Exception, match=f"^not promised by the spec: {key}$"):
        promised(SPEC, key)


@pytest.mark.parametrize(("key", "value"), [("preflight.clocks.skew", 0.05), ("nodes", 4)])
def test_a_promised_value_is_returned(key: str, value: object) -> None:
    spec = SPEC.model_copy(update={"nodes": 4})
    assert promised(spec, key) == value


def test_a_key_that_no_spec_can_have_is_an_error() -> None:
    with pytest.raises(AttributeError):
        promised(SPEC, "restart.kils")
