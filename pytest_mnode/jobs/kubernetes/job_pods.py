"""The pods of one start of a job: watches them, reads their output, runs commands in them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from pytest_mnode.errors import ClusterError, NodeLostError
from pytest_mnode.launchers.kubernetes.api import Api, ApiError
from pytest_mnode.launchers.kubernetes.pod_streams import PodStreams
from pytest_mnode.launchers.kubernetes.pods import DELETED, PodState, why_disrupted
from pytest_mnode.launchers.kubernetes.streams import run_in_pod
from pytest_mnode.launchers.node import CommandResult
from pytest_mnode.launchers.remote.bridge_server import STDERR, STDOUT

MOST_AT_ONCE = 32
"""Maximum number of exec streams that are open at the same time."""
_OVER_S = 2.0
_POLL_NODES_S = 0.25
_PRINTED_S = 5.0
LOST = 128 + 9
"""Exit status of torchrun in a pod that ended without one, or whose node is lost."""


@dataclass(frozen=True, slots=True)
class JobPod:
    """A pod. runs: commands can be run in its main container. code: exit status of that container;
    None while it may run. ended: no container runs any more. disturbed: why Kubernetes ends or
    ended the pod; "" if it does not."""

    state: PodState
    runs: bool
    code: int | None
    ended: bool
    disturbed: str

    @classmethod
    def read(cls, pod: Mapping[str, Any], container: str | None, *, gone: bool) -> Self:
        """A pod from the API server's JSON. gone: it was deleted."""
        state, status = PodState.read(pod, container), pod.get("status", {})
        statuses = status.get("containerStatuses") or []
        states = {one["name"]: one["state"] for one in statuses}
        found = states.get(container, {})
        code = found["terminated"]["exitCode"] if "terminated" in found else None
        ended = gone or code is not None or status.get("phase") in ("Succeeded", "Failed")
        disturbed = why_disrupted(pod) or (state.over if status.get("reason") else "")
        if not disturbed and (gone or pod["metadata"].get("deletionTimestamp")):
            disturbed = DELETED
        runs = "running" in found and not ended
        code = LOST if ended and code is None else code
        return cls(state, runs, code, ended, disturbed)


