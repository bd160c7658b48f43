"""What the ranks of a world share while a test runs whose class starts processes of its own.

Its processes would have one parent, and one file to meet at. Here the file need not be on a file
system that all nodes see: a FileStore of its name is a store of the test.
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
    """What the ranks of a world have in common while a test of such a class runs."""

    current: SharedTest | None = None

    def __init__(self, rank: Rank) -> None:
        """All ranks must call this."""
        self.name = str(rank.ordinal)
        self.store = rank.groups.open_store(self.name)
        self.file_name = ""
        self.temporary: list[str] = []
        self.environment = dict(os.environ)
        self._rank = rank
        self._opened = self._barriers = 0
        self.give_contract()

    def give_contract(self) -> None:
        """Torchrun's variables, but the store they lead to is this test's."""
        self._rank.restore_contract()
        os.environ["MASTER_PORT"] = str(self.store.port)

    def of_rank_0(self, key: str, value: Any) -> Any:
        """Rank 0's `value`, in every rank."""
        if self._rank.world.rank == 0:
            self.store.set(key, json.dumps(value))
        return json.loads(self.store.get(key))

    def use_name(self, file_name: str) -> None:
        """Remove a file that is there for its name alone: a rank that is killed could not."""
        self.temporary.append(file_name)
        Path(file_name).unlink()

    def inherit(self, file_name: str) -> None:
        """Take what children have from the parent process: here from rank 0."""
        before = self.environment
        changed = {name: v for name, v in os.environ.items() if before.get(name) != v}
        self.file_name, environment = self.of_rank_0("parent", [file_name, changed])
        os.environ.update(environment)
        self.give_contract()

    def open_file(self, file_name: str) -> Any:
        """A store in place of a file. Opened again it is empty, as a file that its users left."""
        self._opened += 1
        return dist.PrefixStore(f"{file_name[len(self.file_name) :]}/{self._opened}", self.store)

    def barrier(self, wait_for: int | None = None, timeout: float = 10) -> None:
        """In place of one by files named after process ids, which nodes need not share."""
        self._barriers += 1
        key, end = f"barrier/{self._barriers}", time.monotonic() + timeout
        count = self.store.add(key, 1)
        while count < (wait_for or dist.get_world_size()):
            if time.monotonic() > end:
                raise RuntimeError("barrier timeout")
            time.sleep(_POLL_S)
            count = self.store.add(key, 0)

    def end(self, keep_group: bool) -> None:
        """Clear what the body left."""
        SharedTest.current = None
        if dist.is_initialized() and not keep_group and self._rank.groups.made is None:
            dist.destroy_process_group()
        os.environ.clear()
        os.environ.update(self.environment)
        for path in self.temporary:
            Path(path).unlink(missing_ok=True)
        self._rank.groups.forget_store(self.name)


class _FileStore(dist.FileStore):  # type: ignore[misc]
    """A FileStore, or the store of the test in place of its file."""

    def __new__(cls, file_name: str, *_: Any, **__: Any) -> Any:
        test = SharedTest.current
        if test is not None and test.file_name and str(file_name).startswith(test.file_name):
            return test.open_file(str(file_name))
        return super().__new__(cls)


def install() -> None:
    """Before test modules are imported: they may take FileStore by name."""
    for module in (dist, dist.rendezvous, _c10d):
        module.FileStore = _FileStore
