"""The judge of four facts: each way in which traffic misses the fabric is identified and named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_mnode.criteria.transport.expected import expected_bytes
from pytest_mnode.criteria.transport.node_traffic import NodeTraffic
from pytest_mnode.criteria.transport.remarks import Case, ProofFact
from pytest_mnode.logs.nccl_log import read_nccl_log
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
    log_text,
    moved,
    on_node,
    on_ranks,
    ports_of,
    rdma,
    spec_of,
    with_env,
    with_logs,
    with_nics,
)

NODES = ("birch0", "birch1", "birch2")
RAIL_NAMES = [device("infiniband", rail) for rail in range(RAILS)]


def no_devices(node: NodeTraffic) -> NodeTraffic:
    return replace(node, machine=replace(node.machine, rdma=()))


@pytest.mark.parametrize("kind", ["infiniband", "roce", "efa", "ethernet"])
@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_four_facts_that_agree_pass(kind: str, nodes: int) -> None:
    proof = judged(kind, healthy(kind, nodes))
    assert proof.verdict is Verdict.PASS, proof.remarks
    assert proof.culprit == ""
    assert proof.answers == dict.fromkeys(ProofFact, "pass")
    assert proof.remarks == []


@pytest.mark.parametrize("kind", ["infiniband", "roce"])
def test_no_device(kind: str) -> None:
    facts = fallen_back(kind, healthy(kind), "birch1", "mgmt0", before="NET/IB : No device found.")
    facts = on_node(facts, "birch1", no_devices)
    proof = judged(kind, facts)
    assert proof.verdict is Verdict.FAIL
    assert Case.NO_DEVICE in proof.cases
    assert not proof.cases & {Case.IB_DISABLED, Case.IPOIB, Case.NET_CHOSEN, Case.WRONG_INTERFACE}
    logged = proof.text(Verdict.FAIL, ProofFact.LOGGED)
    assert logged.startswith(
        f"ranks 8-15 on birch1: alone, channels run over NET/Socket (mgmt0) instead of {kind}: "
        "the node has no RDMA device (no fallback on birch0, birch2)"
    )
    counted = proof.text(Verdict.FAIL, ProofFact.COUNTED)
    assert counted.startswith("birch1: no RDMA device of the fabric (mlx5_[0-7]); mgmt0 sent ")


def test_a_cluster_without_rdma_devices_fails_at_any_bandwidth() -> None:
    facts = fallen_back("infiniband", healthy("infiniband"), None, "mgmt0")
    facts = on_node(facts, None, no_devices)
    proof = judged("infiniband", facts)
    assert proof.verdict is Verdict.FAIL
    for name in NODES:
        cases = [r.case for r in proof.remarks if r.node == name and r.fact is ProofFact.COUNTED]
        assert cases == [Case.NO_DEVICE]
    assert proof.culprit.startswith("all nodes: channels run over NET/Socket")


@pytest.mark.parametrize("kind", ["infiniband", "roce"])
def test_switched_off_by_a_variable(kind: str) -> None:
    facts = with_env(fallen_back(kind, healthy(kind), None, "mgmt0"), NCCL_IB_DISABLE="1")
    proof = judged(kind, facts)
    assert proof.answers == dict.fromkeys(proof.answers, "fail")
    assert Case.IB_DISABLED in proof.cases
    assert Case.NO_DEVICE not in proof.cases
    assert proof.culprit.startswith("all nodes: NCCL_IB_DISABLE=1 disables RDMA; ")
    assert f"instead of {kind}: NCCL_IB_DISABLE=1" in proof.culprit


def test_switched_off_by_a_file_is_named_with_the_file() -> None:
    facts = with_env(healthy("infiniband"), "birch2", NCCL_IB_DISABLE="0x1")
    files = {"NCCL_IB_DISABLE": "/etc/nccl.conf"}
    facts = on_ranks(facts, None, lambda r: replace(r, settings_of_files=files))
    words = judged("infiniband", facts).culprit
    assert words.startswith(
        "ranks 16-23 on birch2: NCCL_IB_DISABLE=0x1 (in /etc/nccl.conf) disables RDMA; "
    )
    assert "NCCL_IB_DISABLE is '0x1', on other ranks not set" in words


def test_if_no_value_is_that_of_most_ranks_nobody_is_to_blame_for_sure() -> None:
    facts = with_env(healthy("infiniband", 2), "birch1", NCCL_ALGO="Ring")
    [pinned, *_] = judged("infiniband", facts).measurements
    assert pinned.culprit is not None
    assert "birch1: NCCL_ALGO is 'Ring', on other ranks not set" in pinned.culprit
    assert "birch0: NCCL_ALGO is not set, on other ranks 'Ring'" in pinned.culprit
    assert pinned.culprit.nodes == set()
    assert pinned.culprit.either == {frozenset(["birch0"]), frozenset(["birch1"])}
    [pinned, *_] = judged(
        "infiniband", with_env(healthy("infiniband", 3), "birch1", NCCL_ALGO="Ring")
    ).measurements
    assert pinned.culprit is not None
    assert pinned.culprit.nodes == {"birch1"}


def test_a_setting_known_from_the_log_alone_counts() -> None:
    facts = with_logs(
        healthy("infiniband"), "infiniband", before="NCCL_IB_DISABLE set by environment to 1."
    )
    proof = judged("infiniband", facts)
    assert proof.answers["pinned"] == "fail"
    assert "NCCL_IB_DISABLE=1 (in its log)" in proof.culprit


def test_sockets_chosen() -> None:
    facts = with_env(fallen_back("roce", healthy("roce"), None, "mgmt0"), NCCL_NET="Socket")
    proof = judged("roce", facts)
    assert Case.NET_CHOSEN in proof.cases
    assert not proof.cases & {Case.SOCKETS, Case.NO_DEVICE, Case.IB_DISABLED}
    assert "NCCL_NET=Socket chooses sockets where roce is promised" in proof.culprit


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
    against = [r for r in proof.remarks if r.verdict is Verdict.FAIL and r.fact is ProofFact.PINNED]
    assert {remark.case for remark in against} == ({case} if case else set())
    assert words in proof.text(Verdict.FAIL, ProofFact.PINNED)


def test_wrong_interface() -> None:
    facts = fallen_back("ethernet", healthy("ethernet"), "birch2", "mgmt0")
    facts = with_env(facts, "birch2", NCCL_SOCKET_IFNAME="mgmt")
    proof = judged("ethernet", facts)
    assert proof.answers == dict.fromkeys(proof.answers, "fail")
    assert Case.WRONG_INTERFACE in proof.cases
    assert proof.culprit.startswith(
        "ranks 16-23 on birch2: NCCL_SOCKET_IFNAME=mgmt takes mgmt0, not the fabric (eth[1-8]); "
        "ranks 16-23 on birch2: sockets run over mgmt0, not over the fabric (eth[1-8])"
    )
    assert "mgmt0 (management) sent " in proof.culprit


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
    assert proof.text(Verdict.FAIL, ProofFact.PINNED).removeprefix("all nodes: ") == words


@pytest.mark.parametrize(
    ("usual", "other"),
    [
        ({"NCCL_ALGO": "RING"}, {"NCCL_ALGO": "Ring"}),
        ({"NCCL_IB_TC": "106"}, {"NCCL_IB_TC": "0x6a"}),
        ({"NCCL_NET_GDR_LEVEL": "SYS"}, {"NCCL_NET_GDR_LEVEL": "4"}),
        ({}, {"NCCL_IB_DISABLE": "", "NCCL_IB_TC": "0", "NCCL_NET_GDR_LEVEL": "loc"}),
    ],
)
def test_values_that_act_alike_do_not_differ(usual: dict[str, str], other: dict[str, str]) -> None:
    facts = with_env(with_env(healthy("infiniband"), **usual), "birch1", **other)
    assert judged("infiniband", facts).answers["pinned"] == "pass"


def test_sockets_over_ip_over_infiniband() -> None:
    """The port counts the bytes as if they were RDMA: only the log and the interface differ."""
    facts = with_logs(healthy("infiniband"), "infiniband", net="Socket", devices=["ib0"])
    facts = carried(facts, None, {"ib0": moved("infiniband", facts)})
    proof = judged("infiniband", facts)
    assert proof.answers == {
        "pinned": "pass",
        "logged": "fail",
        "counted": "pass",
        "quiet": "fail",
    }
    assert Case.IPOIB in proof.cases
    assert "sockets run over ib0, which is IP over InfiniBand, not RDMA" in proof.culprit
    assert "ib0 (IP over InfiniBand) sent " in proof.culprit


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


def test_gid_by_the_log() -> None:
    """Counters agree and the log says RDMA: only the kind of address is wrong."""
    line = "NET/IB: IbDev 0 Port 1 qpn 211 mtu 5 query_ece={supported=0} GID 0 (0/1)"
    facts = with_logs(healthy("roce"), "roce", version="2.18.3", after=line)
    proof = judged("roce", facts)
    assert proof.cases == {Case.GID_TYPE}
    words = "all nodes: connections use GID 0, which is RoCE v1 on mlx5_0:1, promised v2"
    assert proof.culprit == words
    newer = judged("roce", with_logs(healthy("roce"), "roce", version="2.21.5"))
    assert newer.verdict is Verdict.PASS
    old_roce = judged("roce", with_env(healthy("roce"), NCCL_IB_ROCE_VERSION_NUM="1"))
    assert old_roce.cases == {Case.GID_TYPE}


def test_a_list_that_takes_only_a_port_that_is_down() -> None:
    facts = fallen_back("roce", healthy("roce"), "birch1", "mgmt0")
    facts = ports_of(
        with_env(facts, "birch1", NCCL_IB_HCA="=mlx5_7"),
        "birch1",
        lambda port: replace(port, state="DOWN") if port.device == "mlx5_7" else port,
    )
    text = judged("roce", facts).culprit
    assert "NCCL_IB_HCA==mlx5_7 takes only mlx5_7:1 (DOWN); ranks" in text
    assert "instead of roce: NCCL_IB_HCA==mlx5_7 takes only mlx5_7:1 (DOWN) (no" in text


def test_a_port_without_a_gid_of_the_type_promised() -> None:
    def v1_only(port: Port) -> Port:
        return replace(port, gids=(port.gids or ())[:1])

    proof = judged("roce", ports_of(healthy("roce"), "birch1", v1_only))
    assert proof.cases == {Case.GID_TYPE}
    assert proof.culprit.startswith("birch1: mlx5_0:1 has no GID of RoCE v2; ")


@pytest.mark.parametrize("kind", ["infiniband", "roce"])
def test_one_rail_down(kind: str) -> None:
    facts = healthy(kind)
    share = moved(kind, facts) // (RAILS - 1)
    left = [device(kind, rail) for rail in range(RAILS - 1)]
    facts = with_logs(facts, kind, "birch2", devices=left)
    facts = carried(facts, "birch2", {**dict.fromkeys(left, share), device(kind, 7): 0})
    facts = ports_of(
        facts, "birch2", lambda p: replace(p, state="DOWN") if p.device == "mlx5_7" else p
    )
    proof = judged(kind, facts)
    assert proof.cases == {Case.RAIL_DOWN}
    assert proof.answers["quiet"] == "pass"
    assert proof.culprit.startswith("birch2: channels run over 7 of 8 rails (mlx5_0, mlx5_1")
    assert "none over mlx5_7:1 (DOWN)" in proof.culprit
    assert "7 of 8 rails carried the traffic: mlx5_7 (DOWN) sent 0% of its share" in proof.culprit


@pytest.mark.parametrize("used", range(1, RAILS + 1))
def test_one_rank_of_a_node_may_use_many_rails(used: int) -> None:
    facts = healthy("infiniband")
    facts = replace(facts, ranks=facts.ranks[::RAILS])
    share = moved("infiniband", facts) * 1.02 / used
    counts = {device("infiniband", rail): int(share) * (rail < used) for rail in range(RAILS)}
    proof = judged("infiniband", carried(facts, None, counts))
    assert proof.answers["counted"] == "pass", proof.culprit


@pytest.mark.parametrize("kind", ["infiniband", "roce", "efa", "ethernet"])
def test_a_missing_rail(kind: str) -> None:
    facts = healthy(kind)
    name = device(kind, 3)
    share = moved(kind, facts) // (RAILS - 1)
    facts = carried(facts, "birch0", dict.fromkeys((device(kind, r) for r in range(RAILS)), share))
    facts = with_nics(facts, "birch0", without=name)
    proof = judged(kind, facts)
    assert proof.verdict is Verdict.FAIL
    assert "birch0: 7 of 8 NICs of the fabric are present" in proof.culprit


def test_a_rail_on_the_wrong_nic() -> None:
    """A NIC of the storage network carries the traffic of one rail."""
    facts = healthy("infiniband")
    share = moved("infiniband", facts) // RAILS
    names = [device("infiniband", rail) for rail in range(RAILS - 1)] + ["mlx5_8"]
    facts = with_logs(facts, "infiniband", "birch1", devices=names)
    facts = with_nics(facts, "birch1", rdma("mlx5_8", "infiniband"))
    facts = carried(facts, "birch1", {"mlx5_7": 0, "mlx5_8": share})
    proof = judged("infiniband", facts)
    assert Case.STRAY_RAIL in proof.cases
    assert proof.answers["pinned"] == "pass"
    logged = proof.text(Verdict.FAIL, ProofFact.LOGGED)
    assert "birch1: channels run over mlx5_8, not of the fabric (mlx5_[0-7])" in logged
    assert "birch1: mlx5_8 sent" in proof.text(Verdict.FAIL, ProofFact.QUIET)


@pytest.mark.parametrize("setting", [{}, {"NCCL_IB_HCA": "=" + ",".join(RAIL_NAMES)}])
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
    proof = judged(kind, facts)
    assert proof.cases == {Case.GPUDIRECT_OFF}
    assert proof.culprit.startswith("ranks 8-15 on birch1: channels that receive and send run")
    assert "without GDRDMA, staged through the host although GPUDirect is promised" in proof.culprit
    assert judged(kind, facts, gpudirect=False).verdict is Verdict.PASS


@pytest.mark.parametrize(
    "setting",
    [{"NCCL_NET_GDR_LEVEL": "LOC"}, {"NCCL_NET_GDR_READ": "0"}, {"NCCL_NET_GDR_LEVEL": "0"}],
)
def test_gpudirect_switched_off(setting: dict[str, str]) -> None:
    facts = with_env(healthy("infiniband"), **setting)
    proof = judged("infiniband", facts)
    assert proof.answers["pinned"] == "fail"
    assert proof.cases == {Case.GPUDIRECT_OFF}
    assert judged("infiniband", facts, gpudirect=False).verdict is Verdict.PASS


@pytest.mark.parametrize("nodes", [2, 4])
def test_one_node_alone_on_tcp(nodes: int) -> None:
    facts = fallen_back("roce", healthy("roce", nodes), "birch1", "mgmt0")
    proof = judged("roce", facts)
    assert proof.verdict is Verdict.FAIL
    others = ", ".join(f"birch{n}" for n in range(nodes) if n != 1)
    assert (
        "alone, channels run over NET/Socket (mgmt0) instead of roce: the log does not show why "
        f"(no fallback on {others})" in proof.culprit
    )
    failed = [one.culprit for one in proof.measurements if one.verdict is Verdict.FAIL]
    assert all(one and one.nodes == {"birch1"} for one in failed)
    assert {r.node for r in proof.remarks if r.verdict is Verdict.FAIL} == {"birch1"}


def test_a_warning_that_recovered_passes_and_is_noted() -> None:
    warn = "birch0:5000:5177 [0] misc/socket.cc:52 NCCL WARN socketStartConnect: Connect failed"
    facts = with_logs(healthy("infiniband"), "infiniband", "birch0", before=warn)
    proof = judged("infiniband", facts)
    assert proof.verdict is Verdict.PASS
    assert "NCCL warned" in proof.text(Verdict.PASS, ProofFact.LOGGED)


def test_unknown_plugin_is_inconclusive() -> None:
    facts = with_logs(healthy("infiniband"), "infiniband", net="Zephyr")
    proof = judged("infiniband", facts)
    assert proof.verdict is Verdict.INCONCLUSIVE
    assert proof.cases == {Case.UNKNOWN_NETWORK}
    assert (
        "channels run over Zephyr: it is not known which network carries their bytes"
        in proof.culprit
    )


def test_a_missing_log_names_its_rank() -> None:
    facts = healthy("infiniband")
    ranks = list(facts.ranks)
    ranks[11] = replace(ranks[11], log=None, no_log="NCCL_DEBUG=WARN; set NCCL_DEBUG=INFO")
    proof = judged("infiniband", replace(facts, ranks=tuple(ranks)))
    assert proof.verdict is Verdict.INCONCLUSIVE
    assert proof.answers["logged"] == "inconclusive"
    assert proof.culprit == "rank 11 on birch1: no log: NCCL_DEBUG=WARN; set NCCL_DEBUG=INFO"


@pytest.mark.parametrize("cut", [0, 30, 400])
def test_a_log_with_too_little_detail_is_inconclusive(cut: int) -> None:
    facts = healthy("infiniband")
    ranks = list(facts.ranks)
    text = log_text(5, len(facts.nodes), "infiniband")[:cut]
    ranks[5] = replace(ranks[5], log=read_nccl_log(text))
    proof = judged("infiniband", replace(facts, ranks=tuple(ranks)))
    assert proof.verdict is Verdict.INCONCLUSIVE
    assert "rank 5 on birch0: " in proof.culprit


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
    facts = on_node(
        healthy("roce"),
        "birch2",
        lambda n: replace(
            n, sent_bytes={}, sent_packets={f"{device('roce', i)}:1": packets for i in range(RAILS)}
        ),
    )
    proof = judged("roce", facts)
    assert proof.verdict is verdict
    if verdict is Verdict.FAIL:
        assert proof.culprit.startswith(
            "birch2: the fabric (mlx5_[0-7]) sent 96 packets, 0.393 MB at most, expected at least"
        )


def test_nodes_without_a_list_of_devices_are_inconclusive() -> None:
    facts = on_node(healthy("roce"), "birch0", lambda n: replace(n, machine=Machine()))
    proof = judged("roce", facts)
    assert proof.verdict is Verdict.INCONCLUSIVE
    assert proof.answers == {
        "pinned": "pass",
        "logged": "pass",
        "counted": "inconclusive",
        "quiet": "inconclusive",
    }


def test_bytes_on_the_wrong_nic_although_the_log_is_correct() -> None:
    facts = healthy("infiniband")
    names = {device("infiniband", rail): 1000 for rail in range(RAILS)}
    facts = carried(facts, "birch1", {**names, "mgmt0": moved("infiniband", facts)})
    proof = judged("infiniband", facts)
    assert proof.answers == {
        "pinned": "pass",
        "logged": "pass",
        "counted": "fail",
        "quiet": "fail",
    }
    assert proof.cases == {Case.NOT_ON_FABRIC, Case.NOT_QUIET}
    assert "; mgmt0 sent " in proof.culprit
    by_node = {m.name: m.note for m in proof.measurements if "on other networks" in m.name}
    [note] = [note for name, note in by_node.items() if name.endswith("birch1")]
    assert note.startswith("mgmt0, ")


def test_more_bytes_than_the_algorithm_moves() -> None:
    facts = healthy("ethernet")
    counts = dict.fromkeys((device("ethernet", r) for r in range(RAILS)), moved("ethernet", facts))
    proof = judged("ethernet", carried(facts, "birch1", counts))
    assert proof.cases == {Case.TOO_MANY_BYTES}
    assert "other traffic used it" in proof.culprit
    most = expected_bytes(facts, spec_of("ethernet").fabric, PROMISE).most_bytes
    for each, case in ((int(most / RAILS), set()), (int(1.01 * most / RAILS), proof.cases)):
        counts = dict.fromkeys(counts, each)
        assert judged("ethernet", carried(facts, "birch1", counts)).cases == case


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
        if way == "sent_bytes":
            return replace(node, sent_bytes=known)
        return replace(node, received_bytes=known)

    proof = judged("infiniband", on_node(healthy("infiniband"), "birch1", without))
    assert proof.answers["quiet"] == "inconclusive"
    assert proof.culprit == "birch1: counters of mgmt0 could not be read"


@pytest.mark.parametrize(("version", "judged_it"), [("2.20.5", False), ("2.21.5", True)])
def test_a_variable_that_a_version_does_not_read_changes_nothing(
    version: str, judged_it: bool
) -> None:
    facts = with_logs(
        with_env(healthy("roce"), NCCL_IB_ROCE_VERSION_NUM="1"), "roce", version=version
    )
    words = judged("roce", facts).text(Verdict.FAIL, ProofFact.PINNED)
    assert ("NCCL_IB_ROCE_VERSION_NUM=1 where RoCE v2" in words) is judged_it


PROTOCOLS: dict[str | None, tuple[str, str]] = {
    "InfiniBand": ("InfiniBand", "CA"),
    "RoCE": ("Ethernet", "CA"),
    "iWARP": ("Ethernet", "RNIC"),
    "usNIC": ("Ethernet", "usNIC"),
    "EFA": ("Unknown", "unspecified"),
    None: ("Ethernet", "something new"),
}


@pytest.mark.parametrize("kind", ["infiniband", "roce", "efa"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_ports_of_another_protocol(kind: str, protocol: str | None) -> None:
    """Even if log and counters agree, as for iWARP, whose log says RoCE."""

    layer, node_type = PROTOCOLS[protocol]
    name = f"{device(kind, 0)}:1"

    def other(port: Port) -> Port:
        first = port.name == name
        return replace(port, link_layer=layer, node_type=node_type) if first else port

    proof = judged(kind, ports_of(healthy(kind), "birch1", other))
    wanted = {"infiniband": "InfiniBand", "roce": "RoCE", "efa": "EFA"}[kind]
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
    assert judged("infiniband", facts).cases == {Case.NOT_ON_FABRIC}
    tied = judged("infiniband", with_env(healthy("infiniband"), NCCL_P2P_DISABLE="1"))
    assert tied.verdict is Verdict.PASS
    assert "NCCL_P2P_DISABLE=1: no direct copies between accelerators" in tied.text(Verdict.PASS)


def test_one_rank_per_node_has_no_traffic_within_its_node() -> None:
    facts = with_env(healthy("infiniband"), NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1")
    first_ranks = replace(facts, ranks=facts.ranks[::RAILS])
    words = "sends over the NIC what should stay inside the node"
    assert any(words in str(one) for one in judged("infiniband", facts).remarks)
    assert not any(words in str(one) for one in judged("infiniband", first_ranks).remarks)


def test_efa() -> None:
    facts = with_env(healthy("efa"), FI_PROVIDER="tcp")
    assert judged("efa", facts).cases == {Case.NET_CHOSEN}
    fine = with_env(healthy("efa"), FI_PROVIDER="efa", NCCL_NET="AWS Libfabric")
    assert judged("efa", fine).verdict is Verdict.PASS
    over_tcp = with_logs(
        healthy("efa"),
        "efa",
        before="NET/OFI Selected provider is tcp (found 1 nics)",
        net="Socket",
    )
    assert judged("efa", over_tcp).verdict is Verdict.FAIL


def test_infiniband_where_roce_is_promised() -> None:
    proof = judged("roce", with_logs(healthy("roce"), "infiniband"))
    assert Case.OTHER_NETWORK in proof.cases
    assert "channels run over NET/IB (infiniband), promised is roce" in proof.culprit


def test_a_bond_and_its_links_are_one_network() -> None:
    facts = with_nics(healthy("ethernet"), None, interface("ens9", master="eth1"))
    assert judged("ethernet", carried(facts, None, {"ens9": 10**10})).verdict is Verdict.PASS


def test_interfaces_of_roce_may_count_rdma_too() -> None:
    facts = healthy("roce")
    facts = carried(facts, None, {"ens0": moved("roce", facts)})
    assert judged("roce", facts).verdict is Verdict.PASS


def test_another_backend_is_inconclusive() -> None:
    facts = replace(healthy("infiniband"), backend="ucc")
    assert judged("infiniband", facts).verdict is Verdict.INCONCLUSIVE


def test_one_node_is_refused() -> None:
    facts = healthy("infiniband")
    with pytest.raises(ValueError, match="two nodes or more"):
        judged("infiniband", replace(facts, nodes=facts.nodes[:1]))
