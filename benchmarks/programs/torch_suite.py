"""Tests of torch's own suite, and three of them with a fault in rank 1."""

import functools
import os
import time
from collections.abc import Callable
from typing import Any

from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend


class TestTorch(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self) -> None:
        super().setUp()  # type: ignore[no-untyped-call]
        self._spawn_processes()


def _asserts(_: Callable[[], None]) -> None:
    raise AssertionError("the loss of rank 1 is NaN")


def _sleeps(_: Callable[[], None]) -> None:
    time.sleep(600)


def _exits(body: Callable[[], None]) -> None:
    body()
    os._exit(3)


def _in_rank_1(fault: Callable[[Callable[[], None]], None], test: Any) -> Any:
    @functools.wraps(test)
    def faulty(self: Any) -> None:
        if self.rank == 1:
            fault(lambda: test(self))
        else:
            test(self)

    return faulty


class TestFaults(TestTorch):
    """Three of torch's tests with a fault, under their own names, so that no test runs twice."""

    test_all_reduce_sum = _in_rank_1(_asserts, TestTorch.test_all_reduce_sum)
    test_broadcast = _in_rank_1(_sleeps, TestTorch.test_broadcast)
    test_all_gather = _in_rank_1(_exits, TestTorch.test_all_gather)


del TestDistBackend
