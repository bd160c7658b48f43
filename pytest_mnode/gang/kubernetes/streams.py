"""What the API server sends by itself: changes of a run's pods, and what their ranks print.

One thread with one event loop has one watch, and one stream per pod that runs.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from pytest_mnode.gang.engine import Heartbeat
from pytest_mnode.gang.heartbeats import read_heartbeats
from pytest_mnode.gang.kubernetes.pods import GangPod
from pytest_mnode.launchers.kubernetes.api import WATCH_S, Api, ApiError
from pytest_mnode.launchers.kubernetes.streams import CONNECT_S, connected

_ANY = {"resourceVersion": "0"}
"""Begin a watch with what the server has at hand: to wait for the newest fails after seconds on a
server whose etcd reports no progress."""
_AGAIN_S = 0.3
_BINARY = ("binary.k8s.io",)
_END_S = 5.0
_AWAY_S = 2.0


@dataclass(frozen=True, slots=True)
class PodEvent:
    """A pod as the server reported it at this time; gone: it was deleted."""

    at_s: float
    pod: GangPod
    gone: bool


class Streams:
    """Of the pods with a label. Thread-safe; `close` ends the thread."""

    def __init__(self, api: Api, selector: str) -> None:
        """Raises ApiError where pods cannot be watched."""
        self._api, self._selector = api, selector
        self._lock = threading.Condition()
        self._events: list[PodEvent] = []
        self._newest: dict[str, int] = {}
        self._beats: list[Heartbeat] = []
        self._unreadable = 0
        self._followed: dict[str, asyncio.Task[None]] = {}
        self._loop = asyncio.new_event_loop()
        self._watching: asyncio.Task[None] | None = None
        self._problem = "no answer"
        self._up = threading.Event()
        self._heard_s = 0.0
        self._thread = threading.Thread(target=self._run, name="gang-pods", daemon=True)
        self._thread.start()
        if not self._up.wait(CONNECT_S):
            self.close()
            raise ApiError(0, f"pods cannot be watched: {self._problem}")

    def events(self, versions: Mapping[str, int], limit_s: float) -> list[PodEvent]:
        """What happened since the last call.

        versions: of pods that are known to be there; waits until these were reported, for a while.
        """

        def reported() -> bool:
            return all(self._newest.get(name, 0) >= v for name, v in versions.items())

        with self._lock:
            self._lock.wait_for(reported, limit_s)
            events, self._events = self._events, []
            return events

    def heartbeats(self) -> tuple[tuple[Heartbeat, ...], int]:
        """Heartbeats since the last call, and the number of lines that are none; one more where
        the watch is away, so that no new pod is read."""
        with self._lock:
            beats, unreadable = tuple(self._beats), self._unreadable
            self._beats, self._unreadable = [], 0
        away = not self._up.is_set() and time.monotonic() - self._heard_s > _AWAY_S
        return beats, unreadable + away

    def close(self) -> None:
        """End the watch and all streams."""
        self._loop.call_soon_threadsafe(self._end)
        self._thread.join(_END_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._watching = self._loop.create_task(self._for_ever(self._watch))
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def _end(self) -> None:
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.create_task(self._stop(tasks))

    async def _stop(self, tasks: set[asyncio.Task[Any]]) -> None:
        await asyncio.gather(*tasks, return_exceptions=True)
        self._loop.stop()

    async def _for_ever(self, work: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        """Again and again until it says that it is done: servers end streams, and are away."""
        from websockets.exceptions import ConnectionClosed

        while True:
            try:
                if await work():
                    return
            except (ApiError, ConnectionClosed, OSError) as error:
                self._problem = str(error)
            await asyncio.sleep(_AGAIN_S)

    async def _watch(self) -> bool:
        query = {"labelSelector": self._selector, **_ANY, "watch": "true"}
        query["timeoutSeconds"] = f"{WATCH_S:.0f}"
        path = f"{self._api.path('pods')}?{urlencode(query)}"
        connection = await connected(self._api, path, ())
        self._up.set()
        try:
            async for message in connection:
                event = json.loads(message)
                if event["type"] == "ERROR":
                    raise ApiError(0, str(event["object"].get("message")))
                self._note(event["object"], event["type"] == "DELETED")
        finally:
            self._heard_s = time.monotonic()
            self._up.clear()
            await connection.close()
        return False

    def _note(self, pod: Mapping[str, Any], gone: bool) -> None:
        seen, now = GangPod.read(pod), time.time()
        with self._lock:
            if seen.version <= self._newest.get(seen.name, 0):
                return  # a watch that begins again reports what is there
            self._newest[seen.name] = seen.version
            self._events.append(PodEvent(now, seen, gone))
            self._lock.notify_all()
        statuses = pod.get("status", {}).get("containerStatuses") or []
        began = any(s["state"].keys() & {"running", "terminated"} for s in statuses)
        uid = pod["metadata"]["uid"]
        if began and not gone and uid not in self._followed:
            follow = _Log(self._api, seen.name, self._heard)
            self._followed[uid] = self._loop.create_task(self._for_ever(follow.read))

    def _heard(self, text: str) -> None:
        beats, unreadable = read_heartbeats(text)
        with self._lock:
            self._beats += beats
            self._unreadable += unreadable


class _Log:
    """What a rank prints, from its beginning to its end; after a break the lines that are known are
    left out."""

    def __init__(self, api: Api, pod: str, heard: Callable[[str], None]) -> None:
        self._api, self._pod, self._heard = api, pod, heard
        self._lines = 0

    async def read(self) -> bool:
        """Whether it has ended."""
        path = f"{self._api.path('pods', name=self._pod, more='log')}?follow=true"
        try:
            connection = await connected(self._api, path, _BINARY)
        except ApiError as error:
            if error.status == 404:
                return True
            raise
        known, data = self._lines, b""
        try:
            async for message in connection:
                assert isinstance(message, bytes)
                *whole, data = (data + message).split(b"\n")
                fresh, known = whole[known:], max(0, known - len(whole))
                self._lines += len(fresh)
                if fresh:
                    self._heard("".join(f"{line.decode(errors='replace')}\n" for line in fresh))
        finally:
            await connection.close()
        return True
