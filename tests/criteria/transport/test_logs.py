"""Whole NCCL logs of two or more nodes, also with ranks that share a file: the second fact."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_mnode.criteria.transport.evidence import Evidence, NodeTraffic, RankTransport
from pytest_mnode.criteria.transport.logged import logged
from pytest_mnode.criteria.transport.remarks import Case, ProofFact, Remark, in_words
from pytest_mnode.logs.nccl_log.read import read_nccl_log
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.rdma import RdmaDevice
from pytest_mnode.measurement import Verdict
from pytest_mnode.spec import Spec
from tests.criteria.transport.compose import (
    RAILS,
    carried,
    device,
    fallen_back,
    healthy,
    judged,
    judged_as,
    log_text,
    on_ranks,
    ports_of,
    rdma,
    read_log,
    spec_of,
    with_env,
    with_logs,
)

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


def rewritten(kind: str, facts: Evidence, change: Callable[[int, str], str]) -> Evidence:
    """The evidence with each rank's healthy log changed by `change`."""
    nodes = len(facts.nodes)
    return on_ranks(
        facts,
        None,
        lambda r: replace(r, log=read_log(change(r.rank, log_text(r.rank, nodes, kind)))),
    )


def info(text: str) -> str:
    """The beginning of a message of this log's process."""
    return text.splitlines()[-1].partition("NCCL INFO")[0] + "NCCL INFO "


def in_one_log(facts: Evidence, text: Callable[[int], str], end: str = "") -> Evidence:
    """The evidence with the texts of all ranks in one log that all of them share."""
    log = read_nccl_log("".join(text(rank.rank) for rank in facts.ranks) + end)
    return on_ranks(facts, None, lambda rank: replace(rank, log=log))


def _by(way: str) -> Callable[[int, str], str]:
    channel = re.compile(r" \[(?:send|receive)\] via \S+")
    return lambda _, text: channel.sub(f" via {way}", text)


@pytest.mark.parametrize(
    ("way", "why"), [("P2P/MNNVL", " (NVLink between nodes)"), ("SHM/direct/direct", "")]
)
def test_nodes_connected_by_paths_that_bypass_the_fabric(way: str, why: str) -> None:
    healthy_ = healthy("infiniband")
    idle = carried(healthy_, None, {device("infiniband", rail): 0 for rail in range(RAILS)})
    facts = rewritten("infiniband", idle, _by(way))
    words = f"all nodes: channels to other nodes bypass the fabric: they run over {way}{why}"
    judged_as("infiniband", facts, "+--+", {Case.NOT_ON_FABRIC}, words)


def test_a_path_that_bypasses_the_fabric_is_found_after_others_that_do_not() -> None:
    def last(_: int, text: str) -> str:
        end = list(re.finditer(r" \[(?:send|receive)\] via \S+", text))[-1]
        return f"{text[: end.start()]} via P2P/MNNVL{text[end.end() :]}"

    proof = judged("infiniband", rewritten("infiniband", healthy("infiniband"), last))
    assert Case.NOT_ON_FABRIC in proof.cases
    assert "over P2P/MNNVL (NVLink between nodes)" in proof.culprit


def test_paths_within_a_node_are_accepted() -> None:
    def beside(rank: int, text: str) -> str:
        local, first = rank % RAILS, rank // RAILS * RAILS
        peer = first + (local + 1) % RAILS
        path = f"{info(text)}Channel 00/0 : {rank}[{local}] -> {peer}[{peer % RAILS}]"
        return f"{text}{path} via P2P/CUMEM/read\n"

    facts = healthy("infiniband")
    assert judged("infiniband", rewritten("infiniband", facts, beside)).verdict is Verdict.PASS


def test_ranks_of_a_smaller_communicator_are_not_world_ranks() -> None:
    def beside(rank: int, text: str) -> str:
        node, local = divmod(rank, RAILS)
        comm = (
            f"ncclCommSplit comm 0x9a0{rank:03x} rank {node} nranks 3 cudaDev {local} commId 0x77"
        )
        # Ranks of one local rank, numbered by node: their path cannot be NVLink.
        path = f"Channel 00/0 : {node}[0] -> 0[0] via P2P/IPC"
        lines = [f"{comm} - Init START", path, f"{comm} - Init COMPLETE"]
        return text + "".join(f"{info(text)}{line}\n" for line in lines)

    facts = rewritten("infiniband", healthy("infiniband"), beside)
    assert judged("infiniband", facts).verdict is Verdict.PASS


