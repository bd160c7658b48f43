"""Tests that pass and leave something behind in one of two ranks, or disturb it otherwise."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing import shared_memory, util
from pathlib import Path
from typing import Any

import pytest

if "torch" in sys.modules:  # for forked ranks; the controller only collects
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

KEPT: list[object] = []
MAY_STAY: list[object] = []


def test_next(rank: int, world_size: int, process_group: Any, after: str) -> None:
    print(f"pid of rank {rank} is {os.getpid()}")
    total = torch.tensor(rank)
    dist.all_reduce(total)
    assert int(total) == sum(range(world_size))
    assert not KEPT


def test_nothing(rank: int) -> None:
    pass


def test_child(rank: int) -> None:
    if rank == 1:
        subprocess.Popen(["sleep", "61"])


def test_child_of_a_child(rank: int) -> None:
    if rank == 1:
        subprocess.run(["sh", "-c", "sleep 62 >/dev/null 2>&1 &"], check=True)


def test_child_that_ended(rank: int) -> None:
    if rank == 1:
        child = subprocess.Popen(["true"])
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)


def test_thread(rank: int) -> None:
    if rank == 1:
        threading.Thread(target=time.sleep, args=(60,), name="courier", daemon=True).start()


@pytest.mark.mnode(unequal_calls="allow")
def test_thread_in_a_collective(rank: int, process_group: Any) -> None:
    if rank == 1:
        threading.Thread(target=dist.barrier, name="late", daemon=True).start()


def test_group(rank: int, process_group: Any) -> None:
    dist.new_group([0, 1])


def test_hashed_group(rank: int, process_group: Any) -> None:
    group = dist.new_group([0, 1], use_local_synchronization=True)
    dist.all_reduce(torch.ones(1), group=group)


def test_same_hashed_group(rank: int, process_group: Any) -> None:
    """Keys of the previous group under the same name would lead to closed addresses."""
    test_hashed_group(rank, process_group)


def test_mesh(process_group: Any) -> None:
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    total = torch.ones(1)
    dist.all_reduce(total, group=mesh["tp"].get_group())
    assert int(total) == 2


def test_group_and_failure(rank: int, process_group: Any) -> None:
    dist.new_group([0, 1])
    assert rank != 1


def test_helpers(rank: int) -> None:
    """Helpers that libraries start once per process, of kinds that need no other library."""
    threading.Thread(target=time.sleep, args=(60,), name="tqdm_monitor", daemon=True).start()
    memory = shared_memory.SharedMemory(create=True, size=64)
    memory.close()
    memory.unlink()
    multiprocessing.get_context("forkserver").Process(target=int).start()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(loop.run_in_executor(None, int))
    MAY_STAY.append(loop)
    tracker = "import time; time.sleep(67)  # from multiprocess.resource_tracker import main"
    subprocess.Popen([sys.executable, "-c", tracker])
    sockets = util.get_temp_dir()
    assert Path(sockets).name.startswith("mnode-")  # which ends with the run


@pytest.mark.mnode(may_leave=["cour*r", "sleep 65", "memory"])
def test_marked(rank: int) -> None:
    if rank == 1:
        test_thread(rank)
        MAY_STAY.append(bytearray(b"x") * (300 * 2**20))
        subprocess.Popen(["sleep", "65"])


@pytest.mark.mnode(may_leave="cour*r")
def test_marked_for_less(rank: int) -> None:
    if rank == 1:
        test_thread(rank)
        subprocess.Popen(["sleep", "66"])


def test_allowed_by_the_ini_key(rank: int) -> None:
    if rank == 1:
        threading.Thread(target=time.sleep, args=(60,), name="of-the-ini", daemon=True).start()


def test_memory(rank: int) -> None:
    if rank == 1:
        KEPT.append(bytearray(b"x") * (300 * 2**20))


def test_alarm(rank: int) -> None:
    if rank == 1:
        signal.alarm(60)


@pytest.mark.mnode(unequal_calls="allow")
def test_collective_of_one(rank: int, process_group: Any) -> None:
    if rank == 0:
        KEPT.append(dist.all_reduce(torch.ones(1), async_op=True))
        KEPT.clear()


def test_group_destroyed(rank: int, process_group: Any) -> None:
    dist.destroy_process_group()


def test_group_destroyed_on_one(rank: int, process_group: Any) -> None:
    if rank == 1:
        dist.destroy_process_group()


def test_own_group_left(rank: int) -> None:
    dist.init_process_group("gloo")


@pytest.fixture
def careless(rank: int) -> None:
    if rank == 1:
        subprocess.Popen(["sleep", "63"])


def test_child_of_a_fixture(careless: None, rank: int) -> None:
    pass


@pytest.fixture(scope="module")
def server(rank: int) -> Iterator[int]:
    process = subprocess.Popen(["sleep", "64"])
    yield process.pid
    process.kill()
    process.wait()


def test_child_of_a_module_fixture(server: int, rank: int) -> None:
    os.kill(server, 0)


def test_forked_child_returns(rank: int) -> None:
    if rank == 1:
        if not (child := os.fork()):
            return
        os.waitpid(child, 0)


def test_forked_child_fails(rank: int) -> None:
    if rank == 1:
        child = os.fork()
        assert child, "in the child"
        os.waitpid(child, 0)


def test_forked_child_ends_well(rank: int) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_changed_surroundings(rank: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 17)
    os.chdir(tmp_path)
    os.environ["RANK"] = "17"
    os.environ.pop("WORLD_SIZE")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def test_killed_after_its_end(rank: int) -> None:
    if rank == 1:
        Path(os.environ["SCENARIO_NOTES"], "late_pid").write_text(str(os.getpid()))


def test_own_socket_closed(rank: int) -> None:
    import gc

    if rank == 1:
        for thing in gc.get_objects():
            with contextlib.suppress(ReferenceError):
                if isinstance(thing, socket.socket):
                    thing.close()
