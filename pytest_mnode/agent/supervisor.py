"""The program a launcher starts on a node: speaks zmq for its tree, and guards it.

It is light (no torch) and never blocks, so it notices at once when the controller is gone (its
standard input ends) and takes everything below it down.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import zmq

from pytest_mnode.agent import process
from pytest_mnode.agent.leftovers import private_directory
from pytest_mnode.machine import namespaces, open_files
from pytest_mnode.outcome.describe import returncode_text
from pytest_mnode.protocol.channel import Keys, Line
from pytest_mnode.protocol.listening_clock import ListeningClock
from pytest_mnode.protocol.messages import (
    BEAT,
    HUB,
    RUN,
    GateAlive,
    GateFailed,
    GateOrder,
    NodeEntry,
)
from pytest_mnode.rank.traces import gate_log

_BEAT_S = 1.0
_SILENCE_S = 15.0
"""Without a word of a hub on another machine, which says one every second."""


def read_order(text: str) -> GateOrder:
    """A GateOrder from the JSON line on standard input."""
    data = json.loads(text)
    nodes = tuple(NodeEntry(**entry) for entry in data.pop("nodes"))
    lists = {name: tuple(data[name]) for name in ("sys_path", "prefixes", "own_sys_path")}
    return GateOrder(**{**data, **lists, "nodes": nodes})


def sys_path_here(given: Sequence[str], order: GateOrder) -> list[str]:
    """The controller's sys.path as it is here: what belongs to its Python, from ours."""
    if not order.prefixes:
        return list(given)

    def of_its_python(entry: str) -> bool:
        return any(Path(entry).is_relative_to(prefix) for prefix in order.prefixes)

    kept = [entry for entry in given if not of_its_python(entry)]
    return [*kept, *(entry for entry in order.own_sys_path if entry not in kept)]


def settled(order: GateOrder) -> GateOrder:
    """The order of a gate on another machine, with a directory of its own there."""
    if not order.remote:
        return order
    run_dir = private_directory()
    log_dir = order.log_dir or f"{run_dir}/logs"
    Path(log_dir).mkdir(parents=True, exist_ok=True)
    return replace(
        order, run_dir=run_dir, log_dir=log_dir, remove_run_dir=True, own_sys_path=tuple(sys.path)
    )


def main() -> None:
    line = sys.stdin.readline()
    if not line:
        return
    order = settled(read_order(line))
    open_files.give_back(order.open_files)
    sys.path[:] = sys_path_here(order.sys_path, order)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # only the end of standard input ends a gate
    namespaces.set_process_name("mnode-gate")
    process.adopt_orphans()
    ours, theirs = Pipe()
    gate_pid = os.getpid()
    forge_pid = os.fork()
    if forge_pid == 0:
        ours.close()
        process.die_with_parent(gate_pid)
        from pytest_mnode.agent import fork_server as forge

        process.run_and_exit(lambda: forge.main(order, theirs))
    theirs.close()
    try:
        _relay(order, ours, forge_pid)
    finally:
        process.kill_descendants()
        # What the controller started on nodes would outlive it where a node is this very machine.
        process.end_marked(RUN, order.mark)
        if order.remove_run_dir:
            shutil.rmtree(order.run_dir, ignore_errors=True)
        # What the controller's commands made at the path of its own directory, where that is not
        # the very directory.
        if order.remote and not Path(order.mark, "hub").exists():
            shutil.rmtree(order.mark, ignore_errors=True)


def _relay(order: GateOrder, forge: Connection, forge_pid: int) -> None:
    line = Line(order.peer, order.endpoint, Keys.from_dict(order.keys))
    poller = zmq.Poller()
    poller.register(0, zmq.POLLIN)
    poller.register(line.socket, zmq.POLLIN)
    poller.register(forge.fileno(), zmq.POLLIN)
    beat = pickle.dumps(GateAlive(order.gate, order.life))
    next_beat = 0.0
    forge_alive = True
    ended: dict[int, int] = {}
    clock = ListeningClock()
    heard: float | None = None
    while True:
        now = time.monotonic()
        if now >= next_beat:
            line.send_bytes(HUB, beat)
            next_beat = now + _BEAT_S
        ready = dict(poller.poll(int(max(0.0, next_beat - now) * 1000) + 1))
        if ready.get(0) is not None and not os.read(0, 4096):
            return
        if line.socket in ready:
            payload = line.socket.recv_multipart()[-1]
            heard = clock.now()
            if forge_alive and payload != BEAT:
                with contextlib.suppress(OSError):  # it ended: what is read of it says how
                    forge.send_bytes(payload)
        if order.remote and heard is not None and clock.now() > heard + _SILENCE_S:
            sys.stderr.write(f"nothing heard of the controller for {_SILENCE_S:g} s\n")
            return
        if forge.fileno() in ready:
            try:
                line.send_bytes(HUB, forge.recv_bytes())
            except (EOFError, OSError):
                poller.unregister(forge.fileno())
                forge_alive = False
                how = _how_it_ended(ended, forge_pid, order)
                line.send(HUB, GateFailed(order.gate, how, order.life))
        ended.update(process.reap())


def _how_it_ended(ended: dict[int, int], forge_pid: int, order: GateOrder) -> str:
    limit = time.monotonic() + 1.0
    while forge_pid not in ended and time.monotonic() < limit:
        ended.update(process.reap())
        time.sleep(0.01)
    code = os.waitstatus_to_exitcode(ended[forge_pid]) if forge_pid in ended else None
    how = "ended" if code is None else returncode_text(code)
    log = gate_log(order.log_dir, order.gate, order.life)
    tail = log.read_text(errors="replace")[-2000:].strip() if log.exists() else ""
    return f"the process that imports torch and the tests {how}" + (f":\n{tail}" if tail else "")


if __name__ == "__main__":
    main()
