"""State shared by the ranks of a world during a test whose class starts its own processes.

Those processes would have one parent, and one file for their rendezvous. Here the file need not be
on a file system that all nodes share: a FileStore of its name is replaced by a store of the test.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import torch.distributed.rendezvous

from pytest_mnode.rank.rank import Rank

dist: Any = torch.distributed
_c10d: Any = torch._C._distributed_c10d
_POLL_S = 0.01


class SharedTest:
    """The state that the ranks of a world share while a test of such a class runs."""

    current: SharedTest | None = None

    def __init__(self, rank: Rank) -> None:
        """Open the test's store; all ranks must call this."""
        self.name = str(rank.ordinal)
        self.store = rank.groups.open_store(self.name)
        self.file_name = ""
        self.temporary: list[str] = []
        self.environment = dict(os.environ)
        self._rank = rank
        self._opened = self._barriers = 0
        self.give_contract()

    def give_contract(self) -> None:
        """Set torchrun's variables, with MASTER_PORT of this test's store."""
        self._rank.restore_contract()
        os.environ["MASTER_PORT"] = str(self.store.port)

    def of_rank_0(self, key: str, value: Any) -> Any:
        """Rank 0's `value`, returned in every rank; it must be JSON."""
        if self._rank.world.rank == 0:
            self.store.set(key, json.dumps(value))
        return json.loads(self.store.get(key))

    def use_name(self, file_name: str) -> None:
        """Remove a file that serves only as a name, because a killed rank could not remove it."""
        self.temporary.append(file_name)
        Path(file_name).unlink()

    def inherit(self, file_name: str) -> None:
        """Take from rank 0 what child processes inherit from their parent."""
        before = self.environment
        changed = {name: v for name, v in os.environ.items() if before.get(name) != v}
        self.file_name, environment = self.of_rank_0("parent", [file_name, changed])
        os.environ.update(environment)
        self.give_contract()

    def open_file(self, file_name: str) -> Any:
        """A store in place of a file; empty at each opening, as a file is once its users left."""
        self._opened += 1
        return dist.PrefixStore(f"{file_name[len(self.file_name) :]}/{self._opened}", self.store)

    def barrier(self, wait_for: int | None = None, timeout: float = 10) -> None:
        """Replaces a barrier by files named after process ids, which nodes need not share."""
        self._barriers += 1
        key, end = f"barrier/{self._barriers}", time.monotonic() + timeout
        count = self.store.add(key, 1)
        while count < (wait_for or dist.get_world_size()):
            if time.monotonic() > end:
                raise RuntimeError("barrier timeout")
            time.sleep(_POLL_S)
            count = self.store.add(key, 0)

    def end(self, keep_group: bool) -> None:
        """Remove the group, environment and files that the body left."""
        SharedTest.current = None
        if dist.is_initialized() and not keep_group and self._rank.groups.made is None:
            dist.destroy_process_group()
        os.environ.clear()
        os.environ.update(self.environment)
        for path in self.temporary:
            Path(path).unlink(missing_ok=True)
        self._rank.groups.forget_store(self.name)


class _FileStore(dist.FileStore):  # type: ignore[misc]
    """A FileStore, or the test's store if the file is the test's."""

    def __new__(cls, file_name: str, *_: Any, **__: Any) -> Any:
        test = SharedTest.current
        if test is not None and test.file_name and str(file_name).startswith(test.file_name):
            return test.open_file(str(file_name))
        return super().__new__(cls)


def install() -> None:
    """Replace FileStore before test modules are imported, because they may import it by name."""
    for module in (dist, dist.rendezvous, _c10d):
        module.FileStore = _FileStore
