"""Streams to nodes over a pipe to a shell, in place of ssh."""

from __future__ import annotations

import queue
import resource
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from pytest_mnode.launchers.remote import bootstrap
from pytest_mnode.launchers.remote.bridge_client import BridgeClient
from pytest_mnode.launchers.remote.node_process import LOCAL
from pytest_mnode.launchers.remote.wire import SILENCE_S

LIMIT_S = 30.0
REMOTE_END = [sys.executable, "-I", "-S", "-c", bootstrap.BOOTSTRAP]
SLEEPS = ["sh", "-c", "echo ready; exec sleep 300"]
BRIDGE = "pytest_mnode.launchers.remote.stdio_bridge"


def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    settings: dict[str, object] = {"capture_output": True, "text": True, "timeout": LIMIT_S}
    done: subprocess.CompletedProcess[str] = subprocess.run(  # type: ignore[call-overload]
        command, check=False, **{**settings, **options}
    )
    return done


@contextmanager
def ready(command: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A program that has printed "ready"; it is ended afterwards."""
    options = {"stdout": subprocess.PIPE, "text": True, **options}
    with subprocess.Popen(command, **options) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "ready\n"
            yield program
        finally:
            program.kill()


@contextmanager
def leave_files(pid: int, count: int) -> Iterator[None]:
    """Let a process open this many more files."""
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = {int(one.name) for one in Path(f"/proc/{pid}/fd").iterdir()}
    free = [fd for fd in range(max(used) + 10) if fd not in used]
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free[count], limits[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


class Streams:
    """A bridge to hosts that local commands lead to. events: what its client reports."""

    def __init__(self, directory: Path, silence_s: float = SILENCE_S, late: str = "late") -> None:
        self.socket = str(directory / "bridge")
        self.events: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
        self.client = BridgeClient(self.socket, self.events.put)
        self.daemon = self.client.start_daemon([])
        settings = directory / "bridge.json"
        settings.write_text(f'{{"silence_s": {silence_s}, "late": "{late}"}}')
        argv = [sys.executable, "-P", "-m", BRIDGE, str(settings), self.socket]
        self.client.start(argv, LIMIT_S, 8.0, silence_s)

    def open(self, ways: Mapping[str, Sequence[str]], within_s: float = LIMIT_S) -> dict[str, str]:
        return self.client.open(ways, within_s, 4 * LIMIT_S)

    def command(self, host: str, argv: Sequence[str]) -> list[str]:
        return [*LOCAL, self.socket, host, *argv]

    def below(self) -> list[psutil.Process]:
        return psutil.Process(self.daemon).children(recursive=True)

    def bridge(self) -> psutil.Process:
        [found] = [one for one in self.below() if BRIDGE in one.cmdline()]
        return found

    def remote_end(self) -> psutil.Process:
        [found] = [one for one in self.below() if one.name() == "mnode-node"]
        return found


class Way:
    """way(argv, shell=…): the local command that runs argv on n1, reached by a shell.

    own: variables there, "NAME=VALUE". streams: of the last call.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made: list[Streams] = []

    @property
    def streams(self) -> Streams:
        return self._made[-1]

    def __call__(
        self,
        argv: list[str],
        shell: str = "",
        own: Sequence[str] = (),
        silence_s: float = SILENCE_S,
    ) -> list[str]:
        assert self.problem(shell, own, silence_s) == ""
        return self.streams.command("n1", argv)

    def problem(
        self,
        shell: str = "",
        own: Sequence[str] = (),
        silence_s: float = SILENCE_S,
        within_s: float = LIMIT_S,
        late: str = "late",
    ) -> str:
        """Why n1 is not reached, or ""."""
        directory = self._directory / str(len(self._made))
        directory.mkdir()
        self._made.append(Streams(directory, silence_s, late))
        shell = shell or f"echo Welcome; {shlex.join(REMOTE_END)}; exit $?"
        there = ["env", "-i", "PATH=/usr/local/bin:/usr/bin:/bin", *own, "sh", "-c", shell]
        return self.streams.open({"n1": there}, within_s).get("n1", "")

    def close(self) -> None:
        for one in self._made:
            one.client.close()


def over(shell: str) -> str:
    """A shell that runs this first, and then becomes the remote end."""
    return f"{shell}; exec {shlex.join(REMOTE_END)}"