@pytest.mark.parametrize("last_falls_back", [True, False])
def test_the_last_of_several_runs_in_a_file_is_judged(last_falls_back: bool) -> None:
    def both(rank: int, text: str) -> str:
        over = log_text(rank, 3, "infiniband", net="Socket", devices=["mgmt0"])
        runs = [text, over] if last_falls_back else [over, text]
        earlier = re.sub(r"(?m)^(birch\d):5", r"\1:4", runs[0])
        return earlier + runs[1]

    proof = judged("infiniband", rewritten("infiniband", healthy("infiniband"), both))
    assert proof.verdict is (Verdict.FAIL if last_falls_back else Verdict.PASS)


def test_a_node_without_rank_logs_does_not_pass() -> None:
    facts = healthy("infiniband")
    there = tuple(rank for rank in facts.ranks if rank.node != "birch2")
    proof = judged("infiniband", replace(facts, ranks=there))
    assert proof.verdict is Verdict.INCONCLUSIVE
    assert proof.culprit == "birch2: no rank of this node reported its network"
    with pytest.raises(ValueError, match="no rank"):
        judged("infiniband", replace(facts, ranks=()))


@pytest.mark.parametrize(("version", "answers"), [("2.18.3", "+-++"), ("2.21.5", "++++")])
def test_the_version_printed_by_one_rank_counts_for_all(version: str, answers: str) -> None:
    """Older versions take GID 0, whatever its type."""
    facts = with_logs(healthy("roce"), "roce", version=version)
    old = "-" in answers
    words = [f"all nodes: NCCL {version}+cuda12.9 takes GID 0"] * old
    judged_as("roce", facts, answers, {Case.GID_TYPE} if old else set(), *words)
    assert judged("roce", with_env(facts, NCCL_IB_GID_INDEX="3")).verdict is Verdict.PASS
    fallen = fallen_back("roce", facts, None, "mgmt0", version=version)
    assert Case.GID_TYPE not in judged("roce", fallen).cases


def test_libfabric_over_another_fabric() -> None:
    def slingshot(_: int, text: str) -> str:
        text = text.replace("Using network IB", "NET/OFI Selected provider is cxi (found 4 nics)")
        return text.replace("NET/IB/", "NET/AWS Libfabric/")

    proof = judged("infiniband", rewritten("infiniband", healthy("infiniband"), slingshot))
    assert proof.verdict is Verdict.FAIL
    assert "(cxi), promised is infiniband" in proof.culprit


def test_a_link_layer_known_only_from_the_kernel() -> None:
    def bare(_: int, text: str) -> str:
        return text.replace(":1/IB", ":1")

    facts = rewritten("infiniband", healthy("infiniband"), bare)
    assert judged("infiniband", facts).verdict is Verdict.PASS

    on_ethernet = ports_of(facts, "birch1", lambda port: replace(port, link_layer="Ethernet"))
    judged_as(
        "infiniband",
        on_ethernet,
        "--++",
        {Case.OTHER_NETWORK},
        "birch1: protocol of mlx5_0:1, mlx5_1:1, ",
        "is RoCE, promised is InfiniBand; ranks 8-15 on birch1: channels run over NET/IB (roce)",
    )


@pytest.mark.parametrize(
    ("before", "setting", "why"),
    [
        ("NET/Plugin: Could not find: libnccl-net.so.", {}, "its log shows no libfabric plugin"),
        ("", {"NCCL_NET_PLUGIN": "none"}, "NCCL_NET_PLUGIN=none"),
        (
            "NET/Plugin: Could not find: aws-ofi libnccl-net-aws-ofi.so.",
            {},
            "its network plugin aws-ofi could not be initialised",
        ),
    ],
)
def test_why_efa_fell_back(before: str, setting: dict[str, str], why: str) -> None:
    facts = with_env(fallen_back("efa", healthy("efa"), None, "mgmt0", before=before), **setting)
    proof = judged("efa", facts)
    assert proof.verdict is Verdict.FAIL
    assert f"over NET/Socket (mgmt0) instead of efa: {why}" in proof.culprit


def test_libfabric_over_tcp_is_reported() -> None:
    def tcp(_: int, text: str) -> str:
        return text.replace("provider is efa, fabric is efa", "provider is tcp;ofi_rxm")

    proof = judged("efa", rewritten("efa", healthy("efa"), tcp))
    assert "libfabric chose the provider tcp;ofi_rxm" in proof.culprit


