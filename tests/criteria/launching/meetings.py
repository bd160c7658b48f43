"""Meetings of forked ranks that share one import of torch: prints each rank's result as JSON.

Run as a program by test_meeting.py.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from pytest_mnode.criteria.launching.meeting import meet
from pytest_mnode.criteria.launching.store_clients import run_clients
from pytest_mnode.rank.world import World

LIMIT_S = 5.0
LONG_S = 20.0
_KEPT: list[socket.socket] = []
"""Bound but never listening: no other process gets these ports before a rank listens there."""


def free_port() -> int:
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    _KEPT.append(kept)
    return int(kept.getsockname()[1])


def rank_env(rank: int, size: int, port: int, kept: bool, **more: str) -> dict[str, str]:
    env = {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": "2"}
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if kept:
        env["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    return env | more


def joined(limit_s: float, times: int = 1) -> str:
    """Meet, sum and leave `times` times; the results as text."""
    text = ""
    for _ in range(times):
        meet(limit_s, "gloo")
        x = torch.ones(1)
        dist.all_reduce(x)
        limit = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
        text += f"sum {x.item():.0f} limit {limit.options._timeout.total_seconds():.0f} "
        dist.destroy_process_group()
    return text.strip()


def fork(env: dict[str, str], body: Callable[[], str]) -> tuple[int, int]:
    """Pid of a child, and the pipe to which it writes its result."""
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, read
    os.environ.update(env)
    began = time.monotonic()
    try:
        text = body()
    except BaseException as error:
        text = f"{type(error).__name__}: {error}"
    seconds = time.monotonic() - began
    os.write(write, json.dumps([text, seconds]).encode())
    os._exit(0)


def collected(children: Sequence[tuple[int, int]]) -> list[tuple[str, float]]:
    found = []
    for pid, read in children:
        with os.fdopen(read) as pipe:
            found.append(tuple(json.loads(pipe.read() or '["killed", 0]')))
        os.waitpid(pid, 0)
    return found


def begin(
    ranks: Sequence[int],
    limit_s: float = LIMIT_S,
    kept_port: int | None = None,
    times: int = 1,
    **env: str,
) -> list[tuple[int, int]]:
    """Start these ranks of a job of four, with a store at `kept_port` or in rank 0."""
    port = kept_port or free_port()
    envs = [rank_env(rank, 4, port, kept_port is not None, **env) for rank in ranks]
    return [fork(env, lambda: joined(limit_s, times)) for env in envs]


def run(*args: Any, **kwargs: Any) -> list[tuple[str, float]]:
    """Start ranks as `begin` does, and wait for their results."""
    return collected(begin(*args, **kwargs))


def store_process() -> tuple[int, int]:
    """Pid and port of a store that outlives the ranks, like torchrun's."""
    port = free_port()
    pid = os.fork()
    if pid:
        return pid, port
    store = TCPStore("127.0.0.1", port, None, True, timedelta(seconds=60), False)
    while store:
        time.sleep(60)
    os._exit(0)


def restarted() -> dict[str, list[tuple[str, float]]]:
    """Ranks killed while they wait, and later starts of ranks that use the same store."""
    pid, port = store_process()
    envs = [rank_env(rank, 4, port, True) for rank in (1, 2, 3)]
    first = [fork(env, lambda: joined(60)) for env in envs]
    time.sleep(0.7)
    for child, _ in first:
        os.kill(child, signal.SIGKILL)
    done = {"killed while waiting": collected(first)}
    done["in the same store"] = run([3, 1, 2, 0], LONG_S, port, times=2)
    half = [fork(rank_env(rank, 4, port, True), lambda: joined(60)) for rank in (0, 1)]
    time.sleep(0.7)
    for child, _ in half:
        os.kill(child, signal.SIGKILL)
    collected(half)
    done["after a meeting that never ended"] = run([3, 2, 1, 0], LONG_S, port)
    done["rank 0 absent, store kept"] = run([1, 2, 3], LIMIT_S, port)
    done["after a meeting that failed"] = run([1, 2, 3, 0], LONG_S, port)
    done["rank 0 late, others before"] = run([1, 2, 3], LIMIT_S, port)
    done["rank 0 late"] = run([0], LIMIT_S, port)
    done["in time again"] = run([1, 2, 3, 0], LONG_S, port)
    done["rank 3 late, others before"] = run([0, 1, 2], LIMIT_S, port)
    done["rank 3 late"] = run([3], LIMIT_S, port)
    done["after one that was late"] = run([1, 2, 3, 0], LONG_S, port)
    done["rank 0 twice, store kept"] = run([1, 2, 0, 0], LIMIT_S, port)
    envs = [rank_env(rank, 4, port, True) for rank in (1, 2)]
    waiting = [fork(env, lambda: joined(LONG_S)) for env in envs]
    time.sleep(0.7)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    done["store lost"] = collected(waiting)
    return done


def open_now() -> int:
    """Open files and threads of this process."""
    own = Path("/proc/self")
    return len([*(own / "fd").iterdir(), *(own / "task").iterdir()])


def settled() -> int:
    """Open files and threads, once the threads of a closed store have ended."""
    last, same, until = open_now(), 0, time.monotonic() + LONG_S
    while same < 25 and time.monotonic() < until:
        time.sleep(0.02)
        now = open_now()
        last, same = now, same + 1 if now == last else 0
    return last


def left_by_clients() -> str:
    """Files and threads that clients of a store leave open once the store's threads have ended."""
    world = World(0, 1, 0, 1, "node0", ("node0",))
    run_clients(8, "first", LONG_S, world=world)  # opens files that all later clients share
    before = settled()
    found = run_clients(8, "second", LONG_S, world=world)
    until = time.monotonic() + LONG_S
    while (left := open_now() - before) > 0 and time.monotonic() < until:
        time.sleep(0.02)
    return f"{found.clients} clients, errors {found.errors}, {left} left"


def clients_of_a_store() -> list[tuple[str, float]]:
    pid, port = store_process()
    env = rank_env(0, 1, port, True)
    done = collected([fork(env, left_by_clients)])
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return done


def main() -> None:
    done = restarted()
    done["clients of a store"] = clients_of_a_store()
    done["all"] = run([0, 1, 2, 3], LONG_S, times=2)
    # The meetings are independent and mostly wait, so they run at the same time.
    begun = {
        "one absent": begin([0, 1, 3]),
        "store absent": begin([1, 2]),
        "rank 1 twice": begin([0, 1, 1, 3]),
        "rank 0 twice": begin([0, 0, 1, 2]),
        "unknown name": begin([1], MASTER_ADDR="no-such-node.invalid"),
        "wrong port": begin([1], MASTER_PORT="29x"),
        "too high a port": begin([0], MASTER_PORT="99999"),
        "too low a port": begin([1], MASTER_PORT="-1"),
        "outside": begin([4]),
    }
    print(json.dumps(done | {name: collected(children) for name, children in begun.items()}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
