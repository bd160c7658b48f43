"""Rank reports of a correct job of each launch style, and helpers that change them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest_mnode.criteria.launching.contract import LOGIN, Expected
from pytest_mnode.criteria.launching.paths import Outcome, Submitted
from pytest_mnode.criteria.launching.reports import Login, Met, RankReport
from pytest_mnode.criteria.launching.starting import Started
from pytest_mnode.measurement import Measurement, Verdict

NODES = ("node0", "node1", "node2", "node3")
PINS = {node: {"GLOO_SOCKET_IFNAME": "fab0", "NCCL_SOCKET_IFNAME": "=fab0"} for node in NODES}
OUTSIDE = frozenset({"MNODE_CANARY", "HOME", "SECRET_TOKEN", "TORCHELASTIC_RUN_ID"})


def expected(style: str = "torchrun", per_node: int = 2, **changes: Any) -> Expected:
    made = Expected(style, NODES, per_node, 0, PINS, OUTSIDE)
    return replace(made, **changes)


def right(wanted: Expected) -> list[RankReport]:
    """The report of each rank of a job whose environment is as expected."""
    return [_rank(wanted, rank) for rank in range(wanted.size)]


def _rank(wanted: Expected, rank: int) -> RankReport:
    number, local = divmod(rank, wanted.per_node)
    node = wanted.nodes[number]
    count = len(wanted.nodes)
    contract = {"RANK": rank, "WORLD_SIZE": wanted.size, "LOCAL_RANK": local}
    more: dict[str, dict[str, int]] = {
        "torchrun": {
            "LOCAL_WORLD_SIZE": wanted.per_node,
            "GROUP_RANK": number,
            "GROUP_WORLD_SIZE": count,
        },
        "deepspeed": {"LOCAL_SIZE": wanted.per_node, "CROSS_RANK": number, "CROSS_SIZE": count},
        "megatron": {
            "SLURM_PROCID": rank,
            "SLURM_NTASKS": wanted.size,
            "SLURM_LOCALID": local,
            "SLURM_NODEID": number,
            "SLURM_JOB_NUM_NODES": count,
        },
    }
    texts = {name: str(value) for name, value in (contract | more[wanted.style]).items()}
    texts |= {"MASTER_ADDR": "10.77.1.1", "MASTER_PORT": "29500", **wanted.pins.get(node, {})}
    return RankReport(
        node=node,
        uid=65534,
        root="1:2",
        arguments=(),
        contract=texts,
        names=LOGIN | set(texts),
        interfaces=frozenset({"lo", "fab0", "mgmt0"}),
        accelerators=wanted.accelerators,
        master_is_here=number == 0,
        met=Met(wanted.size, wanted.size * (wanted.size + 1) // 2, tuple(range(wanted.size))),
        error="",
    )


def changed(reports: list[RankReport], rank: int, **variables: str | None) -> list[RankReport]:
    """The reports with variables of one rank changed; None removes a variable."""
    found = list(reports)
    kept = {k: v for k, v in found[rank].contract.items() if k not in variables}
    kept |= {k: v for k, v in variables.items() if v is not None}
    found[rank] = replace(found[rank], contract=kept)
    return found


def everywhere(reports: list[RankReport], **variables: str | None) -> list[RankReport]:
    """The reports with variables of all ranks changed."""
    for rank in range(len(reports)):
        reports = changed(reports, rank, **variables)
    return reports


def but(reports: list[RankReport], rank: int, **fields: Any) -> list[RankReport]:
    """The reports with fields of one rank's report changed."""
    found = list(reports)
    found[rank] = replace(found[rank], **fields)
    return found


def started(reports: list[RankReport] | None = None, **outcome: Any) -> Started:
    wanted = expected()
    found = Outcome(
        codes=dict.fromkeys(NODES, 0),
        reports=tuple(right(wanted) if reports is None else reports),
        logins=(Login("node0", 0, "root", "no right"), Login("node1", 65534, "nobody", "")),
        hosts={node: node for node in NODES},
        output=dict.fromkeys(NODES, "noise\n{}"),
        seconds=4.0,
    )
    submitted = Submitted(NODES, PINS, ("a note",))
    return Started("torchrun", wanted, submitted, replace(found, **outcome))


def red(found: dict[str, Measurement]) -> dict[str, str | None]:
    return {n: m.culprit for n, m in found.items() if m.verdict is Verdict.FAIL}


def open_(found: dict[str, Measurement]) -> set[str]:
    return {n for n, m in found.items() if m.verdict is Verdict.INCONCLUSIVE}
