"""The run's only access to Kubernetes: `bridge.py SETTINGS SOCKET`, held by the cleanup daemon.

Creates the run's object, watches its pods, carries commands to them, and deletes the object on
SIGTERM. SOCKET appears once the object exists; if the program ends before that, the last line of
standard error is the reason. Commands connect to SOCKET with their standard streams
(remote.bridged), and so does the launcher, whose first line is {"events": true}. The launcher gets
lines of JSON: {"owner": …}, a reference to the object; and changes of pods: {"pods": {host:
{"node", "address", "pod"}}}, {"problem": …}, {"waiting": text}, {"lost": host, "why": …},
{"back": host, …}. The reply to its request {"relay": port} is {"relays": {host: port}}.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pytest_mnode.errors import MnodeError
from pytest_mnode.launchers.kubernetes import pod_relay
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
from pytest_mnode.launchers.kubernetes.relays import Relays
from pytest_mnode.launchers.kubernetes.run_pods import Event, RunPods
from pytest_mnode.launchers.kubernetes.streams import Exec
from pytest_mnode.launchers.remote.bridge_server import LOST, BridgeServer, Caller

DELETE_S = 6.0
AGAIN_S = 1.0
LOOK_S = 1.0
EVENTS_S = 5.0
"""Seconds between two readings of events."""
PULL_S = 1800.0
"""Longest time beyond `wait_s` in which pods may pull their images."""
PULLING = "Pulling"
"""The kubelet's reason while it pulls an image; the next event of the pod has another."""


@dataclass(frozen=True, slots=True)
class BridgeSettings:
    """Settings that the launcher gives to the bridge.

    manifest: the user's, or the default. wait_s: time in which all pods must run. alive: the file
    in pods that is touched while the run lives.
    """

    context: str
    namespace: str
    manifest: dict[str, Any]
    run_id: str
    nodes: int
    python: str
    wait: list[str]
    wait_s: float
    alive: str
    scratch: str


class Bridge:
    """The bridge, in one event loop; the watch has a thread."""

    def __init__(self, settings: BridgeSettings) -> None:
        self.settings = settings
        self.api = Api(settings.context, settings.namespace, settings.scratch)
        self.made = False
        self.run: PodsOfRun = pods_of_run(
            settings.manifest, settings.run_id, settings.nodes, settings.wait
        )
        self.pods = RunPods(settings.nodes, replaced=self.run.replaces)
        self.owner: dict[str, str] = {}
        self._listener: asyncio.StreamWriter | None = None
        self._relays: Relays | None = None

    # The object.

    def create(self) -> None:
        """Create the object. Raises ApiError."""
        manifest = self.run.manifest
        if owners := self.api.owners():
            manifest["metadata"]["ownerReferences"] = owners
        self.made = True
        path = self.api.path(self._plural, manifest["apiVersion"])
        try:
            made = self.api.request("POST", path, manifest)
            self.owner = {key: manifest[key] for key in ("apiVersion", "kind")}
            self.owner |= {key: made["metadata"][key] for key in ("name", "uid")}
        except ApiError as error:
            self.made = error.status == 0  # a lost reply may leave an object
            raise

    def delete(self) -> None:
        """Delete the object and its pods; tried again while the server is away."""
        path = self.api.path(self._plural, self.run.manifest["apiVersion"], self.run.name)
        end = time.monotonic() + DELETE_S
        while self.made and (left := end - time.monotonic()) > 0:
            try:
                self.api.request("DELETE", path, {"propagationPolicy": "Background"}, limit_s=left)
                self.made = False
            except ApiError as error:
                self.made = error.status not in (403, 404)
                time.sleep(0.3 * self.made)

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
            if self._relays is not None and "lost" in event:
                self._relays.end(event["lost"])
            if self._relays is not None and "back" in event:
                self._relays.start(event["back"])

    async def _look(self, name: str) -> None:
        """Read a pod once more, ahead of the watch; does nothing if the API server is away."""
        path = self.api.path("pods", name=name)
        with contextlib.suppress(ApiError):
            pod = await asyncio.to_thread(self.api.request, "GET", path, limit_s=LOOK_S)
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
            await asyncio.sleep(LOOK_S)
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

    # Connections.

    async def serve(self, path: Path) -> None:
        """Take connections until the task is cancelled."""
        await BridgeServer(self._run, self._events).serve(path)

    async def _run(self, host: str, asked: Mapping[str, Any], caller: Caller) -> tuple[int, str]:
        pod = self.pods.hosts.get(host)
        if pod is None or pod.over:
            return LOST, pod.over if pod else f"no pod {host}"
        try:
            command = await Exec.start(self.api, pod.name, self.run.container, asked["argv"])
        except ApiError as error:
            return LOST, str(error)
        return await command.run(caller)

    async def _events(self, connection: socket.socket, order: dict[str, Any]) -> None:
        """Serve the launcher's connection."""
        if "events" not in order:
            connection.close()
            return
        reader, self._listener = await asyncio.open_connection(sock=connection)
        self.tell({"owner": self.owner})
        if self.pods.up:
            self.tell(self.pods.event())
        while line := await reader.readline():
            order = json.loads(line)
            if "relay" in order:
                settings, port = self.settings, int(order["relay"])
                start = partial(Exec.start, self.api, container=self.run.container)
                argv = pod_relay.argv(settings.python, settings.alive)
                self._relays = Relays(
                    self.pods, start, argv, port, look=self._look, report=self.tell
                )
                await asyncio.gather(*map(self._relays.start, self.pods.hosts))
                self.tell({"relays": self._relays.ports})

    def tell(self, event: Mapping[str, Any]) -> None:
        """Report an event to the launcher, if it listens."""
        if self._listener is not None:
            self._listener.write(json.dumps(event).encode() + b"\n")


async def serve(bridge: Bridge, path: Path) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, ended.set)
    threading.Thread(target=bridge.watch, args=(loop,), name="watch", daemon=True).start()
    working = [asyncio.ensure_future(bridge.serve(path))]
    working.append(asyncio.ensure_future(bridge.give_up_when_late()))
    await ended.wait()
    await asyncio.to_thread(bridge.delete)  # at once: streams may close slowly
    for task in working:
        task.cancel()


def main(settings: str, path: str) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit("ended"))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    bridge = None
    try:
        bridge = Bridge(BridgeSettings(**json.loads(Path(settings).read_text())))
        bridge.create()
        asyncio.run(serve(bridge, Path(path)))
    except MnodeError as error:
        sys.exit(str(error))
    finally:
        if bridge is not None:
            bridge.delete()


if __name__ == "__main__":
    main(*sys.argv[1:])
