"""Holds an allocation of Slurm's for as long as its standard input is open: `holder.py NAME ARGS…`.

Run by its path, without site-packages. ARGS are salloc's, NAME is the job's and nobody else's.
Standard output gets lines of JSON: `{"said": …}` for each line of salloc's, `{"job": …}` once its
number is known, `{"granted": {…}}` with Slurm's variables, `{"ended": …}` with salloc's status.
When standard input ends, however its owner went, a request that waits is withdrawn and an
allocation is given back; by scancel where salloc does not.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import IO

INSIDE = "--inside"
ASK_END_S = 6.0
"""For salloc to give back what it holds once its command has ended."""
SCANCEL_S = 10.0
LOOK_MS = 250
_NUMBER = re.compile(r"job allocation (\d+)")


def tell(**what: object) -> None:
    """A line for the controller, who may be gone."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(what).encode() + b"\n")


def inside() -> None:
    """The command of the allocation: says where it is, and ends with its input."""
    told = {name: value for name, value in os.environ.items() if name.startswith("SLURM_")}
    os.write(1, json.dumps(told).encode() + b"\n")
    while os.read(0, 4096):
        pass


class Holder:
    """salloc, and what it has said."""

    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        self.name = name
        self.job: str | None = None
        self.salloc = subprocess.Popen(
            [*arguments, sys.executable, "-S", "-E", "-s", os.path.abspath(__file__), INSIDE],  # noqa: PTH100
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=die_with_parent,  # noqa: PLW1509  there are no threads here
        )
        self.pending: dict[int, bytes] = {}
        self.granted = False

    def serve(self) -> None:
        """Until the owner's end, or salloc's."""
        out, err = self.salloc.stdout, self.salloc.stderr
        assert out is not None
        assert err is not None
        streams: dict[int, IO[bytes]] = {out.fileno(): out, err.fileno(): err}
        poll = select.poll()
        for fd in (0, *streams):
            poll.register(fd, select.POLLIN)
        while streams:
            ready = [fd for fd, _ in poll.poll(LOOK_MS)]
            for fd in [fd for fd in ready if fd in streams]:
                data = os.read(fd, 1 << 16)
                self.take(fd, data, fd == out.fileno())
                if not data:
                    poll.unregister(fd)
                    del streams[fd]
            over = 0 in ready and not os.read(0, 4096)
            # The command inside keeps the streams open where salloc is killed.
            if over or (not ready and self.salloc.poll() is not None):
                return

    def take(self, fd: int, data: bytes, of_inside: bool) -> None:
        *lines, self.pending[fd] = (self.pending.get(fd, b"") + data).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace").strip()
            if of_inside:
                with contextlib.suppress(ValueError):
                    tell(granted=json.loads(text))
                    self.granted = True
            elif text:
                tell(said=text)
                if self.job is None and (found := _NUMBER.search(text)):
                    self.job = found[1]
                    tell(job=int(self.job))

    def end(self) -> None:
        """Give back; nothing of it is queued when this returns, as far as Slurm answers."""
        assert self.salloc.stdin is not None
        with contextlib.suppress(OSError):
            self.salloc.stdin.close()  # the command inside ends, and with it the allocation
        if not self.granted or not self.waited(ASK_END_S / 2):
            self.salloc.terminate()  # one that waits in the queue ends only so
        if not self.waited(ASK_END_S):
            self.scancel()
            self.salloc.kill()
        elif self.salloc.returncode < 0:
            self.scancel()  # killed by somebody, it gave nothing back
        tell(ended=self.salloc.wait())

    def waited(self, limit_s: float) -> bool:
        """Whether salloc has ended; what it still says is read, so that it is not held up."""
        end = time.monotonic() + limit_s
        while self.salloc.poll() is None:
            if time.monotonic() > end:
                return False
            for stream in (self.salloc.stdout, self.salloc.stderr):
                if stream is not None and select.select([stream], [], [], 0.02)[0]:
                    os.read(stream.fileno(), 1 << 16)
            time.sleep(0.01)
        return True

    def scancel(self) -> None:
        which = [self.job] if self.job else [f"--name={self.name}", "--me"]
        # By these the user has jobs passed over, or is asked before anything is cancelled.
        env = {k: v for k, v in os.environ.items() if not k.startswith("SCANCEL_")}
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                ["scancel", *which],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=SCANCEL_S,
                env=env,
                check=False,
            )


def die_with_parent() -> None:
    """A salloc that waits withdraws its request at SIGTERM."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)  # PR_SET_PDEATHSIG


def main(arguments: Sequence[str]) -> None:
    if arguments == [INSIDE]:
        inside()
        return
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # only the end of standard input ends a holder
    name, *rest = arguments
    try:
        holder = Holder(name, rest)
    except OSError as error:
        tell(said=f"salloc: error: {error.strerror}")
        tell(ended=127)
        return
    try:
        holder.serve()
    finally:
        holder.end()


if __name__ == "__main__":
    main(sys.argv[1:])
