"""Test classes that start processes themselves, and the worlds that they need."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_mnode.suites import Suite, needs_no_world, spread, suite_of
from tests.inner import run_here, write_files

COMMON = "torch.testing._internal.common_distributed"


def base(name: str, module: str = COMMON, **values: Any) -> type:
    return type(name, (), {"__module__": module, **values})


@pytest.mark.parametrize(
    ("parent", "suite"),
    [
        (base("MultiProcessTestCase"), Suite.PROCESSES),
        (base("MultiProcContinuousTest"), Suite.CONTINUOUS),
        (base("DistributedTest", "unit.common", is_dist_test=True), Suite.DEEPSPEED),
        (base("MultiThreadedTestCase"), None),
        (base("MultiProcessTestCase", "elsewhere"), None),
        (base("Plain", "elsewhere", is_dist_test=False), None),
    ],
)
def test_a_class_is_recognised_by_its_bases(parent: type, suite: Suite | None) -> None:
    assert suite_of(type("TestOfUser", (parent,), {})) is suite


def test_ranks_in_one_process_need_no_world() -> None:
    dtensor = "torch.testing._internal.distributed._tensor.common_dtensor"
    local = base("LocalDTensorTestBase", dtensor)
    both = type("TestOfUser", (local, base("MultiProcessTestCase")), {})
    assert needs_no_world(both)
    assert suite_of(both) is None
    assert not needs_no_world(None)


@pytest.mark.parametrize(
    ("size", "nodes", "used"), [(4, 2, 2), (4, 3, 2), (3, 2, 1), (6, 4, 3), (1, 5, 1)]
)
def test_ranks_are_spread_evenly(size: int, nodes: int, used: int) -> None:
    assert spread(size, nodes) == used


@pytest.mark.parametrize(
    ("world_size", "mark", "message"),
    [
        ("4", "nodes=3", "its class asks for 4 ranks, which are not equally many on nodes=3; give"),
        ("property(lambda self: 1 / 0)", "", "world_size of its class cannot be read (ZeroDivis"),
    ],
)
def test_an_impossible_world_size_is_one_line(
    pytester: pytest.Pytester, world_size: str, mark: str, message: str
) -> None:
    write_files(
        pytester.path,
        test_sizes=f"""
            import pytest

            class Base:
                __qualname__ = "MultiProcessTestCase"
                __module__ = "{COMMON}"

            @pytest.mark.mnode({mark})
            class TestSizes(Base):
                world_size = {world_size}

                def test_body(self): pass
        """,
    )
    run = run_here(pytester, "--mnode-launcher=local")
    assert run.returncode == pytest.ExitCode.USAGE_ERROR, run.output
    assert f"test_body: {message}" in run.output
    assert "Traceback" not in run.output
