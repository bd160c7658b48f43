"""Nodes of an LSF job that the run is inside of; `blaunch -z` starts a program on each of them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path

from pytest_mnode.backends.backend import Here
from pytest_mnode.backends.dial_in import DialInBackend, Start
from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.hosts import Host, parse_hosts, read_hostfile


class LsfBackend(DialInBackend):
    name = "lsf"
    outside = (
        "no LSF job here (no LSB_JOBID); start pytest in one, such as bsub -I -n 4 -R span[ptile=1]"
    )

    def inside(self, here: Here) -> str | None:
        job = here.environ.get("LSB_JOBID")
        return f"inside of LSF job {job}" if job else None

    def names(self, here: Here) -> tuple[str, ...] | None:
        """From the file with a line for each slot, or `host slots host slots …`, or its parts."""
        job = here.environ.get("LSB_JOBID")
        if not job:
            return None
        slots = {host.name: host.slots or 1 for host in _hosts(here.environ)}
        if not slots:
            lists = "LSB_DJOB_HOSTFILE, LSB_MCPU_HOSTS and LSB_HOSTS name no host"
            raise UsageError(f"LSB_JOBID={job}: {lists}; start pytest in the job")
        first, *others = slots
        # Where jsrun starts jobs, a host without devices comes first, and runs the script.
        launches = others and slots[first] == 1 and all(slots[host] > 1 for host in others)
        if launches and shutil.which("jsrun", path=here.environ.get("PATH")):
            return tuple(others)
        return tuple(slots)

    def commands(self, start: Start) -> list[list[str]]:
        """Without a shell, as arguments are not for one."""
        return [["blaunch", "-no-shell", "-z", " ".join(start.hosts), *start.argv]]


def _hosts(environ: Mapping[str, str]) -> tuple[Host, ...]:
    """The hosts of the job with their slots. Raises UsageError."""
    file, words = environ.get("LSB_DJOB_HOSTFILE"), environ.get("LSB_MCPU_HOSTS", "").split()
    pairs = zip_longest(words[::2], words[1::2], fillvalue="1")
    lists = {
        "LSB_MCPU_HOSTS": "\n".join(f"{host} slots={number}" for host, number in pairs),
        "LSB_HOSTS": "\n".join(environ.get("LSB_HOSTS", "").split()),
    }
    given = [(name, text) for name, text in lists.items() if text]
    try:
        if file and Path(file).stat().st_size:
            return read_hostfile(Path(file))
    except (OSError, UsageError) as error:  # it may be on the job's first host only
        if not given:
            why = f"{file}: {error.strerror}" if isinstance(error, OSError) else error
            raise UsageError(f"LSB_DJOB_HOSTFILE={why}") from None
    return next((parse_hosts(text, name) for name, text in given), ())