@pytest.mark.parametrize(("index", "version"), [(0, "2.27.5"), (3, "2.18.3")])
def test_the_logged_gid_is_judged_by_its_type(index: int, version: str) -> None:
    def shown(rank: int, text: str) -> str:
        who = info(text)
        text = text.replace("2.27.5", version)
        return f"{text}{who}NET/IB: IbDev {rank % RAILS} Port 1 qpn 90 mtu 5 GID {index} (0/1)\n"

    proof = judged("roce", rewritten("roce", healthy("roce"), shown))
    assert proof.cases == ({Case.GID_TYPE} if index == 0 else set())
    assert ("connections use GID 0, which is RoCE v1" in proof.culprit) is (index == 0)


@pytest.mark.parametrize("index", [0, 3])
def test_gids_of_merged_devices_are_judged(index: int) -> None:
    """Lines on connections number the adapters, not the merged devices."""

    def merged(rank: int, text: str) -> str:
        who = info(text)
        each = [f"[{n}] mlx5_{n}:1/RoCE" for n in range(RAILS)]
        pairs = [f"[{n}]={{{each[2 * n]}, {each[2 * n + 1]}}}" for n in range(RAILS // 2)]
        text = re.sub(r"Using \[0\].* \[RO\]", f"Using {' '.join(pairs)} [RO]", text)
        text = re.sub(r"NET/IB/(\d)", lambda found: f"NET/IB/{int(found[1]) // 2}", text)
        return (
            f"{text}{who}NET/IB: NCCL Dev 0 IbDev {rank % RAILS} Port 1 qpn 9 GID {index} (0/1)\n"
        )

    proof = judged("roce", rewritten("roce", healthy("roce"), merged))
    assert proof.cases == ({Case.GID_TYPE} if index == 0 else set())
    assert ("which is RoCE v1 on mlx5_5:1, promised v2" in proof.culprit) is (index == 0)


def test_containers_with_the_same_name_are_distinguished() -> None:
    def text(rank: int) -> str:
        over = {"net": "Socket", "devices": ["mgmt0"]} if rank // RAILS == 1 else {}
        words = log_text(rank, 3, "infiniband", **over)  # type: ignore[arg-type]
        return re.sub(r"(?m)^birch\d:", "main:", words)

    facts = in_one_log(healthy("infiniband"), text)
    log = facts.ranks[0].log
    assert log is not None
    assert sorted(one.rank for one in log.ranks if one.rank is not None) == [*range(3 * RAILS)]
    proof = judged("infiniband", facts)
    assert proof.culprit.startswith("ranks 8-15 on birch1: alone, channels run over NET/Socket")


def test_a_node_with_fewer_ranks_than_others_is_not_blamed_for_its_rails() -> None:
    facts = healthy("infiniband")
    proof = judged("infiniband", replace(facts, ranks=facts.ranks[:20]))
    assert proof.verdict is Verdict.INCONCLUSIVE
    assert proof.culprit == "birch2: 4 ranks of this node reported their network, 8 of another node"


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("NET/IB : mlx5_3:1 Got async event : port error", Verdict.FAIL),
        ("NET/IB : mlx5_3:1 async fatal event on QP #0x12", Verdict.FAIL),
        ("Connect to 10.0.0.9<42> failed : Connection timed out, retrying", Verdict.PASS),
        ("something unknown timed out", Verdict.INCONCLUSIVE),
        ("Cuda failure 3 'initialization error'", Verdict.INCONCLUSIVE),
        ("Call to ibv_create_cq failed with error Invalid argument", Verdict.FAIL),
        ("Missing iommu setting", Verdict.PASS),
    ],
)
def test_warnings_at_the_end_of_the_log(text: str, verdict: Verdict) -> None:
    warned = f"birch1:5000:5100 [0] transport/net_ib.cc:1 NCCL WARN {text}\n"
    facts = rewritten(
        "infiniband", healthy("infiniband"), lambda r, log: log + (warned if r == RAILS else "")
    )
    assert judged("infiniband", facts).verdict is verdict


def test_the_adapter_for_which_gpudirect_is_disabled() -> None:
    before = "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'"
    facts = with_logs(healthy("infiniband"), "infiniband", gdr="", before=before)
    words = "NCCL says that it is disabled for mlx5_0"
    judged_as("infiniband", facts, "+-++", {Case.GPUDIRECT_OFF}, words)


USING = [
    ("infiniband", "Socket", Verdict.FAIL, "NCCL uses network Socket instead of infiniband"),
    ("roce", "Socket", Verdict.FAIL, "NCCL uses network Socket instead of roce"),
    ("efa", "Socket", Verdict.FAIL, "instead of efa: its log shows no libfabric plugin"),
    ("infiniband", "FasTrak", Verdict.FAIL, "NCCL uses network FasTrak (GPUDirect-TCP)"),
    ("ethernet", "IBext_v8", Verdict.FAIL, "NCCL uses network IBext_v8 (RDMA), promised is"),
    ("infiniband", "IB", Verdict.INCONCLUSIVE, "no channel that leaves the node is logged"),
    ("ethernet", "Socket", Verdict.INCONCLUSIVE, "no channel that leaves the node is logged"),
    ("infiniband", "Quillon", Verdict.INCONCLUSIVE, "no channel that leaves the node is logged"),
]


