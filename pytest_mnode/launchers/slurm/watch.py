"""Asks Slurm now and then what became of an allocation and its nodes."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from pytest_mnode.errors import ClusterError
from pytest_mnode.launchers.node import Watchers
from pytest_mnode.launchers.slurm.allocation import Allocation
from pytest_mnode.launchers.slurm.commands import Slurm
from pytest_mnode.launchers.slurm.kept import lost

LOOK_S = 3.0


class Watch:
    """Asks in a thread from `start` to `close`."""

    def __init__(
        self, slurm: Slurm, allocation: Allocation, job_id: int, watchers: Watchers
    ) -> None:
        self._watchers = watchers
        self._slurm, self._allocation, self._job_id = slurm, allocation, job_id
        self._names: Mapping[str, str] = {}
        self._gone: dict[str, str] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()

    def start(self, names: Mapping[str, str]) -> None:
        """names: Slurm's names of the nodes by the nodes' own."""
        self._names = names
        self._watchers.start()
        threading.Thread(target=self._look, name="slurm-look", daemon=True).start()

    def close(self) -> None:
        """End, without waiting for a question that Slurm has not answered yet."""
        self._closing.set()
        self._watchers.close()

    def why_gone(self, name: str) -> str | None:
        """Why a node is not there; None where it is, as far as is known."""
        with self._lock:
            return self._gone.get(name)

    def note(self, name: str, why: str | None) -> None:
        """A node was switched off, or (None) is back; the watchers are not told."""
        with self._lock:
            self._gone.pop(name, None)
            if why is not None:
                self._gone[name] = why

    def _look(self) -> None:
        """A Slurm that does not answer says nothing of the nodes: it is asked again."""
        while not self._closing.wait(LOOK_S):
            try:
                found = self._found()
            except ClusterError:
                continue
            for name, why in found.items():
                with self._lock:
                    known = name in self._gone
                    self._gone.setdefault(name, why)
                if not known:
                    self._watchers.lost(name, why)

    def _found(self) -> dict[str, str]:
        if (why := self._allocation.gone()) is not None:
            told = f"allocation {self._job_id} ended: {self._ended() or why}"
            return dict.fromkeys(self._names, told)
        job = self._slurm.job(self._job_id)
        states = {state.name: state for state in self._slurm.nodes(self._names.values())}
        return lost(job, self._job_id, states, self._names)

    def _ended(self) -> str | None:
        """Why, where Slurm itself says it; salloc only says that the allocation was revoked."""
        try:
            job = self._slurm.job(self._job_id)
        except ClusterError:
            return None
        return job.text if job is not None and (job.over or job.reason) else None
