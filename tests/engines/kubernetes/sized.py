"""A program for the login node: a run of many pods through the launcher, with a stand-in in pods.

`sized.py NODES TEMPLATE PYTHON` prints what holding the exec streams takes, and the reports of
streams that end or hang.
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
from subprocess import PIPE
from typing import Any

import psutil

from pytest_mnode.backends.kubernetes import KubernetesBackend
from pytest_mnode.launchers.kubernetes.launcher import Kubernetes
from pytest_mnode.launchers.remote import node_report
from pytest_mnode.launchers.remote.launcher import RemoteOptions
from pytest_mnode.launchers.remote.node_process import Program, start
from pytest_mnode.options import Settings
from pytest_mnode.processes import end_programs
from pytest_mnode.spec import default_spec_path, load_spec

LIMIT_S = 240.0


def ours() -> dict[str, list[psutil.Process]]:
    """Child processes of this one, with their program names."""
    names = "bridge", "queue_cleanup", "other"
    found: dict[str, list[psutil.Process]] = {name: [] for name in names}
    for one in psutil.Process().children(recursive=True):
        line = " ".join(one.cmdline())
        found[next((name for name in found if name in line), "other")].append(one)
    return found


def stand_ins(python: str) -> list[psutil.Process]:
    every = psutil.process_iter(["cmdline"])
    return [p for p in every if (p.info["cmdline"] or [""])[0] == python]


def first_that_ended(programs: Sequence[Program]) -> int:
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        for number, program in enumerate(programs):
            if program.poll() is not None:
                return number
        time.sleep(0.05)
    raise AssertionError("no stream was lost")


def run(launcher: Kubernetes, python: str, directory: Path) -> dict[str, Any]:
    launcher.start()
    lost: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    launcher.watch(lambda node, why: lost.put((node, why)))
    figures: dict[str, Any] = {}

    env, commands = {**os.environ}, launcher.commands(launcher.nodes, [sys.executable, "agent"])
    logs = [directory / f"log{number}" for number in range(len(commands))]
    programs = [
        start(argv, env, stdin=PIPE, stdout=PIPE, stderr=log)
        for argv, log in zip(commands, logs, strict=True)
    ]
    for program in programs:
        assert program.stdin is not None
        program.stdin.write(b"up\n")
    figures["streams"] = sum(p.stdout.readline() == b"up\n" for p in programs if p.stdout)

    there = ours()
    [bridge] = there["bridge"]
    figures["processes"] = {name: len(some) for name, some in there.items()}
    figures["threads"] = [psutil.Process().num_threads(), bridge.num_threads()]
    figures["bridge_mib"] = bridge.memory_full_info().pss >> 20

    hung, ended = stand_ins(python)[:2]
    hung.suspend()
    figures["hung"] = logs[first_that_ended(programs)].read_text()
    hung.send_signal(signal.SIGKILL)
    assert lost.get(timeout=LIMIT_S)[1] in figures["hung"]
    ended.kill()
    figures["ended"] = lost.get(timeout=LIMIT_S)[1][:100]
    end_programs(programs)
    return figures


def main(nodes: str, template: str, python: str) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    argv = node_report.argv(sys.executable, None, str(Path.cwd()))
    report = subprocess.run(argv, check=True, capture_output=True)
    Path(f"{python}.report").write_bytes(report.stdout)
    with tempfile.TemporaryDirectory() as directory:
        launcher = Kubernetes(
            int(nodes),
            load_spec(default_spec_path()),
            RemoteOptions(directory, Path(directory), python=python),
            Settings(k8s_template=Path(template), k8s_wait_s=LIMIT_S),
            leftovers=KubernetesBackend().leftovers,
        )
        try:
            print(json.dumps(run(launcher, python, Path(directory))))
        finally:
            launcher.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
