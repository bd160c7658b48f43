"""The four facts where NVLink joins nodes, as in NVL72: inside a domain it is the promised path."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from pytest_mnode.criteria.transport.counted import expected_bytes
from pytest_mnode.criteria.transport.evidence import Evidence
from pytest_mnode.criteria.transport.remarks import Case
from pytest_mnode.measurement import Verdict
from pytest_mnode.spec import Spec
from pytest_mnode.spec.inventory import Accelerators
from tests.criteria.transport.compose import (
    PROMISE,
    RAILS,
    Judged,
    carried,
    device,
    healthy,
    judged_by,
    log_text,
    on_ranks,
    read_log,
    spec_of,
    with_env,
)

_CHANNEL = re.compile(r": (\d+)\[\d+\] -> (\d+)\[\d+\] \[(?:send|receive)\] via \S+")


def domains_of(nodes: int) -> Spec:
    """A spec of domains of so many nodes."""
    domain = {"gpus": nodes * RAILS, "bandwidth": "900 GB/s"}
    accelerators = Accelerators.model_validate({"per_node": RAILS, "domain": domain})
    return spec_of("infiniband").model_copy(update={"accelerators": accelerators})


def joined(count: int, nodes: int) -> Evidence:
    """Nodes that NVLink joins by `nodes`, whose NICs carry what leaves these groups.

    Of each group the last node sends what the first of the next receives.
    """
    facts = healthy("infiniband", count)

    def by_nvlink(text: str) -> str:
        def path(found: re.Match[str]) -> str:
            sender, receiver = int(found[1]) // RAILS, int(found[2]) // RAILS
            if sender // nodes != receiver // nodes:
                return found[0]
            return f"{found[0].rpartition(' [')[0]} via P2P/MNNVL"

        return _CHANNEL.sub(path, text)

    facts = on_ranks(
        facts,
        None,
        lambda r: replace(r, log=read_log(by_nvlink(log_text(r.rank, count, "infiniband")))),
    )
    for index, node in enumerate(facts.nodes):
        if count <= nodes or (index + 1) % nodes:
            facts = carried(facts, node.name, silent())
    return facts


def silent() -> dict[str, int | None]:
    return {device("infiniband", rail): 20_000 for rail in range(RAILS)}


def judged(facts: Evidence, nodes: int) -> Judged:
    return judged_by(facts, domains_of(nodes), PROMISE)


@pytest.mark.parametrize(("count", "nodes"), [(2, 2), (2, 9), (4, 2), (6, 3)])
def test_traffic_inside_domains_and_over_nics_between_them_passes(count: int, nodes: int) -> None:
    proof = judged(joined(count, nodes), nodes)
    assert proof.verdict is Verdict.PASS, proof.culprit
    assert proof.cases == set()


def test_without_a_promised_domain_nvlink_between_nodes_fails() -> None:
    proof = judged_by(joined(2, 2), spec_of("infiniband"), PROMISE)
    assert proof.verdict is Verdict.FAIL
    assert "(NVLink between nodes)" in proof.culprit


def test_a_group_whose_nics_sent_too_little_fails_and_no_node_is_sure() -> None:
    facts = carried(joined(4, 2), "birch3", silent())
    proof = judged(facts, 2)
    assert proof.verdict is Verdict.FAIL
    assert proof.cases == {Case.NOT_ON_FABRIC}
    [least] = [one for one in proof.measurements if one.name.endswith("that sent least")]
    assert least.culprit is not None
    assert least.culprit.nodes == frozenset()
    assert least.culprit.either == {frozenset({"birch2", "birch3"})}


def test_nodes_that_one_domain_has_room_for_and_nics_join_are_inconclusive() -> None:
    facts = healthy("infiniband", 2)
    proof = judged(facts, 2)
    assert proof.verdict is Verdict.INCONCLUSIVE
    assert "NVLink joins 2 groups of these 2 nodes, and a domain has 2: IMEX" in proof.culprit
    assert judged(with_env(facts, NCCL_MNNVL_ENABLE="0"), 2).verdict is Verdict.PASS
    assert judged(healthy("infiniband", 3), 2).verdict is Verdict.PASS


def test_a_single_domain_need_not_send_over_nics_and_two_must() -> None:
    facts, fabric = healthy("infiniband", 4), spec_of("infiniband").fabric
    assert expected_bytes(facts, fabric, PROMISE, 1).least_bytes == 0
    two = expected_bytes(facts, fabric, PROMISE, 2)
    assert 0 < two.least_bytes <= expected_bytes(facts, fabric, PROMISE).least_bytes
    assert "NVLink joins the nodes to 2" in two.source
