from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_mnode.spec import default_spec_path, doubts, load_spec
from pytest_mnode.spec.checked import PreflightCriterion
from pytest_mnode.spec.fabric import FabricCriterion
from tests.spec.conftest import Page

CLUSTERS = Path(__file__).parents[2] / "fixtures" / "clusters"


def test_the_published_schema_is_current() -> None:
    made = subprocess.run(
        [sys.executable, "-m", "pytest_mnode.spec.schema"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert made.stderr == ""
    published = (CLUSTERS / "spec.schema.json").read_text()
    again = "python -m pytest_mnode.spec.schema > fixtures/clusters/spec.schema.json"
    assert made.stdout == published, f"out of date; run {again}"


@pytest.mark.parametrize("path", sorted(CLUSTERS.glob("*.yaml")), ids=lambda path: path.name)
def test_every_published_spec_keeps_the_schema(validator: Any, path: Path) -> None:
    assert [
        error.message for error in validator.iter_errors(yaml.safe_load(path.read_text()))
    ] == []


def test_the_rack_is_among_the_published() -> None:
    assert default_spec_path() in CLUSTERS.glob("*.yaml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("200 Mbit/s", "200", "200 is not of type 'string'"),
        ("200 Mbit/s", "25 MB/s", "'25 MB/s' does not match"),
        ("1 MiB, 4 MiB", "1 MiB, 4", "4 is not of type 'string'"),
        ("[64 KiB, 1 MiB, 4 MiB]", "{from: 4 KiB}", "'to' is a required property"),
        ("7 days", "7 MB", "'7 MB' does not match"),
        ("mesh: {}", "mesh:", "None is not of type 'object'"),
        ("name: rack", "name: rack\nnodez: 4", "'nodez' was unexpected"),
        ("name: rack", "", "'name' is a required property"),
        ("[fab0]", "[]", "[] should be non-empty"),
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(
    validator: Any, page: Page, old: str, new: str, message: str
) -> None:
    errors = [e.message for e in validator.iter_errors(yaml.safe_load(page(old, new).read_text()))]
    assert any(message in error for error in errors), errors


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
