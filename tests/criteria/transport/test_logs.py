"""Whole logs of two nodes and more, as ranks that share a file leave them, to the second fact."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mnode.criteria.transport import (
    Answer,
    Case,
    Facts,
    FactVerdict,
    NodeFacts,
    Port,
    RankFacts,
)
from pytest_mnode.criteria.transport.logged import logged
from pytest_mnode.logs.nccl_log import read_nccl_log
from pytest_mnode.spec import Spec

LOGS = Path(__file__).parents[3] / "fixtures" / "logs"


def _spec(kind: str, nics: int) -> Spec:
    return Spec.model_validate(
        {
            "name": "two rails",
            "nodes": 4,
            "accelerators": {"per_node": 2},
            "fabric": {
                "kind": kind,
                "interfaces": ["mlx5_*", "rdmap*"],
                "line_rate": "400 Gbit/s",
                "nics_per_node": nics,
                "mtu": 4096,
                "gpudirect": True,
            },
            "criteria": {"fabric": {"transport": {}}},
            "certificate": {"valid_for": "1 days"},
        }
    )


def _port(device: str, address: str) -> Port:
    return Port(device=device, port=1, sent_bytes=1, state="ACTIVE", pci_address=address)


def _judged(
    name: str, kind: str, ranks: int, ports: tuple[Port, ...] | None, nics: int = 2
) -> FactVerdict:
    log = read_nccl_log((LOGS / f"{name}.log").read_bytes())
    nodes = [f"larch0{1 + rank // 2}" for rank in range(ranks)]
    facts = Facts(
        backend="nccl",
        size_bytes=1 << 30,
        calls=1,
        nodes=tuple(NodeFacts(name=n, nics=(), ports=ports) for n in dict.fromkeys(nodes)),
        ranks=tuple(
            RankFacts(rank=rank, node=node, environment={"NCCL_DEBUG": "INFO"}, log=log)
            for rank, node in enumerate(nodes)
        ),
    )
    return logged(facts, _spec(kind, nics), "v2")


@pytest.mark.parametrize(
    ("name", "kind", "answer", "cases"),
    [
        ("ib-gdr-2.21", "infiniband", Answer.AGREES, set()),
        ("roce-v2-2.26", "roce", Answer.AGREES, set()),
        ("sharp-merged-2.20", "infiniband", Answer.AGREES, set()),
        ("efa-2.27", "efa", Answer.AGREES, set()),
        ("one-process-2.30", "roce", Answer.DISAGREES, {Case.FAILED, Case.UNREADABLE}),
        ("ib-recovered-2.28", "infiniband", Answer.AGREES, {Case.RECOVERED}),
        ("ib-staged-2.18", "infiniband", Answer.DISAGREES, {Case.GPUDIRECT_OFF}),
        ("rail-down-2.23", "infiniband", Answer.DISAGREES, {Case.RAIL_DOWN}),
        ("socket-no-device-2.27", "infiniband", Answer.DISAGREES, {Case.NO_DEVICE}),
        ("socket-ib-disabled-2.20", "infiniband", Answer.DISAGREES, {Case.IB_DISABLED}),
        ("socket-ipoib-2.19", "infiniband", Answer.DISAGREES, {Case.IB_DISABLED, Case.IPOIB}),
        (
            "roce-wrong-gid-2.19",
            "roce",
            Answer.DISAGREES,
            {Case.GID_TYPE, Case.UNREADABLE},
        ),
        ("ib-gdr-2.21", "roce", Answer.DISAGREES, {Case.OTHER_NETWORK}),
        ("ib-gdr-2.21", "efa", Answer.DISAGREES, {Case.OTHER_NETWORK}),
        ("unknown-plugin-2.30", "infiniband", Answer.MISSING, {Case.UNKNOWN_NETWORK}),
        ("ib-aborted-2.29", "infiniband", Answer.DISAGREES, {Case.FAILED}),
        ("cut-2.21", "infiniband", Answer.MISSING, {Case.UNREADABLE}),
        ("empty", "infiniband", Answer.MISSING, {Case.NO_LOG}),
    ],
)
def test_each_log(name: str, kind: str, answer: Answer, cases: set[Case]) -> None:
    verdict = _judged(name, kind, 4, None)
    assert (verdict.answer, {f.case for f in verdict.findings}) == (answer, cases)


def test_a_connection_that_died_names_nic_peer_and_remedy() -> None:
    text = _judged("ib-aborted-2.29", "infiniband", 4, None).text(Answer.DISAGREES, ["larch01"])
    assert text.startswith("rank 3 on larch02: RDMA peer did not answer (mlx5_3, peer 10.44.0.11, ")
    assert text.endswith(
        "; check the link, PFC and routing between the two ports; see whether the peer died"
    )


def test_of_one_process_with_two_gpus_only_the_rank_that_failed_is_blamed() -> None:
    text = _judged("one-process-2.30", "roce", 4, None).text(Answer.DISAGREES, ["larch01"])
    assert text.startswith("rank 3 on larch02: no route between RDMA ports (mlx5_3:1, peer ")
    assert "::ffff:10.45.3.2 to ::ffff:10.45.0.1" in text
    assert text.endswith("keep NCCL within a rail with NCCL_CROSS_NIC=0")


@pytest.mark.parametrize(("nics", "answer"), [(2, Answer.AGREES), (4, Answer.AGREES), (8, None)])
def test_each_nic_of_a_group_counts_as_a_rail(nics: int, answer: Answer | None) -> None:
    ports = tuple(
        _port(f"rdmap{n}s0", f"0000:{bus}:00.0") for n, bus in enumerate(("53", "52", "6c", "6b"))
    )
    verdict = _judged("efa-groups-2.23", "efa", 4, ports, nics=nics)
    assert verdict.answer is (answer or Answer.DISAGREES)
    if answer is None:
        assert "channels run over 4 of 8 rails" in verdict.text(Answer.DISAGREES, ["larch01"])


def test_the_one_node_on_tcp_is_named() -> None:
    verdict = _judged("one-node-on-tcp-2.24", "infiniband", 6, None)
    assert verdict.text(Answer.DISAGREES, ["larch01", "larch02", "larch03"]) == (
        "ranks 4-5 on larch03: alone, channels run over NET/Socket (eno1) instead of infiniband: "
        "NCCL says libibverbs could not be opened; not so larch01, larch02"
    )


def test_libfabric_names_devices_by_their_pci_address() -> None:
    ours = (_port("rdmap83s0", "0000:53:00.0"), _port("rdmap108s0", "0000:6c:00.0"))
    assert _judged("efa-2.27", "efa", 4, ours).answer is Answer.AGREES
    stray = (_port("rdmap83s0", "0000:53:00.0"), _port("storage0", "0000:6c:00.0"))
    [first, *_] = _judged("efa-2.27", "efa", 4, stray).findings
    assert first.case is Case.STRAY_RAIL
    assert first.text.startswith("channels run over storage0, not of the fabric")
