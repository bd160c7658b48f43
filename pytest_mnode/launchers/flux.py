"""Nodes of a Flux instance that the run is inside of; `flux exec` starts a program on each.

An instance has one broker for each node, with ranks in the order of the attribute `hostlist`.
"""

from __future__ import annotations

from pytest_mnode.launchers.backends import Here, printed
from pytest_mnode.launchers.dial_in.launcher import DialInBackend, Start
from pytest_mnode.launchers.hosts import expand


class FluxBackend(DialInBackend):
    name = "flux"
    outside = "no Flux instance here (no FLUX_URI); start pytest in one, such as flux alloc -N 4"

    def inside(self, here: Here) -> str | None:
        """Not in a task of a job: there FLUX_URI is the instance around it, for all users."""
        uri = here.environ.get("FLUX_URI")
        inside = uri and "FLUX_TASK_RANK" not in here.environ
        return f"inside of the Flux instance {uri}" if inside else None

    def names(self, here: Here) -> tuple[str, ...] | None:
        if not here.environ.get("FLUX_URI"):
            return None
        return tuple(dict.fromkeys(_hostlist()))

    def commands(self, start: Start) -> list[list[str]]:
        brokers = _hostlist()
        ranks = ",".join(str(brokers.index(host)) for host in start.hosts)
        return [["flux", "exec", f"--rank={ranks}", *start.argv]]


def _hostlist() -> tuple[str, ...]:
    """The host of each broker. Raises UsageError."""
    return expand(printed("flux", "getattr", "hostlist", package="flux-core").strip())
