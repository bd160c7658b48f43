"""The spec shown in docs/spec.md loads, and the promises of docs/network.md are accepted."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from pytest_mnode.spec import doubts, load_spec
from pytest_mnode.spec.fabric import FabricCriterion
from pytest_mnode.spec.preflight import PreflightCriterion

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


def test_the_promises_of_the_network_page_are_accepted() -> None:
    text = DOCUMENT.with_name("network.md").read_text()
    found = [
        yaml.safe_load(one)["criteria"] for one in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    ]
    preflight = PreflightCriterion.model_validate(found[0]["preflight"])
    assert preflight.infiniband.pkeys == (0x8001,)
    assert preflight.roce.ecn == "on"
    fabric = FabricCriterion.model_validate(found[1]["fabric"])
    assert fabric.bisection is not None
    assert fabric.congestion is not None
