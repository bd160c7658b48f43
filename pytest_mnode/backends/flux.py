"""Nodes of a Flux instance that the run is inside of; `flux exec` starts a program on each.

An instance has one broker for each node, with ranks in the order of the attribute `hostlist`.
"""

from __future__ import annotations

import os
from pathlib import Path

from pytest_mnode.backends.backend import Here
from pytest_mnode.backends.dial_in import DialInBackend, Start, printed
from pytest_mnode.launchers.hosts import expand, parse_hosts


class FluxBackend(DialInBackend):
    name = "flux"
    outside = "no Flux instance here (no FLUX_URI); start pytest in one, such as flux alloc -N 4"

    def inside(self, here: Here) -> str | None:
        """Not in a task of a job: there FLUX_URI is the instance around it, for all users."""
        uri = here.environ.get("FLUX_URI", "")
        inside = uri and "FLUX_TASK_RANK" not in here.environ and not _is_of_another(uri)
        return f"inside of the Flux instance {uri}" if inside else None

    def names(self, here: Here) -> tuple[str, ...] | None:
        if not here.environ.get("FLUX_URI"):
            return None
        return tuple(dict.fromkeys(_hostlist()))

    def commands(self, start: Start) -> list[list[str]]:
        brokers = _hostlist()
        ranks = ",".join(str(brokers.index(host)) for host in start.hosts)
        return [["flux", "exec", f"--rank={ranks}", *start.argv]]


def _is_of_another(uri: str) -> bool:
    """Whether another user owns the instance, as that of a whole machine."""
    kind, _, path = uri.partition("://")
    try:
        return kind == "local" and Path(path).stat().st_uid != os.geteuid()
    except OSError:  # it has ended, or is hidden: flux says so
        return False


def _hostlist() -> tuple[str, ...]:
    """The host of each broker. Raises UsageError."""
    words = ("flux", "getattr", "hostlist")
    text = printed(*words, package="flux-core").strip()
    parse_hosts(text, " ".join(words))  # raises
    return expand(text)
