"""The run's only access to Kubernetes: `bridge.py SETTINGS SOCKET`; see remote.bridge.

Creates the run's object, watches its pods, holds a stream to a program in each, and deletes the
object on SIGTERM. SOCKET appears once the object exists. The launcher also gets {"owner": …}, a
reference to the object; and changes of pods: {"pods": {host: {"node", "address", "pod"}}},
{"problem": …}, {"waiting": text}, {"lost": host, "why": …}, {"back": host, …}. A stream that has
ended is {"broken": host, "why": …}; it is opened again while its pod exists.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pytest_mnode.launchers.cleanup.leftovers import Cleanup, Leftovers
from pytest_mnode.launchers.kubernetes.api import (
    Api,
    ApiError,
    PodEvent,
    Warnings,
    pod_events,
    warnings_about,
)
from pytest_mnode.launchers.kubernetes.manifest import GROUPS, PodsOfRun, pods_of_run
from pytest_mnode.launchers.kubernetes.pods import PodState
from pytest_mnode.launchers.kubernetes.run_pods import Event, RunPods
from pytest_mnode.launchers.kubernetes.streams import run_in_pod
from pytest_mnode.launchers.remote import bootstrap, bridge
from pytest_mnode.launchers.remote.bridge_server import STDERR
from pytest_mnode.launchers.remote.stdio_bridge import why_late, why_over
from pytest_mnode.launchers.remote.wire import HELLO
from pytest_mnode.limits import Limits

DELETE_S = 6.0
AGAIN_S = 1.0
POLL_NODES_S = 1.0
EVENTS_S = 5.0
"""Seconds between two readings of events."""
_MOST_BYTES = 8192
PULL_S = 1800.0
"""Longest time beyond `wait_s` in which pods may pull their images."""
_LIMITS = Limits()
PULLING = "Pulling"
"""The kubelet's reason while it pulls an image; the next event of the pod has another."""


@dataclass(frozen=True, slots=True)
class BridgeSettings:
    """Settings that the launcher gives to the bridge.

    manifest: the user's, or the default. wait_s: time in which all pods must run. alive: the file
    in pods that is touched while the run lives. leftovers: fields of what may be left.
    """

    context: str
    namespace: str
    manifest: dict[str, Any]
    run_id: str
    nodes: int
    wait: list[str]
    wait_s: float
    alive: str
    scratch: str
    leftovers: dict[str, Any]
    silence_s: float = _LIMITS.silence_s
    connect_s: float = _LIMITS.connect_s
    late: str = ""


class PodStream:
    """The stream to the program in a pod, for run_in_pod. printed: what came beside it; greeting:
    and before it. up: called with what follows the greeting, feed: with the rest."""

    def __init__(self, up: Callable[[bytes], None], feed: Callable[[bytes], None]) -> None:
        self.sent: asyncio.Queue[bytes] = asyncio.Queue()
        self.greeting, self.printed, self.greeted = b"", b"", False
        self._up, self._feed = up, feed

    async def read(self) -> bytes:
        return await self.sent.get()

    async def write(self, channel: int, data: bytes) -> None:
        if channel == STDERR:
            self.printed = (self.printed + data)[-_MOST_BYTES:]
        elif self.greeted:
            self._feed(data)
        else:
            self.greeting += data
            _, hello, data = self.greeting.partition(HELLO)
            if hello:
                self.greeted, self.printed = True, b""
                self._up(data)

    def lines(self) -> list[str]:
        """Of what was printed, and before the program ran."""
        first = b"" if self.greeted else self.greeting
        return (first + b"\n" + self.printed).decode(errors="replace").splitlines()


