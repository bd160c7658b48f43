"""Tests that raise, skip or expect to fail in some of four ranks."""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

if "torch" in sys.modules:  # for forked ranks; the controller only collects
    import torch
    import torch.distributed as dist

from pytest_mnode.culprit import Culprit
from pytest_mnode.errors import MnodeError
from pytest_mnode.launchers.nodes import Nodes
from pytest_mnode.measure import Measure
from pytest_mnode.measurement import Measurement, equals
from pytest_mnode.rank.world import World
from pytest_mnode.spec import Spec

DAMAGE = {"gradient": [1.0, 2.0, 4.0]}
pytestmark = pytest.mark.mnode(procs_per_node=1)
in_four = pytest.mark.mnode(procs_per_node=2)


def test_next(rank: int, world_size: int, process_group: Any, after: str) -> None:
    total = torch.tensor(rank)
    dist.all_reduce(total)
    assert int(total) == sum(range(world_size))


@in_four
def test_assertion_on_one(rank: int) -> None:
    print(f"rank {rank} computes")
    limit = 3.0 if rank == 2 else 10.0
    assert sum(DAMAGE["gradient"]) < limit


@in_four
def test_assertion_while_others_wait(rank: int, process_group: Any) -> None:
    if rank == 1:
        assert DAMAGE["gradient"] == [1.0, 2.0, 3.0]
    dist.barrier()


@in_four
def test_different_errors(rank: int) -> None:
    if rank == 0:
        raise ValueError("bad shard 17")
    if rank == 3:
        raise KeyError("embedding.weight")


def test_equal_errors_one_late(world: World) -> None:
    end = time.monotonic() + 1.1  # longer than the grace period
    while world.rank == 1 and time.monotonic() < end:
        pass
    assert world.size == 6


def test_groups_of_errors(rank: int) -> None:
    if rank == 0:
        raise ExceptionGroup("two workers", [ValueError("shard 0"), KeyError("shard 1")])
    if rank == 1:
        raise ExceptionGroup("one worker", [OSError("shard 2")])


def test_errors_without_a_place(rank: int) -> None:
    pytest.fail(f"loss {rank / 2}", pytrace=False)


def test_skip_on_all(rank: int) -> None:
    pytest.skip("no such device")


@in_four
def test_skip_on_some_while_others_wait(rank: int, process_group: Any) -> None:
    if rank == 1:
        pytest.skip("no such device")
    dist.barrier()


@pytest.fixture
def wants_device(rank: int) -> None:
    if rank == 1:
        pytest.skip("device is busy")


def test_skip_on_some_in_setup(rank: int, wants_device: None, process_group: Any) -> None:
    dist.barrier()


@pytest.mark.xfail(reason="known")
def test_xfail_on_all(rank: int) -> None:
    raise ValueError("as known")


@pytest.mark.mnode(timeout=20)
@pytest.mark.xfail(reason="known", raises=AssertionError)
def test_xfail_on_one_while_others_wait(rank: int, process_group: Any) -> None:
    assert rank != 1
    dist.barrier()


@pytest.mark.xfail(reason="known", raises=ValueError)
def test_xfail_for_another_reason(rank: int) -> None:
    if rank == 1:
        raise TypeError("not as known")
    raise ValueError("as known")


@pytest.mark.xfail(reason="known", strict=True)
def test_xfail_strict_on_one(rank: int) -> None:
    assert rank != 1


@pytest.mark.xfail(reason="known")
def test_xfail_does_not_cover_a_death(rank: int) -> None:
    if rank == 1:
        os._exit(3)
    raise ValueError("as known")


@in_four
def test_exits(rank: int) -> None:
    if rank == 1:
        sys.exit(0)
    if rank == 2:
        pytest.exit("enough", returncode=0)
    if rank == 3:
        raise KeyboardInterrupt


def test_exit_in_a_thread_is_its_own_affair(rank: int) -> None:
    thread = threading.Thread(target=sys.exit)
    thread.start()
    thread.join()


