"""The state of a node's ranks: their stacks, output and calls, read from outside the ranks."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pytest_mnode import processes
from pytest_mnode.machine.tcp import tcp_state
from pytest_mnode.machine.threads import native_frames, threads_text
from pytest_mnode.outcome import call_record
from pytest_mnode.protocol.messages import Launch, StackTexts, TakeStacks
from pytest_mnode.protocol.rank_files import (
    STACK_SIGNAL,
    RankFiles,
    captured,
    read_progress,
    size,
    tail_of_fd,
)

_LIMIT_S = 1.0
_CHILD_LIMIT_S = 0.2
_MOST_CHILDREN = 4
"""Most child processes of a rank whose stacks are taken."""


def take(order: TakeStacks, launch: Launch, local_pids: Mapping[int, int]) -> StackTexts:
    """The answer of one node. local_pids: pids of the live ranks, by local rank."""
    node, world = launch.node, launch.world
    per_node = world.shape.procs_per_node
    first = launch.node_rank * per_node
    pids = {first + local: pid for local, pid in local_pids.items()}
    if order.native:
        return StackTexts(node, world.id, native=_native(order.native, pids))
    files = {rank: RankFiles(world, rank) for rank in range(first, first + per_node)}
    # Records of every rank of this node, dead ranks included.
    read = {rank: call_record.read(of.calls) for rank, of in files.items()}
    records = {rank: text for rank, text in read.items() if text is not None}
    places = {rank: read_progress(files[rank].progress) for rank in pids}
    if order.poll_id is not None:
        running = tuple(rank for rank, pid in pids.items() if processes.is_running(pid))
        return StackTexts(
            node, world.id, places=places, calls=records, poll_id=order.poll_id, running=running
        )
    texts = _python_stacks(files, pids)
    return StackTexts(
        node,
        world.id,
        texts,
        children={rank: _stacks_of_children(files[rank].stacks, pid) for rank, pid in pids.items()},
        outputs={rank: _output(files[rank], pid) for rank, pid in pids.items()},
        states={rank: processes.why_silent(pid) for rank, pid in pids.items() if not texts[rank]},
        places=places,
        calls=records,
        kernel={rank: threads_text(pid) for rank, pid in pids.items()},
        tcp={rank: tcp_state(pid) for rank, pid in pids.items()},
    )


def _python_stacks(files: Mapping[int, RankFiles], pids: Mapping[int, int]) -> dict[int, str]:
    """The faulthandler dump of each rank, all requested at once; "" if a rank wrote none."""
    paths = {rank: files[rank].stacks for rank in pids}
    awaited = [rank for rank, pid in pids.items() if not processes.why_silent(pid)]
    for rank, pid in pids.items():
        paths[rank].write_text("")
        processes.kill(pid, STACK_SIGNAL)
    end = time.monotonic() + _LIMIT_S
    sizes = dict.fromkeys(paths, 0)
    while time.monotonic() < end:
        time.sleep(0.02)
        now = {rank: size(path) for rank, path in paths.items()}
        if all(now[rank] for rank in awaited) and now == sizes:
            break
        sizes = now
    return {rank: path.read_text(errors="replace") for rank, path in paths.items()}


def _stacks_of_children(path: Path, pid: int) -> str:
    """Stacks of forked children, which write them to the file of their rank; one after another."""
    found: dict[str, None] = {}
    for child in [one for one in processes.descendants(pid) if _writes_stacks(one)][
        :_MOST_CHILDREN
    ]:
        path.write_text("")
        processes.kill(child, STACK_SIGNAL)
        end, before = time.monotonic() + _CHILD_LIMIT_S, -1
        while time.monotonic() < end and not 0 < (now := size(path)) == before:
            before = now
            time.sleep(0.02)
        if text := path.read_text(errors="replace"):
            with contextlib.suppress(OSError):
                found[f"{Path(f'/proc/{child}/comm').read_text().strip()}:\n{text}"] = None
    return "\n".join(found)


def _writes_stacks(pid: int) -> bool:
    """Whether a process has the rank's handler of STACK_SIGNAL, which a fork inherits; the signal
    ends other processes."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        caught = next(line for line in lines if line.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) >> (STACK_SIGNAL - 1) & 1)
    return False


def _native(wanted: tuple[int, ...], pids: Mapping[int, int]) -> dict[int, str]:
    """C stacks of the `wanted` ranks that live, all taken at the same time."""
    living = [rank for rank in wanted if rank in pids]
    with ThreadPoolExecutor() as pool:
        frames = pool.map(native_frames, (pids[rank] for rank in living))
        return dict(zip(living, frames, strict=True))


def _output(files: RankFiles, pid: int) -> str:
    """The end of what a rank's test has printed so far."""
    tails = []
    for fd in captured(files, pid):
        tails.append(tail_of_fd(fd))
        os.close(fd)
    return "".join(tails)
