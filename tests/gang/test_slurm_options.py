"""sbatch's options: the nodes that they leave, and their translation."""

from __future__ import annotations

import pytest

from pytest_mnode.errors import UsageError
from pytest_mnode.gang.slurm_options import Requirements, Target, features_of, option_of, submitting
from pytest_mnode.launchers.slurm import NodeState
from pytest_mnode.launchers.slurm.nodes import nodes_from_text


@pytest.mark.parametrize(
    ("options", "partition"),
    [
        ([], None),
        (["--account=x"], None),
        (["--partition=gpu", "--account=x"], "gpu"),
        (["--partition", "gpu"], "gpu"),
        (["-p", "gpu", "-A", "x"], "gpu"),
        (["-pgpu"], "gpu"),
        (["-p"], None),
        (["--parsable"], None),
        # As in sbatch: the spec's names come after the command line.
        (["--partition=gpu", "--partition=all"], "all"),
    ],
)
def test_the_last_option_counts(options: list[str], partition: str | None) -> None:
    assert option_of(options, "--partition", "-p") == partition


def test_partition_and_reservation_of_jobs() -> None:
    assert Target.read(["-Ca100", "--partition=a,b", "--reservation=cert"]) == Target(
        ("a", "b"), "cert", (frozenset({"a100"}),)
    )
    assert Target.read(["--qos=high"]) == Target()


@pytest.mark.parametrize(
    ("constraint", "features"),
    [
        ("", []),
        ("a", [{"a"}]),
        ("a&b", [{"a", "b"}]),
        ("a,b", [{"a", "b"}]),
        ("a|b", [{"a"}, {"b"}]),
    ],
)
def test_features(constraint: str, features: list[set[str]]) -> None:
    assert features_of(constraint) == tuple(map(frozenset, features))


@pytest.mark.parametrize("constraint", ["[a|b]", "a*2", "(a&b)|c", "a&b|c"])
def test_a_constraint_whose_nodes_cannot_be_counted(constraint: str) -> None:
    with pytest.raises(UsageError) as error:
        features_of(constraint)
    assert str(error.value).startswith(f"constraint {constraint}: its nodes cannot be counted")


def node(name: str, state: str = "IDLE", flags: str = "", **given: object) -> NodeState:
    features = frozenset(str(given.get("features", "")).split())
    partitions = tuple(str(given.get("partitions", "gpu")).split())
    words = frozenset(flags.split())
    return NodeState(name, state, words, features=features, partitions=partitions)


NODES = (
    node("n0", features="a100 ib"),
    node("n1", partitions="all gpu", features="h100"),
    node("n2", partitions="all"),
    node("n3", flags="RESERVED", features="a100"),
    node("n4", flags="MAINT RESERVED"),
    node("n5", "DOWN", flags="RESERVED"),
    node("n6", "IDLE", flags="DRAIN"),
)


@pytest.mark.parametrize(
    ("place", "names"),
    [
        (Target(("gpu",)), ["n0", "n1"]),
        (Target(("gpu", "all")), ["n0", "n1", "n2"]),
        (Target(("gpu",), features=features_of("a100")), ["n0"]),
        (Target(("gpu",), features=features_of("a100|h100")), ["n0", "n1"]),
        (Target(("gpu",), features=features_of("a100&h100")), []),
        # A job in a reservation gets no other nodes of the partition.
        (Target(("gpu",), "cert"), ["n3", "n4"]),
        (Target(("gpu",), "cert", features_of("a100")), ["n3"]),
        (Target(("nowhere",)), []),
    ],
)
def test_nodes_that_jobs_may_get(place: Target, names: list[str]) -> None:
    found = place.nodes(NODES, ("n3", "n4", "n5"))
    assert [one.name for one in found] == names


def test_nodes_of_the_jobs_own_reservation_are_not_reserved() -> None:
    (own,) = Target(("gpu",), "cert").unreserved([node("n4", flags="MAINT RESERVED DRAIN")])
    assert own.flags == {"DRAIN"}
    (others,) = Target(("gpu",)).unreserved([node("n4", flags="RESERVED")])
    assert others.flags == {"RESERVED"}


def test_options_set_by_environment_variables() -> None:
    blocked = {"SLURM_CONF": "/etc/s", "SBATCH_ACCOUNT": "lab", "PATH": "/bin"}
    hidden = {"SBATCH_PARTITION": "x", "SBATCH_WAIT": "1", "SLURM_JOB_ID": "7"}
    assert submitting(blocked | hidden) == blocked


@pytest.mark.parametrize(
    ("option", "names"),
    [
        ("--gres=gpu:4070:2", {"n0"}),
        ("--gres=gpu:2g.20gb:3", {"n1"}),
        ("--gpus-per-node=5", {"n1"}),
    ],
)
def test_a_type_of_gpu_may_begin_with_a_digit(option: str, names: set[str]) -> None:
    text = (
        "NodeName=n0 CPUTot=8 RealMemory=900 Gres=gpu:4070:4(S:0-1) State=IDLE\n"
        "NodeName=n1 CPUTot=8 RealMemory=900 Gres=gpu:l4:2(S:0,1),gpu:2g.20gb:3(S:1) State=IDLE\n"
    )
    required = Requirements.read([option])
    assert {node.name for node in nodes_from_text(text) if required.met_by(node)} == names
