"""Nodes of an LSF job that the run is inside of; `blaunch -z` starts a program on each of them."""

from __future__ import annotations

from pathlib import Path

from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.backends import Here
from pytest_mnode.launchers.dial_in.launcher import DialInBackend, Start


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
        if not here.environ.get("LSB_JOBID"):
            return None
        file = here.environ.get("LSB_DJOB_HOSTFILE", "")
        words: list[str] = []
        try:
            words = Path(file).read_text().split() if file else []
        except OSError as error:  # on another host than the job's first
            if not here.environ.get("LSB_MCPU_HOSTS"):
                raise UsageError(f"LSB_DJOB_HOSTFILE={file}: {error.strerror}") from None
        words = words or here.environ.get("LSB_MCPU_HOSTS", "").split()[::2]
        words = words or here.environ.get("LSB_HOSTS", "").split()
        return tuple(dict.fromkeys(words)) or None

    def commands(self, start: Start) -> list[list[str]]:
        """Without a shell, as arguments are not for one."""
        return [["blaunch", "-no-shell", "-z", " ".join(start.hosts), *start.argv]]
