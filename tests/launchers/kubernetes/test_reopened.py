"""Streams to pods that break: why, and that they are opened again while their pods exist."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.launchers.kubernetes import bridge
from pytest_mnode.launchers.kubernetes.streams import Streams
from pytest_mnode.launchers.remote.bridge_server import STDERR, STDOUT
from pytest_mnode.launchers.remote.node_command import LOST
from pytest_mnode.launchers.remote.wire import HELLO, UNUSABLE
from tests.launchers.kubernetes.test_ended import LIMIT_S, POD, in_pod

__all__ = ["in_pod"]

EVICTED = {"type": "DisruptionTarget", "status": "True", "message": "Eviction API: evicting"}
DISRUPTED = "its pod was disrupted: Eviction API: evicting"
CLOSED = "the API server closed the exec stream"
READ_ONLY = "cannot write /tmp/alive: Read-only file system"


def json_of_pod(*conditions: Mapping[str, str]) -> dict[str, Any]:
    """What the API server returns for POD."""
    running = {"name": "main", "state": {"running": {}}}
    status = {"phase": "Running", "containerStatuses": [running], "conditions": conditions}
    return {
        "metadata": {"name": POD.name, "uid": "a"},
        "spec": {"nodeName": POD.node},
        "status": status,
    }


class Command:
    """A program in a pod, in place of run_in_pod's. ends: how, once it is told to."""

    def __init__(self, errors: bytes, ends: tuple[int, str], greeting: bytes = HELLO) -> None:
        self.errors, self.ends, self.greeting = errors, ends, greeting
        self.over = asyncio.Event()

    async def run(self, streams: Streams) -> tuple[int, str]:
        await streams.write(STDOUT, self.greeting)
        await self.over.wait()
        await streams.write(STDERR, self.errors)
        return self.ends


@pytest.fixture
def started(in_pod: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Command]]:
    """Have programs in the pod end as given; the list gets each that is started."""
    monkeypatch.setattr(bridge, "AGAIN_S", 0.01)

    def prepare(*given: Any, found: Mapping[str, Any] | None = None) -> list[Command]:
        every: list[Command] = []
        in_pod.api = SimpleNamespace(path=lambda *_, **__: "", request=lambda *_, **__: found)

        async def run(*words: Any) -> tuple[int, str]:
            every.append(Command(*given))
            return await every[-1].run(words[-1])

        monkeypatch.setattr(bridge, "run_in_pod", run)
        return every

    return prepare


def awaited(work: Any) -> None:
    asyncio.run(asyncio.wait_for(work, LIMIT_S))


async def came(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("found", "events"),
    [
        (
            json_of_pod(EVICTED),
            [{"lost": "0", "why": DISRUPTED}, {"broken": "0", "why": DISRUPTED}],
        ),
        (
            json_of_pod(),
            [{"broken": "0", "why": "the connection was lost: OSError: no space left"}],
        ),
    ],
    ids=["evicted", "as before"],
)
def test_the_end_of_a_pod_explains_the_end_of_its_stream(
    in_pod: Any, started: Any, found: Any, events: list[dict[str, str]]
) -> None:
    """The watch is silent; another request for the pod returns `found`."""
    heard: list[dict[str, str]] = []
    every = started(b"Traceback:\nOSError: no space left\n", (137, ""), found=found)
    in_pod.tell = heard.append

    async def breaks() -> None:
        assert await in_pod.open("0", [], LIMIT_S) == ""
        every[0].over.set()
        await came(lambda: len(heard) == len(events))

    awaited(breaks())
    assert heard == events


def test_a_stream_that_broke_is_opened_again_without_an_order(in_pod: Any, started: Any) -> None:
    """Otherwise the pod would end by itself, as its file is not touched any more."""
    every = started(b"", (LOST, CLOSED))

    async def breaks() -> None:
        assert await in_pod.open("0", [], LIMIT_S) == ""
        every[0].over.set()
        await came(lambda: in_pod.nodes.at["0"].lost)
        assert in_pod.nodes.at["0"].lost == f"the connection was lost: {CLOSED}"
        await came(lambda: not in_pod.nodes.at["0"].lost)

    awaited(breaks())
    assert len(every) == 2


def test_the_stream_of_a_pod_that_is_over_is_not_opened_again(in_pod: Any, started: Any) -> None:
    every = started(b"", (LOST, CLOSED))

    async def breaks() -> None:
        assert await in_pod.open("0", [], LIMIT_S) == ""
        before = asyncio.all_tasks()
        in_pod.pods.heard(POD, deleted=True)
        in_pod.nodes.lose("0", "its pod was deleted")
        await asyncio.wait(asyncio.all_tasks() - before)

    awaited(breaks())
    assert len(every) == 1


def test_an_order_joins_a_try_that_is_under_way(in_pod: Any, started: Any) -> None:
    """A second try would cut off the first."""
    every = started(b"", (LOST, CLOSED))

    async def both() -> None:
        tries = [in_pod.open("0", [], LIMIT_S) for _ in range(2)]
        assert await asyncio.gather(*tries) == ["", ""]

    awaited(both())
    assert len(every) == 1


def test_a_pod_without_a_writable_directory_says_so(in_pod: Any, started: Any) -> None:
    every = started(f"{READ_ONLY}\n".encode(), (UNUSABLE, ""), b"")

    async def refused() -> str:
        opening = asyncio.ensure_future(in_pod.open("0", [], LIMIT_S))
        await came(lambda: every)
        every[0].over.set()
        why: str = await opening
        return why

    assert asyncio.run(asyncio.wait_for(refused(), LIMIT_S)) == READ_ONLY
