"""Nights of virtual clusters: healthy ones are green, and faults have the right name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.rehearsals import spec_of
from pytest_mnode.certificate import Certificate, CertificateVerdict
from pytest_mnode.criteria.scaling.plan import Plan
from pytest_mnode.criteria.scaling.timings import Step
from pytest_mnode.errors import UsageError
from pytest_mnode.evidence.check import catalogue
from pytest_mnode.measurement import Verdict
from pytest_mnode.path_rates import State
from pytest_mnode.spec import load_spec, profile_spec
from pytest_mnode.virtual.cluster import VirtualCluster
from pytest_mnode.virtual.faults import FAULTS, form_of
from pytest_mnode.virtual.night import rehearse
from pytest_mnode.virtual.scaling import _Job

CLUSTERS = Path(__file__).parents[2] / "fixtures" / "clusters"
MORE = CLUSTERS.parents[1] / "benchmarks" / "faults.yaml"
"""h100-ib, with promises that no profile has."""


def night(
    profile: str, nodes: int, *faults: str, seed: int = 0, only: Sequence[str] | None = None
) -> Certificate:
    path = MORE if profile == MORE.stem else CLUSTERS / f"{profile}.yaml"
    return rehearse(spec_of(path), path, nodes, faults=faults, seed=seed, only=only)


def of_state(certificate: Certificate, state: State) -> set[str]:
    return {node.name for node in certificate.coverage.nodes if node.state is state}


@pytest.mark.parametrize("nodes", [2, 3, 8])
def test_a_healthy_night_breaks_no_promise(nodes: int) -> None:
    """Of every profile: tests/benchmarks/test_rehearsals.py."""
    found = night("faults", nodes)
    assert (found.verdict, of_state(found, State.PASSED)) == (
        CertificateVerdict.REHEARSAL,
        set(found.run.nodes),
    ), found.reasons


@pytest.mark.parametrize("errors", ["", "=2"])
def test_a_link_may_have_bit_errors_as_they_are_promised(errors: str) -> None:
    """In a night by their rate, as in a real one: 64 healthy ports have some."""
    found = night("h100-ib", 8, *([f"bad_cable:node1:mlx5_ib2{errors}"] if errors else []))
    assert found.verdict is CertificateVerdict.REHEARSAL, found.reasons
    [ports] = [
        one
        for criterion in found.criteria
        for case in criterion.cases
        for one in case.measurements
        if criterion.name == "fabric" and one.name == "bit error rate, worst fabric port"
    ]
    assert ports.value


@pytest.mark.parametrize("nodes", [2, 20])
@pytest.mark.parametrize("fault", ["narrow_nvlink:node1=0.8", "nvlink_down:node1"])
def test_nvlink_that_joins_nodes_is_found_to_be_slow(fault: str, nodes: int) -> None:
    found = night("gb200-nvl72", nodes, fault)
    assert of_state(found, State.FAILED) == {"node1"}, found.reasons


@pytest.mark.parametrize("nodes", [8, 20])
@pytest.mark.parametrize(
    ("fault", "bad"),
    [
        ("", set()),
        ("slow_nic:node3:mlx5_2=0.6", {"node3"}),
        ("narrow_nvlink:node3=0.6", {"node3"}),
    ],
)
def test_a_rack_of_nvlink_or_two_hide_no_slow_nic(nodes: int, fault: str, bad: set[str]) -> None:
    """In one rack perftest shows it, as no path leaves the NVLink domain."""
    found = night("gb200-nvl72", nodes, *filter(None, [fault]))
    assert of_state(found, State.FAILED) == bad, found.reasons
    assert of_state(found, State.SUSPECT) == set()
    assert (found.verdict is CertificateVerdict.REHEARSAL) is (not bad)


@pytest.mark.parametrize("profile", ["rack", "hgx-h100"])
def test_a_node_that_has_no_other_to_compare_is_inconclusive(profile: str) -> None:
    found = night(profile, 1)
    assert found.run.rehearsal == "a virtual cluster of 1 node (seed 0; no fault)"
    assert found.verdict is CertificateVerdict.INCONCLUSIVE
    assert "has no other to be compared with" in found.reasons[0]


def test_two_thirds_of_computing_can_hide_communication() -> None:
    """The backward pass has twice the products of the forward pass."""
    spec = profile_spec("rack")
    cluster, promise = VirtualCluster.healthy(spec, 2, 0), spec.criteria.scaling
    assert promise is not None
    plan = Plan(cluster.nodes, cluster.per_node, 0, promise)
    *_, turn = plan.turns(0)
    steps = _Job(cluster, plan).steps(turn, turn.groups[0]).steps
    for step in (Step(*values) for of_rank in steps for values in of_rank):
        assert step.backward_s == pytest.approx(step.compute * 2 / 3)


def test_a_seed_gives_the_same_night() -> None:
    one, same, other = (night("h100-ib", 2, seed=seed).criteria for seed in (1, 1, 2))
    assert one == same != other


_NOT_HERE = {"leaf", "spine", "slow_path", "slow_server", "rail", "same_address", "same_hostname"}
"""Of more nodes, of several nodes, or of what an InfiniBand fabric does not have."""
_AT = {
    "node": ":node1",
    "nic": ":node1:mlx5_ib2",
    "gpu": ":node1:3",
    "check": ":node1:nvlink",
}


_NAMED_AT = {"slow_tx": "=0.91", "slow_rx": "=0.91"}
"""Of one direction: at its limit perftest shows a pair, of which either end may be slow."""


@pytest.mark.parametrize("name", [one for one in FAULTS if one not in _NOT_HERE])
def test_a_fault_at_its_limit_is_found_and_nobody_else_is_blamed(name: str) -> None:
    found = night("faults", 4, f"{name}{_AT[FAULTS[name].place]}{_NAMED_AT.get(name, '')}")
    assert found.verdict is CertificateVerdict.NOT_CERTIFIED
    assert of_state(found, State.FAILED) == {"node1"}, found.reasons
    failed = {one.name for one in found.criteria if one.verdict == "fail"}
    assert failed & set(FAULTS[name].shows)


@pytest.mark.parametrize(
    ("fault", "profile", "nodes", "suspect"),
    [
        ("slow_path:node1+node2", "h100-ib", 4, {"node1", "node2"}),
        ("slow_tx:node1:mlx5_ib2=0.94", "h100-ib", 4, {"node1", "node2"}),
        ("same_address:node1+node2", "h100-roce", 4, {"node1", "node2"}),
        ("rail:mlx5_ib2", "h100-ib", 4, {"node0", "node1", "node2", "node3"}),
        ("slow_server", "faults", 4, {"node0", "node1", "node2", "node3"}),
    ],
)
def test_a_fault_between_nodes_names_none_for_sure(
    fault: str, profile: str, nodes: int, suspect: set[str]
) -> None:
    found = night(profile, nodes, fault)
    assert found.verdict is CertificateVerdict.NOT_CERTIFIED
    assert not of_state(found, State.FAILED)
    assert of_state(found, State.SUSPECT) == suspect


def test_programs_and_logs_of_a_night_go_through_their_readers() -> None:
    found = night("h100-ib", 4, "slow_nic:node1:mlx5_ib2=0.8", "staged:node2")
    [fabric] = [one for one in found.criteria if one.name == "fabric"]
    cases = {case.test.partition("::")[2]: case for case in fabric.cases}
    program = cases["test_nccl_tests_reach_the_line_rate[all_reduce]"].measurements
    assert {one.verdict for one in program if one.unit == "GB/s"} == {Verdict.FAIL}
    assert [one.value for one in program if "#wrong" in one.name] == [0]
    perftest = cases["test_rdma_by_perftest_is_as_promised[write_bandwidth]"].measurements
    slow = [one for one in perftest if one.verdict is Verdict.FAIL]
    assert {one.name for one in slow} == {
        "ib_write_bw node0→node1 mlx5_ib2",
        "ib_write_bw node1→node2 mlx5_ib2",
    }
    assert all(one.culprit and one.culprit.nodes == {"node1"} for one in slow)
    proof = cases["test_traffic_runs_on_the_fabric"].measurements
    [logged] = [one for one in proof if one.verdict is Verdict.FAIL]
    assert logged.culprit
    assert logged.culprit.nodes == {"node2"}


@pytest.mark.parametrize(
    ("profile", "nodes"), [("p5", 3), ("a3-high", 3), ("a3-mega", 3), ("gb200-nvl72", 20)]
)
def test_transport_is_proven_on_other_fabrics(profile: str, nodes: int) -> None:
    for fault, culprit in (("", set[str]()), ("tcp_fallback:node1", {"node1"})):
        found = night(profile, nodes, *filter(None, [fault]), only=["fabric"])
        [fabric] = [one for one in found.criteria if one.name == "fabric"]
        [proof] = [one for one in fabric.cases if one.test.endswith("_runs_on_the_fabric")]
        bad = [one for one in proof.measurements if one.verdict not in (Verdict.PASS, None)]
        named = set[str]().union(*(one.culprit.nodes for one in bad if one.culprit))
        assert named == culprit or profile.startswith("gb200"), bad
        assert bool(bad) is bool(fault), bad


def test_bytes_of_a_dead_port_are_counted_on_the_next() -> None:
    found = night("h100-ib", 2, "failover:node1:mlx5_ib2")
    carried = {
        (criterion.name, one.value): one.culprit
        for criterion in found.criteria
        for case in criterion.cases
        for one in case.measurements
        if one.name.startswith("NICs that carried") and one.verdict is Verdict.FAIL
    }
    assert carried.keys() == {("fabric", 7), ("scaling", 7)}
    for culprit in carried.values():
        assert culprit
        assert [*culprit.parts.devices] == [("node1", "mlx5_ib2")]


READ = {
    "nvlink": "{links: 18, rate: 25 GB/s, errors_at_most: 100}",
    "versions": '{driver: ">=570,<600", nccl: ">=2.27", firmware: same}',
    "hardware": "{memory: 2 TiB, cpus: 192, sockets: 2, nvme: 8}",
    "dcgm": "{level: 2}",
    "huge_pages": "madvise",
    "cpu_governor": "performance",
    "memory_errors": "{uncorrected_at_most: 0}",
    "nvme": "{}",
    "power_limit": "700",
    "amd": "{errors_at_most: 0}",
}


@pytest.mark.parametrize("key", READ)
def test_a_check_that_reads_by_itself_is_rehearsed_by_its_own_rule(
    key: str, tmp_path: Path
) -> None:
    page = tmp_path / "cluster.yaml"
    base = (CLUSTERS / "h100-ib.yaml").read_text()
    page.write_text(f"{base}\ncriteria: {{preflight: {{{key}: {READ[key]}}}}}\n")
    for fault, failed in (("", set[str]()), (f"reading:node1:{key}", {"node1"})):
        found = rehearse(
            load_spec(page), page, 3, faults=[fault] if fault else [], only=["preflight"]
        )
        assert of_state(found, State.FAILED) == failed, found.reasons
        [name] = [one.case() for one in catalogue("preflight") if one.key == f"preflight.{key}"]
        assert sum(f"::{name}[" in case.test for case in found.criteria[0].cases) == 3


def test_shared_uplinks_are_no_slow_paths_and_their_limit_is_said() -> None:
    found = night("h100-ib", 40, "leaf:node1=0.5", only=["fabric"])
    [fabric] = [one for one in found.criteria if one.name == "fabric"]
    measured = {m.name: m for case in fabric.cases for m in case.measurements}
    shared = measured["paths slow only beside others, over links that they share"]
    assert found.verdict is CertificateVerdict.REHEARSAL, found.reasons
    assert shared.value is not None
    assert shared.value > 64
    assert shared.detection is not None
    assert shared.detection.share == pytest.approx(0.95)
    assert measured["slow nodes, rails and paths"].value == 0


@pytest.mark.parametrize(
    ("fault", "accepted"),
    [
        ("slow_fan:node1", "no fault 'slow_fan'; accepted: slow_nic, "),
        ("slow_nic:node1", "slow_nic:NODE:NIC or slow_nic:NODE:NIC=0.94, with 4 nodes node0 to "),
        ("slow_nic:node9:mlx5_ib0", "accepted: slow_nic:NODE:NIC"),
        ("slow_gpu:node1:8", "accepted: slow_gpu:NODE:NUMBER"),
        ("slow_gpu:node1:0=fast", "accepted: slow_gpu:NODE:NUMBER"),
        (
            "reading:node1:fan",
            "accepted: reading:NODE:CHECK, with 4 nodes node0 to node3, checks nvl",
        ),
        ("driver:node1=2", "driver has no strength; accepted: driver:NODE"),
        ("slow_path:node1+node1", "accepted: slow_path:NODE+NODE"),
        ("leaf:node1", "more than the 16 nodes of a leaf"),
    ],
)
def test_bad_faults_are_refused_in_one_line(fault: str, accepted: str) -> None:
    with pytest.raises(UsageError) as raised:
        night("h100-ib", 4, fault)
    assert accepted in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_docs_list_every_fault() -> None:
    docs = (CLUSTERS.parents[1] / "docs" / "rehearse.md").read_text()
    missing = [
        name
        for name, fault in FAULTS.items()
        if f"| `{form_of(name)}` | {fault.text} |" not in docs
    ]
    assert not missing
