"""The spec shown in docs/spec.md loads."""

from __future__ import annotations

import re
from pathlib import Path

from pytest_mnode.spec import doubts, load_spec

DOCUMENT = Path(__file__).parents[2] / "docs" / "spec.md"


def test_the_documented_page_loads_without_doubts(tmp_path: Path) -> None:
    match = re.search(r"```yaml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert match is not None
    page = tmp_path / "spec.yaml"
    page.write_text(match[1])
    spec = load_spec(page)
    assert spec.promised_criteria == (
        *("preflight", "mesh", "numa", "devices", "fabric"),
        *("groups", "data", "launch", "scaling"),
        *("restart", "gang", "soak"),
    )
    assert doubts(spec) == []


def test_the_documented_page_that_extends_a_profile_loads(tmp_path: Path) -> None:
    match = re.search(r"```yaml\n(extends:.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert match is not None
    page = tmp_path / "spec.yaml"
    page.write_text(match[1])
    spec = load_spec(page)
    assert spec.fabric.nics_per_node == 32
    assert spec.nodes == 24
    assert not spec.promised("numa")
    assert doubts(spec) == []
