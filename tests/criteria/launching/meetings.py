"""Meetings of forked ranks that share one import of torch: prints each rank's result as JSON.

Run as a program by test_meeting.py.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from pytest_mnode.criteria.launching.meeting import meet
from pytest_mnode.criteria.launching.rendezvous import run_clients
from pytest_mnode.rank.world import World

LIMIT_S = 12.0
LONG_S = 20.0
Outcomes = list[tuple[str, float]]
"""Result of each rank of a meeting, with its seconds."""
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


def collected(children: Sequence[tuple[int, int]]) -> Outcomes:
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


def run(*args: Any, **kwargs: Any) -> Outcomes:
    """Start ranks as `begin` does, and wait for their results."""
    return collected(begin(*args, **kwargs))


@contextmanager
def kept_store() -> Iterator[tuple[int, int]]:
    """Process and port of a store that outlives the ranks, like torchrun's."""
    port = free_port()
    store = os.fork()
    if not store:
        kept = TCPStore("127.0.0.1", port, None, True, timedelta(seconds=60), False)
        while kept:
            time.sleep(60)
    try:
        yield store, port
    finally:
        os.kill(store, signal.SIGKILL)
        os.waitpid(store, 0)


def in_kept_store(meetings: Callable[[int], dict[str, Outcomes]]) -> str:
    """Results, as JSON, of meetings one after another in one store."""
    with kept_store() as (_, port):
        return json.dumps(meetings(port))


def store_lost() -> Outcomes:
    with kept_store() as (store, port):
        waiting = begin([1, 2], LONG_S, port)
        time.sleep(0.7)
        os.kill(store, signal.SIGKILL)
        return collected(waiting)


def killed_ranks(ranks: Sequence[int], port: int) -> Outcomes:
    """Ranks that are killed while they wait for the others."""
    begun = begin(ranks, 60, port)
    time.sleep(0.7)
    for child, _ in begun:
        os.kill(child, signal.SIGKILL)
    return collected(begun)


def killed(port: int) -> dict[str, Outcomes]:
    done = {"killed while waiting": killed_ranks((1, 2, 3), port)}
    done["in the same store"] = run([3, 1, 2, 0], LONG_S, port, times=2)
    killed_ranks((0, 1), port)
    done["after a meeting that never ended"] = run([3, 2, 1, 0], LONG_S, port)
    done["rank 0 absent, store kept"] = run([1, 2, 3], LIMIT_S, port)
    done["after a meeting that failed"] = run([1, 2, 3, 0], LONG_S, port)
    return done


def late(rank: int, port: int) -> dict[str, Outcomes]:
    others = [other for other in range(4) if other != rank]
    return {
        f"rank {rank} late, others before": run(others, LIMIT_S, port),
        f"rank {rank} late": run([rank], LIMIT_S, port),
        f"after rank {rank} was late": run([1, 2, 3, 0], LONG_S, port),
    }


def twice(port: int) -> dict[str, Outcomes]:
    # Both must come before the limit of the others, even on a busy machine.
    return {"rank 0 twice, store kept": run([1, 2, 0, 0], 2 * LIMIT_S, port)}


def clients(port: int) -> dict[str, Outcomes]:
    return {"clients of a store": collected([fork(rank_env(0, 1, port, True), left_by_clients)])}


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


def main() -> None:
    done = {"all": run([0, 1, 2, 3], LONG_S, times=2)}
    # Meetings in different stores are independent and mostly wait: they run at the same time.
    sequences = (killed, partial(late, 0), partial(late, 3), twice, clients)
    begun = [fork({}, partial(in_kept_store, one)) for one in sequences]
    alone = {
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
    for text, _ in collected(begun):
        assert text.startswith("{"), text
        done |= json.loads(text)
    done["store lost"] = store_lost()
    print(json.dumps(done | {name: collected(children) for name, children in alone.items()}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
