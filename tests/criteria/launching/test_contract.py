"""The judge of a job's environment: correct jobs pass, and each wrong value is named."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from pytest_mnode.criteria.launching.contract import leaked, missing_ranks, not_met, not_reported
from pytest_mnode.criteria.launching.reports import Met, RankReport
from pytest_mnode.criteria.launching.variables import wrong_variables
from pytest_mnode.culprit import Culprit
from tests.criteria.launching.made import NODES, but, changed, expected, right

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
        (
            3,
            "MASTER_ADDR",
            "localhost",
            "node1 rank 3: MASTER_ADDR=localhost, others have 10.77.1.1",
        ),
        (3, "MASTER_PORT", "29501", "node1 rank 3: MASTER_PORT=29501, others have 29500"),
        (3, "MASTER_ADDR", None, "node1 rank 3: MASTER_ADDR is not set"),
        (
            7,
            "GLOO_SOCKET_IFNAME",
            None,
            "node3 rank 7: GLOO_SOCKET_IFNAME is not set, must be fab0",
        ),
        (
            7,
            "NCCL_SOCKET_IFNAME",
            "=mgmt0",
            "node3 rank 7: NCCL_SOCKET_IFNAME is =mgmt0, must be =fab0",
        ),
        (
            7,
            "GLOO_SOCKET_IFNAME",
            "fab9",
            "node3 rank 7: GLOO_SOCKET_IFNAME=fab9, but the node has no fab9",
        ),
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
    ],
)
def test_variables_of_one_style(style: str, variable: str, value: str | None, line: str) -> None:
    reports = changed(right(expected(style)), 4, **{variable: value})
    assert f"node2 rank 4: {line}" in faults(reports, style)


@pytest.mark.parametrize(
    ("style", "variable", "value"),
    [
        ("deepspeed", "CROSS_RANK", "x"),
        ("deepspeed", "CROSS_SIZE", ""),
        ("deepspeed", "LOCAL_SIZE", "two"),
        ("torchrun", "GROUP_WORLD_SIZE", "-1"),
        ("torchrun", "SLURM_NODEID", "?"),
        ("megatron", "SLURM_PROCID", "-1"),
        ("megatron", "SLURM_JOB_NUM_NODES", "4(x2)"),
    ],
)
def test_optional_variables_must_be_numbers(style: str, variable: str, value: str) -> None:
    reports = changed(right(expected(style)), 4, **{variable: value})
    assert faults(reports, style) == [f"node2 rank 4: {variable}={value!r} is not a number"]


@pytest.mark.parametrize("port", ["0", "65536", "99999"])
def test_an_invalid_port_is_named(port: str) -> None:
    reports = right(expected())
    for rank in range(len(reports)):
        reports = changed(reports, rank, MASTER_PORT=port)
    assert faults(reports) == [
        f"{report.node} rank {rank}: MASTER_PORT={port} is not a port (1 to 65535)"
        for rank, report in enumerate(reports)
    ]
    for good in ("1", "65535"):
        fine = right(expected())
        for rank in range(len(fine)):
            fine = changed(fine, rank, MASTER_PORT=good)
        assert faults(fine) == []


@pytest.mark.parametrize("name", ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID"])
def test_a_scheduled_rank_has_the_schedulers_numbers(name: str) -> None:
    reports = changed(right(expected("megatron")), 4, **{name: None})
    assert faults(reports, "megatron") == [f"node2 rank 4: {name} is not set"]


def test_variables_that_only_some_deepspeed_versions_set() -> None:
    reports = changed(right(expected("deepspeed")), 4, CROSS_RANK=None, CROSS_SIZE=None)
    assert faults(reports, "deepspeed") == []


def test_ranks_of_another_nodes_block_are_named() -> None:
    wanted = expected("torchrun", 1)
    reports = right(wanted)
    reports[1], reports[2] = replace(reports[1], node="node2"), replace(reports[2], node="node1")
    assert "node2 rank 1: RANK=1 belongs to node1" in faults(reports, per_node=1)


def test_a_master_that_is_not_the_first_node_is_named() -> None:
    wanted = expected("torchrun", 1)
    reports = but(right(wanted), 0, master_is_here=False)
    assert faults(reports, per_node=1) == [
        "node0 rank 0: MASTER_ADDR=10.77.1.1 is not an address of this node, but rank 0 runs here"
    ]
    reports = but(right(wanted), 0, master_is_here=None)
    assert faults(reports, per_node=1) == [
        "node0 rank 0: MASTER_ADDR=10.77.1.1 cannot be resolved here, but rank 0 runs here"
    ]


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost"])
def test_a_master_address_local_to_every_node_is_named(address: str) -> None:
    wanted = expected("torchrun", 1)
    reports = right(wanted)
    for rank in range(wanted.size):
        reports = but(changed(reports, rank, MASTER_ADDR=address), rank, master_is_here=True)
    lines = [
        f"{node} rank {rank}: MASTER_ADDR={address} is this node's own address, "
        "but rank 0 runs on node0"
        for rank, node in enumerate(NODES)
    ]
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
    found = leaked(wanted, but(reports, 3, names=names))
    assert found == [
        "node1 rank 3: MNODE_CANARY of the submitting environment is visible",
        "node1 rank 3: SECRET_TOKEN of the submitting environment is visible",
    ]
    asked = replace(wanted, own=frozenset({"SECRET_TOKEN", "MNODE_CANARY"}))
    assert leaked(asked, but(reports, 3, names=names)) == []
    other = replace(wanted, style="deepspeed")
    found = leaked(other, but(reports, 3, names=names))
    assert [text.split()[3] for text in found] == [
        "MNODE_CANARY",
        "SECRET_TOKEN",
        "TORCHELASTIC_RUN_ID",
    ]


def test_n_jobs_of_one_rank_are_not_a_job_of_n() -> None:
    wanted = expected("torchrun", 1)
    reports = [
        replace(
            report,
            met=Met(1, 1, (0,)),
            contract={**report.contract, "RANK": "0", "WORLD_SIZE": "1"},
        )
        for report in right(wanted)
    ]
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
    assert missing_ranks(wanted, reports) == [
        "node1: 0 of 2 ranks reported",
        "node2: 1 of 2 ranks reported",
        "node9: 1 of 0 ranks reported",
    ]
