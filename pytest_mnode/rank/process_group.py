"""The default process group of a rank: made when a test needs it, kept while tests may share it."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import warnings
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed import distributed_c10d

from pytest_mnode.rank import recorder
from pytest_mnode.rank.world import World

_BACKENDS_OF_DEVICES = ("nccl", "xccl", "hccl")
DEBUGGED_TIMEOUT = timedelta(days=1)
"""Timeout of groups and their store if a rank is debugged, because the others wait for its user."""
LAST_GROUP = "mnode-last-group"
"""Name of the thread that destroys the group of an earlier test."""


def _accelerators() -> tuple[str, int]:
    """Kind and number of the accelerators that this process sees."""
    kind = torch.accelerator.current_accelerator()
    if kind is None:
        return "cpu", 0
    # For CUDA, torch can count by NVML; the other calls initialize the driver.
    cuda = kind.type == "cuda"
    return kind.type, torch.cuda.device_count() if cuda else torch.accelerator.device_count()


def _tell_ranks(group: Any, size: int) -> None:
    """Tell the backends of a default group which ranks it has.

    torch does so for all other groups, and knows it by itself of the first one of a process. In a
    later one split_group crashes, which makes the groups of a DeviceMesh on NCCL.

    Source: torch, ProcessGroupNCCL::groupRanks and split; seen with 2.11.
    """
    for kind in group._device_types:
        options = getattr(group._get_backend(kind), "options", None)
        if getattr(options, "global_ranks_in_group", None) == []:
            options.global_ranks_in_group = list(range(size))  # type: ignore[union-attr]


def connection(timeout: timedelta | None = None) -> TCPStore:
    """A new connection to the world's store. timeout: 300 s if None."""
    return TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        wait_for_workers=False,
        timeout=timeout or timedelta(seconds=300),
    )


