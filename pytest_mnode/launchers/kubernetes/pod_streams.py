"""Streams of the API server: changes of the pods with a label, and the output of these pods.

One thread with one event loop has one watch, and one stream per pod whose output is followed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

from pytest_mnode.launchers.kubernetes.api import WATCH_S, Api, ApiError
from pytest_mnode.launchers.kubernetes.streams import connected

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

_ANY = {"resourceVersion": "0"}
"""Starts a watch from the server's cache: to wait for the newest version fails after seconds on a
server whose etcd reports no progress."""
_AGAIN_S, _LONGEST_S = 0.3, 5.0
"""Pauses before a stream is started again: the first one, and the longest one."""
_BINARY = ("binary.k8s.io",)
_END_S = 5.0
_ENDED_S = 2.0
"""Time in which the watch reports the end of a container whose stream has ended."""
_AWAY_S = 2.0
_T = TypeVar("_T")


def check_logs(api: Api) -> None:
    """Raise ApiError if this user may not read logs of pods."""
    try:
        api.request("GET", api.path("pods", name="mnode-none", more="log"))
    except ApiError as error:
        if error.status != 404:
            raise


class PodStreams:
    """Streams of the pods with a label. A subclass is called in the thread, which `close` ends."""

    def __init__(self, api: Api, selector: str, container: str | None = None) -> None:
        """container: name of the container whose output is read; None if a pod has only one.

        Raises ApiError if pods cannot be watched.
        """
        self._api, self._selector, self._container = api, selector, container
        self._followed: dict[str, asyncio.Task[None]] = {}
        self._ended: dict[str, asyncio.Event] = {}
        """By uid of a followed pod: set when its container no longer runs."""
        self._loop = asyncio.new_event_loop()
        self._watching: asyncio.Task[None] | None = None
        self._connection: ClientConnection | None = None
        self._problem = "no answer"
        self._up = threading.Event()
        self.watches = 0
        """Number of starts and ends of watches: odd while one lasts. Changes between two may not
        have been reported."""
        self._heard_s = 0.0
        self._thread = threading.Thread(target=self._run, name="pods", daemon=True)
        self._thread.start()
        if not self._up.wait(self._api.connect_s):
            self.close()
            raise ApiError(0, f"pods cannot be watched: {self._problem}")

    # For subclasses to implement.

    def changed(self, pod: Mapping[str, Any], gone: bool) -> bool:
        """Handle a pod that was added, changed or deleted (gone); whether this is news. A watch
        that starts again reports all existing pods."""
        raise NotImplementedError

    def printed(self, uid: str, text: str) -> None:
        """Handle whole lines of a pod's output; the last one may lack its newline."""
        raise NotImplementedError

    def fell_silent(self, uid: str) -> None:
        """Handle the end of a pod's output: all of it was read."""

    # For subclasses to use.

    @property
    def away(self) -> bool:
        """Whether there has been no watch for longer than it takes to start one again."""
        return not self._up.is_set() and time.monotonic() - self._heard_s > _AWAY_S

    def answers(self, limit_s: float) -> bool:
        """Whether the server answers on the connection of the watch, which may be half open."""
        return self.call(self._answers(limit_s))

    def call(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the thread; its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        if self._thread.is_alive():
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

    async def _for_ever(self, work: Callable[[], Awaitable[bool]]) -> None:
        """Repeat `work` until it returns True, because servers end streams, and may be away. Pauses
        grow, because the nodes of many pods may be away."""
        from websockets.exceptions import ConnectionClosed

        pause_s = _AGAIN_S
        while True:
            began = time.monotonic()
            try:
                if await work():
                    return
            except (ApiError, ConnectionClosed, OSError) as error:
                self._problem = str(error)
            if time.monotonic() - began > _LONGEST_S:
                pause_s = _AGAIN_S
            await asyncio.sleep(pause_s)
            pause_s = min(1.5 * pause_s, _LONGEST_S)

    async def _watch(self) -> bool:
        query = {"labelSelector": self._selector, **_ANY, "watch": "true"}
        query["timeoutSeconds"] = f"{WATCH_S:.0f}"
        path = f"{self._api.path('pods')}?{urlencode(query)}"
        self._connection = connection = await connected(self._api, path, ())
        self.watches += 1
        self._up.set()
        try:
            async for message in connection:
                event = json.loads(message)
                if event["type"] == "ERROR":
                    raise ApiError(0, str(event["object"].get("message")))
                self._note(event["object"], event["type"] == "DELETED")
        finally:
            self.watches += 1
            self._heard_s = time.monotonic()
            self._up.clear()
            await connection.close()
        return False

    async def _answers(self, limit_s: float) -> bool:
        from websockets.exceptions import ConnectionClosed

        if self._connection is None:
            return False
        with contextlib.suppress(TimeoutError, ConnectionClosed):
            async with asyncio.timeout(limit_s):
                await (await self._connection.ping())
            return True
        return False

    def _note(self, pod: Mapping[str, Any], gone: bool) -> None:
        statuses = pod.get("status", {}).get("containerStatuses") or []
        states = [s["state"] for s in statuses if self._container in (None, s["name"])]
        runs = any("running" in state for state in states)
        began = runs or any("terminated" in state for state in states)
        uid = pod["metadata"]["uid"]
        if uid in self._followed and (gone or not runs):
            self._ended[uid].set()
        if self.changed(pod, gone) and began and not gone and uid not in self._followed:
            self._ended[uid] = asyncio.Event()
            if not runs:
                self._ended[uid].set()
            self._followed[uid] = self._loop.create_task(self._follow(pod["metadata"]["name"], uid))

    async def _follow(self, pod: str, uid: str) -> None:
        query = {"follow": "true"} | ({"container": self._container} if self._container else {})
        path = f"{self._api.path('pods', name=pod, more='log')}?{urlencode(query)}"
        log = _Log(self._api, path, lambda text: self.printed(uid, text))
        ended = self._ended[uid]
        while True:
            await self._for_ever(log.read)
            # A stream also ends when its kubelet ends, while the container runs on.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), _ENDED_S)
            if log.gone or ended.is_set():
                break
        if log.rest:
            self.printed(uid, log.rest)
        self.fell_silent(uid)


class _Log:
    """A pod's output, from its beginning to its end; after a break, known lines are skipped.
    gone: whether the pod no longer exists. rest: a last line without its newline."""

    def __init__(self, api: Api, path: str, heard: Callable[[str], None]) -> None:
        self._api, self._path, self._heard = api, path, heard
        self._lines = 0
        self.gone = False
        self.rest = ""

    async def read(self) -> bool:
        """Read to the end of the stream; always True."""
        try:
            connection = await connected(self._api, self._path, _BINARY)
        except ApiError as error:
            self.gone = error.status == 404
            if self.gone:
                return True
            raise
        known, data, self.rest = self._lines, b"", ""
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
        if not known:
            self.rest = data.decode(errors="replace")
        return True
