"""The judge of a job's environment: correct jobs pass, and each wrong value is named."""

from __future__ import annotations

import itertools
import runpy
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_mnode.criteria.launching.contract import (
    leaked,
    missing_ranks,
    more_visible,
    not_met,
    not_reported,
    wrong_variables,
)
from pytest_mnode.criteria.launching.reports import Met, RankReport
from pytest_mnode.culprit import Culprit
from tests.criteria.launching.made import NODES, but, changed, everywhere, expected, right

GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
STYLES = ("torchrun", "deepspeed", "megatron")


def faults(reports: list[RankReport], style: str = "torchrun", per_node: int = 2) -> list[Culprit]:
    return wrong_variables(expected(style, per_node), reports)


@pytest.mark.parametrize("style", STYLES)
def test_a_correct_job_has_no_wrong_variable(style: str) -> None:
    for per_node, count in itertools.product((1, 2, 8), (1, 2, 3, 4)):
        wanted = expected(style, per_node, nodes=NODES[:count])
        reports = right(wanted)
        for wrong in (wrong_variables, leaked, missing_ranks, not_met):
            assert wrong(wanted, reports) == [], (per_node, count)


@pytest.mark.parametrize(
    ("rank", "variable", "value", "line"),
    [
        (5, "LOCAL_RANK", None, "node2 rank 5: LOCAL_RANK is not set"),
        (5, "LOCAL_RANK", "", "node2 rank 5: LOCAL_RANK is not set"),
        (4, "LOCAL_RANK", "one", "node2 rank 4: LOCAL_RANK='one' is not a number"),
        (4, "LOCAL_RANK", "1", "node2 rank 4: LOCAL_RANK=1 is set in 2 ranks of the node"),
        (4, "LOCAL_RANK", "4", "node2 rank 4: LOCAL_RANK=4 is outside the 2 ranks of the node"),
        (4, "WORLD_SIZE", "1", "node2 rank 4: WORLD_SIZE=1, must be 8"),
        (4, "RANK", "0", "node2 rank 0: RANK=0 is also set in a rank on node0"),
        (4, "RANK", "8", "node2 rank 8: RANK=8 is outside the 8 ranks of the job"),
        (4, "RANK", "0", "node2: no rank has RANK=4"),
        (3, "MASTER_ADDR", "host", "node1 rank 3: MASTER_ADDR=host, others have 10.77.1.1"),
        (3, "MASTER_PORT", "29501", "node1 rank 3: MASTER_PORT=29501, others have 29500"),
        (3, "MASTER_ADDR", None, "node1 rank 3: MASTER_ADDR is not set"),
        (7, GLOO, None, f"node3 rank 7: {GLOO} is not set, must be fab0"),
        (7, NCCL, "=mgmt0", f"node3 rank 7: {NCCL} is =mgmt0, must be =fab0"),
        (7, GLOO, "fab9", f"node3 rank 7: {GLOO}=fab9, but the node has no fab9"),
    ],
)
def test_a_wrong_variable_is_named_with_node_and_rank(
    rank: int, variable: str, value: str | None, line: str
) -> None:
    for style in STYLES:
        reports = changed(right(expected(style)), rank, **{variable: value})
        assert line in faults(reports, style), style


