"""Nodes of an LSF job that the run is inside of; `blaunch -z` starts a program on each of them."""

from __future__ import annotations

import shutil
from collections import Counter
from itertools import zip_longest
from pathlib import Path

from pytest_mnode.backends.backend import Here
from pytest_mnode.backends.dial_in import DialInBackend, Start
from pytest_mnode.errors import UsageError


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
        file, pairs = (
            here.environ.get(f"LSB_{one}", "") for one in ("DJOB_HOSTFILE", "MCPU_HOSTS")
        )
        words: list[str] = []
        try:
            words = Path(file).read_text().split() if file else []
        except OSError as error:  # on another host than the job's first
            if not pairs:
                raise UsageError(f"LSB_DJOB_HOSTFILE={file}: {error.strerror}") from None
        slots = Counter(words)
        if not slots:
            for host, number in zip_longest(pairs.split()[::2], pairs.split()[1::2], fillvalue=""):
                slots[host] += int(number) if number.isdecimal() else 1
        slots = slots or Counter(here.environ.get("LSB_HOSTS", "").split())
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