class KubernetesBridge(bridge.Bridge):
    """See remote.bridge; the watch of pods has a thread."""

    def __init__(self, settings: BridgeSettings) -> None:
        super().__init__(settings.silence_s)
        self.settings = settings
        place = settings.context, settings.namespace, settings.scratch
        self.api = Api(*place, settings.connect_s)
        self.made = False
        self.cleanup: Cleanup | None = None
        self.run: PodsOfRun = pods_of_run(
            settings.manifest, settings.run_id, settings.nodes, settings.wait
        )
        self.pods = RunPods(settings.nodes, replaced=self.run.replaces)
        self.owner: dict[str, str] = {}
        self._argv: Sequence[str] = ()
        self._trying: dict[tuple[str, str], asyncio.Task[str]] = {}
        """The last try to open a host's stream, by host and uid of its pod."""
        self._reopening: dict[str, asyncio.Task[None]] = {}
        """What opens a host's broken stream again, by host."""
        self._carried: dict[str, asyncio.Task[None]] = {}
        """What carries a host's stream, by host."""

    # The object.

    def prepare(self) -> None:
        """Create the object. Raises ApiError."""
        manifest = self.run.manifest
        if owners := self.api.owners():
            manifest["metadata"]["ownerReferences"] = owners
        self.made = True
        self.cleanup = Cleanup(Leftovers(**self.settings.leftovers))
        path = self.api.path(self._plural, manifest["apiVersion"])
        try:
            made = self.api.request("POST", path, manifest)
            self.owner = {key: manifest[key] for key in ("apiVersion", "kind")}
            self.owner |= {key: made["metadata"][key] for key in ("name", "uid")}
        except ApiError as error:
            self.made = error.status == 0  # a lost reply may leave an object
            raise

    def delete(self) -> str:
        """Delete the object and its pods; tried again while the server is away, at last, or where
        it refuses, by the clean-up process: what that goes on deleting, in words."""
        path = self.api.path(self._plural, self.run.manifest["apiVersion"], self.run.name)
        end = time.monotonic() + DELETE_S
        while self.made and (left := end - time.monotonic()) > 0:
            try:
                self.api.request("DELETE", path, {"propagationPolicy": "Background"}, limit_s=left)
                self.made = False
            except ApiError as error:
                self.made = error.status != 404
                if error.status == 403:
                    break
                time.sleep(0.3 * self.made)
        if self.cleanup is None:
            return ""
        leftovers = str(self.cleanup.leftovers) if self.made else ""
        self.cleanup.close(done=not self.made)
        self.made, self.cleanup = False, None
        return leftovers

    @property
    def _plural(self) -> str:
        return GROUPS[self.run.kind]

    # Pods.

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Report changes of pods to the loop, for ever. Runs in a thread."""
        path, query = self.api.path("pods"), {"labelSelector": self.run.selector}
        with contextlib.suppress(RuntimeError):  # the loop is closed
            while True:
                try:
                    found = self.api.request("GET", path, query=query)
                    pods = [PodState.read(pod, self.run.container) for pod in found["items"]]
                    loop.call_soon_threadsafe(self._follow, self.pods.listed, pods)
                    since = {"resourceVersion": found["metadata"]["resourceVersion"]}
                    for kind, pod in self.api.watch(path, {**query, **since}):
                        heard = partial(self.pods.heard, deleted=kind == "DELETED")
                        state = PodState.read(pod, self.run.container)
                        loop.call_soon_threadsafe(self._follow, heard, state)
                except ApiError as error:
                    loop.call_soon_threadsafe(self._watch_failed, error)
                time.sleep(AGAIN_S)

    def _follow(self, hear: Callable[[Any], list[Event]], news: Any) -> None:
        for event in hear(news):
            self.tell(event)
            if "lost" in event:
                self.nodes.lose(event["lost"], event["why"])

    async def _look(self, name: str) -> None:
        """Read a pod once more, ahead of the watch; does nothing if the API server is away."""
        path = self.api.path("pods", name=name)
        with contextlib.suppress(ApiError):
            pod = await asyncio.to_thread(self.api.request, "GET", path, limit_s=POLL_NODES_S)
            self._follow(self.pods.heard, PodState.read(pod, self.run.container))

    def _watch_failed(self, error: ApiError) -> None:
        self.tell({"problem": str(error)})
        if error.status in (401, 403) and not self.pods.up:
            self.tell({"failed": {f"{self.run.kind} {self.run.name}": str(error)}})

    async def give_up_when_late(self) -> None:
        """Report why pods do not run: at once if waiting does not help, else after `wait_s`, or
        after the images are pulled."""
        began = looked = time.monotonic()
        while not self.pods.up:
            await asyncio.sleep(POLL_NODES_S)
            now = time.monotonic()
            late, hopeless = now - began > self.settings.wait_s, bool(self.pods.hopeless())
            due = now - looked > EVENTS_S and (late or self.pods.missing)
            if self.pods.up or not (hopeless or due):
                continue
            looked = now
            warnings, events = await asyncio.to_thread(self._read_events)
            pulling = [n for n, event in events.items() if event.reason == PULLING]
            in_time = not late or (pulling and now - began < self.settings.wait_s + PULL_S)
            if self.pods.up or (in_time and not hopeless and not warnings.final):
                if late:
                    self.tell({"waiting": f"{pulling[0]}: {events[pulling[0]].text}"})
                continue
            what = f"{self.run.kind} {self.run.name}"
            last = {name: event.text for name, event in events.items()}
            reasons = self.pods.why_not_up(
                what, warnings.texts, last, now - began, final=warnings.final
            )
            self.tell({"failed": reasons})
            return

    def _read_events(self) -> tuple[Warnings, dict[str, PodEvent]]:
        """Events of the run's object, and of its pods that do not run."""
        names = {pod.name for pod in self.pods.waiting()}
        pods = pod_events(self.api, names) if names else {}
        return warnings_about(self.api, self.run.name), pods

    # Streams.

    async def open(self, host: str, argv: Sequence[str], within_s: float) -> str:
        """See Bridge. argv: of the program in the pod. Joins a try that is under way."""
        pod = self.pods.hosts.get(host)
        of = host, pod.uid if pod else ""
        self._argv, trying = argv, self._trying.get(of)
        if trying is None or trying.done():
            trying = asyncio.ensure_future(self._try(host, argv, within_s))
            self._trying[of] = trying
        return await trying

    async def _try(self, host: str, argv: Sequence[str], within_s: float) -> str:
        pod, loop = self.pods.hosts.get(host), asyncio.get_running_loop()
        if pod is None or pod.over:
            return pod.over if pod else f"no pod {host}"
        up: asyncio.Future[str] = loop.create_future()

        def greet(data: bytes) -> None:
            taken = self.nodes.take(host, stream.sent.put_nowait)
            self.nodes.feed(taken, data)
            if not up.done():
                up.set_result("")

        stream = PodStream(greet, lambda data: self.nodes.feed(self.nodes.at[host], data))
        stream.sent.put_nowait(bootstrap.source(self.settings.silence_s, self.settings.alive))
        self.drop(host)
        task = self._carried[host] = self.do(self._carry(host, pod.name, argv, stream, up))
        try:
            why = await asyncio.wait_for(asyncio.shield(up), within_s)
        except TimeoutError:
            why = why_late(within_s, stream.lines(), self.settings.late)
        if why:
            task.cancel()
        return why

    async def _carry(
        self,
        host: str,
        pod: str,
        argv: Sequence[str],
        stream: PodStream,
        up: asyncio.Future[str],
    ) -> None:
        """Run the program in a pod until its stream ends."""
        try:
            code, error = await run_in_pod(self.api, pod, self.run.container, argv, stream)
            why = why_over(code, [*stream.lines(), error], greeted=stream.greeted)
            if stream.greeted and not error:
                await self._look(pod)  # if the pod ends, that is the reason: the watch may be late
        except ApiError as error:
            why = str(error)
        if not up.done():
            up.set_result(why)
        elif self._carried.get(host) is asyncio.current_task():
            self.nodes.lose(host, why)

    def drop(self, host: str) -> None:
        """See Bridge."""
        if (task := self._carried.pop(host, None)) is not None:
            task.cancel()

    def lost(self, host: str, why: str) -> None:
        """See Bridge. Whether the pod is lost is the watch's to say."""
        self.tell({"broken": host, "why": why})
        self.drop(host)
        if (reopening := self._reopening.get(host)) is None or reopening.done():
            self._reopening[host] = self.do(self._reopen(host))

    async def _reopen(self, host: str) -> None:
        """Open a stream again that broke: without one, its pod would end after a while."""
        uid = self.pods.hosts[host].uid
        while True:
            await asyncio.sleep(AGAIN_S)
            if not self.nodes.at[host].lost or not self.pods.is_there(host, uid):
                return
            await self.open(host, self._argv, self.settings.connect_s)

    # Connections.

    def listening(self) -> None:
        """See Bridge."""
        self.tell({"owner": self.owner})
        if self.pods.up:
            self.tell(self.pods.event())

    async def serve(self, path: Path) -> None:
        """See Bridge. Deletes the object at once when it is told to end."""
        loop = asyncio.get_running_loop()
        threading.Thread(target=self.watch, args=(loop,), name="watch", daemon=True).start()
        late = asyncio.ensure_future(self.give_up_when_late())
        try:
            await super().serve(path)
        finally:
            late.cancel()

    async def ending(self) -> None:
        """See Bridge. Before streams are closed, which may take long."""
        if left := await asyncio.to_thread(self.delete):
            self.tell({"left": left})

    def end(self) -> None:
        """See Bridge."""
        self.delete()


def _made(settings: Mapping[str, Any], _: Path) -> KubernetesBridge:
    return KubernetesBridge(BridgeSettings(**settings))


if __name__ == "__main__":
    bridge.run(_made, *sys.argv[1:])
