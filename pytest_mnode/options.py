"""Options and ini keys to `Settings`. Imports nothing heavy: every pytest run pays for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

RUN: pytest.StashKey[Any] = pytest.StashKey()
"""Where a config keeps its run (controller.session.Run), once there is one."""

LAUNCHERS = ("auto", "local", "rack", "ssh", "slurm")
REUSE = ("warm", "group", "fresh")
NUMA_BIND = ("auto", "none", "node", "exclusive")
BACKENDS = ("auto", "gloo", "nccl", "mpi", "ucc", "xccl", "hccl")


@dataclass(frozen=True, slots=True)
class _Option:
    name: str
    metavar: str
    help: str
    default: str | None = None

    @property
    def flag(self) -> str:
        return f"--mnode-{self.name}"

    @property
    def dest(self) -> str:
        return "mnode_" + self.name.replace("-", "_")


_OPTIONS = (
    _Option("nodes", "N", "run tests that need ranks on N nodes"),
    _Option("procs-per-node", "G", "ranks a node (default: its accelerators, else 1)"),
    _Option("launcher", "NAME", f"how commands get to nodes: {', '.join(LAUNCHERS)}", "auto"),
    _Option("hostfile", "FILE", "nodes to reach by ssh: 'host slots=8' a line, ranges node[01-16]"),
    _Option("slurm-args", "ARGS", "of the allocation to ask Slurm for, where the run is not in one "
            "already, such as '--partition=gpu --account=x'"),
    _Option("python", "PATH", "the Python on the nodes of ssh and slurm (default: this one)"),
    _Option("shared-dir", "DIR", "a directory that all nodes see (default: a hidden temporary one "
            "below the root of the tests)"),
    _Option("discover", "FILE", "write a first spec, of what the nodes show, into FILE"),
    _Option("spec", "FILE", "YAML page of what the cluster promises (default: the rack's own)"),
    _Option("backend", "NAME", f"of process groups: {', '.join(BACKENDS)}", "auto"),
    _Option("reuse", "LEVEL", "what tests share: warm ranks and group, ranks with a new group, "
            "or nothing (fresh)", "warm"),
    _Option("numa-bind", "HOW", "which CPUs ranks are bound to: none; node (all beside the "
            "accelerator) or exclusive (cores of their own there), as torchrun's --numa-binding; "
            "auto (exclusive on the rack, elsewhere none, as torchrun)", "auto"),
    _Option("timeout", "SECONDS", "limit of a test that runs in ranks (default: 300)", "300"),
    _Option("locate-budget", "SECONDS", "how long to look for who slows the fabric (default: 20)",
            "20"),
    _Option("report", "DIR", "write certificate.json and certificate.xml into DIR"),
    _Option("log-dir", "DIR", "keep the logs of all ranks in DIR"),
    _Option("fault", "NAME:NODE[:VALUE][,…]", "have something go wrong on the rack before the "
            "first test; such a run never certifies (an unknown name lists all)"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user asked for. `nodes` and `procs_per_node` are None where not said.

    hostfile: nodes to reach by ssh; slurm_args: of the allocation to ask for; python: on the nodes,
    "" for the controller's own path; shared_dir: seen by all nodes, None to look for one; discover:
    where a first spec is to be written.
    """

    nodes: int | None
    procs_per_node: int | None
    launcher: str
    spec: Path | None
    backend: str
    reuse: str
    numa_bind: str
    timeout_s: float
    report_dir: Path | None
    log_dir: Path | None
    faults: str = ""
    faults_from: str = ""
    locate_budget_s: float = 20.0
    hostfile: Path | None = None
    slurm_args: tuple[str, ...] = ()
    python: str = ""
    shared_dir: Path | None = None
    discover: Path | None = None


