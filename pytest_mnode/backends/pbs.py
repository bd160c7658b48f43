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


class PbsBackend(DialInBackend):
    name = "pbs"
    outside = "no PBS job here (no PBS_NODEFILE); start pytest in one, such as qsub -I -l select=4"

    def inside(self, here: Here) -> str | None:
        job = here.environ.get("PBS_JOBID")
        return f"inside of PBS job {job}" if job and here.environ.get("PBS_NODEFILE") else None

    def names(self, here: Here) -> tuple[str, ...] | None:
        lines = _lines(here.environ)
        return tuple(dict.fromkeys(lines)) if lines else None

    def commands(self, start: Start) -> list[list[str]]:
        """One pbsdsh where each host has one line, else one for each host."""
        lines = _lines(os.environ)
        if sorted(lines) == sorted(start.hosts):
            return [["pbsdsh", "--", *start.argv]]
        return [["pbsdsh", "-n", str(lines.index(host)), "--", *start.argv] for host in start.hosts]


def _lines(environ: Mapping[str, str]) -> list[str]:
    file = environ.get("PBS_NODEFILE", "")
    try:
        text = Path(file).read_text() if file else ""
    except OSError as error:
        raise UsageError(f"PBS_NODEFILE={file}: {error.strerror}") from None
    return [line.strip() for line in text.splitlines() if line.strip()]
