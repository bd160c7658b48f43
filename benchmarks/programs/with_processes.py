"""torch's MultiProcessTestCase: new processes for every test."""

import unittest
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.testing._internal.common_distributed import MultiProcessTestCase

from benchmarks.programs import bodies


class Processes(MultiProcessTestCase):
    @property
    def world_size(self) -> int:
        return bodies.RANKS

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()


def _method(body: Callable[[int, int], None]) -> Callable[[Any], None]:
    def test(self: Any) -> None:
        store = FileStore(self.file_name, self.world_size)
        dist.init_process_group(
            "gloo", store=store, rank=self.rank, world_size=self.world_size, timeout=bodies.LIMIT
        )
        body(self.rank, self.world_size)

    return test


bodies.add_methods(Processes, _method)

if __name__ == "__main__":
    unittest.main(verbosity=2)
