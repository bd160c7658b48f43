"""Whole NCCL logs of two or more nodes, also with ranks that share a file: the second fact."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_mnode.criteria.transport.evidence import Evidence, NodeTraffic, RankTransport
from pytest_mnode.criteria.transport.logged import logged
from pytest_mnode.criteria.transport.remarks import Case, Remark, in_words
from pytest_mnode.logs.nccl_log.read import read_nccl_log
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.rdma import RdmaDevice
from pytest_mnode.measurement import Verdict
from pytest_mnode.spec import Spec
from tests.criteria.transport.compose import healthy, log_text, rdma, spec_of

LOGS = Path(__file__).parents[3] / "fixtures" / "logs"


def _spec(kind: str, nics: int) -> Spec:
    spec = spec_of(kind)
    changes = {"interfaces": ("mlx5_*", "rdmap*"), "nics_per_node": nics}
    fabric = spec.fabric.model_copy(update=changes)
    two = spec.accelerators.model_copy(update={"per_node": 2})
    return spec.model_copy(update={"fabric": fabric, "accelerators": two})


def _remarks(
    name: str, kind: str, ranks: int, devices: tuple[RdmaDevice, ...] | None, nics: int = 2
) -> list[Remark]:
    log = read_nccl_log((LOGS / f"{name}.log").read_bytes())
    nodes = [f"larch0{1 + rank // 2}" for rank in range(ranks)]
    machine = Machine(interfaces=(), rdma=devices)
    facts = Evidence(
        backend="nccl",
        size_bytes=1 << 30,
        calls=1,
        nodes=tuple(NodeTraffic(name=n, machine=machine) for n in dict.fromkeys(nodes)),
        ranks=tuple(
            RankTransport(rank=rank, node=node, environment={"NCCL_DEBUG": "INFO"}, log=log)
            for rank, node in enumerate(nodes)
        ),
    )
    return logged(facts, _spec(kind, nics), "v2")


def _verdict(remarks: list[Remark]) -> Verdict:
    verdicts = [remark.verdict for remark in remarks]
    order = (Verdict.FAIL, Verdict.INCONCLUSIVE)
    return next((verdict for verdict in order if verdict in verdicts), Verdict.PASS)


def _against(remarks: list[Remark]) -> str:
    return in_words((r for r in remarks if r.verdict is Verdict.FAIL), ["larch01"])


@pytest.mark.parametrize(
    ("name", "kind", "verdict", "cases"),
    [
        ("ib-gdr-2.21", "infiniband", Verdict.PASS, set()),
        ("roce-v2-2.26", "roce", Verdict.PASS, set()),
        ("sharp-merged-2.20", "infiniband", Verdict.PASS, set()),
        ("efa-2.27", "efa", Verdict.PASS, set()),
        ("one-process-2.30", "roce", Verdict.FAIL, {Case.FAILED, Case.UNREADABLE}),
        ("ib-recovered-2.28", "infiniband", Verdict.PASS, {Case.RECOVERED}),
        ("ib-staged-2.18", "infiniband", Verdict.FAIL, {Case.GPUDIRECT_OFF}),
        ("rail-down-2.23", "infiniband", Verdict.FAIL, {Case.RAIL_DOWN}),
        ("socket-no-device-2.27", "infiniband", Verdict.FAIL, {Case.NO_DEVICE}),
        ("socket-ib-disabled-2.20", "infiniband", Verdict.FAIL, {Case.IB_DISABLED}),
        ("socket-ipoib-2.19", "infiniband", Verdict.FAIL, {Case.IB_DISABLED, Case.IPOIB}),
        ("roce-wrong-gid-2.19", "roce", Verdict.FAIL, {Case.GID_TYPE, Case.UNREADABLE}),
        ("ib-gdr-2.21", "roce", Verdict.FAIL, {Case.OTHER_NETWORK}),
        ("ib-gdr-2.21", "efa", Verdict.FAIL, {Case.OTHER_NETWORK}),
        ("unknown-plugin-2.30", "infiniband", Verdict.INCONCLUSIVE, {Case.UNKNOWN_NETWORK}),
        ("ib-aborted-2.29", "infiniband", Verdict.FAIL, {Case.FAILED}),
        ("cut-2.21", "infiniband", Verdict.INCONCLUSIVE, {Case.UNREADABLE}),
        ("empty", "infiniband", Verdict.INCONCLUSIVE, {Case.NO_LOG}),
    ],
)
def test_remarks_on_each_example_log(
    name: str, kind: str, verdict: Verdict, cases: set[Case]
) -> None:
    remarks = _remarks(name, kind, 4, None)
    assert (_verdict(remarks), {remark.case for remark in remarks}) == (verdict, cases)


def test_another_network_than_promised_is_named() -> None:
    text = _against(_remarks("ib-gdr-2.21", "roce", 4, None))
    assert "channels run over NET/IB (infiniband), promised is roce" in text


def test_a_connection_that_died_names_nic_peer_and_remedy() -> None:
    text = _against(_remarks("ib-aborted-2.29", "infiniband", 4, None))
    assert text.startswith("rank 3 on larch02: RDMA peer did not answer (mlx5_3, peer 10.44.0.11, ")
    assert text.endswith(
        "; check the link, PFC and routing between the two ports; check whether the peer died"
    )


def test_only_the_failed_rank_of_a_process_with_two_gpus_is_blamed() -> None:
    text = _against(_remarks("one-process-2.30", "roce", 4, None))
    assert text.startswith("rank 3 on larch02: no route between RDMA ports (mlx5_3:1, peer ")
    assert "::ffff:10.45.3.2 to ::ffff:10.45.0.1" in text
    assert text.endswith("keep NCCL within a rail with NCCL_CROSS_NIC=0")


@pytest.mark.parametrize("nics", [2, 4, 8])
def test_each_nic_of_a_group_counts_as_a_rail(nics: int) -> None:
    devices = tuple(
        rdma(f"rdmap{n}s0", "efa", pci=f"0000:{bus}:00.0")
        for n, bus in enumerate(("53", "52", "6c", "6b"))
    )
    against = _against(_remarks("efa-groups-2.23", "efa", 4, devices, nics=nics))
    assert ("channels run over 4 of 8 rails" in against) is bool(against) is (nics == 8)


def test_the_one_node_on_tcp_is_named() -> None:
    assert _against(_remarks("one-node-on-tcp-2.24", "infiniband", 6, None)) == (
        "ranks 4-5 on larch03: alone, channels run over NET/Socket (eno1) instead of infiniband: "
        "NCCL says libibverbs could not be opened (no fallback on larch01, larch02)"
    )


def test_libfabric_names_devices_by_their_pci_address() -> None:
    def devices(*names: str) -> tuple[RdmaDevice, ...]:
        pairs = zip(names, ("0000:53:00.0", "0000:6c:00.0"), strict=True)
        return tuple(rdma(name, "efa", pci=address) for name, address in pairs)

    assert not _remarks("efa-2.27", "efa", 4, devices("rdmap83s0", "rdmap108s0"))
    [first, *_] = _remarks("efa-2.27", "efa", 4, devices("rdmap83s0", "storage0"))
    assert first.case is Case.STRAY_RAIL
    assert first.text.startswith("channels run over storage0, not of the fabric")


@pytest.mark.parametrize(
    ("names", "odd"),
    [
        (("IB", "IB", "IB"), ()),
        (("IBext_v8", "IBext_v8", "IBext_v8"), ()),
        (("IB", "IBext_v8", "IB"), ("birch1",)),
        (("IBext_v8", "IBext_v7", "IBext_v8"), ("birch1",)),
        # Neither of two is the usual one.
        (("IB", "IBext_v8"), ("birch0", "birch1")),
    ],
)
def test_ranks_with_unequal_network_plugins(names: tuple[str, ...], odd: tuple[str, ...]) -> None:
    facts = healthy("infiniband", len(names))
    ranks = []
    for rank in facts.ranks:
        name = names[int(rank.node.removeprefix("birch"))]
        log = log_text(rank.rank, len(names), "infiniband", net=name).replace(
            "NET/Plugin: Loaded net plugin",
            "NET/IB : Using "
            + " ".join(f"[{i}]mlx5_{i}:1/IB" for i in range(8))
            + " [RO]; OOB mgmt0:10.9.0.1<0>",
        )
        ranks.append(replace(rank, log=read_nccl_log(log)))
    found = logged(replace(facts, ranks=tuple(ranks)), spec_of("infiniband"), "v2")
    assert [one for one in found if one.case is not Case.DIFFERS] == []
    assert {one.node for one in found} == set(odd)
    assert {one.verdict for one in found} <= {Verdict.FAIL}
    assert {one.sure for one in found} <= {len(names) > 2}
    assert all("NCCL_NET_PLUGIN=none" in one.text for one in found)