class GroupKeeper:
    """Makes, keeps and ends the default process group of one rank."""

    stale_keys = False
    """Whether the store of the default group holds keys of a destroyed group whose name torch
    reuses: the next group of the same ranks would connect to addresses that are gone."""

    def __init__(self, world: World, backend: str, accelerators: int) -> None:
        """accelerators: number that the spec promises for this node."""
        self.world = world
        self.backend = backend
        self.promised = accelerators
        self.generation = 0
        self.made: Any = None
        self._store: Any = None
        self._timeout: timedelta | None = None

    @property
    def device(self) -> torch.device:
        """This rank's accelerator by local rank, or the CPU if the spec promises none."""
        uses = self.promised or self.backend != "gloo"
        kind, count = _accelerators() if uses else ("cpu", 0)
        return torch.device(kind, self.world.local_rank % count) if count else torch.device("cpu")

    def missing_accelerators(self) -> str:
        """Text on accelerators that this node's ranks need and that are missing; "" if none are."""
        size, on_devices = self.world.local_size, self.backend in _BACKENDS_OF_DEVICES
        promised = min(self.promised, size)
        needed = size if on_devices else promised
        if not needed or (found := _accelerators()[1]) >= needed:
            return ""
        if found < promised:
            return (
                f"accelerators.per_node: {self.promised} promised, {found} found by torch; check "
                "the driver, CUDA_VISIBLE_DEVICES and torch's build there, or correct the spec"
            )
        if not found:
            return f"backend {self.backend}: 0 accelerators found; give --mnode-backend=gloo"
        return (
            f"backend {self.backend}: {size} ranks and {found} found by torch, and each rank needs "
            f"an accelerator of its own; give --mnode-procs-per-node={found}"
        )

    def get(self) -> Any:
        """The default process group over all ranks of the world, made if there is none."""
        if self.made is not None and dist.is_initialized():
            return self.made
        if dist.is_initialized():
            raise RuntimeError(
                "a process group exists that this test did not get from the process_group fixture; "
                "destroy it first, or use the fixture alone"
            )
        if self.device.type != "cpu":
            torch.get_device_module(self.device).set_device(self.device)
        # Every group has its own prefix, so that it never reads keys of an earlier group.
        store = PrefixStore(f"mnode/{self.generation}", self._connect())
        dist.init_process_group(
            self.backend,
            store=store,
            rank=self.world.rank,
            world_size=self.world.size,
            timeout=self._timeout,
            device_id=self.device if self.device.type == "cuda" else None,
        )
        self.made = dist.group.WORLD
        _tell_ranks(self.made, self.world.size)
        if self.backend in _BACKENDS_OF_DEVICES:
            recorder.start_counts()
        return self.made

    def _connect(self) -> Any:
        if self._store is None:
            self._store = connection(self._timeout)
        return self._store

    def open_store(self, name: str) -> Any:
        """A new store, served by rank 0 while rank 0 references it. All ranks must call this."""
        shared, host, key = self._connect(), os.environ["MASTER_ADDR"], f"mnode/store/{name}"
        if self.world.rank != 0:
            return TCPStore(host, int(shared.get(key)), is_master=False, wait_for_workers=False)
        store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
        shared.set(key, str(store.port))
        return store

    def forget_store(self, name: str) -> None:
        """Delete the published port of a store, after all ranks have opened it."""
        if self.world.rank == 0:
            self._connect().delete_key(f"mnode/store/{name}")

    def wait_longer(self) -> None:
        """Make this rank's groups, also later ones, wait for a rank that is debugged.

        A collective that has already begun keeps its timeout.
        """
        self._timeout = DEBUGGED_TIMEOUT
        if self._store is not None:
            self._store.set_timeout(DEBUGGED_TIMEOUT)
        if not dist.is_initialized():
            return
        with warnings.catch_warnings(action="ignore"):  # a backend without a timeout warns
            for group in list(distributed_c10d._world.pg_map):
                with contextlib.suppress(RuntimeError, ValueError):
                    distributed_c10d._set_pg_timeout(DEBUGGED_TIMEOUT, group)

    @property
    def intact(self) -> bool:
        """Whether the group that was made, if any, is still the default group."""
        return self.made is None or (dist.is_initialized() and dist.group.WORLD is self.made)

    @property
    def entered(self) -> int | None:
        """How many operations this rank has entered in the group; None if not known."""
        if self.made is None or not self.intact:
            return None
        with contextlib.suppress(RuntimeError):  # not every backend counts
            return int(self.made._get_sequence_number_for_group())
        return None

    def renew(self) -> None:
        """End the group, if any, so that the next test gets a new one. All ranks must call this."""
        self.generation += 1
        GroupKeeper.stale_keys = False
        if self.made is not None and dist.is_initialized():
            dist.destroy_process_group()
        old, self.made = [self.made], None
        if old[0] is not None and self.backend == "gloo":
            # gloo's destructor waits some 20 ms for its threads; the next test must not wait.
            threading.Thread(target=old.clear, name=LAST_GROUP, daemon=True).start()

    def end(self, names: frozenset[str]) -> bool:
        """Destroy groups other than the default group; False if the default group is gone."""
        if self.made is None or not self.intact:
            return False
        for group, name in list(dist.distributed_c10d._world.pg_names.items()):
            if name in names:
                dist.destroy_process_group(group)
        return True

    def foreign_keys(self) -> int | None:
        """How many keys the store holds; None if it cannot be read."""
        with contextlib.suppress(RuntimeError, OSError):
            return int(self._connect().num_keys())
        return None


def install() -> None:
    """Wrap destroy_process_group before test modules import it, to notice destroyed groups."""
    destroy = dist.destroy_process_group

    @functools.wraps(destroy)
    def call(group: Any = None) -> None:
        name = str(distributed_c10d._world.pg_names.get(group, "0"))
        destroy(group)
        # torch never reuses a number, but names by use_local_synchronization hash the ranks.
        GroupKeeper.stale_keys |= not name.isdecimal()

    for module in (dist, distributed_c10d):
        setattr(module, destroy.__name__, call)