@pytest.mark.parametrize(
    ("style", "variable", "value", "line"),
    [
        ("torchrun", "LOCAL_WORLD_SIZE", "8", "LOCAL_WORLD_SIZE=8, must be 2"),
        ("torchrun", "LOCAL_WORLD_SIZE", None, "LOCAL_WORLD_SIZE is not set"),
        ("torchrun", "GROUP_RANK", "0", "GROUP_RANK=0, must be 2"),
        ("torchrun", "GROUP_RANK", None, "GROUP_RANK is not set"),
        ("deepspeed", "CROSS_RANK", "0", "CROSS_RANK=0, must be 2"),
        ("deepspeed", "CROSS_SIZE", "1", "CROSS_SIZE=1, must be 4"),
        ("deepspeed", "LOCAL_SIZE", "1", "LOCAL_SIZE=1, must be 2"),
        ("megatron", "SLURM_PROCID", "7", "RANK=4, but SLURM_PROCID=7"),
        ("megatron", "SLURM_NTASKS", "4", "WORLD_SIZE=8, but SLURM_NTASKS=4"),
        ("megatron", "SLURM_NODEID", "3", "SLURM_NODEID=3, must be 2"),
        *[
            ("megatron", f"SLURM_{name}", None, f"SLURM_{name} is not set")
            for name in ("PROCID", "NTASKS", "LOCALID", "NODEID")
        ],
        ("megatron", "SLURM_PROCID", "-1", "SLURM_PROCID='-1' is not a number"),
        # Not every launcher sets these, but where they are set they are numbers.
        ("deepspeed", "CROSS_RANK", "x", "CROSS_RANK='x' is not a number"),
        ("deepspeed", "CROSS_SIZE", "", "CROSS_SIZE='' is not a number"),
        ("deepspeed", "LOCAL_SIZE", "two", "LOCAL_SIZE='two' is not a number"),
        ("torchrun", "GROUP_WORLD_SIZE", "-1", "GROUP_WORLD_SIZE='-1' is not a number"),
        ("torchrun", "SLURM_NODEID", "?", "SLURM_NODEID='?' is not a number"),
        ("megatron", "SLURM_JOB_NUM_NODES", "4x2", "SLURM_JOB_NUM_NODES='4x2' is not a number"),
    ],
)
def test_variables_of_one_style(style: str, variable: str, value: str | None, line: str) -> None:
    reports = changed(right(expected(style)), 4, **{variable: value})
    assert faults(reports, style) == [f"node2 rank 4: {line}"]


@pytest.mark.parametrize("port", ["0", "65536"])
def test_an_invalid_port_is_named(port: str) -> None:
    found = faults(everywhere(right(expected()), MASTER_PORT=port))
    assert found[7] == f"node3 rank 7: MASTER_PORT={port} is not a port (1 to 65535)"
    assert len(found) == 8
    for good in ("1", "65535"):
        assert faults(everywhere(right(expected()), MASTER_PORT=good)) == []


def test_variables_that_only_some_deepspeed_versions_set() -> None:
    reports = changed(right(expected("deepspeed")), 4, CROSS_RANK=None, CROSS_SIZE=None)
    assert faults(reports, "deepspeed") == []


def test_ranks_of_another_nodes_block_are_named() -> None:
    wanted = expected("torchrun", 1)
    reports = right(wanted)
    reports[1], reports[2] = replace(reports[1], node="node2"), replace(reports[2], node="node1")
    reports[0] = replace(reports[0], node="node9")  # which is no node of the job
    assert "node2 rank 1: RANK=1 belongs to node1" in faults(reports, per_node=1)


@pytest.mark.parametrize(
    ("here", "why"), [(False, "is not an address of this node"), (None, "cannot be resolved here")]
)
def test_a_master_that_is_not_the_first_node_is_named(here: bool | None, why: str) -> None:
    reports = but(right(expected("torchrun", 1)), 0, master_is_here=here)
    line = f"node0 rank 0: MASTER_ADDR=10.77.1.1 {why}, but rank 0 runs here"
    assert faults(reports, per_node=1) == [line]


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost"])
def test_a_master_address_local_to_every_node_is_named(address: str) -> None:
    wanted = expected("torchrun", 1)
    reports = everywhere(right(wanted), MASTER_ADDR=address)
    reports = [replace(report, master_is_here=True) for report in reports]
    own = f"MASTER_ADDR={address} is this node's own address, but rank 0 runs on node0"
    lines = [f"{node} rank {rank}: {own}" for rank, node in enumerate(NODES)]
    assert wrong_variables(wanted, reports) == lines[1:]
    # All names are of one machine, as without namespaces.
    one = replace(wanted, hosts=dict.fromkeys(NODES, "here"))
    assert wrong_variables(one, reports) == []
    two = replace(wanted, hosts=dict.fromkeys(NODES[:3], "here"))
    assert wrong_variables(two, reports) == lines[3:]


