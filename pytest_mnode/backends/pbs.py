"""Nodes of a PBS job (PBS Professional, OpenPBS, TORQUE) that the run is inside of.

`pbsdsh` starts programs by the nodes' own daemons. They get neither input nor output of it: output
goes into that of the job. It runs one for each line of $PBS_NODEFILE, which has one for each MPI
process of a host, or one on the line of a number, from 0.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pytest_mnode.backends.backend import Here
from pytest_mnode.backends.dial_in import DialInBackend, Start
from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.hosts import Host, read_hostfile


class PbsBackend(DialInBackend):
    name = "pbs"
    outside = "no PBS job here (no PBS_NODEFILE); start pytest in one, such as qsub -I -l select=4"

    def inside(self, here: Here) -> str | None:
        job = here.environ.get("PBS_JOBID")
        return f"inside of PBS job {job}" if job and here.environ.get("PBS_NODEFILE") else None

    def names(self, here: Here) -> tuple[str, ...] | None:
        return tuple(host.name for host in _hosts(here.environ)) or None

    def commands(self, start: Start) -> list[list[str]]:
        """One pbsdsh where each host has one line, else one for each host."""
        hosts = _hosts(os.environ)
        if len(hosts) == len(start.hosts) and all(host.slots is None for host in hosts):
            return [["pbsdsh", "--", *start.argv]]
        lines = {host.name: str(host.line - 1) for host in hosts}
        return [["pbsdsh", "-n", lines[host], "--", *start.argv] for host in start.hosts]


def _hosts(environ: Mapping[str, str]) -> tuple[Host, ...]:
    """The hosts of the job; () outside of one. Raises UsageError."""
    try:
        return read_hostfile(Path(file)) if (file := environ.get("PBS_NODEFILE")) else ()
    except UsageError as error:
        raise UsageError(f"PBS_NODEFILE={error}") from None
