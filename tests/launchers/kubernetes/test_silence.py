"""An API server, a bridge or a pod that takes what it is sent and never answers."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.errors import ClusterError
from pytest_mnode.launchers.kubernetes import api as api_module
from pytest_mnode.launchers.kubernetes import launcher, pod_streams, streams
from pytest_mnode.launchers.kubernetes.api import Api, ApiError
from pytest_mnode.launchers.kubernetes.pod_streams import PodStreams
from pytest_mnode.launchers.remote import launcher as remote_launcher
from pytest_mnode.protocol.launcher_requests import PowerOff, PowerOn
from tests.launchers.kubernetes.given import plain_api
from tests.launchers.kubernetes.test_broken_off import CHUNK, HELD, PATH, Serve, answer, pod, serve
from tests.launchers.kubernetes.test_moved import FIRST, Run
from tests.waiting import soon, until

__all__ = ["serve"]


@pytest.fixture(autouse=True)
def _in_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    limits = {
        api_module: ("REQUEST_S", "WATCH_S"),
        api_module.Api: ("connect_s",),
        pod_streams: ("_END_S",),
        launcher: ("REQUEST_S", "_SLACK_S", "REPLACED_S"),
        remote_launcher: ("_SLACK_S",),
    }
    for module, names in limits.items():
        for name in names:
            monkeypatch.setattr(module, name, 0.2)
    with soon():
        yield


@pytest.fixture
def silent() -> Iterator[Api]:
    """A server that accepts connections, by its backlog, and answers none."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield plain_api(listener.getsockname()[1])


def test_a_stream_that_is_never_opened(silent: Api) -> None:
    with pytest.raises(ApiError, match=r"127\.0\.0\.1:\d+ was not reached: .*timed out"):
        asyncio.run(streams.connected(silent, "/", ()))


def test_pods_that_can_never_be_watched(silent: Api) -> None:
    with pytest.raises(ApiError, match="pods cannot be watched"):
        PodStreams(silent, "run=1")


def test_a_request_without_an_answer(serve: Serve) -> None:
    serve([HELD])
    with pytest.raises(ApiError, match=r"was not reached: .*timed out"):
        Api().request("GET", PATH, limit_s=0.2)


def test_a_watch_that_falls_silent_ends(serve: Serve) -> None:
    """And is started again; the server would have ended it itself."""
    serve([answer(CHUNK, "Transfer-Encoding: chunked") + HELD])
    assert list(Api().watch(PATH, {})) == [("ADDED", pod("a"))]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """A launcher whose bridge reads what it is told."""
    made = Run(tmp_path)
    made.launcher._bridge._events, bridge = socket.socketpair()
    with made.launcher._bridge._events, bridge:
        yield made


def test_a_bridge_that_reports_no_pod(run: Run) -> None:
    run.launcher._settings = SimpleNamespace(k8s_wait_s=0.0)  # type: ignore[assignment]
    run.launcher._pods = {}
    with pytest.raises(ClusterError, match="2 pods did not run"):
        run.launcher._await_pods()


def test_a_pod_that_nothing_replaces(run: Run) -> None:
    run.launcher._spec = run.launcher._spec.model_copy(update={"power": None})
    run.hear(FIRST, deleted=True)
    with pytest.raises(ClusterError, match=r"^n1 was not back 0\.2 s later: its pod was deleted$"):
        run.launcher.ask(PowerOn("n1"))


def test_a_bridge_that_is_never_up(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "asleep.py").write_text("import time; time.sleep(60)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(launcher, "_BRIDGE", "asleep")
    try:
        with pytest.raises(ClusterError, match="kubernetes: not up in time"):
            run.launcher.start()
    finally:
        run.launcher.close()


def test_a_watch_whose_thread_never_ends_is_closed() -> None:
    over = threading.Event()
    made: Any = PodStreams.__new__(PodStreams)
    made._thread = threading.Thread(target=over.wait, args=(60,))
    made._thread.start()
    made._loop = SimpleNamespace(call_soon_threadsafe=lambda _: None)
    made.close()
    assert made._thread.is_alive()
    over.set()


def test_a_server_without_a_watch_for_a_while_is_away() -> None:
    made: Any = PodStreams.__new__(PodStreams)
    made._up, made._heard_s = threading.Event(), time.monotonic() - 60.0
    assert made.away


def test_the_output_of_a_pod_that_runs_on_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream ends with its kubelet, which is then restarted."""
    monkeypatch.setattr(pod_streams, "_ENDED_S", 0.1)
    reads: list[str] = []

    class Log:
        def __init__(self, *_: object) -> None:
            self.rest = ""

        async def read(self) -> bool:
            reads.append("read")
            return True

        @property
        def gone(self) -> bool:
            return len(reads) > 1

    monkeypatch.setattr(pod_streams, "_Log", Log)
    made: Any = PodStreams.__new__(PodStreams)
    made._api, made._container = SimpleNamespace(path=lambda *_, **__: ""), None
    made._ended = {"u1": asyncio.Event()}
    asyncio.run(made._follow("a", "u1"))
    assert reads == ["read", "read"]


def test_a_node_that_is_not_back_after_it_was_switched_on(run: Run) -> None:
    power = run.launcher._spec.power
    assert power is not None
    soon = power.model_copy(update={"within_s": 0.2})
    run.launcher._spec = run.launcher._spec.model_copy(update={"power": soon})
    run.launcher.ask(PowerOff("n1"))
    with pytest.raises(ClusterError, match=r"^n1 was not back 0\.2 s after power\.switch_on: "):
        run.launcher.ask(PowerOn("n1"))


def test_starts_and_ends_of_watches_are_counted(
    silent: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ended:
        def __aiter__(self) -> Ended:
            return self

        async def __anext__(self) -> str:
            raise StopAsyncIteration

        async def close(self) -> None:
            pass

    async def connected(*_: object) -> Ended:
        return Ended()

    monkeypatch.setattr(pod_streams, "_AGAIN_S", 0.01)
    monkeypatch.setattr(pod_streams, "connected", connected)
    made = PodStreams(silent, "run=1")
    until(lambda: made.watches >= 4, "two watches began and ended")
    made.close()
    assert made.watches % 2 == 0