class JobPods(PodStreams):
    """Thread-safe. Implements `job_processes.Places`.

    nodes: of this start. container: its output is read, and commands run in it. python: path in its
    image. check: raises NodeLostError for the first of some nodes that the run has lost.
    """

    def __init__(
        self,
        api: Api,
        selector: str,
        container: str | None,
        *,
        nodes: Sequence[str],
        python: str,
        check: Callable[[Sequence[str]], object],
    ) -> None:
        """Raises ApiError if pods cannot be watched."""
        self.python = python
        self._nodes, self._main, self._check = tuple(nodes), container, check
        self._lock = threading.Condition()
        self._pods: dict[str, JobPod] = {}
        self._texts: dict[str, list[str]] = {}
        self._silent: set[str] = set()
        self._checked_s, self._lost = 0.0, frozenset[str]()
        self._exec_room = asyncio.Semaphore(MOST_AT_ONCE)
        super().__init__(api, selector, container)

    # Called by the watch.

    def changed(self, pod: Mapping[str, Any], gone: bool) -> bool:
        with self._lock:
            uid = pod["metadata"]["uid"]
            old = self._pods.get(uid)
            seen = JobPod.read(pod, self._main, gone=gone)
            if old is not None and old.ended:  # a deleted pod's last state may lack its status
                return False
            self._pods[uid] = seen
            self._lock.notify_all()
        return True

    def printed(self, uid: str, text: str) -> None:
        with self._lock:
            self._texts.setdefault(uid, []).append(text)

    def fell_silent(self, uid: str) -> None:
        with self._lock:
            self._silent.add(uid)
            self._lock.notify_all()

    # Called by the job.

    def await_that(self, holds: Callable[[], bool], limit_s: float) -> bool:
        """Wait until `holds()`, checked after each change of pods; returns its last result."""
        with self._lock:
            return self._lock.wait_for(holds, limit_s)

    def by_node(self) -> dict[str, JobPod]:
        """The pod on each node that has one; the first pod of a node counts, because only the first
        gets an order."""
        with self._lock:
            found: dict[str, JobPod] = {}
            for pod in self._pods.values():
                if pod.state.node:
                    found.setdefault(pod.state.node, pod)
            return found

    def run(self) -> bool:
        pods = self.by_node()
        return all(node in pods and pods[node].state.ready for node in self._nodes)

    def refused(self) -> bool:
        """Whether the scheduler has no node for one of the pods."""
        with self._lock:
            return any(pod.state.problem and not pod.state.node for pod in self._pods.values())

    def problem(self) -> str:
        """Why pods do not run, in the API server's words: the first reason."""
        with self._lock:
            pods = sorted(self._pods.values(), key=lambda pod: pod.state.name)
        for pod in pods:
            if why := pod.state.over or pod.state.problem:
                return f"{pod.state.name}: {why}"
        return f"{len(pods)} of {len(self._nodes)} pods were made"

    def statuses(self) -> dict[str, int]:
        """Exit status of torchrun by node on which it ended; LOST if the node is lost."""
        found = {}
        pods, lost = self.by_node(), self._lost_nodes()
        for node in self._nodes:
            pod = pods.get(node)
            if pod is not None and pod.code is not None:
                found[node] = pod.code
            elif node in lost:
                found[node] = LOST
        return found

    def _lost_nodes(self) -> frozenset[str]:
        """Nodes that the run has lost, checked at most every `_POLL_NODES_S`."""
        if time.monotonic() - self._checked_s < _POLL_NODES_S:
            return self._lost
        left = list(self._nodes)
        while left:
            try:
                self._check(left)
                break
            except NodeLostError as error:
                left.remove(error.node)
        self._checked_s, self._lost = time.monotonic(), frozenset(self._nodes) - {*left}
        return self._lost

    def output(self, node: str) -> str:
        """Output of the node's pod until now; complete if the pod has ended."""
        with self._lock:
            for uid, pod in self._pods.items():
                if pod.state.node != node:
                    continue
                if pod.ended and uid in self._followed:
                    self._lock.wait_for(partial(self._silent.__contains__, uid), _PRINTED_S)
                return "".join(self._texts.get(uid, ()))
        return ""

    # Commands.

    def commands(self, argv: Sequence[str], node: str, /) -> None:  # noqa: ARG002
        """Raises NodeLostError if no command can be run."""
        self._check([node])
        if not self._runs(node):
            raise NodeLostError(node, f"the job has no running pod on {node}")

    def _runs(self, node: str) -> bool:
        pod = self.by_node().get(node)
        return pod is not None and pod.runs

    def run_each(
        self,
        argvs: Mapping[str, Sequence[str]],
        *,
        timeout: float,
        given: Mapping[str, bytes] | None = None,
    ) -> list[CommandResult]:
        """Run a command in the pod of each node at the same time; pods that have ended are left
        out. given: standard input. Raises ClusterError with the API server's reason."""
        pods = self.by_node()
        chosen = {n: pods[n] for n in argvs if n in pods and pods[n].runs}
        if not chosen:
            return []

        async def run_all() -> list[CommandResult | ApiError]:
            work = [
                self._exec(node, pod.state.name, argvs[node], (given or {}).get(node, b""), timeout)
                for node, pod in chosen.items()
            ]
            return await asyncio.gather(*work)

        results = []
        for node, done in zip(chosen, self.call(run_all()), strict=True):
            if not isinstance(done, ApiError) and done.returncode in (0, None):
                results.append(done)
                continue
            # A command also fails if its pod ends, which is no error.
            if self._await_end(node):
                continue
            if isinstance(done, ApiError):
                raise ClusterError(f"{node}: pod {chosen[node].state.name}: {done}")
            results.append(done)
        return results

    def _await_end(self, node: str) -> bool:
        return self.await_that(lambda: not self._runs(node), _OVER_S)

    async def _exec(
        self, node: str, pod: str, argv: Sequence[str], given: bytes, limit_s: float
    ) -> CommandResult | ApiError:
        streams, began = _Collected(given), time.monotonic()
        code: int | None = None
        why = ""
        try:
            async with self._exec_room, asyncio.timeout(limit_s):
                code, why = await run_in_pod(self._api, pod, self._main, argv, streams)
        except TimeoutError:
            pass
        except ApiError as error:
            return error
        out, err = (streams.printed[c].decode(errors="replace") for c in (STDOUT, STDERR))
        return CommandResult(node, code, out, f"{err}{why}", time.monotonic() - began)


class _Collected:
    """Streams of a command that is given all its input at once."""

    def __init__(self, given: bytes) -> None:
        self._given = given
        self.printed = {STDOUT: bytearray(), STDERR: bytearray()}

    async def read(self) -> bytes:
        data, self._given = self._given, b""
        return data

    async def write(self, channel: int, data: bytes) -> None:
        self.printed[channel] += data
