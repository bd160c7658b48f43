"""The run's one way to its Kubernetes: `bridge.py SETTINGS SOCKET`, held by the cleanup daemon.

Creates the run's object, watches its pods, carries commands to them, and deletes the object when it
is ended (SIGTERM). SOCKET appears once the object is there; before that the last line of standard
error is the reason. Over SOCKET come pod_exec, with its standard streams, and the launcher: its
first line is {"events": true}, and it is sent a line of JSON for whatever happens to pods:
{"pods": {host: {"node", "address", "pod"}}}, {"problem": …}, {"lost": host, "why": …},
{"back": host, …}. It asks {"relay": port}, and is answered {"relays": {host: port}}.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pytest_mnode.errors import MnodeError
from pytest_mnode.launchers.kubernetes import pod_relay
from pytest_mnode.launchers.kubernetes.api import Api, ApiError
from pytest_mnode.launchers.kubernetes.manifest import PodsOfRun, pods_of_run
from pytest_mnode.launchers.kubernetes.pods import PodState
from pytest_mnode.launchers.kubernetes.relay import Relay
from pytest_mnode.launchers.kubernetes.streams import LOST, Descriptors, Exec
from pytest_mnode.launchers.kubernetes.workload import GROUPS, failed_events

DELETE_S = 6.0
AGAIN_S = 1.0
LOOK_S = 1.0
_DIGITS = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class BridgeSettings:
    """What the launcher tells the bridge. manifest: of the user, or the default; wait_s: how long
    pods may take until they run; alive: the file in pods that is touched while the run lives."""

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
    """All of it, in one event loop; the watch has a thread."""

    def __init__(self, settings: BridgeSettings) -> None:
        self.settings = settings
        self.api = Api(settings.context, settings.namespace, settings.scratch)
        self.run: PodsOfRun = pods_of_run(
            settings.manifest, settings.run_id, settings.nodes, settings.wait
        )
        self.hosts: dict[str, PodState] = {}
        """The pod of each node of the run, by the number that commands name it by."""
        self.seen: dict[str, PodState] = {}
        """All pods of the run, by name."""
        self.up = False
        self._listener: asyncio.StreamWriter | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._relays: dict[str, Relay] = {}
        self._ports: dict[str, int] = {}
        """Of pods' relays; a pod that takes another's place uses the same."""
        self._relayed_port: int | None = None

    # The object.

    def create(self) -> None:
        """Raises ApiError."""
        manifest = self.run.manifest
        self.api.request("POST", self.api.path(self._plural, manifest["apiVersion"]), manifest)

    def delete(self) -> None:
        """Delete the object and its pods; tried again while the server is not there."""
        path = self.api.path(self._plural, self.run.manifest["apiVersion"], self.run.name)
        end = time.monotonic() + DELETE_S
        while True:
            try:
                self.api.request(
                    "DELETE", path, {"propagationPolicy": "Background"}, limit_s=DELETE_S
                )
            except ApiError as error:
                if error.status in (403, 404) or time.monotonic() > end:
                    return
                time.sleep(0.3)
            else:
                return

    @property
    def _plural(self) -> str:
        return GROUPS[self.run.kind]

    # Pods.

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Report changes of pods to the loop, for ever. In a thread."""
        path = self.api.path("pods")
        while True:
            seen: set[str] = set()
            try:
                for kind, pod in self.api.watch(path, {"labelSelector": self.run.selector}):
                    seen.add(pod["metadata"]["name"])
                    loop.call_soon_threadsafe(self.heard, kind, PodState.read(pod))
            except ApiError as error:
                loop.call_soon_threadsafe(self.tell, {"problem": str(error)})
            except RuntimeError:  # the loop is closed
                return
            time.sleep(AGAIN_S)

    def heard(self, kind: str, pod: PodState) -> None:
        """A pod was added, changed, or is gone."""
        if kind == "DELETED":
            self.seen.pop(pod.name, None)
        else:
            self.seen[pod.name] = pod
        host = next((host for host, known in self.hosts.items() if known.uid == pod.uid), None)
        if host is not None:
            why = pod.over or ("its pod was deleted" if kind == "DELETED" else "")
            if why and not self.hosts[host].over:
                self._drop(host, why)
        elif self.up and pod.ready:
            self._replace(pod)
        if not self.up:
            self._settle()

    def _settle(self) -> None:
        """All pods run for the first time."""
        ready = [pod for pod in self.seen.values() if pod.ready]
        if len(ready) < self.settings.nodes:
            return
        ordered = sorted(ready, key=lambda pod: _in_order(pod.node))
        self.hosts = {str(number): pod for number, pod in enumerate(ordered)}
        self.up = True
        self.tell(self.pods())

    def _drop(self, host: str, why: str) -> None:
        pod = self.hosts[host]
        self.hosts[host] = PodState(**{**asdict(pod), "ready": False, "over": why})
        if (relay := self._relays.pop(host, None)) is not None:
            relay.close()
        self.tell({"lost": host, "why": why})

    def _replace(self, pod: PodState) -> None:
        """A new pod takes the place of one that is over: that of its node, else of its number."""
        over = {host: known for host, known in self.hosts.items() if known.over}
        same_node = [host for host, known in over.items() if known.node == pod.node]
        same_number = [h for h, known in over.items() if known.index == pod.index]
        for host in [*same_node, *same_number][:1]:
            self.hosts[host] = pod
            self.tell({"back": host, **_shown(pod)})
            if self._relayed_port is not None:
                self._spawn(self._relay(host, self._relayed_port))

    def pods(self) -> dict[str, Any]:
        """The event that all pods run."""
        return {"pods": {host: _shown(pod) for host, pod in self.hosts.items()}}

    async def give_up_when_late(self) -> None:
        """Report why pods do not run: at once where waiting mends nothing, else in the end."""
        end = time.monotonic() + self.settings.wait_s
        while not self.up:
            await asyncio.sleep(LOOK_S)
            hopeless = [pod for pod in self.seen.values() if pod.hopeless or pod.over]
            if self.up or (time.monotonic() < end and not hopeless):
                continue
            events = await asyncio.to_thread(failed_events, self.api, self.run)
            self.tell({"failed": self.why_not_up(hopeless, events)})
            return

    def why_not_up(self, hopeless: list[PodState], events: list[str]) -> dict[str, str]:
        """Reasons by pod, or by the object where the pods themselves are missing."""
        reasons = {
            pod.name: pod.over or pod.problem or "it does not run yet, and nothing says why"
            for pod in (hopeless or self.seen.values())
            if not pod.ready
        }
        missing = self.settings.nodes - len(self.seen)
        if missing > 0 and not hopeless:
            why = "; ".join(events) or "and nothing says why"
            reasons[f"{self.run.kind} {self.run.name}"] = f"{missing} pods were not made: {why}"
        return reasons

    # Connections.

    async def serve(self, path: Path) -> None:
        """Take connections until the task is cancelled."""
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as server:
            server.bind(str(path))
            server.listen(512)
            while True:
                connection, _ = await loop.sock_accept(server)
                connection.setblocking(False)
                self._spawn(self._take(connection))

    async def _take(self, connection: socket.socket) -> None:
        """The first line of a connection, with what it gives along."""
        loop, data, fds = asyncio.get_running_loop(), b"", []
        while b"\n" not in data:
            ready = asyncio.Event()
            loop.add_reader(connection, ready.set)
            await ready.wait()
            loop.remove_reader(connection)
            more, given, _, _ = socket.recv_fds(connection, 1 << 20, 3)
            fds += given
            if not more:
                break
            data += more
        order = json.loads(data or b"{}")
        if "exec" in order and len(fds) == 3:
            await self._exec(connection, order["exec"], order["argv"], Descriptors(fds))
        elif "events" in order:
            await self._events(connection)
        else:
            connection.close()

    async def _exec(
        self, caller: socket.socket, host: str, argv: list[str], streams: Descriptors
    ) -> None:
        """Run a command in a pod; the caller is told how it ended. It ends with its caller."""
        running = asyncio.ensure_future(self._run(host, argv, streams))
        gone = asyncio.ensure_future(asyncio.get_running_loop().sock_recv(caller, 1))
        with caller:
            await asyncio.wait({running, gone}, return_when=asyncio.FIRST_COMPLETED)
            for task in (running, gone):
                if not task.done():
                    task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                status, problem = await running
                answer = json.dumps({"status": status, "problem": problem}).encode()
                with contextlib.suppress(OSError):
                    await asyncio.get_running_loop().sock_sendall(caller, answer)
            await asyncio.gather(gone, return_exceptions=True)
        streams.close()

    async def _run(self, host: str, argv: list[str], streams: Descriptors) -> tuple[int, str]:
        pod = self.hosts.get(host)
        if pod is None or pod.over:
            return LOST, pod.over if pod else f"no pod {host}"
        try:
            command = await Exec.start(self.api, pod.name, self.run.container, argv)
        except ApiError as error:
            return LOST, str(error)
        return await command.run(streams)

    async def _events(self, connection: socket.socket) -> None:
        """The launcher's own connection."""
        reader, self._listener = await asyncio.open_connection(sock=connection)
        if self.up:
            self.tell(self.pods())
        while line := await reader.readline():
            order = json.loads(line)
            if "relay" in order:
                self._relayed_port = int(order["relay"])
                await asyncio.gather(
                    *(self._relay(host, self._relayed_port) for host in self.hosts)
                )
                self.tell({"relays": self._ports})

    def tell(self, event: Mapping[str, Any]) -> None:
        """Report an event to the launcher, if it listens."""
        if self._listener is not None:
            self._listener.write(json.dumps(event).encode() + b"\n")

    async def _relay(self, host: str, port: int) -> None:
        """Bring a pod's connections to the controller's port; loses the pod where that ends."""
        pod, settings = self.hosts[host], self.settings
        argv = [settings.python, "-I", "-S", "-c", Path(pod_relay.__file__).read_text()]
        argv += [settings.alive, str(self._ports.get(host, 0))]
        relay = Relay(port)
        try:
            command = await Exec.start(self.api, pod.name, self.run.container, argv)
            self._relays[host] = relay
            ended = self._spawn(self._keep(host, relay, command))
            await relay.opened(ended)
            self._ports[host] = relay.port
        except (ApiError, OSError) as error:
            self._relays.pop(host, None)
            self._drop(host, f"no way from its pod to the controller: {error}")

    async def _keep(self, host: str, relay: Relay, command: Exec) -> None:
        _, why = await command.run(relay)
        if self._relays.get(host) is relay and not self.hosts[host].over:
            self._drop(host, f"the way from its pod to the controller ended: {why}")

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _in_order(name: str) -> list[tuple[int, str]]:
    """node2 before node10."""
    return [(int(part or 0), "") if part.isdigit() else (0, part) for part in _DIGITS.split(name)]


def _shown(pod: PodState) -> dict[str, str]:
    return {"node": pod.node, "address": pod.address, "pod": pod.name}


async def serve(bridge: Bridge, path: Path) -> None:
    """Until SIGTERM."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, ended.set)
    threading.Thread(target=bridge.watch, args=(loop,), name="watch", daemon=True).start()
    working = [asyncio.ensure_future(bridge.serve(path))]
    working.append(asyncio.ensure_future(bridge.give_up_when_late()))
    await ended.wait()
    for task in working:
        task.cancel()


def main(settings: str, path: str) -> None:
    bridge = None
    created = False
    try:
        given = BridgeSettings(**json.loads(Path(settings).read_text()))
        bridge = Bridge(given)
        bridge.create()
        created = True
        asyncio.run(serve(bridge, Path(path)))
    except MnodeError as error:
        sys.exit(str(error))
    finally:
        if bridge is not None and created:
            bridge.delete()


if __name__ == "__main__":
    main(*sys.argv[1:])
