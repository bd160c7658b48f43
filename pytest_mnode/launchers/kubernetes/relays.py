"""The relays of all pods: opened, opened again after a break, and reported when they are lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from pytest_mnode.launchers.kubernetes.api import ApiError
from pytest_mnode.launchers.kubernetes.relay import Relay
from pytest_mnode.launchers.kubernetes.run_pods import Event, RunPods, shown
from pytest_mnode.launchers.kubernetes.streams import Exec

AGAIN_S = 1.0


class StartExec(Protocol):
    """Starts a command in a pod; raises ApiError."""

    def __call__(self, *, pod: str, argv: Sequence[str]) -> Awaitable[Exec]: ...


class Relays:
    """The relays of all pods.

    argv: command of pod_relay, without its port. port: the port of this machine that connections
    are relayed to. look: reads a pod once more, ahead of the watch.
    """

    def __init__(
        self,
        pods: RunPods,
        start_exec: StartExec,
        argv: Sequence[str],
        port: int,
        *,
        look: Callable[[str], Awaitable[None]],
        report: Callable[[Event], None],
    ) -> None:
        self.ports: dict[str, int] = {}
        """Loopback port of each pod, by host; a pod that replaces another uses the same port."""
        self._pods = pods
        self._start_exec = start_exec
        self._look = look
        self._argv = argv
        self._port = port
        self._report = report
        self._kept: dict[str, asyncio.Task[None]] = {}

    def start(self, host: str) -> asyncio.Future[None]:
        """Relay connections from the host's pod to here; the future is done after the first try."""
        tried: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._kept[host] = asyncio.ensure_future(self._keep(host, tried))
        return tried

    def end(self, host: str) -> None:
        if (kept := self._kept.pop(host, None)) is not None:
            kept.cancel()

    async def _keep(self, host: str, tried: asyncio.Future[None]) -> None:
        """Relay again after each break, while the pod exists. The node is lost meanwhile."""
        pod, reached = self._pods.hosts[host], True

        def opened(port: int) -> None:
            nonlocal reached
            self.ports[host] = port
            if not reached:
                self._report({"back": host, **shown(pod)})
            reached = True
            _done(tried)

        try:
            while self._pods.is_there(host, pod.uid):
                why = await self._run(pod.name, self.ports.get(host, 0), opened)
                if reached and self._pods.is_there(host, pod.uid):
                    self._report({"lost": host, "why": f"its pod cannot reach this machine: {why}"})
                    reached = False
                _done(tried)
                await asyncio.sleep(AGAIN_S)
        finally:
            _done(tried)

    async def _run(self, pod: str, port: int, opened: Callable[[int], None]) -> str:
        """Relay until that ends; the reason of its end. port: port in the pod, 0 for any."""
        relay, running = Relay(self._port), None
        try:
            command = await self._start_exec(pod=pod, argv=[*self._argv, str(port)])
            running = asyncio.ensure_future(command.run(relay))
            await relay.opened(running)
            opened(relay.port)
            code, why = await running
        except (ApiError, OSError) as error:
            return str(error)
        finally:
            if running is not None:
                running.cancel()
            relay.close()
        if why:
            return why
        await self._look(pod)  # if the pod ends, that is the reason, and the watch may be late
        said = f": {relay.last_error}" if relay.last_error else ""
        return f"its program ended with status {code}{said}"


def _done(tried: asyncio.Future[None]) -> None:
    if not tried.done():
        tried.set_result(None)