@pytest.mark.parametrize(
    "text",
    ["Call to ibv_reg_mr failed with error Cannot allocate memory", "Error: network IB not found."],
)
def test_a_failure_in_a_log_without_rank_numbers(text: str) -> None:
    lines = [f"birch1:{pid}:1 [0] a.cc:1 NCCL WARN {text}\n" for pid in (5, 6)]
    facts = rewritten("infiniband", healthy("infiniband"), lambda *_: "".join(lines))
    proof = judged("infiniband", facts)
    assert proof.verdict is Verdict.FAIL
    for pid in (5, 6):
        assert proof.culprit.count(f"all nodes: birch1:{pid}: ") == 1


@pytest.mark.parametrize("with_comm", [True, False])
@pytest.mark.parametrize(("kind", "network", "verdict", "words"), USING)
def test_the_network_in_use_is_judged_without_channel_lines(
    kind: str, network: str, verdict: Verdict, words: str, with_comm: bool
) -> None:
    def cut(rank: int, text: str) -> str:
        who = info(text)
        begun = f"{who}comm 0x1 rank {rank} nranks {3 * RAILS} cudaDev 0 - Init START\n"
        return f"{who}Using network {network}\n{begun if with_comm else ''}"

    proof = judged(kind, rewritten(kind, healthy(kind), cut))
    assert proof.verdict is verdict
    assert words in proof.culprit


MODIFY = "Call to ibv_modify_qp failed with "
ON = ", on dev mlx5_3:1, curr state INIT, next state RTR, local GID index 3, local GID "


@pytest.mark.parametrize(
    ("text", "case", "words"),
    [
        (
            f"{MODIFY}110 Connection timed out{ON}::ffff:10.3.0.1, remote GID ::ffff:10.7.0.2",
            Case.FAILED,
            "no route between RDMA ports (mlx5_3:1, peer ::ffff:10.7.0.2, 110 Connection timed out",
        ),
        (f"{MODIFY}error Network is unreachable", Case.FAILED, "no route between RDMA ports"),
        (
            f"{MODIFY}110 Connection timed out{ON}::ffff:10.3.0.1, remote GID ::ffff:10.3.0.2",
            Case.FAILED,
            "queue pair not connected (mlx5_3:1",
        ),
        (
            f"{MODIFY}22 Invalid argument{ON}fe80::a, remote GID fe80::b",
            Case.GID_TYPE,
            "wrong GID (mlx5_3:1, peer fe80::b, 22 Invalid argument",
        ),
        (
            f"{MODIFY}22 Invalid argument{ON}::ffff:10.3.0.1, remote GID fd00::2",
            Case.GID_TYPE,
            "wrong GID (mlx5_3:1",
        ),
        (f"{MODIFY}error Invalid argument", Case.FAILED, "queue pair not connected: NCCL warned"),
    ],
)
def test_why_a_queue_pair_could_not_be_connected(text: str, case: Case, words: str) -> None:
    warned = (
        f"birch1:5000:5100 [0] misc/ibvwrap.cc:1 NCCL WARN {text}\n"
        "birch1:5000:5100 [0] NCCL INFO transport/net_ib/connect.cc:9 (ncclIbConnect) -> 2\n"
    )
    facts = rewritten("roce", healthy("roce"), lambda r, log: log + (warned if r == RAILS else ""))
    proof = judged("roce", facts)
    assert proof.cases == {case}
    assert proof.culprit.startswith(f"rank 8 on birch1: {words}")


def test_a_warning_of_one_gpu_is_not_given_to_other_ranks_of_the_process() -> None:
    def text(rank: int) -> str:
        return re.sub(r"(?m)^birch(\d):\d+:", r"birch\1:77:", log_text(rank, 3, "infiniband"))

    warned = (
        "birch1:77:1 [2] net_ib.cc:1 NCCL WARN NET/IB : mlx5_2:1 Got async event : port error\n"
    )
    proof = judged("infiniband", in_one_log(healthy("infiniband"), text, warned))
    assert proof.culprit.startswith("rank 10 on birch1: port went down (mlx5_2:1, port error)")
    assert "ranks" not in proof.culprit