def test_missing_facts_are_not_judged() -> None:
    wanted = expected("torchrun", 1)
    reports = right(wanted)
    silent = {"contract", "names", "interfaces", "master_is_here", "arguments"}
    reports = but(reports, 0, contract={}, missing=frozenset(silent))
    reports = but(reports, 3, interfaces=frozenset(), missing=frozenset({"interfaces"}))
    assert wrong_variables(wanted, reports) == []
    assert not_reported(reports, ["contract", "interfaces"]) == (
        "node0: reported no contract (1 of 4 ranks); node0: reported no interfaces (2 of 4 ranks)"
    )
    assert not_reported(reports[1:], ["names"]) == ""
    assert not_reported([], ["names"]) == "no rank reported"


def test_leaked_variables_are_named_without_those_of_launchers() -> None:
    wanted = expected()
    reports = right(wanted)
    names = reports[3].names | {"MNODE_CANARY", "SECRET_TOKEN", "TORCHELASTIC_RUN_ID", "PWD"}
    reports = but(reports, 3, names=names)
    seen = "of the submitting environment is visible"
    lines = [f"node1 rank 3: {name} {seen}" for name in ("MNODE_CANARY", "SECRET_TOKEN")]
    assert leaked(wanted, reports) == lines
    asked = replace(wanted, own=frozenset({"SECRET_TOKEN", "MNODE_CANARY"}))
    assert leaked(asked, reports) == []
    other = replace(wanted, style="deepspeed")
    assert leaked(other, reports) == [*lines, f"node1 rank 3: TORCHELASTIC_RUN_ID {seen}"]


def test_n_jobs_of_one_rank_are_not_a_job_of_n() -> None:
    wanted = expected("torchrun", 1)
    reports = everywhere(right(wanted), RANK="0", WORLD_SIZE="1")
    reports = [replace(report, met=Met(1, 1, (0,))) for report in reports]
    assert not_met(wanted, reports) == [
        f"{node} rank 0: met only itself: 1 of 4 ranks in a collective" for node in NODES
    ]
    found = faults(reports, per_node=1)
    assert "node1 rank 0: WORLD_SIZE=1, must be 4" in found
    assert "node1 rank 0: RANK=0 is also set in a rank on node0, node2, node3" in found
    assert "node1: no rank has RANK=1-3" in found


@pytest.mark.parametrize(
    ("met", "error", "line"),
    [
        (None, "TimeoutError: ranks [3] never came", "TimeoutError: ranks [3] never came"),
        (None, "", "met no other rank"),
        (Met(8, 35, tuple(range(8))), "", "a wrong sum over all ranks: 35"),
        (Met(8, 36, (0, 0, 2, 3, 4, 5, 6, 7)), "", "a wrong sum over all ranks: 36, from ranks"),
        (Met(9, 45, tuple(range(9))), "", "met 9 of 8 ranks in a collective"),
    ],
)
def test_ranks_that_did_not_meet_all_others(met: Met | None, error: str, line: str) -> None:
    [wrong] = not_met(expected(), but(right(expected()), 6, met=met, error=error))
    assert wrong.startswith(f"node3 rank 6: {line}")


def test_missing_and_unexpected_nodes_are_named() -> None:
    wanted = expected()
    reports = [r for r in right(wanted) if r.rank not in (2, 3, 5)]
    reports.append(replace(reports[0], node="node9"))
    counts = {"node1": "0 of 2", "node2": "1 of 2", "node9": "1 of 0"}
    named = [f"{node}: {count} ranks reported" for node, count in counts.items()]
    assert missing_ranks(wanted, reports) == named


def test_a_rank_without_a_number_hides_no_other_fault() -> None:
    reports = changed(changed(right(expected()), 0, RANK=None), 4, RANK="8")
    assert "node2 rank 8: RANK=8 is outside the 8 ranks of the job" in faults(reports)


CONTRACT = Path(__file__).parents[3] / "fixtures" / "jobs" / "contract.py"


def test_more_accelerators_than_asked_for_are_listed() -> None:
    wanted = expected("torchrun", 2, accelerators=2)
    reports = right(wanted)
    assert more_visible(wanted, reports) == []
    for rank, count in ((2, 8), (3, 8), (4, 8), (7, 4), (6, None)):
        reports = but(reports, rank, accelerators=count)
    assert more_visible(wanted, reports) == [
        "accelerators visible on node3: 4, the job requested 2",
        "accelerators visible on node1, node2: 8, the job requested 2",
    ]


CUDA = "CUDA_VISIBLE_DEVICES"
OTHERS = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


