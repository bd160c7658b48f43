"""Clauses of a buyer beside promises: where they may stand, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mnode.errors import SpecError
from pytest_mnode.spec import doubts, json_schema, load_spec

RACK = load_spec(Path("profile:rack"))


def loaded(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "spec.yaml"
    path.write_text(f"extends: rack\n{text}\n")
    return path


@pytest.mark.parametrize(
    ("text", "clauses"),
    [
        ("criteria: {fabric: {requirement: BM-01}}", {"BM-01": ("fabric",)}),
        (
            "criteria: {fabric: {all_reduce_busbw: {requirement: [A, B]}}}",
            {"A": ("fabric.all_reduce_busbw",), "B": ("fabric.all_reduce_busbw",)},
        ),
        (
            "criteria: {mesh: {requirement: A}}\nrequirements: {A: [fabric.transport]}",
            {"A": ("fabric.transport", "mesh")},
        ),
        ("requirements: {B: [preflight.mtu, data]}", {"B": ("preflight.mtu", "data")}),
        ("", {}),
    ],
)
def test_a_clause_is_named_beside_its_promise(
    text: str, clauses: dict[str, tuple[str, ...]], tmp_path: Path
) -> None:
    spec = load_spec(loaded(tmp_path, text))
    assert dict(spec.requirements) == clauses
    assert spec.digest() == RACK.digest()  # names promise nothing


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("criteria: {fabric: {requirement: 4.2}}", "criteria.fabric.requirement: 4.2; accepted"),
        ("criteria: {requirement: A}", "criteria.requirement: unknown key"),
        (
            "requirements: {A: [fabric.all_reduce]}",
            "A: fabric.all_reduce: no promise; did you mean",
        ),
        ("requirements: {A: [mesh.sums]}", "A: mesh.sums: no promise; accepted: no key below"),
        ("requirements: [A]", "requirements: ['A']; accepted: a mapping"),
    ],
)
def test_a_clause_without_a_promise_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as refused:
        load_spec(loaded(tmp_path, text))
    assert message in str(refused.value)


def test_a_clause_about_what_is_not_promised_stays_open(tmp_path: Path) -> None:
    spec = load_spec(loaded(tmp_path, "requirements: {A: [preflight.rdma, preflight.clocks.skew]}"))
    assert doubts(spec) == ["requirements.A: preflight.rdma is not promised: the clause stays open"]


def test_editors_know_the_key() -> None:
    definitions = json_schema()["$defs"]
    assert {"FabricCriterion", "BusbwPromise", "MeshCriterion"} <= {
        name for name, page in definitions.items() if "requirement" in page.get("properties", {})
    }
    assert "requirement" not in definitions["NotPromised"]["properties"]
