"""The compared tools that run distributed tests, each as a command line."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import guard

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "benchmarks" / "programs"
# This project's settings and conftest.py must not affect the measurement.
NEUTRAL = ("-c", os.devnull, "--noconftest", "-p", "no:cacheprovider")
_RECORD = ("-p", "benchmarks.programs.recorder")


@dataclass(frozen=True, slots=True)
class Stamp:
    """One line of `bodies.stamp`. time: by time.time()."""

    what: str
    rank: int
    pid: int
    time: float


@dataclass(frozen=True, slots=True)
class Ran:
    """One command, with its stamps and the recorder's records."""

    finished: guard.Finished
    stamps: tuple[Stamp, ...]
    records: tuple[Mapping[str, Any], ...]

    def times(self, what: str) -> list[float]:
        return [s.time for s in self.stamps if s.what == what]


@dataclass(frozen=True, slots=True)
class Peer:
    """A compared tool. argv: command line by number of ranks. needs: required modules."""

    name: str
    argv: Callable[[int], Sequence[str]]
    needs: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    one_test_a_command: bool = False

    @property
    def missing(self) -> str:
        """Required modules and programs that are not installed; empty if all are."""
        modules = [name for name in self.needs if importlib.util.find_spec(name) is None]
        absent = [name for name in self.programs if which(name) is None]
        return ", ".join(modules + absent)

    def run(
        self,
        ranks: int,
        tests: int,
        limit_s: float,
        *,
        fault: str = "",
        own_limit_s: float = 60.0,
        extra: Sequence[str] = (),
    ) -> Ran:
        """Run the peer once. own_limit_s: time limit per test for a peer that has one."""
        with _folder() as folder:
            env = {
                "PYTHONPATH": str(ROOT),
                "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": "lo",
                "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": f"{own_limit_s:.0f}",
                "OMPI_ALLOW_RUN_AS_ROOT": "1",
                "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": "29541",
                "MNODE_BENCH_RANKS": str(ranks),
                "MNODE_BENCH_TESTS": str(tests),
                "MNODE_BENCH_FAULT": fault,
                "MNODE_BENCH_LIMIT_S": str(own_limit_s),
                "MNODE_BENCH_STAMPS": str(folder / "stamps"),
                "MNODE_BENCH_RECORD": str(folder / "record"),
            }
            finished = guard.run([*self.argv(ranks), *extra], limit_s, env, folder)
            return Ran(finished, tuple(_stamps(folder)), tuple(_records(folder)))


@contextmanager
def _folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="mnode-bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _stamps(folder: Path) -> Iterator[Stamp]:
    path = folder / "stamps"
    for line in path.read_text().splitlines() if path.exists() else ():
        what, rank, pid, time = line.split()
        yield Stamp(what, int(rank), int(pid), float(time))


def _records(folder: Path) -> Iterator[Mapping[str, Any]]:
    path = folder / "record"
    for line in path.read_text().splitlines() if path.exists() else ():
        yield json.loads(line)


def which(program: str) -> str | None:
    """Path of a program: next to this interpreter, else on PATH; None if not found."""
    own = str(Path(sys.executable).parent)
    return shutil.which(program, path=os.pathsep.join((own, os.environ.get("PATH", ""))))


def _pytest(program: str, *options: str) -> list[str]:
    return [sys.executable, "-m", "pytest", *NEUTRAL, *options, str(PROGRAMS / program)]


def _torchrun(ranks: int) -> list[str]:
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={ranks}",
    ]


def mnode(reuse: str, *options: str) -> Peer:
    """pytest-mnode with one rank per node, on loopback like the other peers."""

    def argv(ranks: int) -> Sequence[str]:
        own = (f"--mnode-nodes={ranks}", "--mnode-launcher=local", f"--mnode-reuse={reuse}")
        return _pytest("with_mnode.py", "-q", *own, *options)

    return Peer(f"pytest-mnode {reuse}", argv)


def mnode_recorded(limit_s: float) -> Peer:
    """pytest-mnode with every report recorded."""
    peer = mnode("warm", f"--mnode-timeout={limit_s:g}", *_RECORD)
    return Peer("pytest-mnode", peer.argv)


def adopted(name: str, program: str) -> Peer:
    """Test classes that start processes themselves, run in worlds of pytest-mnode instead."""

    def argv(ranks: int) -> Sequence[str]:
        own = (f"--mnode-nodes={ranks}", "--mnode-launcher=local")
        return _pytest(program, "-q", "-p", "benchmarks.programs.marked", *own)

    return Peer(f"{name} in worlds", argv, needs=("expecttest",))


TORCHRUN = Peer(
    "torchrun per test",
    lambda ranks: [*_torchrun(ranks), str(PROGRAMS / "with_torchrun.py")],
    one_test_a_command=True,
)
PROCESSES = Peer(
    "MultiProcessTestCase",
    lambda _: [sys.executable, str(PROGRAMS / "with_processes.py")],
    needs=("expecttest",),
)
CONTINUOUS = Peer(
    "MultiProcContinuousTest",
    lambda _: [sys.executable, str(PROGRAMS / "with_continuous.py")],
    needs=("expecttest",),
)
PROCESSES_RECORDED = Peer(
    PROCESSES.name,
    lambda _: _pytest("with_processes.py", "-p", "no:mnode", *_RECORD),
    needs=PROCESSES.needs,
)
CONTINUOUS_RECORDED = Peer(
    CONTINUOUS.name,
    lambda _: _pytest("with_continuous.py", "-p", "no:mnode", *_RECORD),
    needs=CONTINUOUS.needs,
)


def _torchrun_pytest(*options: str) -> Peer:
    program = _pytest("with_plain_pytest.py", "-p", "no:mnode", *options)[1:]
    return Peer("torchrun -m pytest", lambda ranks: [*_torchrun(ranks), *program])


TORCHRUN_PLAIN = _torchrun_pytest("-q")
TORCHRUN_PYTEST = _torchrun_pytest(*_RECORD)
PYTEST_MPI = Peer(
    "pytest-mpi",
    lambda ranks: [
        which("mpirun") or "mpirun",
        "--oversubscribe",
        "-n",
        str(ranks),
        *_pytest("with_plain_pytest.py", "-p", "no:mnode", "--with-mpi", *_RECORD),
    ],
    needs=("pytest_mpi", "mpi4py"),
    programs=("mpirun",),
)