@pytest.mark.parametrize(
    ("variable", "visible", "count", "wrong"),
    [
        (CUDA, None, 8, 0),  # every rank sees all
        (CUDA, None, 7, 32),
        (CUDA, None, None, 32),
        (CUDA, None, 9, 0),  # other jobs' accelerators are visible: not the job's fault
        *[(variable, "own", 1, 0) for variable in (CUDA, *OTHERS)],  # by the scheduler
        *[(variable, "same", 1, 32) for variable in (CUDA, *OTHERS)],
    ],
)
def test_accelerators_are_all_visible_or_one_each(
    variable: str, visible: str | None, count: int | None, wrong: int
) -> None:
    wanted = expected("torchrun", 8, accelerators=8)
    reports = right(wanted)
    for rank in range(wanted.size):
        devices = {None: None, "own": str(rank % 8), "same": "0"}[visible]
        reports = changed(but(reports, rank, accelerators=count), rank, **{variable: devices})
    found = wrong_variables(wanted, reports)
    assert len(found) == wrong
    assert all("accelerators" in text for text in found)


def test_device_ids_decide_before_visible_device_variables() -> None:
    """With cgroups each rank's device is number 0; equal numbers need not be one device."""
    wanted = expected("torchrun", 8, accelerators=8)

    def seen(device: str, visible: str) -> list[RankReport]:
        reports = right(wanted)
        for rank in range(wanted.size):
            ids = (device.format(rank % 8),)
            reports = but(reports, rank, accelerators=1, devices=ids)
            reports = changed(reports, rank, CUDA_VISIBLE_DEVICES=visible.format(rank % 8))
        return reports

    assert wrong_variables(wanted, seen("GPU-{}", "0")) == []
    same = seen("GPU-0", "{}")
    assert len(wrong_variables(wanted, same)) == wanted.size
    assert wrong_variables(wanted, seen("GPU-0", "MIG-{}")) == [], "parts of one device"
    # If one rank reports no device ids, the variables decide.
    nodes = [text.split()[0] for text in wrong_variables(wanted, but(same, 0, devices=()))]
    assert nodes == ["node1"] * 8 + ["node2"] * 8 + ["node3"] * 8


@pytest.mark.parametrize(
    ("properties", "ids"),
    [
        ({"uuid": "a-1", "pci_domain_id": 0, "pci_bus_id": 1, "pci_device_id": 0}, ["a-1:0:1:0"]),
        ({"uuid": "a-1"}, ["a-1"]),
        ({"name": "x"}, None),
    ],
)
def test_ids_of_the_visible_devices(
    properties: dict[str, object], ids: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = runpy.run_path(str(CONTRACT))
    kind = SimpleNamespace(get_device_properties=lambda _: SimpleNamespace(**properties))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=kind))
    assert program["ids_of"]("cuda", 1) == ids
    assert program["ids_of"]("mps", 1) is None


TENSOR, PIPELINE = "--tensor-model-parallel-size", "--pipeline-model-parallel-size"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([f"{TENSOR}=2", f"{PIPELINE}=4"], ""),
        ([f"{TENSOR}=3"], "does not divide 8 ranks"),
        ([f"{TENSOR}=2", f"{PIPELINE}=3"], "does not divide 8 ranks"),
        ([f"{TENSOR}=4"], "does not divide the 2 ranks of a node"),
        ([f"{TENSOR}=two"], "'two' is not a number"),
        ([f"{TENSOR}=0"], "does not divide 8 ranks"),
        ([TENSOR, "2", PIPELINE, "4"], ""),
        ([TENSOR, "3"], "does not divide 8 ranks"),
        ([PIPELINE, "3", "-x"], "does not divide 8 ranks"),
        ([TENSOR], "'' is not a number"),
        ([f"{TENSOR}=²"], "is not a number"),
        ([f"{TENSOR}=3", TENSOR, "2"], ""),
    ],
)
def test_tensor_and_pipeline_sizes_divide(arguments: list[str], line: str) -> None:
    reports = but(right(expected("megatron")), 2, arguments=tuple(arguments))
    found = wrong_variables(expected("megatron"), reports)
    assert len(found) == bool(line)
    assert all(line in one and one.startswith("node1 rank 2: ") for one in found)
