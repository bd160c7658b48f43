"""torch's MultiProcContinuousTest: all tests of a class share processes and group."""

import unittest
from collections.abc import Callable
from typing import Any

from torch.testing._internal.common_distributed import MultiProcContinuousTest

from benchmarks.programs import bodies


class Continuous(MultiProcContinuousTest):
    world_size = bodies.RANKS
    timeout = bodies.LIMIT

    @classmethod
    def backend_str(cls) -> str:
        return "gloo"

    @classmethod
    def device_type(cls) -> str:
        return "cpu"


def _method(body: Callable[[int, int], None]) -> Callable[[Any], None]:
    def test(self: Any) -> None:
        body(self.rank, self.world_size)

    return test


bodies.add_methods(Continuous, _method)

if __name__ == "__main__":
    unittest.main(verbosity=2)
