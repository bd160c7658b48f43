"""What a survey found is judged the same from the evidence of its run."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from pytest_mnode.criteria.preflight import answers
from pytest_mnode.criteria.preflight.answers import (
    DirectoryFacts,
    LastFacts,
    Sample,
    Survey,
)
from pytest_mnode.criteria.preflight.environment import RankCheck, RankEnvironment, Ranks
from pytest_mnode.criteria.preflight.survey_check import SurveyCheck, promised_checks
from pytest_mnode.evidence.check import catalogue
from pytest_mnode.evidence.reading import CheckRows
from pytest_mnode.evidence.row import row
from pytest_mnode.machine.cpus import Cpus
from pytest_mnode.machine.pci import PciFunction, PciTree
from pytest_mnode.machine.rdma import Port, RdmaDevice
from pytest_mnode.measurement import Verdict
from tests.criteria.preflight.made import (
    H100,
    SOFTWARE,
    everyone,
    healthy,
    interface,
    kept_as,
    promising,
    rdma_device,
    rdma_port,
    with_facts,
    with_node,
)

PREFLIGHT = """{interfaces: {}, speed: {}, mtu: {}, addresses: unique, environment: {}, pcie: full,
  rdma: {gid_types: [RoCE v2], errors_at_most: 0}, accelerators: {}, gpudirect: dma-buf, limits: {},
  same: [code, python, driver, firmware, kernel, sysctl], storage: {}, cpus: near,
  huge_pages: same}"""
SPEC = promising(PREFLIGHT, "roce", "fab0, fab1", "1")
CARD = PciFunction(
    address="0000:1b:00.0", host="pci0000:00", kind="0302", vendor="10de", numa_node=0,
    link_gtransfers_s=32.0, max_link_gtransfers_s=32.0, link_width=8, max_link_width=16,
)  # fmt: skip


def _devices(port: Port) -> tuple[RdmaDevice, ...]:
    return (rdma_device(port, netdevs=("fab0",)),)


def faulty() -> Survey:
    """Three nodes, of which each has faults of its own."""
    port = rdma_port("RoCE", ("RoCE v2",))
    sample = Sample("a", 3, "0a")
    survey = everyone(
        healthy(3),
        rdma=_devices(port),
        accelerators=(H100,),
        pci=PciTree(functions=(replace(CARD, link_width=16),)),
        cpus=Cpus(online=frozenset({0, 1})),
        directories=(DirectoryFacts(key="datasets", path="/data", samples=(sample,)),),
        read=(CheckRows("test_huge_pages_are_alike", (row("mode", "always"),)),),
    )
    survey = with_facts(
        survey,
        1,
        interfaces=(interface("fab0", "10.2.0.1", carrier=False, mtu_bytes=1500),),
        rdma=_devices(replace(port, state="DOWN")),
        software=replace(SOFTWARE, kernel="6.2.0", driver_is_open=False),
        accelerators=(replace(H100, ecc_uncorrected=3),),
        pci=PciTree(functions=(CARD,)),
        code={"train/main.py": "other"},
        read=(CheckRows("test_huge_pages_are_alike", (row("mode", math.nan),)),),
    )
    counted = _devices(replace(port, counters={"symbol_error": 0, "link_downed": 2}))
    survey = with_node(survey, 0, last=LastFacts((), counted, after_s=3.0))
    return with_node(survey, 2, facts=None, problem="its survey ended with status 1")


def findings(check: Any, evidence: Any, names: tuple[str, ...]) -> list[Any]:
    return [one for name in names for one in check.judge(evidence, name)]


def test_a_kept_survey_is_judged_as_it_was() -> None:
    survey = faulty()
    again = kept_as(survey).survey(survey.names)
    assert again is not None
    judged, failed = set[str](), set[str]()
    for check in promised_checks(SPEC, catalogue("preflight")):
        if check.on == "node" and (isinstance(check, SurveyCheck) or check.reads()):
            found = findings(check, survey, survey.names)
            # As JSON has no NaN, its reason is another.
            plain = [replace(one, note="") for one in found]
            assert [replace(x, note="") for x in findings(check, again, survey.names)] == plain
            judged.add(type(check).__name__)
            failed |= {type(check).__name__ for one in found if one.verdict is Verdict.FAIL}
    assert len(judged) > 15
    assert {"InterfacesAreUp", "InterfacesHaveTheirMtu", "RdmaPortsAreActive", "NodesAreTheSame",
            "RdmaErrorsStandStill", "PcieLinksAreFull", "GpudirectIsThere"} <= failed  # fmt: skip


def test_kept_environments_of_ranks_are_judged_as_they_were() -> None:
    ranks = Ranks(
        ("gpu0", "gpu1"),
        tuple(
            RankEnvironment(
                number,
                f"gpu{number}",
                {"RANK": str(number), "WORLD_SIZE": "3"},
                {"NCCL_IB_DISABLE": ("1", " in /etc/nccl.conf"), "NCCL_IB_HCA": ("mlx5_9", "")},
                hcas=("mlx5_0:1",),
            )
            for number in (0, 1)
        ),
    )
    for evidence in (ranks, Ranks(ranks.nodes, why="no world: no answer")):
        again = kept_as(evidence).environments(ranks.nodes, 2)
        assert again is not None
        for check in promised_checks(SPEC, catalogue("preflight")):
            if isinstance(check, RankCheck):
                names = ("gpu0", "gpu1")
                assert findings(check, again, names) == findings(check, evidence, names) != []
    assert kept_as(ranks).environments(ranks.nodes, 3) is None, "one is missing"


@pytest.mark.parametrize("gone", ["gpu0", "gpu2"])
def test_a_survey_that_lacks_a_node_is_none(gone: str) -> None:
    survey = healthy(3)
    kept = kept_as(survey)
    del kept.nodes[gone]
    assert kept.survey(survey.names) is None


def test_paths_of_many_nodes_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """They grow by the square of nodes."""
    survey = healthy(4)
    for most in (4, 3):
        monkeypatch.setattr(answers, "MOST_WITH_PATHS", most)
        kept = kept_as(survey).nodes["gpu0"]
        assert kept.facts == survey.nodes[0].facts
        assert kept.paths == (survey.nodes[0].paths if most == 4 else None)