class UnspeakableError(Exception):
    def __init__(self) -> None:
        self.lock = threading.Lock()  # cannot be pickled

    def __str__(self) -> str:
        raise RuntimeError("nor printed")

    __repr__ = __str__


@in_four
def test_huge_message(rank: int) -> None:
    assert rank == 0, "the weights differ\n" * 5_000


class Opaque:
    """A class of this module alone, which the controller cannot import by name."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Opaque, ()


@in_four
def test_odd_errors(rank: int, record_property: Any) -> None:
    """Each of one rank; properties of any kind are recorded by all."""

    def deeper(level: int) -> int:
        return deeper(level + 1) + 1

    record_property("opaque", Opaque())
    record_property("lock", threading.Lock())
    print("half \udcff of a pair")
    os.write(1, b"\xff\xfe no UTF-8\n")
    if rank == 1:
        raise UnspeakableError
    if rank == 2:
        deeper(0)
    assert rank != 3, "half \udcff of a pair"


def paths_of(nodes: Nodes, spec: Spec) -> list[Measurement]:
    return [Measurement("lost paths", 2, "", equals(0), culprit=Culprit(nodes.nodes[1]))]


def unreachable(nodes: Nodes, spec: Spec) -> list[Measurement]:
    raise MnodeError("no node can be asked")


@pytest.mark.mnode(on_failure=paths_of)
def test_nothing_measured(rank: int) -> None:
    assert rank != 1


@pytest.mark.mnode(on_failure=paths_of)
def test_measured_first(rank: int, measure: Measure) -> None:
    measure("found paths", 1)
    assert rank != 1


@pytest.mark.mnode(on_failure=unreachable)
def test_nobody_to_ask(rank: int) -> None:
    assert rank != 1


def without_its_tool(nodes: Nodes, spec: Spec) -> list[Measurement]:
    raise FileNotFoundError("ping: command not found")


def fails_itself(nodes: Nodes, spec: Spec) -> list[Measurement]:
    pytest.fail("no path can be tried")


def measures_nothing(nodes: Nodes, spec: Spec) -> None:
    pass


@pytest.mark.mnode(on_failure=without_its_tool)
def test_no_tool(rank: int) -> None:
    assert rank != 1


@pytest.mark.mnode(on_failure=fails_itself)
def test_asking_fails(rank: int) -> None:
    assert rank != 1


@pytest.mark.mnode(on_failure=measures_nothing)
def test_nothing_returned(rank: int) -> None:
    assert rank != 1


@pytest.fixture
def measured_late(rank: int, measure: Measure) -> Iterator[None]:
    yield
    measure("late", rank, at_most=0)


def test_measured_in_teardown(measured_late: None) -> None:
    pass


def test_measured_by_name(rank: int, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("measure")("by name", None if rank == 1 else rank, at_most=9)


def test_measured_before_a_skip(rank: int, measure: Measure) -> None:
    measure("before a skip", rank, at_most=0)
    pytest.skip("enough")


class OpaqueWarning(UserWarning):
    pass


def test_warnings(rank: int) -> None:
    warnings.warn("learning rate is negative", UserWarning, stacklevel=1)
    warnings.warn(OpaqueWarning(f"only here {Opaque.__name__}"), stacklevel=1)


@pytest.fixture
def untidy(rank: int) -> Iterator[None]:
    yield
    if rank == 1:
        raise OSError("could not tidy up")


def test_finalizer_raises_on_one(untidy: None, rank: int) -> None:
    pass


@pytest.fixture(scope="module")
def dataset(rank: int) -> list[int]:
    if rank == 1 and not os.environ.get("SCENARIO_REPAIRED"):
        raise FileNotFoundError("shard-1.bin")
    return [rank]


def test_module_fixture_fails_on_one(dataset: list[int], rank: int, process_group: Any) -> None:
    dist.barrier()


def test_library_frames(rank: int) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    model(torch.ones(1, 3))
