"""The pods of a run by node: running pods, pods that are over, and their replacements. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_mnode.launchers.kubernetes.pods import DELETED, PodState

Event = dict[str, Any]
"""A message to the launcher; see bridge."""
OPTION = "--mnode-k8s-wait"
_MOST_ENDED = 3
"""Pods of one node that may end before the others run; a Job waits longer after each."""
_DIGITS = re.compile(r"(\d+)")


class RunPods:
    """State of a run's pods, which the watch updates; each update returns the events to report.

    hosts: the pod of each node of the run, by the node's number in commands. seen: all pods of the
    run, by name. up: whether all pods have run at the same time. replaced: whether a pod that ends
    is replaced.
    """

    def __init__(self, nodes: int, *, replaced: bool = True) -> None:
        self.hosts: dict[str, PodState] = {}
        self.seen: dict[str, PodState] = {}
        self.up = False
        self._nodes = nodes
        self._replaced = replaced
        self._ended: dict[str, PodState] = {}
        """Pods that ended before all ran, by uid; their objects may be gone."""

    def listed(self, pods: Sequence[PodState]) -> list[Event]:
        """Update the state from a list of all existing pods."""
        gone = self.seen.keys() - {pod.name for pod in pods}
        events = [event for name in gone for event in self.heard(self.seen[name], deleted=True)]
        return events + [event for pod in pods for event in self.heard(pod)]

    def heard(self, pod: PodState, *, deleted: bool = False) -> list[Event]:
        """Update the state from a pod that was added, changed or deleted."""
        if deleted:
            self.seen.pop(pod.name, None)
        else:
            self.seen[pod.name] = pod
        if not self.up:
            if pod.over and pod.over != DELETED:
                self._ended[pod.uid] = pod
            return self._settle()
        events = []
        host = next((h for h, known in self.hosts.items() if known.name == pod.name), None)
        if host is not None and not self.hosts[host].over:
            why = pod.over or (DELETED if deleted else "")
            if pod.uid != self.hosts[host].uid:
                why = pod.before or "another pod of the same name replaced it"
            if why:
                self.hosts[host] = replace(self.hosts[host], ready=False, over=why)
                events.append({"lost": host, "why": why})
        return events if deleted or not pod.ready else events + self._take_place(pod)

    def is_there(self, host: str, uid: str) -> bool:
        """Whether the host's pod has this uid, and is not over."""
        return self.hosts[host].uid == uid and not self.hosts[host].over

    def event(self) -> Event:
        return {"pods": {host: shown(pod) for host, pod in self.hosts.items()}}

    @property
    def missing(self) -> int:
        """Number of pods that do not exist, or are over."""
        return self._nodes - sum(not pod.over for pod in self.seen.values())

    def waiting(self) -> list[PodState]:
        """Pods that do not run yet."""
        return [pod for pod in self.seen.values() if not (pod.ready or pod.over)]

    def hopeless(self) -> list[PodState]:
        """Pods that will not run, however long the run waits.

        A pod that ended counts if nothing replaces it, if those of its node or index ended several
        times, or if as many as the run has nodes ended.
        """
        ended = list(self._ended.values())
        times = Counter(_place(pod) for pod in ended)
        if self._replaced and len(ended) < max(2, self._nodes):
            ended = [pod for pod in ended if times[_place(pod)] >= _MOST_ENDED]
        return [*(pod for pod in self.seen.values() if pod.hopeless and not pod.over), *ended]

    def why_not_up(
        self,
        what: str,
        warnings: Iterable[str],
        of_pods: Mapping[str, str],
        waited_s: float,
        *,
        final: bool = False,
    ) -> dict[str, str]:
        """Reasons by pod; the object `what` has the reason of pods that were not created.

        warnings: about the object. of_pods: the last event of each pod, by its name. final: whether
        a warning ended the wait, and pods that still wait are no reason.
        """
        hopeless = self.hopeless()
        late = f"after {waited_s:.0f} s; raise {OPTION}"
        reasons = {
            pod.name: pod.over or pod.problem or f"{_doing(pod, of_pods.get(pod.name, ''))} {late}"
            for pod in (hopeless or [*self._ended.values(), *([] if final else self.waiting())])
        }
        if (self.missing > 0 or final) and not hopeless:
            why = "; ".join(warnings) or f"Kubernetes gives no reason {late}"
            were = "pod was" if self.missing == 1 else "pods were"
            reasons[what] = f"{self.missing} {were} not created: {why}" if self.missing > 0 else why
        return reasons

    def _settle(self) -> list[Event]:
        """Assign the pods to hosts once all pods run for the first time."""
        ready = [pod for pod in self.seen.values() if pod.ready]
        if len(ready) < self._nodes:
            return []
        ordered = sorted(ready, key=lambda pod: _in_order(pod.node))
        self.hosts = {str(number): pod for number, pod in enumerate(ordered)}
        self.up = True
        return [self.event()]

    def _take_place(self, pod: PodState) -> list[Event]:
        """A new pod replaces a pod that is over: the one of its node, else the one of its index,
        else, if its kind has no index, the only one."""
        if any(known.uid == pod.uid for known in self.hosts.values()):
            return []
        over = {host: known for host, known in self.hosts.items() if known.over}
        same_node = [host for host, known in over.items() if known.node == pod.node]
        same_number = [host for host, known in over.items() if None is not known.index == pod.index]
        only = list(over) if pod.index is None and len(over) == 1 else []
        for host in [*same_node, *same_number, *only][:1]:
            self.hosts[host] = pod
            return [{"back": host, **shown(pod)}]
        return []


def _place(pod: PodState) -> int | str:
    return pod.node if pod.index is None else pod.index


def _doing(pod: PodState, event: str) -> str:
    """What a pod without a problem waits for."""
    if not pod.node:
        return f"it has no node yet{event and f' ({event})'}"
    return f"its container is being created ({event or 'image pull?'})"


def _in_order(name: str) -> list[tuple[int, str]]:
    """Sort key that puts node2 before node10."""
    return [(int(part or 0), "") if part.isdigit() else (0, part) for part in _DIGITS.split(name)]


def shown(pod: PodState) -> Event:
    return {"node": pod.node, "address": pod.address, "pod": pod.name}