def add_options(parser: pytest.Parser) -> None:
    """Every option also as an ini key, `mnode_*`."""
    group = parser.getgroup("mnode", "multi-node training clusters")
    for option in _OPTIONS:
        default = f" (default: {option.default})" if option.default in ("auto", "warm") else ""
        group.addoption(
            option.flag, dest=option.dest, metavar=option.metavar, help=option.help + default
        )
        parser.addini(option.dest, f"as {option.flag}", default=option.default or "")
    # Without a value, or it would take the next word, often a path of tests, for one.
    group.addoption(
        "--mnode-locate",
        action="store_true",
        help="measure every path between two nodes, of more than 16 nodes as well",
    )


def read_settings(config: pytest.Config) -> Settings:
    """Settings of a run. Raises pytest.UsageError, one line, naming the option or the ini key."""
    return Settings(
        nodes=_count(config, "nodes"),
        procs_per_node=_count(config, "procs-per-node"),
        launcher=_choice(config, "launcher", LAUNCHERS),
        spec=_path(config, "spec"),
        backend=_choice(config, "backend", BACKENDS),
        reuse=_choice(config, "reuse", REUSE),
        numa_bind=_choice(config, "numa-bind", NUMA_BIND),
        timeout_s=_seconds(config, "timeout"),
        report_dir=_directory(config, "report"),
        log_dir=_directory(config, "log-dir"),
        faults=_value(config, "fault")[1],
        faults_from=_value(config, "fault")[0],
        locate_budget_s=locate_budget_s(config),
        hostfile=_path(config, "hostfile"),
        slurm_args=_words(config, "slurm-args"),
        python=_value(config, "python")[1],
        shared_dir=_directory(config, "shared-dir"),
        discover=_path(config, "discover"),
    )


def locate_budget_s(config: pytest.Config) -> float:
    """How long to look for who slows the fabric; in ranks as in the controller."""
    return _seconds(config, "locate-budget")


def _value(config: pytest.Config, name: str) -> tuple[str, str]:
    """(where it was said, text); the text is empty where nothing was said."""
    option = next(o for o in _OPTIONS if o.name == name)
    given: Any = config.getoption(option.dest)
    if given is not None:
        return option.flag, str(given)
    file = f" in {config.inipath.name}" if config.inipath else ""
    return f"{option.dest}{file}", str(config.getini(option.dest)).strip()


def _wrong(where: str, value: str, accepted: str) -> pytest.UsageError:
    return pytest.UsageError(f"{where}={value}: {accepted}")


def _count(config: pytest.Config, name: str) -> int | None:
    where, text = _value(config, name)
    if not text and not where.startswith("--"):
        return None
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise _wrong(where, text, "accepted: a whole number of 1 or more")
    return int(text)


def _choice(config: pytest.Config, name: str, accepted: tuple[str, ...]) -> str:
    where, text = _value(config, name)
    if text not in accepted:
        raise _wrong(where, text, f"accepted: {', '.join(accepted)}")
    return text


def _seconds(config: pytest.Config, name: str) -> float:
    where, text = _value(config, name)
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e7:
        raise _wrong(where, text, "accepted: seconds, more than 0")
    return value


def _words(config: pytest.Config, name: str) -> tuple[str, ...]:
    where, text = _value(config, name)
    import shlex

    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise _wrong(where, text, f"accepted: arguments as for a shell ({error})") from None


def _path(config: pytest.Config, name: str) -> Path | None:
    where, text = _value(config, name)
    if not text:
        if where.startswith("--"):
            raise _wrong(where, text, "accepted: the path of a file")
        return None
    base = config.invocation_params.dir if where.startswith("--") else config.rootpath
    try:
        return base / Path(text).expanduser()
    except RuntimeError as error:  # of "~name", where nobody has the name
        raise _wrong(where, text, f"accepted: a path ({error})") from None


def _directory(config: pytest.Config, name: str) -> Path | None:
    path = _path(config, name)
    accepted = "accepted: a directory, or a new name"
    try:
        if path is not None and path.exists() and not path.is_dir():
            raise _wrong(_value(config, name)[0], str(path), accepted)
    except OSError as error:  # the name is too long, or what is above it may not be read
        where, text = _value(config, name)
        raise _wrong(where, text, f"{accepted} ({error.strerror})") from None
    return path
