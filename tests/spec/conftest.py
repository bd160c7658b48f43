from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_mnode.spec import Spec, default_spec_path, load_spec

Page = Callable[[str, str], Path]
Load = Callable[[str, str], Spec]


@pytest.fixture
def page(tmp_path: Path) -> Page:
    """The rack's spec with one piece of text replaced, in a file of its own."""

    def write(old: str, new: str) -> Path:
        text = default_spec_path().read_text()
        assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in rack.yaml"
        path = tmp_path / "a spec.yaml"
        path.write_text(text.replace(old, new))
        return path

    return write


@pytest.fixture
def load(page: Page) -> Load:
    """The spec that `page` writes."""
    return lambda old, new: load_spec(page(old, new))