@pytest.mark.parametrize(
    ("before", "why"),
    [
        ("NET/IB : No device found.", "NCCL says no device found, though there is mlx5_0, "),
        ("Failed to open libibverbs.so[.1]", "NCCL says libibverbs could not be opened"),
        ("NET/Plugin: Could not find: rail libnccl-net-rail.so.", "its network plugin rail could"),
        ("", "its network IB could not be initialised"),
    ],
)
def test_why_the_network_of_nccl_itself_failed(before: str, why: str) -> None:
    """NCCL says since 2.27 that its IB failed, whatever the reason."""
    how = {"before": before, "after": "Failed to initialize NET plugin IB"}
    facts = fallen_back("infiniband", healthy("infiniband"), "birch1", "mgmt0", **how)
    logged = judged("infiniband", facts).text(Verdict.FAIL, ProofFact.LOGGED)
    assert f"over NET/Socket (mgmt0) instead of infiniband: {why}" in logged


def _ucx(rank: int, *configs: str, old: bool = False) -> str:
    """Lines of UCX_LOG_LEVEL=info of the process of `log_text`."""
    where = "ep_cfg[{}]: " if old else "ucp_context_0 inter-node cfg#{} "
    lines = [f"{where.format(i)}{config}" for i, config in enumerate(configs)]
    own = "ep_cfg[9]: " if old else "ucp_context_0 self cfg#9 "
    lines.append(f"{own}tag(self/memory cma/memory tcp/lo)")
    process = f"birch{rank // RAILS}:{5000 + rank % RAILS}:0"
    head = f"[1750940428.18] [{process}]  ucp_worker.c:19 UCX  INFO    "
    return "".join(f"{head}{line}\n" for line in lines)


_OVER_UCX = [
    ("infiniband", ["tag(rc_mlx5/mlx5_0:1 rc_mlx5/mlx5_3:1)"], None, ""),
    ("infiniband", ["tag(dc_mlx5/mlx5_0:1) rma(rc_verbs/mlx5_1:1 tcp/mgmt0)"], None, ""),
    ("roce", ["tag(tcp/mgmt0 tcp/ib0)"], Case.SOCKETS, "UCX's tcp (mgmt0, ib0) instead of roce"),
    ("roce", ["tag(ud_verbs/mlx5_1:1)", "am(tcp/mgmt0)"], Case.SOCKETS, "UCX_TLS=tcp,sm"),
    ("infiniband", ["tag(rc_mlx5/mlx5_9:1)"], Case.WRONG_INTERFACE, "UCX runs over mlx5_9:1"),
    ("roce", ["tag(rc_x/mlx5_0:1 rc_x/mlx5_bond_0:1)"], Case.STRAY_RAIL, "mlx5_bond_0:1, not"),
    ("ethernet", ["tag(tcp/eth1 tcp/eth2)"], None, ""),
    ("ethernet", ["tag(tcp/mgmt0)"], Case.WRONG_INTERFACE, "mgmt0, not over the fabric"),
    ("ethernet", ["tag(rc_mlx5/mlx5_0:1)"], Case.OTHER_NETWORK, "promised is ethernet"),
]


@pytest.mark.parametrize(("backend", "old"), [("nccl", False), ("mpi", True)])
@pytest.mark.parametrize(("kind", "configs", "case", "words"), _OVER_UCX)
def test_transports_of_ucx(
    kind: str, configs: list[str], case: Case | None, words: str, backend: str, *, old: bool
) -> None:
    def with_ucx(rank: int, text: str) -> str:
        ucx = _ucx(rank, *configs, old=old)
        return ucx + text.replace("NET/IB/", "NET/UCX/", 1) if backend == "nccl" else ucx

    facts = with_env(healthy(kind, 2), UCX_TLS="tcp,sm")
    facts = replace(rewritten(kind, facts, with_ucx), backend=backend)
    proof = judged(kind, facts)
    against = [r for r in proof.remarks if r.verdict is Verdict.FAIL and r.fact is ProofFact.LOGGED]
    if backend == "nccl" and kind == "ethernet":
        case = None  # NCCL's channels use its own sockets: UCX carries other traffic
    assert proof.answers["logged"] == ("fail" if case else "pass")
    assert {remark.case for remark in against} == ({case} if case else set())
    assert words in proof.text(Verdict.FAIL, ProofFact.LOGGED) or case is None


def test_a_backend_without_logs() -> None:
    facts = replace(rewritten("roce", healthy("roce", 2), lambda *_: ""), backend="mpi")
    proof = judged("roce", facts)
    assert proof.answers["logged"] == "inconclusive"
    assert "set UCX_LOG_LEVEL=info" in proof.culprit
