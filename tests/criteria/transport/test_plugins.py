"""The four facts on fabrics by a plugin of NCCL: GPUDirect-TCPX, TCPXO and Slingshot."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_mnode.criteria.transport.evidence import Evidence
from pytest_mnode.criteria.transport.remarks import Case
from pytest_mnode.machine.model import Machine
from pytest_mnode.spec import doubts
from tests.criteria.transport.compose import (
    RAILS,
    carried,
    device,
    fallen_back,
    healthy,
    interface,
    judged_as,
    spec_of,
    with_env,
    with_logs,
)

PLUGINS = ("tcpx", "tcpxo", "cxi")


@pytest.mark.parametrize("kind", PLUGINS)
def test_four_facts_that_agree_pass(kind: str) -> None:
    assert judged_as(kind, healthy(kind), "++++", set()).remarks == []


@pytest.mark.parametrize("kind", ["tcpxo", "cxi"])
def test_bytes_that_no_counter_sees_are_inconclusive(kind: str) -> None:
    unseen = {device(kind, rail): 20_000 for rail in range(RAILS)}
    words = f"no counter sees bytes that pass the kernel by ({kind})"
    judged_as(kind, carried(healthy(kind), None, unseen), "++?+", {Case.NO_COUNTER}, words)


def test_tcpx_is_counted_by_its_interfaces() -> None:
    unseen = {device("tcpx", rail): 20_000 for rail in range(RAILS)}
    judged_as("tcpx", carried(healthy("tcpx"), "birch1", unseen), "++-+", {Case.NOT_ON_FABRIC})


@pytest.mark.parametrize(
    ("kind", "net", "words"),
    [
        ("tcpx", "FasTrak", "NET/FasTrak (TCPXO), promised is tcpx"),
        ("tcpxo", "GPUDirectTCPX_v7", "NET/GPUDirectTCPX_v7 (TCPX), promised is tcpxo"),
        ("tcpx", "IB", "NET/IB (RDMA), promised is tcpx"),
        ("cxi", "IB", "(verbs), promised is cxi"),
        ("cxi", "FasTrak", "NET/FasTrak (TCP), promised is cxi"),
        ("efa", "GPUDirectTCPX_v7", "(TCP), promised is efa"),
    ],
)
def test_another_network_than_the_promised_one(kind: str, net: str, words: str) -> None:
    facts = with_logs(healthy(kind), kind, net=net)
    judged_as(kind, facts, "+-++", {Case.OTHER_NETWORK}, words)


@pytest.mark.parametrize(
    ("kind", "setting", "case", "why"),
    [
        ("tcpx", "NCCL_NET_PLUGIN=none", Case.NET_CHOSEN, "loads no plugin, and TCPX needs one"),
        ("tcpxo", "NCCL_NET=Socket", Case.NET_CHOSEN, "chooses sockets where tcpxo is promised"),
        ("tcpx", "NCCL_NET=IB", Case.NET_CHOSEN, "chooses verbs where tcpx is promised"),
        ("cxi", "FI_PROVIDER=verbs", Case.NET_CHOSEN, "leaves out cxi, which is promised"),
    ],
)
def test_a_setting_that_leaves_the_plugin(kind: str, setting: str, case: Case, why: str) -> None:
    name, _, value = setting.partition("=")
    judged_as(kind, with_env(healthy(kind), **{name: value}), "-+++", {case}, why)


@pytest.mark.parametrize("kind", PLUGINS)
def test_the_silent_fallback_to_sockets_is_named(kind: str) -> None:
    facts = with_env(fallen_back(kind, healthy(kind), None, "mgmt0"), NCCL_SOCKET_IFNAME="mgmt0")
    proof = judged_as(
        kind,
        facts,
        "+-?-" if kind != "tcpx" else "+---",
        {Case.SOCKETS, Case.NOT_QUIET, Case.NO_COUNTER if kind != "tcpx" else Case.NOT_ON_FABRIC},
    )
    assert f"instead of {kind}: " in proof.culprit
    assert "no RDMA device" not in proof.culprit


@pytest.mark.parametrize("kind", PLUGINS)
def test_such_a_fabric_is_no_doubt(kind: str) -> None:
    assert doubts(spec_of(kind)) == []


def by_hccl(**settings: str) -> Evidence:
    """Evidence of a cluster whose links no interface shows, and whose logs say nothing."""
    facts = healthy("cxi")
    nodes = tuple(
        replace(
            one,
            machine=Machine(interfaces=(interface("mgmt0"),), rdma=()),
            sent_bytes={"mgmt0": 20_000},
            received_bytes={"mgmt0": 20_000},
        )
        for one in facts.nodes
    )
    ranks = tuple(replace(one, log=None, environment=settings) for one in facts.ranks)
    return replace(facts, backend="hccl", nodes=nodes, ranks=ranks)


@pytest.mark.parametrize("setting", ["FALSE", "TRUE", "true"])
def test_unified_bus_is_not_proven_and_hccl_sent_to_roce_is_found(setting: str) -> None:
    facts = by_hccl(HCCL_INTER_HCCS_DISABLE=setting)
    off = setting != "FALSE"
    unknown = {Case.UNKNOWN_NETWORK, Case.NO_COUNTER}
    answers = "-??+" if off else "+??+"
    judged_as("ub", facts, answers, unknown | ({Case.NET_CHOSEN} if off else set()))


def test_traffic_of_unified_bus_that_went_over_the_management_network_is_not_quiet() -> None:
    unknown = {Case.UNKNOWN_NETWORK, Case.NO_COUNTER}
    facts = carried(by_hccl(), "birch1", {"mgmt0": 8_000_000_000})
    judged_as("ub", facts, "+??-", unknown | {Case.NOT_QUIET}, "mgmt0")
