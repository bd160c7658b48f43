"""A program for the login node: a run of many pods through the launcher, with a stand-in in pods.

`sized.py NODES TEMPLATE PYTHON` prints the cost of opening and holding the exec streams, and the
reports of streams that end or hang.
"""

from __future__ import annotations

import json
import os
import queue
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from pytest_mnode.launchers.kubernetes.launcher import Kubernetes
from pytest_mnode.launchers.kubernetes.options import KubernetesOptions
from pytest_mnode.launchers.remote import node_report
from pytest_mnode.launchers.remote.launcher import RemoteOptions
from pytest_mnode.launchers.remote.node_report import NodeReport
from pytest_mnode.spec import default_spec_path, load_spec

LIMIT_S = 240.0
HELD_S = 5.0


class Timed(Kubernetes):
    """A launcher that notes when all pods were running."""

    up_s = 0.0

    def _reports(self, hosts: Sequence[str]) -> tuple[dict[str, NodeReport], dict[str, str]]:
        self.up_s = time.monotonic()
        return super()._reports(hosts)


def since(began: float) -> float:
    return round(time.monotonic() - began, 1)


def ours() -> dict[str, list[psutil.Process]]:
    """Child processes of this one, with their program names."""
    found: dict[str, list[psutil.Process]] = {"bridge": [], "remote_proxy": [], "other": []}
    for one in psutil.Process().children(recursive=True):
        line = " ".join(one.cmdline())
        found[next((name for name in found if name in line), "other")].append(one)
    return found


def used(some: Sequence[psutil.Process]) -> float:
    """Seconds of CPU time."""
    return sum(sum(one.cpu_times()[:2]) for one in some)


def stand_ins(python: str, words: int) -> list[psutil.Process]:
    """Stand-ins with this number of arguments: 5 for commands, 7 for relays."""
    every = psutil.process_iter(["cmdline"])
    return [
        p for p in every if (p.info["cmdline"] or [""])[0] == python and len(p.cmdline()) == words
    ]


def first_that_ended(programs: Sequence[subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        for program in programs:
            if program.poll() is not None:
                return program
        time.sleep(0.05)
    raise AssertionError("no stream was lost")


def run(launcher: Timed, python: str) -> dict[str, Any]:
    began = time.monotonic()
    launcher.start()
    figures: dict[str, Any] = {"pods_up_s": round(launcher.up_s - began, 1)}
    figures["reports_s"] = since(launcher.up_s)
    lost: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    launcher.watch(lambda node, why: lost.put((node, why)))
    began = time.monotonic()
    figures["relays"] = len(launcher.relay(1))
    figures["relays_s"] = since(began)

    began = time.monotonic()
    pipe = subprocess.PIPE
    programs = [
        subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT)
        for argv in launcher.commands(launcher.nodes, [sys.executable, "agent"])
    ]
    for program in programs:
        assert program.stdin is not None
        program.stdin.write(b"up\n")
        program.stdin.flush()
    figures["streams"] = sum(p.stdout.readline() == b"up\n" for p in programs if p.stdout)
    figures["streams_s"] = since(began)

    there = ours()
    figures["processes"] = {name: len(some) for name, some in there.items()}
    figures["threads"] = {
        "launcher": psutil.Process().num_threads(),
        "bridge": max(one.num_threads() for one in there["bridge"]),
    }
    figures["mib"] = {
        name: sum(one.memory_full_info().pss for one in some) >> 20 for name, some in there.items()
    }
    before = {name: used(some) for name, some in there.items()}
    time.sleep(HELD_S)
    figures["cores"] = {
        name: round((used(some) - before[name]) / HELD_S, 2) for name, some in there.items()
    }

    hung, began = stand_ins(python, 5)[0], time.monotonic()
    hung.suspend()
    program = first_that_ended(programs)
    figures["hung_s"] = since(began)
    hung.send_signal(signal.SIGKILL)
    assert program.stdout is not None
    figures["hung"] = program.stdout.read().decode()
    began = time.monotonic()
    stand_ins(python, 7)[0].kill()
    figures["ended"] = lost.get(timeout=LIMIT_S)[1][:100]
    figures["ended_s"] = since(began)
    for program in programs:
        program.kill()
    for program in programs:
        program.communicate()
    return figures


def main(nodes: str, template: str, python: str) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    argv = node_report.argv(sys.executable, None, str(Path.cwd()))
    report = subprocess.run(argv, check=True, capture_output=True)
    Path(f"{python}.report").write_bytes(report.stdout)
    with tempfile.TemporaryDirectory() as directory:
        launcher = Timed(
            int(nodes),
            load_spec(default_spec_path()),
            RemoteOptions(directory, Path(directory), python=python),
            KubernetesOptions(template=Path(template), wait_s=LIMIT_S),
        )
        try:
            figures = run(launcher, python)
        finally:
            began = time.monotonic()
            launcher.close()
        figures["closed_s"], figures["load"] = since(began), os.getloadavg()[0]
    print(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
