"""Changes of a run's pods between two observations, and the heartbeats that ranks print."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_mnode.gang.engine import Heartbeat
from pytest_mnode.gang.heartbeats import read_heartbeats
from pytest_mnode.gang.kubernetes.pods import GangPod
from pytest_mnode.launchers.kubernetes.api import Api
from pytest_mnode.launchers.kubernetes.pod_streams import PodStreams


@dataclass(frozen=True, slots=True)
class PodEvent:
    """A pod as the server reported it at `at_s`. gone: whether it was deleted."""

    at_s: float
    pod: GangPod
    gone: bool


class Streams(PodStreams):
    """Pod events and heartbeats of one run, as the server reports them. Thread-safe."""

    def __init__(self, api: Api, selector: str) -> None:
        """Raises ApiError if pods cannot be watched."""
        self._lock = threading.Condition()
        self._events: list[PodEvent] = []
        self._newest: dict[str, int] = {}
        self._beats: list[Heartbeat] = []
        self._unreadable = 0
        self._watch_of_call = 1
        """The watch that reported everything up to the last call of `events`; 0 if none did. The
        first watch missed nothing, because no pod had this new label before."""
        super().__init__(api, selector)

    def events(self, versions: Mapping[str, int], limit_s: float) -> tuple[list[PodEvent], bool]:
        """Events since the last call, and whether they are complete.

        versions: by name, of pods known to exist. The call waits up to `limit_s` until these were
        reported: events come in order, so all earlier ones were reported too. If there is no pod,
        the server has to answer on the watch's connection (bookmarks come only once a minute).
        """

        def reported() -> bool:
            return all(self._newest.get(name, 0) >= v for name, v in versions.items())

        alive = bool(versions) or self.answers(limit_s)
        with self._lock:
            every = self._lock.wait_for(reported, limit_s) and alive
            watch = self.watches if self.watches % 2 else 0
            before, self._watch_of_call = self._watch_of_call, watch if every else 0
            events, self._events = self._events, []
            return events, before == self._watch_of_call != 0

    def heartbeats(self) -> tuple[tuple[Heartbeat, ...], int]:
        """Heartbeats since the last call, and the number of lines that are no heartbeats, plus one
        while the watch is down, because new pods are not read then."""
        with self._lock:
            beats, unreadable = tuple(self._beats), self._unreadable
            self._beats, self._unreadable = [], 0
        return beats, unreadable + self.away

    def changed(self, pod: Mapping[str, Any], gone: bool) -> bool:
        seen, now = GangPod.read(pod), time.time()
        with self._lock:
            if seen.version <= self._newest.get(seen.name, 0):
                return False
            self._newest[seen.name] = seen.version
            self._events.append(PodEvent(now, seen, gone))
            self._lock.notify_all()
        return True

    def printed(self, uid: str, text: str) -> None:  # noqa: ARG002
        beats, unreadable = read_heartbeats(text)
        with self._lock:
            self._beats += beats
            self._unreadable += unreadable
