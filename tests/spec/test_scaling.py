"""What can be promised of scaling, and what about such a promise is refused or doubtful."""

from __future__ import annotations

import re

import pytest

from pytest_mnode.errors import SpecError
from pytest_mnode.spec import default_spec_path, doubts, load_spec
from pytest_mnode.spec.scaling import ScalingCriterion
from tests.spec.conftest import Load, Page

RACK = default_spec_path().read_text()
COMPUTE = re.findall(r"compute: \d+ ms", RACK)[0]
COMPUTE_S = int(COMPUTE.split()[1]) / 1e3
ROUNDS = re.findall(r"\n    rounds: \d+\n", RACK)[0]


def test_the_rack_emulates_computing_and_says_so() -> None:
    spec = load_spec(default_spec_path())
    assert spec.criteria.scaling is not None
    assert spec.criteria.scaling.compute_s == pytest.approx(COMPUTE_S)
    assert any("criteria.scaling.compute" in line for line in spec.emulated)


def test_without_more_said_it_is_what_a_cluster_should_do() -> None:
    scaling = ScalingCriterion.model_validate({})
    assert (scaling.at_least_efficiency, scaling.explained_from) == (0.95, 0.9)
    assert (scaling.explained_fraction, scaling.allowed_causes) == (0.8, ())
    assert (scaling.kind, scaling.parallel, scaling.compute_s) == ("weak", "ddp", None)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            COMPUTE,
            "compute: 600",
            "criteria.scaling.compute: 600 has no unit; accepted: a time",
        ),
        (
            COMPUTE,
            "at_least_efficiency: 0.85",
            "criteria.scaling: explained_from 0.9 is above at_least_efficiency 0.85",
        ),
        (
            COMPUTE,
            "at_least_efficiency: 95",
            "criteria.scaling.at_least_efficiency: 95; accepted: a number of 1 or less",
        ),
        (
            "allowed_causes: [communication, contention, skew]",
            "allowed_causes: [network]",
            "criteria.scaling.allowed_causes[0]: 'network'; accepted: 'communication', ",
        ),
        (
            "allowed_causes: [communication, contention, skew]",
            "allowed_causes: [skew, skew]",
            "criteria.scaling: allowed_causes names one twice",
        ),
        (ROUNDS, "\n    rounds: 11\n", "criteria.scaling: most_rounds 10 is below rounds 11"),
        (
            "width: 144, heads: 2",
            "width: 145, heads: 2",
            "criteria.scaling.model: width 145 over heads 2; accepted: a multiple of heads",
        ),
        ("bucket: 256 KiB", "buckets: 1", "criteria.scaling.buckets: unknown key; did you mean"),
        (
            "per_node: 0",
            "per_node: 8",
            f"criteria: scaling.compute: {COMPUTE_S:g} s, with accelerators.per_node 8: real acc",
        ),
    ],
)
def test_says_what_is_wrong(page: Page, old: str, new: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(page(old, new))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (COMPUTE, "explained_from: 0.7", "explained_from: 0.7 lets a cluster pass that"),
        (COMPUTE, "at_least_efficiency: 1", "at_least_efficiency: 1 is more than clocks"),
        (
            "at_most_uncertainty: 0.03",
            "at_most_uncertainty: 0.1",
            "at_most_uncertainty: 0.1 is more than",
        ),
        (COMPUTE, "dtype: bfloat16", "dtype: bfloat16, but accelerators.per_node is 0"),
        (
            "name: rack",
            "name: rack\nnodes: 1",
            "promised for nodes: 1, which has no other node to scale to",
        ),
        (COMPUTE, "parts_within: 0.06", "parts_within: 0.06 of a step may have no name"),
        (COMPUTE, "explained_fraction: 0.4", "explained_fraction: 0.4 lets a loss pass of which"),
        (COMPUTE, "fabric_fraction: 0.4", "fabric_fraction: 0.4 calls a fabric at half its line"),
        (COMPUTE, "elsewhere_fraction: 0.3", "elsewhere_fraction: 0.3 lets more than a fifth of"),
    ],
)
def test_doubts_what_would_hide_a_fault(load: Load, old: str, new: str, line: str) -> None:
    found = [doubt for doubt in doubts(load(old, new)) if doubt.startswith("criteria.scaling")]
    assert len(found) == 1
    assert line in found[0]


@pytest.mark.parametrize(
    "new",
    [
        "parts_within: 0.05",
        "explained_fraction: 0.5",
        "fabric_fraction: 0.5",
        "elsewhere_fraction: 0.2",
    ],
)
def test_what_a_fault_would_still_miss_is_not_doubted(load: Load, new: str) -> None:
    assert doubts(load(COMPUTE, new)) == []
