"""A job in Slurm's queue, from before it is there until it is out of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_mnode.errors import ClusterError
from pytest_mnode.jobs.slurm import queue
from pytest_mnode.jobs.slurm.guard import Guard
from pytest_mnode.jobs.slurm.names import Names
from pytest_mnode.launchers.slurm import JobState, Slurm

LOOK_S = 0.25
"""Between two questions to the scheduler."""
SILENCE_S = 60.0
"""How long Slurm may leave questions unanswered, as it does when it is restarted."""
_END_S = 90.0
"""For the scheduler to end a job that was cancelled; KillWait is 30 s where nobody set it."""


class Queued:
    """At most one job, of a name that no other has, which ends with this process in any case.

    number: None until it is submitted. state: as last seen, with the run's names of nodes; None
    before that, and where Slurm does not know the job any more.
    """

    def __init__(self, slurm: Slurm, names: Names, name: str) -> None:
        self.slurm = slurm
        self.name = name
        self.number: int | None = None
        self.state: JobState | None = None
        self._names = names
        self._guard = Guard(name)
        self._tried = False
        self._silent_since: float | None = None

    def submit(self, script: str, env: Mapping[str, str], options: Sequence[str]) -> None:
        """Queue it. Raises SlurmError, one line."""
        self._tried = True
        self.number = queue.submit(script, env, [*options, f"--job-name={self.name}"])

    def look(self) -> JobState | None:
        """Its state now. Raises ClusterError where Slurm does not answer."""
        assert self.number is not None, "not submitted"
        state = self.slurm.job(self.number)
        if state is not None:
            state = replace(state, nodes=self._names.for_run(state.nodes))
        self.state = state
        return state

    def answers(self) -> bool:
        """Look; False where Slurm does not answer now, which leaves `state` as it was.

        Raises ClusterError where it has been silent for SILENCE_S.
        """
        asked = time.monotonic()
        try:
            self.look()
        except ClusterError:
            self._silent_since = asked if self._silent_since is None else self._silent_since
            if time.monotonic() - self._silent_since > SILENCE_S:
                raise
            return False
        self._silent_since = None
        return True

    def cancel(self) -> None:
        """Have Slurm begin to end it, unless it is over."""
        if self.number is not None and not (self.state is not None and self.state.over):
            self.slurm.cancel(self.number)

    def await_end(self, lost: bool = False) -> None:
        """Wait until it is out of the queue. Raises ClusterError where it stays.

        lost: a node of it went; Slurm may still wait for that one, and the job holds no other.
        """
        end = time.monotonic() + _END_S
        while self.number is not None:
            heard, state = self.answers(), self.state
            if heard and (state is None or state.over):
                return
            if time.monotonic() > end:
                if lost and state is not None and "COMPLETING" in {state.state, *state.flags}:
                    return
                still = "in the queue" if state is None else state.state
                raise ClusterError(f"job {self.number} is still {still} after scancel")
            time.sleep(LOOK_S)

    def close(self, done: bool) -> None:
        """No more is to be done about it; idempotent. Not done: Slurm did not do as it was told,
        and whatever is left of the job is taken out of the queue when it does."""
        # A submission that was not answered may have arrived all the same.
        self._guard.close(done and (self.number is not None or not self._tried))
