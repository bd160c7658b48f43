"""Objects of a run, and commands in its pods, end with the run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.backends.kubernetes import KubernetesBackend
from pytest_mnode.launchers.kubernetes import bridge
from pytest_mnode.launchers.kubernetes.launcher import Kubernetes
from pytest_mnode.launchers.kubernetes.pods import PodState
from pytest_mnode.launchers.remote import node_command
from pytest_mnode.launchers.remote.bootstrap import BOOTSTRAP
from pytest_mnode.launchers.remote.bridge_server import STDOUT, BridgeServer
from pytest_mnode.launchers.remote.launcher import RemoteOptions
from pytest_mnode.launchers.remote.node_command import LOST
from pytest_mnode.options import Settings
from pytest_mnode.spec import profile_spec
from tests.launchers.kubernetes.given import settings, write_kubeconfig
from tests.waiting import until

LIMIT_S = 30.0
SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
POD = PodState("pod-a", "a.0", 0, "node0", "10.0.0.1", True, "", False, "")


class Server(ThreadingHTTPServer):
    """An API server that never answers the creation of an object."""

    daemon_threads = True

    def __init__(self) -> None:
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), Request)


class Request(BaseHTTPRequestHandler):
    def answer(self) -> None:
        assert isinstance(self.server, Server)
        self.server.asked.append(self.command)
        if self.command == "POST":
            time.sleep(LIMIT_S)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_GET = do_POST = do_DELETE = answer

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


@pytest.mark.parametrize("number", SIGNALS)
def test_an_object_is_deleted_even_if_its_creation_is_broken_off(
    server: Server, tmp_path: Path, number: signal.Signals
) -> None:
    """The program's own handlers of signals: those of its event loop do not run yet."""
    config = write_kubeconfig(tmp_path, {"server": f"http://127.0.0.1:{server.server_port}"})
    given = asdict(settings(tmp_path, wait_s=60.0))
    (tmp_path / "settings").write_text(json.dumps(given))
    argv = [sys.executable, bridge.__file__, str(tmp_path / "settings"), str(tmp_path / "socket")]
    program = subprocess.Popen(argv, env={**os.environ, "KUBECONFIG": str(config)})
    try:
        until(lambda: "POST" in server.asked)
        program.send_signal(number)
        program.wait(LIMIT_S)
    finally:
        program.kill()
        program.wait(LIMIT_S)
    assert server.asked[-1] == "DELETE"


@pytest.mark.parametrize("number", SIGNALS)
def test_an_object_is_deleted_before_streams_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    done: list[str] = []

    async def stays(*_: object) -> None:
        try:
            await asyncio.sleep(LIMIT_S)
        finally:
            done.append("closed")

    async def ends() -> None:
        os.kill(os.getpid(), number)
        await stays()

    monkeypatch.setattr(bridge, "Api", lambda *_: None)
    made: Any = bridge.KubernetesBridge(settings(tmp_path))
    made.watch = lambda _: None
    made.nodes.beat, made.give_up_when_late = stays, ends
    made.delete = lambda: done.append("deleted")
    before = signal.signal(number, lambda *_: None)
    try:
        asyncio.run(made.serve(tmp_path / "socket"))
    finally:
        signal.signal(number, before)
    assert done == ["deleted", "closed", "closed"]


class Pod:
    """A program in a pod, in place of run_in_pod's; it is the node's program of this machine."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.argv, self.cancelled = argv, False

    async def run(self, streams: Any) -> tuple[int, str]:
        pipe = asyncio.subprocess.PIPE
        program = await asyncio.create_subprocess_exec(*self.argv, stdin=pipe, stdout=pipe)
        assert program.stdin is not None
        assert program.stdout is not None

        async def feed(to: asyncio.StreamWriter) -> None:
            while data := await streams.read():
                to.write(data)

        feeding = asyncio.ensure_future(feed(program.stdin))
        try:
            while data := await program.stdout.read(4096):
                await streams.write(STDOUT, data)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        finally:
            feeding.cancel()
            program.stdin.close()
            await program.wait()
        return LOST, "the server is gone"


@pytest.fixture
def in_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A bridge whose only pod is this machine."""
    monkeypatch.setattr(bridge, "Api", lambda *_: None)
    made = bridge.KubernetesBridge(settings(tmp_path))
    made.pods.heard(POD)

    async def run(*given: Any) -> tuple[int, str]:
        *_, argv, streams = given
        return await Pod(argv).run(streams)

    monkeypatch.setattr(bridge, "run_in_pod", run)
    return made


PROGRAM = [sys.executable, "-I", "-S", "-c", BOOTSTRAP]


def test_commands_share_the_stream_to_their_pod(in_pod: Any, tmp_path: Path) -> None:
    heard: list[Mapping[str, Any]] = []
    in_pod.tell = heard.append

    async def call(*argv: str) -> tuple[int, bytes]:
        python = (sys.executable, "-S", node_command.__file__, str(tmp_path / "socket"), "0")
        caller = await asyncio.create_subprocess_exec(
            *python, *argv, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await caller.communicate()
        assert caller.returncode is not None
        return caller.returncode, output

    async def calls() -> None:
        server = BridgeServer(in_pod.nodes.run, in_pod._hear)
        serving = asyncio.ensure_future(server.serve(tmp_path / "socket"))
        assert await in_pod.open("0", PROGRAM, LIMIT_S) == ""
        both = await asyncio.gather(call("sh", "-c", "echo a; exit 3"), call("echo", "b"))
        assert list(both) == [(3, b"a\n"), (0, b"b\n")]
        in_pod.nodes.lose("0", "its pod was deleted")
        assert (await call("true"))[0] == LOST
        assert heard == [{"broken": "0", "why": "its pod was deleted"}]
        serving.cancel()

    asyncio.run(asyncio.wait_for(calls(), LIMIT_S))


def test_a_pod_without_python_is_named(in_pod: Any) -> None:
    async def call() -> str:
        why: str = await in_pod.open("0", ["sh", "-c", "echo no python; exit 255"], LIMIT_S)
        return why

    assert asyncio.run(call()) == "the server is gone"


def test_the_bridge_ends_with_the_launcher(tmp_path: Path) -> None:
    spec, options = profile_spec("rack"), RemoteOptions(str(tmp_path), tmp_path)
    launcher = Kubernetes(
        2, spec, options, Settings(k8s_image="i"), leftovers=KubernetesBackend().leftovers
    )
    closed: list[str] = []
    bridge: Any = SimpleNamespace(close=lambda: closed.append("bridge"))
    launcher._bridge = bridge
    launcher.close()
    launcher.close()
    assert closed == ["bridge"]
