"""The judge of four facts: each way in which traffic misses the fabric is identified and named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_mnode.criteria.transport.counted import expected_bytes
from pytest_mnode.criteria.transport.evidence import NodeTraffic
from pytest_mnode.criteria.transport.remarks import Case, ProofFact
from pytest_mnode.logs.nccl_log.read import read_nccl_log
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.rdma import Port
from pytest_mnode.measurement import Verdict
from tests.criteria.transport.compose import (
    PROMISE,
    RAILS,
    carried,
    device,
    fallen_back,
    healthy,
    interface,
    judged,
    judged_as,
    log_text,
    moved,
    on_node,
    on_rank,
    on_ranks,
    ports_of,
    rdma,
    spec_of,
    with_env,
    with_logs,
    with_nics,
)

KINDS = ("infiniband", "roce", "efa", "ethernet")
IB_RAILS = [device("infiniband", rail) for rail in range(RAILS)]
PINNED = ProofFact.PINNED


def no_devices(node: NodeTraffic) -> NodeTraffic:
    return replace(node, machine=replace(node.machine, rdma=()))


def seventh_down(port: Port) -> Port:
    return replace(port, state="DOWN") if port.device == "mlx5_7" else port


@pytest.mark.parametrize(
    ("kind", "nodes"), [("infiniband", 2), ("roce", 3), ("efa", 4), ("ethernet", 3)]
)
def test_four_facts_that_agree_pass(kind: str, nodes: int) -> None:
    assert judged_as(kind, healthy(kind, nodes), "++++", set()).remarks == []


def test_no_device() -> None:
    before = "NET/IB : No device found."
    facts = fallen_back("roce", healthy("roce"), "birch1", "mgmt0", before=before)
    judged_as(
        "roce",
        on_node(facts, "birch1", no_devices),
        "+---",
        {Case.NO_DEVICE, Case.NOT_QUIET},
        "ranks 8-15 on birch1: alone, channels run over NET/Socket (mgmt0) instead of roce: "
        "the node has no RDMA device (no fallback on birch0, birch2)",
        "birch1: no RDMA device of the fabric (mlx5_[0-7]); mgmt0 sent ",
    )


def test_a_cluster_without_rdma_devices_fails_at_any_bandwidth() -> None:
    facts = fallen_back("infiniband", healthy("infiniband"), None, "mgmt0")
    facts = on_node(facts, None, no_devices)
    proof = judged_as("infiniband", facts, "+---", {Case.NO_DEVICE, Case.NOT_QUIET})
    counted = [(r.node, r.case) for r in proof.remarks if r.fact is ProofFact.COUNTED]
    assert counted == [(f"birch{node}", Case.NO_DEVICE) for node in range(3)]
    assert proof.culprit.startswith("all nodes: channels run over NET/Socket")


@pytest.mark.parametrize(
    ("setting", "case", "words"),
    [
        ("NCCL_IB_DISABLE=1", Case.IB_DISABLED, "NCCL_IB_DISABLE=1 disables RDMA; "),
        ("NCCL_NET=Socket", Case.NET_CHOSEN, "NCCL_NET=Socket chooses sockets where roce is "),
    ],
)
def test_switched_off_by_a_variable(setting: str, case: Case, words: str) -> None:
    name, value = setting.split("=")
    facts = with_env(fallen_back("roce", healthy("roce"), None, "mgmt0"), **{name: value})
    cases = {case, Case.NOT_ON_FABRIC, Case.NOT_QUIET}
    proof = judged_as("roce", facts, "----", cases, f"instead of roce: {setting}")
    assert proof.culprit.startswith(f"all nodes: {words}")


def test_switched_off_by_a_file_is_named_with_the_file() -> None:
    facts = with_env(healthy("infiniband"), "birch2", NCCL_IB_DISABLE="0x1")
    files = {"NCCL_IB_DISABLE": "/etc/nccl.conf"}
    facts = on_ranks(facts, None, lambda r: replace(r, settings_of_files=files))
    judged_as(
        "infiniband",
        facts,
        "-+++",
        {Case.DIFFERS, Case.IB_DISABLED},
        "ranks 16-23 on birch2: NCCL_IB_DISABLE=0x1 (in /etc/nccl.conf) disables RDMA; ",
        "NCCL_IB_DISABLE is '0x1', on other ranks not set",
    )


def test_if_no_value_is_that_of_most_ranks_nobody_is_to_blame_for_sure() -> None:
    facts = with_env(healthy("infiniband", 2), "birch1", NCCL_ALGO="Ring")
    culprit = judged("infiniband", facts).measurements[0].culprit
    assert culprit is not None
    assert "birch1: NCCL_ALGO is 'Ring', on other ranks not set" in culprit
    assert "birch0: NCCL_ALGO is not set, on other ranks 'Ring'" in culprit
    assert culprit.nodes == set()
    assert culprit.either == {frozenset(["birch0"]), frozenset(["birch1"])}
    facts = with_env(healthy("infiniband", 3), "birch1", NCCL_ALGO="Ring")
    culprit = judged("infiniband", facts).measurements[0].culprit
    assert culprit is not None
    assert culprit.nodes == {"birch1"}


def test_a_setting_known_from_the_log_alone_counts() -> None:
    before = "NCCL_IB_DISABLE set by environment to 1."
    facts = with_logs(healthy("infiniband"), "infiniband", before=before)
    words = "NCCL_IB_DISABLE=1 (in its log)"
    judged_as("infiniband", facts, "-+++", {Case.IB_DISABLED}, words)


@pytest.mark.parametrize(
    ("written", "case", "words"),
    [
        ("mlx5_9", Case.NO_DEVICE, "takes no RDMA device of this node"),
        ("=mlx5_0,mlx5_1", Case.RAIL_DOWN, "leaves out mlx5_2, mlx5_3"),
        ("^=mlx5_7,mlx5_10", Case.RAIL_DOWN, "leaves out mlx5_7 of the fabric"),
        ("mlx5_0:2", Case.NO_DEVICE, "takes no RDMA device"),
        (
            "=mlx5_0, mlx5_1",
            Case.RAIL_DOWN,
            "leaves out mlx5_1, mlx5_2, mlx5_3, mlx5_4, mlx5_5, mlx5_6, mlx5_7 of the fabric "
            "(a blank is a part of a name)",
        ),
        ("mlx5", Case.STRAY_RAIL, "takes mlx5_10, not of the fabric"),
        ("^=mlx5_10", None, ""),
        ("=mlx5_0:1,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7", None, ""),
        ("mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7", Case.STRAY_RAIL, "mlx5_10"),
    ],
)
def test_devices_chosen_by_a_variable(written: str, case: Case | None, words: str) -> None:
    facts = with_env(healthy("infiniband"), NCCL_IB_HCA=written)
    proof = judged("infiniband", with_nics(facts, None, rdma("mlx5_10", "infiniband")))
    against = [r for r in proof.remarks if r.verdict is Verdict.FAIL and r.fact is PINNED]
    assert {remark.case for remark in against} == ({case} if case else set())
    assert words in proof.text(Verdict.FAIL, PINNED)


def test_wrong_interface() -> None:
    facts = fallen_back("ethernet", healthy("ethernet"), "birch2", "mgmt0")
    facts = with_env(facts, "birch2", NCCL_SOCKET_IFNAME="mgmt")
    judged_as(
        "ethernet",
        facts,
        "----",
        {Case.WRONG_INTERFACE, Case.NOT_ON_FABRIC, Case.NOT_QUIET},
        "ranks 16-23 on birch2: NCCL_SOCKET_IFNAME=mgmt takes mgmt0, not the fabric (eth[1-8]); "
        "ranks 16-23 on birch2: sockets run over mgmt0, not over the fabric (eth[1-8])",
        "mgmt0 (management) sent ",
    )


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("^docker,mgmt", "NCCL_SOCKET_IFNAME=^docker,mgmt takes lo beside the fabric (eth[1-8])"),
        ("^docker,mgmt,lo", ""),
        ("lo", "NCCL_SOCKET_IFNAME=lo takes lo, not the fabric (eth[1-8])"),
        ("^", ""),  # NCCL ignores a single character
    ],
)
def test_a_list_that_excludes_names_takes_lo(written: str, words: str) -> None:
    def with_addresses(node: NodeTraffic) -> NodeTraffic:
        nics = (replace(nic, addresses=("::1",)) for nic in node.machine.interfaces or ())
        return replace(node, machine=replace(node.machine, interfaces=tuple(nics)))

    facts = on_node(healthy("ethernet"), None, with_addresses)
    proof = judged("ethernet", with_env(facts, NCCL_SOCKET_IFNAME=written))
    assert proof.text(Verdict.FAIL, PINNED).removeprefix("all nodes: ") == words


@pytest.mark.parametrize(
    ("usual", "other"),
    [
        ({"NCCL_ALGO": "RING"}, {"NCCL_ALGO": "Ring"}),
        ({"NCCL_IB_TC": "106"}, {"NCCL_IB_TC": "0x6a"}),
        ({"NCCL_NET_GDR_LEVEL": "SYS"}, {"NCCL_NET_GDR_LEVEL": "4"}),
        ({}, {"NCCL_IB_DISABLE": "", "NCCL_IB_TC": "0", "NCCL_NET_GDR_LEVEL": "loc"}),
        ({}, {"NCCL_IB_DISABLE": "0"}),
    ],
)
def test_values_that_act_alike_do_not_differ(usual: dict[str, str], other: dict[str, str]) -> None:
    facts = with_env(with_env(healthy("infiniband"), **usual), "birch1", **other)
    assert judged("infiniband", facts).answers["pinned"] == "pass"


def test_sockets_over_ip_over_infiniband() -> None:
    """The port counts the bytes as if they were RDMA: only the log and the interface differ."""
    facts = with_logs(healthy("infiniband"), "infiniband", net="Socket", devices=["ib0"])
    facts = carried(facts, None, {"ib0": moved("infiniband", facts)})
    judged_as(
        "infiniband",
        facts,
        "+-+-",
        {Case.IPOIB, Case.SOCKETS},
        "sockets run over ib0, which is IP over InfiniBand, not RDMA",
        "ib0 (IP over InfiniBand) sent ",
    )


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ("0", "NCCL_IB_GID_INDEX=0 is RoCE v1 on mlx5_0:1, mlx5_1:1, "),
        ("7", "NCCL_IB_GID_INDEX=7 is not the index of a GID of mlx5_0:1"),
        ("3", ""),
        ("-1", ""),
    ],
)
def test_gid_by_its_index(index: str, words: str) -> None:
    proof = judged("roce", with_env(healthy("roce"), NCCL_IB_GID_INDEX=index))
    assert (Case.GID_TYPE in proof.cases) is bool(words)
    assert words in proof.culprit


def test_the_gids_of_a_port_that_is_down_are_not_the_settings_fault() -> None:
    facts = with_env(healthy("roce"), NCCL_IB_GID_INDEX="3")
    facts = ports_of(
        facts, "birch2", lambda p: replace(p, state="DOWN", gids=()) if p.name == "mlx5_7:1" else p
    )
    assert judged("roce", facts).answers["pinned"] == "pass"


def test_a_list_that_takes_only_a_port_that_is_down() -> None:
    facts = fallen_back("roce", healthy("roce"), "birch1", "mgmt0")
    facts = with_env(facts, "birch1", NCCL_IB_HCA="=mlx5_7")
    text = judged("roce", ports_of(facts, "birch1", seventh_down)).culprit
    assert "NCCL_IB_HCA==mlx5_7 takes only mlx5_7:1 (DOWN); ranks" in text
    assert "instead of roce: NCCL_IB_HCA==mlx5_7 takes only mlx5_7:1 (DOWN) (no" in text


def test_a_port_without_a_gid_of_the_type_promised() -> None:
    def v1_only(port: Port) -> Port:
        return replace(port, gids=(port.gids or ())[:1])

    facts = ports_of(healthy("roce"), "birch1", v1_only)
    words = "birch1: mlx5_0:1 has no GID of RoCE v2; "
    judged_as("roce", facts, "-+++", {Case.GID_TYPE}, words)


@pytest.mark.parametrize("kind", ["infiniband", "roce"])
def test_one_rail_down(kind: str) -> None:
    facts = healthy(kind)
    share = moved(kind, facts) // (RAILS - 1)
    left = [device(kind, rail) for rail in range(RAILS - 1)]
    facts = with_logs(facts, kind, "birch2", devices=left)
    facts = carried(facts, "birch2", {**dict.fromkeys(left, share), device(kind, 7): 0})
    judged_as(
        kind,
        ports_of(facts, "birch2", seventh_down),
        "+--+",
        {Case.RAIL_DOWN},
        "birch2: channels run over 7 of 8 rails (mlx5_0, mlx5_1",
        "none over mlx5_7:1 (DOWN)",
        "7 of 8 rails carried the traffic: mlx5_7 (DOWN) sent 0% of its share",
    )


@pytest.mark.parametrize("used", [1, 3, RAILS - 1, RAILS])
def test_one_rank_of_a_node_may_use_many_rails(used: int) -> None:
    facts = healthy("infiniband")
    facts = replace(facts, ranks=facts.ranks[::RAILS])
    share = moved("infiniband", facts) * 1.02 / used
    counts = {device("infiniband", rail): int(share) * (rail < used) for rail in range(RAILS)}
    proof = judged("infiniband", carried(facts, None, counts))
    assert proof.answers["counted"] == "pass", proof.culprit


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_rail(kind: str) -> None:
    facts = healthy(kind)
    share = moved(kind, facts) // (RAILS - 1)
    facts = carried(facts, "birch0", dict.fromkeys((device(kind, r) for r in range(RAILS)), share))
    facts = with_nics(facts, "birch0", without=device(kind, 3))
    words = "birch0: 7 of 8 NICs of the fabric are present"
    judged_as(kind, facts, "++-+", {Case.RAIL_DOWN}, words)


def test_a_rail_on_the_wrong_nic() -> None:
    """A NIC of the storage network carries the traffic of one rail."""
    facts = healthy("infiniband")
    share = moved("infiniband", facts) // RAILS
    facts = with_logs(facts, "infiniband", "birch1", devices=[*IB_RAILS[:-1], "mlx5_8"])
    facts = with_nics(facts, "birch1", rdma("mlx5_8", "infiniband"))
    facts = carried(facts, "birch1", {"mlx5_7": 0, "mlx5_8": share})
    judged_as(
        "infiniband",
        facts,
        "+---",
        {Case.RAIL_DOWN, Case.STRAY_RAIL},
        "birch1: channels run over mlx5_8, not of the fabric (mlx5_[0-7]); birch1: mlx5_8 sent",
    )


@pytest.mark.parametrize("setting", [{}, {"NCCL_IB_HCA": "=" + ",".join(IB_RAILS)}])
def test_ethernet_ports_that_a_pattern_also_names_are_not_of_an_infiniband_fabric(
    setting: dict[str, str],
) -> None:
    facts = with_env(healthy("infiniband"), **setting)
    storage = (rdma("mlx5_8", "roce", netdevs=("ens8",)), interface("ens8"))
    facts = with_nics(facts, None, *storage)
    quiet = carried(facts, None, {"mlx5_8": 0, "ens8": 20_000})
    assert judged("infiniband", quiet, interfaces="mlx5_*").culprit == ""
    busy = carried(facts, "birch1", {"mlx5_8": moved("infiniband", facts), "ens8": 20_000})
    assert "birch1: mlx5_8 sent" in judged("infiniband", busy, interfaces="mlx5_*").culprit


def test_a_port_that_came_up_as_ethernet_is_named_where_no_other_port_is() -> None:
    facts = ports_of(
        healthy("infiniband"),
        "birch1",
        lambda port: replace(port, link_layer="Ethernet") if port.device == "mlx5_3" else port,
    )
    proof = judged("infiniband", facts, interfaces="mlx5_*")
    assert "birch1: protocol of mlx5_3:1 is RoCE, promised is InfiniBand" in proof.culprit


@pytest.mark.parametrize(("kind", "names"), [("roce", "ens[0-7]"), ("infiniband", "ib[0-7]")])
def test_a_spec_may_name_the_interfaces_of_rdma_devices(kind: str, names: str) -> None:
    facts = healthy(kind)
    assert judged(kind, facts, interfaces=names).culprit == ""
    down = carried(facts, "birch2", {device(kind, 5): 0})
    assert "mlx5_5 sent 0% of its share" in judged(kind, down, interfaces=names).culprit
    six = names.replace("7", "5")
    logged = judged(kind, facts, interfaces=six).text(Verdict.FAIL, ProofFact.LOGGED)
    assert f"all nodes: channels run over mlx5_6, mlx5_7, not of the fabric ({six})" in logged


@pytest.mark.parametrize("kind", ["infiniband", "roce", "efa"])
def test_gpudirect_off(kind: str) -> None:
    why = "GPU Direct RDMA Disabled for GPU 3 / HCA 3 (distance 7 > 5)"
    facts = with_logs(healthy(kind), kind, "birch1", gdr="", before=why)
    words = "ranks 8-15 on birch1: channels that receive and send run"
    judged_as(kind, facts, "+-++", {Case.GPUDIRECT_OFF}, words, "without GDRDMA, staged through")
    assert judged(kind, facts, gpudirect=False).verdict is Verdict.PASS


@pytest.mark.parametrize(
    "setting",
    [{"NCCL_NET_GDR_LEVEL": "LOC"}, {"NCCL_NET_GDR_READ": "0"}, {"NCCL_NET_GDR_LEVEL": "0"}],
)
def test_gpudirect_switched_off(setting: dict[str, str]) -> None:
    facts = with_env(healthy("infiniband"), **setting)
    judged_as("infiniband", facts, "-+++", {Case.GPUDIRECT_OFF})
    assert judged("infiniband", facts, gpudirect=False).verdict is Verdict.PASS


@pytest.mark.parametrize(("nodes", "others"), [(2, "birch0"), (4, "birch0, birch2, birch3")])
def test_one_node_alone_on_tcp(nodes: int, others: str) -> None:
    proof = judged_as(
        "roce",
        fallen_back("roce", healthy("roce", nodes), "birch1", "mgmt0"),
        "+---",
        {Case.SOCKETS, Case.NOT_ON_FABRIC, Case.NOT_QUIET},
        "alone, channels run over NET/Socket (mgmt0) instead of roce: the log does not show why "
        f"(no fallback on {others})",
    )
    failed = [one.culprit for one in proof.measurements if one.verdict is Verdict.FAIL]
    assert all(one and one.nodes == {"birch1"} for one in failed)
    assert {r.node for r in proof.remarks if r.verdict is Verdict.FAIL} == {"birch1"}


def test_a_warning_that_recovered_passes_and_is_noted() -> None:
    warn = "birch0:5000:5177 [0] misc/socket.cc:52 NCCL WARN socketStartConnect: Connect failed"
    facts = with_logs(healthy("infiniband"), "infiniband", "birch0", before=warn)
    proof = judged_as("infiniband", facts, "++++", set())
    assert "NCCL warned" in proof.text(Verdict.PASS, ProofFact.LOGGED)


def test_unknown_plugin_is_inconclusive() -> None:
    facts = with_logs(healthy("infiniband"), "infiniband", net="Zephyr")
    words = "channels run over Zephyr: it is not known"
    judged_as("infiniband", facts, "+?++", {Case.UNKNOWN_NETWORK}, words)


@pytest.mark.parametrize(("cut", "case"), [(0, Case.NO_LOG), (400, Case.UNREADABLE)])
def test_a_log_with_too_little_detail_is_inconclusive(cut: int, case: Case) -> None:
    log = read_nccl_log(log_text(5, 3, "infiniband")[:cut])
    facts = on_rank(healthy("infiniband"), 5, log=log)
    judged_as("infiniband", facts, "+?++", {case}, "rank 5 on birch0: ")


@pytest.mark.parametrize("kind", ["infiniband", "efa", "ethernet"])
def test_an_unreadable_counter_is_inconclusive(kind: str) -> None:
    proof = judged(kind, carried(healthy(kind), "birch2", {device(kind, 4): None}))
    assert proof.verdict is Verdict.INCONCLUSIVE
    assert proof.answers["counted"] == "inconclusive"
    assert proof.culprit == f"birch2: bytes sent by {device(kind, 4)} could not be read"
    sent = [m for m in proof.measurements if "on the fabric of the node that sent" in m.name]
    assert [m.value for m in sent] == [None, None], "nor is the sum of the others that of the node"


@pytest.mark.parametrize(
    ("packets", "verdict"), [(12, Verdict.FAIL), (1 << 40, Verdict.INCONCLUSIVE)]
)
def test_a_port_that_counts_only_packets(packets: int, verdict: Verdict) -> None:
    """Like soft-RoCE: too few packets for the bytes are a proof, enough packets are none."""
    counts = {f"{device('roce', rail)}:1": packets for rail in range(RAILS)}
    facts = on_node(
        healthy("roce"), "birch2", lambda n: replace(n, sent_bytes={}, sent_packets=counts)
    )
    proof = judged("roce", facts)
    assert proof.verdict is verdict
    few = "birch2: the fabric (mlx5_[0-7]) sent 96 packets, 0.393 MB at most, expected at least"
    assert proof.culprit.startswith(few) is (verdict is Verdict.FAIL)


def test_nodes_without_a_list_of_devices_are_inconclusive() -> None:
    facts = on_node(healthy("roce"), "birch0", lambda n: replace(n, machine=Machine()))
    judged_as("roce", facts, "++??", {Case.NO_COUNTER}, "birch0: no RDMA devices could be listed")


def test_bytes_on_the_wrong_nic_although_the_log_is_correct() -> None:
    facts = healthy("infiniband")
    idle = dict.fromkeys(IB_RAILS, 1000)
    facts = carried(facts, "birch1", {**idle, "mgmt0": moved("infiniband", facts)})
    cases = {Case.NOT_ON_FABRIC, Case.NOT_QUIET}
    proof = judged_as("infiniband", facts, "++--", cases, "; mgmt0 sent ")
    by_node = {m.name: m.note for m in proof.measurements if "off-fabric" in m.name}
    [note] = [note for name, note in by_node.items() if name.endswith("birch1")]
    assert note.startswith("mgmt0, ")


def test_a_setting_of_one_algorithm_or_protocol_changes_the_expected_bytes() -> None:
    def expected(**settings: str) -> tuple[float, float]:
        facts = with_env(healthy("infiniband"), **settings)
        found = expected_bytes(facts, spec_of("infiniband").fabric, PROMISE)
        return found.least_bytes / found.payload_bytes, found.most_bytes

    least, most = expected()
    assert expected(NCCL_ALGO="Ring")[0] == 1 - PROMISE.under_fraction > least
    assert expected(NCCL_ALGO="Ring,Tree") == expected(NCCL_ALGO="^Ring") == (least, most)
    assert expected(NCCL_PROTO="LL")[1] > expected(NCCL_PROTO="Simple")[1]


def test_more_bytes_than_the_algorithm_moves() -> None:
    facts = healthy("ethernet")
    most = expected_bytes(facts, spec_of("ethernet").fabric, PROMISE).most_bytes
    for each, more in ((int(most / RAILS), False), (int(1.01 * most / RAILS), True)):
        counts = dict.fromkeys((device("ethernet", r) for r in range(RAILS)), each)
        proof = judged("ethernet", carried(facts, "birch1", counts))
        assert proof.cases == ({Case.TOO_MANY_BYTES} if more else set())
        assert ("other traffic used it" in proof.culprit) is more


def test_a_nic_more_than_promised_that_sends_as_the_others() -> None:
    facts = healthy("ethernet")
    each = facts.nodes[1].sent_bytes[device("ethernet", 0)]
    facts = with_nics(facts, "birch1", interface("eth9"))
    for count, cases in ((each, {Case.STRAY_RAIL}), (1000, set())):
        proof = judged("ethernet", carried(facts, "birch1", {"eth9": count}), interfaces="eth*")
        assert proof.cases == cases
    assert judged("ethernet", facts, interfaces="eth*").verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("way", ["sent_bytes", "received_bytes"])
def test_a_nic_beside_the_fabric_of_which_one_direction_is_unknown(way: str) -> None:
    def without(node: NodeTraffic) -> NodeTraffic:
        known = {nic: count for nic, count in getattr(node, way).items() if nic != "mgmt0"}
        return replace(node, **{way: known})  # type: ignore[arg-type]

    proof = judged("infiniband", on_node(healthy("infiniband"), "birch1", without))
    assert proof.answers["quiet"] == "inconclusive"
    assert proof.culprit == "birch1: counters of mgmt0 could not be read"


@pytest.mark.parametrize(("version", "answer"), [("2.20.5", "pass"), ("2.21.5", "fail")])
def test_a_variable_that_a_version_does_not_read_changes_nothing(version: str, answer: str) -> None:
    facts = with_env(healthy("roce"), NCCL_IB_ROCE_VERSION_NUM="1")
    proof = judged("roce", with_logs(facts, "roce", version=version))
    assert proof.answers["pinned"] == answer
    words = proof.text(Verdict.FAIL, PINNED)
    assert ("NCCL_IB_ROCE_VERSION_NUM=1 where RoCE v2" in words) is (answer == "fail")


PROTOCOLS: dict[str | None, tuple[str, str]] = {
    "InfiniBand": ("InfiniBand", "CA"),
    "RoCE": ("Ethernet", "CA"),
    "iWARP": ("Ethernet", "RNIC"),
    "usNIC": ("Ethernet", "usNIC"),
    "EFA": ("Unknown", "unspecified"),
    None: ("Ethernet", "something new"),
}


@pytest.mark.parametrize(
    ("kind", "protocol", "wanted"),
    [
        *(("infiniband", protocol, "InfiniBand") for protocol in PROTOCOLS),
        *(("roce", protocol, "RoCE") for protocol in ("InfiniBand", "RoCE", "iWARP", None)),
        *(("efa", protocol, "EFA") for protocol in ("RoCE", "EFA", None)),
    ],
)
def test_ports_of_another_protocol(kind: str, protocol: str | None, wanted: str) -> None:
    """Even if log and counters agree, as for iWARP, whose log says RoCE."""
    layer, node_type = PROTOCOLS[protocol]
    name = f"{device(kind, 0)}:1"

    def other(port: Port) -> Port:
        first = port.name == name
        return replace(port, link_layer=layer, node_type=node_type) if first else port

    proof = judged(kind, ports_of(healthy(kind), "birch1", other))
    if protocol == wanted:
        assert proof.verdict is Verdict.PASS
    elif protocol is None:
        assert proof.verdict is Verdict.INCONCLUSIVE
        assert f"birch1: node type or link layer of {name} could not be read" in proof.culprit
    else:
        assert proof.cases == {Case.OTHER_NETWORK}
        words = f"birch1: protocol of {name} is {protocol}, promised is {wanted}"
        assert proof.culprit.startswith(words)


def test_traffic_within_a_node_sent_over_the_nic() -> None:
    facts = with_env(healthy("infiniband"), NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1")
    words = "sends over the NIC what should stay inside the node"
    judged_as("infiniband", facts, "-+++", {Case.NOT_ON_FABRIC}, words)
    first_ranks = replace(facts, ranks=facts.ranks[::RAILS])  # none shares its node
    assert words not in str(judged("infiniband", first_ranks).remarks)
    tied = judged("infiniband", with_env(healthy("infiniband"), NCCL_P2P_DISABLE="1"))
    assert tied.verdict is Verdict.PASS
    assert "NCCL_P2P_DISABLE=1: no direct copies between accelerators" in tied.text(Verdict.PASS)


def test_efa() -> None:
    judged_as("efa", with_env(healthy("efa"), FI_PROVIDER="tcp"), "-+++", {Case.NET_CHOSEN})
    judged_as("efa", with_env(healthy("efa"), NCCL_NET="IB"), "-+++", {Case.NET_CHOSEN})
    fine = with_env(healthy("efa"), FI_PROVIDER="efa", NCCL_NET="AWS Libfabric")
    judged_as("efa", fine, "++++", set())
    before = "NET/OFI Selected provider is tcp (found 1 nics)"
    over_tcp = with_logs(healthy("efa"), "efa", before=before, net="Socket")
    judged_as("efa", over_tcp, "+-++", {Case.SOCKETS}, "libfabric chose the provider tcp")


def test_bytes_of_links_and_of_interfaces_over_the_fabric_are_not_counted_twice() -> None:
    bonded = with_nics(healthy("ethernet"), None, interface("ens9", master="eth1"))
    judged_as("ethernet", carried(bonded, None, {"ens9": 10**10}), "++++", set())
    facts = healthy("roce")
    judged_as("roce", carried(facts, None, {"ens0": moved("roce", facts)}), "++++", set())


def test_another_backend_is_inconclusive() -> None:
    facts = replace(healthy("infiniband"), backend="ucc")
    judged_as("infiniband", facts, "+?++", {Case.UNKNOWN_NETWORK})


def test_one_node_is_refused() -> None:
    facts = healthy("infiniband")
    with pytest.raises(ValueError, match="two nodes or more"):
        judged("infiniband", replace(facts, nodes=facts.nodes[:1]))


def test_port_failover_is_named_and_the_same_on_all_ranks() -> None:
    failover = {"NCCL_IB_RESILIENCY_PORT_FAILOVER": "1"}
    found = judged("infiniband", with_env(healthy("infiniband"), **failover))
    assert found.verdict is Verdict.PASS
    assert any("a port that dies ends no job" in one.text for one in found.remarks)
    assert judged("infiniband", with_env(healthy("infiniband"), "birch1", **failover)).verdict is (
        Verdict.FAIL
    )
