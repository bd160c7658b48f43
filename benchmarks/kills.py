"""Kills at random: any process of a run gets SIGKILL, SIGSTOP or SIGTERM at a random moment.

The run is a suite of twenty tests on the rack. After each kill: the run ended and named what was
killed, or it was not harmed; nothing of it is left; and the next run is green. All of it happens in
namespaces, where everything that is there belongs to the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from benchmarks import table
from benchmarks.apart import NAMESPACES, loopback_up
from benchmarks.peers import NEUTRAL, PROGRAMS, ROOT
from pytest_mnode.launchers.rack import Rack, cgroups
from pytest_mnode.machine.namespaces import GROUP_PREFIX

SUITE = PROGRAMS / "twenty_tests.py"
QUICK = "test_fresh and 0 or test_job and 0"
TESTS = 20
KINDS = {
    "clean-up": "mnode-clean",
    "rack": "mnode-rack",
    "node": "node",
    "agent": "mnode-agent",
    "fork server": "mnode-fork",
    "collector": "mnode-collect",
    "elastic": "mnode-elastic",
    "rank": "mnode-rank",
}
"""Processes by the beginning of their names; the controller and jobs are known otherwise."""
ALL_KINDS = ("controller", *KINDS, "job")
SIGNALS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)
_IMPORTER = ("the process that imports torch and the tests", "node0")
WORDS = {
    "clean-up": ("clean-up", "cleanup"),
    "rack": ("the rack's first process", "the rack has ended", "the rack is down"),
    "agent": ("its agent", "no message for"),
    "fork server": _IMPORTER,
    "collector": _IMPORTER,
}
"""Any of these names a process that serves all nodes; others are named by their rank or node."""
_STOPPED_S = 3.0
"""A stopped controller can tell nothing: it continues after this time, as after Ctrl-Z and fg."""
_TEST_LIMIT_S = 60.0
_START_LIMIT_S = 24.0
_SLACK_S = 180.0
"""More than the longest limit of a run: five times as long as to start, to import the tests."""
_GONE_S = 60.0
_LATEST = 0.85
"""Share of an unharmed run after which a kind of process may not come again."""


@dataclass(frozen=True, slots=True)
class Row:
    """One kill. problem: what was wrong afterwards, "" if nothing."""

    number: int
    victim: str
    signal: str
    after_s: float
    outcome: str
    seconds: float
    problem: str

    def line(self) -> str:
        what = f"{self.number}: {self.signal} to {self.victim} after {self.after_s:.1f} s"
        return f"{what}: {self.outcome}, {self.seconds:.0f} s {self.problem}".rstrip()


def measure(count: int, seconds: float, seed: int, first: int = 0) -> str:
    """The table of all kills by kind; each kill is printed once it is over."""
    if reason := Rack.unavailable():
        return table.terminal("Kills at random", ("no rack here",), [(reason,)])
    inside = 'mount -t tmpfs tmpfs /dev/shm; "$@"; exit $?'  # the shell reaps orphans
    numbers = [json.dumps(value) for value in (seed, first, count, seconds)]
    program = ["sh", "-c", inside, "sh", sys.executable, "-m", "benchmarks.kills", *numbers]
    rows = []
    with subprocess.Popen(
        [*NAMESPACES, *program], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        for line in running.stdout:
            rows.append(Row(**json.loads(line)))
            print(rows[-1].line(), flush=True)
    return table_of(rows, seed)


def table_of(rows: list[Row], seed: int) -> str:
    return table.terminal(f"Kills at random (seed {seed})", _HEAD, list(_by_kind(rows)))


_HEAD = ("kind", "kills", "named", "unharmed", "missed", "wrong", "worst s")


def _by_kind(rows: list[Row]) -> Iterator[tuple[str, ...]]:
    for kind in (*ALL_KINDS, ""):
        here = [row for row in rows if row.victim.startswith(kind)]
        counts = [
            sum(row.outcome == what for row in here) for what in ("named", "unharmed", "missed")
        ]
        wrong = sum(bool(row.problem) for row in here)
        worst = max((row.seconds for row in here), default=0)
        yield (kind or "all", *map(str, (len(here), *counts, wrong)), f"{worst:.0f}")


# Inside the namespaces.


class Run:
    """A run of the suite, started now."""

    def __init__(self, directory: Path, *args: str) -> None:
        self.directory = directory
        self.tmp = directory / "tmp"
        self.tmp.mkdir(parents=True)
        self._output = directory / "output.txt"
        options = (
            "--mnode-launcher=rack",
            "--mnode-nodes=2",
            f"--mnode-timeout={_TEST_LIMIT_S:g}",
            f"--mnode-start-limit={_START_LIMIT_S:g}",
        )
        self.daemons: set[int] = set()
        self.started = time.monotonic()
        with self._output.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *NEUTRAL, "-q", *options, *args, str(SUITE)],
                cwd=directory,
                env={**os.environ, "TMPDIR": str(self.tmp), "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def seconds(self) -> float:
        return time.monotonic() - self.started

    def wait(self, limit_s: float) -> int | None:
        """Exit status; None, and the controller killed, if it did not end within the limit."""
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None

    def processes(self, kind: str) -> list[psutil.Process]:
        if kind == "controller":
            return [psutil.Process(self.process.pid)]
        found = []
        for one in others():
            with contextlib.suppress(psutil.Error):
                name = one.name()
                of_kind = name.startswith(KINDS[kind]) if kind != "job" else _is_job(one)
                if of_kind and (kind != "node" or one.ppid() in _pids(self.processes("rack"))):
                    found.append(one)
        return found


def _is_job(process: psutil.Process) -> bool:
    return any("sleeping_job.py" in word for word in process.cmdline())


def _pids(processes: list[psutil.Process]) -> set[int]:
    return {one.pid for one in processes}


def others() -> list[psutil.Process]:
    """All processes of this namespace but this one and init."""
    return [one for one in psutil.process_iter() if one.pid not in (1, os.getpid())]


def left(run: Run, mounted: str) -> list[str]:
    """What is still there of a run that has ended."""
    found = []
    for one in others():
        with contextlib.suppress(psutil.Error):
            if one.status() != psutil.STATUS_ZOMBIE:
                found.append(f"process {one.pid} {one.name()}")
    files = [*run.tmp.iterdir(), *Path("/dev/shm").iterdir()]
    found += [f"file {path}" for path in files if not path.name.startswith("pytest-of-")]
    found += [f"interface {name}" for _, name in socket.if_nameindex() if name != "lo"]
    for table_of_ports in ("/proc/net/tcp", "/proc/net/tcp6"):
        lines = Path(table_of_ports).read_text().splitlines()[1:]
        found += [
            f"port {int(words[1].rpartition(':')[2], 16)}"
            for words in map(str.split, lines)
            if words[3] == "0A"
        ]
    for hierarchy in cgroups.hierarchies():
        for daemon in run.daemons:
            found += [f"group {path}" for path in hierarchy.glob(f"{GROUP_PREFIX}{daemon}-*")]
    now = mounts()
    found += [f"mount {line}" for line in now.splitlines() if line not in mounted.splitlines()]
    return found


def mounts() -> str:
    return Path("/proc/self/mountinfo").read_text()


def strike(run: Run, kind: str, moment_s: float, chance: random.Random) -> psutil.Process | None:
    """A process of this kind, as soon after the moment as there is one; None if the run ends."""
    time.sleep(moment_s)
    while run.process.poll() is None:
        run.daemons |= _pids(run.processes("clean-up"))
        if found := run.processes(kind):
            return chance.choice(sorted(found, key=lambda one: one.pid))
        time.sleep(0.02)
    return None


def name_of(kind: str, process: psutil.Process, run: Run) -> str:
    """The rank or the node of a process, as reports name it; "" for one that serves all nodes."""
    with contextlib.suppress(psutil.Error, OSError):
        if kind == "rank":
            return f"rank {process.name().removeprefix(KINDS['rank'])}"
        if kind in ("node", "elastic", "job"):
            there = Path(f"/proc/{process.pid}/ns/uts").readlink()
            for node in run.processes("node"):
                if Path(f"/proc/{node.pid}/ns/uts").readlink() == there:
                    return node.name()
    return ""


def is_named(kind: str, name: str, number: signal.Signals, code: int, output: str) -> bool:
    if kind == "controller":
        return code == -number or f"KeyboardInterrupt: {number.name}" in output
    heads = [head for head in ("= ERRORS", "= FAILURES") if head in output]
    ended = output[min(map(output.find, heads), default=0) :]
    words = (name,) if name else WORDS.get(kind, ("node0", "node1"))
    return any(word in ended for word in words)


def kill_once(directory: Path, seed: int, number: int, healthy_s: float) -> Row:
    chance = random.Random(f"{seed} {number}")
    kind, sent = chance.choice(ALL_KINDS), chance.choice(SIGNALS)
    run = Run(directory / f"killed{number}")
    mounted = mounts()
    victim = strike(run, kind, chance.uniform(0, _LATEST * healthy_s), chance)
    after_s = run.seconds()
    name = name_of(kind, victim, run) if victim else ""
    if victim:
        with contextlib.suppress(psutil.Error):
            victim.send_signal(sent)
            if kind == "controller" and sent == signal.SIGSTOP:
                time.sleep(_STOPPED_S)
                victim.resume()
    code = run.wait(3 * healthy_s + _SLACK_S)
    seconds, output = run.seconds() - after_s, run.output
    problems = []
    if victim is None:
        outcome = "missed"
    elif code is None:
        outcome = "hung"
    elif code == 0 and f"{TESTS} passed" in output:
        outcome = "unharmed"
    else:
        outcome = "named" if is_named(kind, name, sent, code, output) else "not named"
    if outcome in ("hung", "not named"):
        problems.append(outcome)
    end = time.monotonic() + _GONE_S
    while (there := left(run, mounted)) and time.monotonic() < end:
        time.sleep(0.1)
    problems += [f"left: {what}" for what in there]
    for one in others():
        with contextlib.suppress(psutil.Error):
            one.kill()
    following = Run(directory / f"next{number}", "-k", QUICK)
    if following.wait(2 * healthy_s + _SLACK_S) != 0:
        problems.append("the next run is red")
    if problems:
        print(f"output of {number}: {run.directory}", file=sys.stderr)
    else:
        shutil.rmtree(run.directory, ignore_errors=True)
    shutil.rmtree(following.directory, ignore_errors=True)
    victim_name = f"{kind} {name}".rstrip()
    return Row(number, victim_name, sent.name, after_s, outcome, seconds, "; ".join(problems))


def _inside() -> None:
    """Kill until the number or the time is reached; print each row as JSON."""
    seed, first, count, limit_s = (json.loads(word) for word in sys.argv[1:])
    loopback_up()
    directory = Path(tempfile.mkdtemp(prefix="mnode-kills-"))
    unharmed = Run(directory / "unharmed")
    code = unharmed.wait(10 * _SLACK_S)
    if code != 0 or f"{TESTS} passed" not in unharmed.output:
        sys.exit(f"red without any kill:\n{unharmed.output}")
    healthy_s = unharmed.seconds()
    shutil.rmtree(unharmed.directory)
    print(f"unharmed: {healthy_s:.0f} s", file=sys.stderr, flush=True)
    started = time.monotonic()
    for number in range(first, first + count):
        if time.monotonic() > started + limit_s:
            break
        print(json.dumps(asdict(kill_once(directory, seed, number, healthy_s))), flush=True)
    with contextlib.suppress(OSError):  # outputs of wrong ends stay
        directory.rmdir()


if __name__ == "__main__":
    _inside()
