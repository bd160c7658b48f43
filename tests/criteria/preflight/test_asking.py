"""What a survey looks at depends on what is asked of it."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.criteria.preflight.orders import directories_of
from pytest_mnode.criteria.preflight.survey_fixture import STORAGE_FIXTURE, spec_to_survey
from tests.criteria.preflight.made import spec_of

ACCEPTANCE = Path(__file__).parents[3] / "acceptance/test_preflight.py"


@pytest.mark.parametrize("asked", [True, False])
def test_paths_of_storage_are_looked_at_where_a_test_asks_for_them(
    tmp_path: Path, asked: bool
) -> None:
    """A health check that asks for none must not write there, nor hang there, as root."""
    spec = spec_of(tmp_path, "{storage: {}, disk: [{path: /tmp, free: 1 GB}]}")
    items: list[Any] = [
        SimpleNamespace(fixturenames=["ask"]),
        SimpleNamespace(fixturenames=["ask", *[STORAGE_FIXTURE] * asked]),
        SimpleNamespace(),
    ]
    surveyed = spec_to_survey(spec, items)
    assert surveyed.criteria.preflight is not None
    looked_at = {one.key for one in directories_of(surveyed.criteria.preflight, surveyed)}
    assert looked_at == {"/dev/shm", "disk /tmp", *["datasets", "checkpoints"] * asked}


def test_the_tests_of_storage_say_that_they_ask_for_it() -> None:
    functions = re.findall(r"^def test_(?:.|\n)*?(?=^\S|\Z)", ACCEPTANCE.read_text(), re.M)
    about = [text for text in functions if " storage." in text]
    assert len(about) == 3
    assert all(f"({STORAGE_FIXTURE}: " in text for text in about)
    assert not [text for text in functions if STORAGE_FIXTURE in text and text not in about]
