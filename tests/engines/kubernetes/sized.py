"""A program for the login node: a run of many pods through the launcher, with a stand-in in pods.

`sized.py NODES TEMPLATE PYTHON` prints what holding the exec streams takes, and the reports of
streams that end or hang.
"""

from __future__ import annotations

import json
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

from pytest_mnode.backends.kubernetes import KubernetesBackend
from pytest_mnode.launchers.kubernetes.launcher import Kubernetes
from pytest_mnode.launchers.remote import node_report
from pytest_mnode.launchers.remote.launcher import RemoteOptions
from pytest_mnode.options import Settings
from pytest_mnode.spec import default_spec_path, load_spec

LIMIT_S = 240.0


def ours() -> dict[str, list[psutil.Process]]:
    """Child processes of this one, with their program names."""
    names = "node_command", "bridge", "queue_cleanup", "other"
    found: dict[str, list[psutil.Process]] = {name: [] for name in names}
    for one in psutil.Process().children(recursive=True):
        line = " ".join(one.cmdline())
        found[next((name for name in found if name in line), "other")].append(one)
    return found


def stand_ins(python: str) -> list[psutil.Process]:
    every = psutil.process_iter(["cmdline"])
    return [p for p in every if (p.info["cmdline"] or [""])[0] == python]


def first_that_ended(programs: Sequence[subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        for program in programs:
            if program.poll() is not None:
                return program
        time.sleep(0.05)
    raise AssertionError("no stream was lost")


def run(launcher: Kubernetes, python: str) -> dict[str, Any]:
    launcher.start()
    lost: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    launcher.watch(lambda node, why: lost.put((node, why)))
    figures: dict[str, Any] = {}

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

    there = ours()
    [bridge] = there["bridge"]
    figures["processes"] = {name: len(some) for name, some in there.items()}
    figures["threads"] = [psutil.Process().num_threads(), bridge.num_threads()]
    figures["bridge_mib"] = bridge.memory_full_info().pss >> 20

    hung, ended = stand_ins(python)[:2]
    hung.suspend()
    program = first_that_ended(programs)
    hung.send_signal(signal.SIGKILL)
    assert program.stdout is not None
    figures["hung"] = program.stdout.read().decode()
    assert lost.get(timeout=LIMIT_S)[1] in figures["hung"]
    ended.kill()
    figures["ended"] = lost.get(timeout=LIMIT_S)[1][:100]
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
        launcher = Kubernetes(
            int(nodes),
            load_spec(default_spec_path()),
            RemoteOptions(directory, Path(directory), python=python),
            Settings(k8s_template=Path(template), k8s_wait_s=LIMIT_S),
            leftovers=KubernetesBackend().leftovers,
        )
        try:
            print(json.dumps(run(launcher, python)))
        finally:
            launcher.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
