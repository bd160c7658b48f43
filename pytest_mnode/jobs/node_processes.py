"""Finds, signals and ends the processes of a job on one node, by variables in their environment.

A program for `python -S -c` that needs only the standard library:

    pids   JOB NODE WANTED           pids in one line
    signal JOB NODE WANTED NUMBER    "PID TIME" for each: the node's clock just before the signal
    end    JOB NODE LIMIT_S          SIGKILL until none is left; "killed PIDS", then "left PIDS"
    alive  PID:TIME …                pids of processes that run, and already ran at that time

WANTED: a rank's number, "torchrun", or "all".
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator


def _environ(pid: int) -> dict[str, str]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123  starts faster
            pairs = file.read().split(b"\0")
    except OSError:
        return {}
    return dict(pair.decode(errors="replace").partition("=")[::2] for pair in pairs if pair)


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third, the state, on; state X if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()
    except OSError:
        return ["X", "0"]


def find(job: str, node: str, wanted: str) -> Iterator[int]:
    """Pids of the job on this node. A child of a rank is not a rank: its parent has RANK too."""
    for name in os.listdir("/proc"):  # noqa: PTH208
        if not name.isdigit() or int(name) == os.getpid():
            continue
        pid = int(name)
        env = _environ(pid)
        if env.get("MNODE_JOB") != job or env.get("MNODE_JOB_NODE", node) != node:
            continue
        if wanted == "all":
            yield pid
            continue
        above = _environ(int(_stat(pid)[1]))
        if wanted == "torchrun":
            if "RANK" not in env and above.get("MNODE_JOB") != job:
                yield pid
        elif env.get("RANK") == wanted and "RANK" not in above:
            yield pid


def kill(pid: int, number: int) -> bool:
    """Send a signal; False if the process is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def send_signal(job: str, node: str, wanted: str, number: str) -> None:
    for pid in list(find(job, node, wanted)):
        at = time.time()
        if kill(pid, int(number)):
            print(pid, at)


def end(job: str, node: str, limit_s: str) -> None:
    """Repeat, because processes may start meanwhile; zombies have no environment to be found by."""
    until = time.monotonic() + float(limit_s)
    killed: set[int] = set()
    left = set(find(job, node, "all"))
    while left and time.monotonic() < until:
        for pid in left:
            kill(pid, signal.SIGKILL)
        killed |= left
        time.sleep(0.02)
        left = set(find(job, node, "all"))
    print("killed", *sorted(killed))
    print("left", *sorted(left))


def alive(*processes: str) -> None:
    """Print the pids that still run; one that started after its time is another process."""
    with open("/proc/stat") as file:  # noqa: PTH123
        boot = next(int(line.split()[1]) for line in file if line.startswith("btime"))
    for text in processes:
        pid, _, ran_at = text.partition(":")
        fields = _stat(int(pid))
        if fields[0] in "XZ":
            continue
        started = boot + int(fields[19]) / os.sysconf("SC_CLK_TCK")
        if started <= float(ran_at) + 1.0:
            print(pid)


def show(job: str, node: str, wanted: str) -> None:
    print(*find(job, node, wanted))


PROGRAMS: dict[str, Callable[..., None]] = {
    "pids": show,
    "signal": send_signal,
    "end": end,
    "alive": alive,
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](*sys.argv[2:])
