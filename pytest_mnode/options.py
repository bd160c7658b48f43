"""Options and ini keys: each is described once, in `OPTIONS`.

`python -m pytest_mnode.options` prints the table in docs/tests.md. Imports nothing slow: every
pytest run imports this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode import option_texts
from pytest_mnode.limits import Limits
from pytest_mnode.option_texts import Given, Option

RUN: pytest.StashKey[Any] = pytest.StashKey()
"""Stash key of a config's run (controller.session.Run), once there is one."""

LAUNCHERS = (
    *("auto", "local", "rack", "ssh", "slurm", "kubernetes"),
    *("pbs", "lsf", "flux", "mpi", "exec"),
)
"""Our own; packages add others (backends.registry)."""
BACKENDS_GROUP = "pytest_mnode.backends"
REUSE = ("warm", "group", "fresh")
UNEQUAL_CALLS = ("fail", "allow")
NUMA_BIND = ("auto", "none", "node", "exclusive")
BACKENDS = ("auto", "gloo", "nccl", "mpi", "ucc", "xccl", "hccl")
_LIMITS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The user's settings, by field of `OPTIONS`; None if nothing was given.

    free_at_most: most nodes to use with `--mnode-nodes=free`; None if that option is a number.
    on: names of the nodes to use, once the free ones are known; () if the launcher chooses.
    """

    nodes: int | None = None
    free_at_most: int | None = None
    on: tuple[str, ...] = ()
    budget_s: float | None = None
    soak_s: float | None = None
    tune: tuple[str, ...] = ()
    procs_per_node: int | None = None
    launcher: str = "auto"
    hostfile: Path | None = None
    exec: tuple[str, ...] = ()
    slurm_args: tuple[str, ...] = ()
    srun_args: tuple[str, ...] = ()
    k8s_context: str = ""
    k8s_namespace: str = ""
    k8s_template: Path | None = None
    k8s_image: str = ""
    k8s_wait_s: float = 300.0
    start_limit_s: float = _LIMITS.start_s
    report_limit_s: float = _LIMITS.report_s
    connect_limit_s: float = _LIMITS.connect_s
    silence_limit_s: float = _LIMITS.silence_s
    python: str = ""
    prologue: Path | None = None
    shared_dir: Path | None = None
    discover: Path | None = None
    spec: Path | None = None
    backend: str = "auto"
    reuse: str = "warm"
    timeout_s: float = 300.0
    report_dir: Path | None = None
    history_dir: Path | None = None
    history_key: Path | None = None
    prometheus: Path | None = None
    log_dir: Path | None = None
    locate_budget_s: float | None = None
    numa_bind: str = "auto"
    faults: str = ""
    may_leave: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    debug_rank: int | None = None
    unequal_calls: str = "fail"

    def limits(self, nodes: int) -> Limits:
        """The limits of a run on so many nodes."""
        return Limits(
            self.start_limit_s, self.report_limit_s, self.connect_limit_s, self.silence_limit_s
        ).of(nodes)

    @property
    def certifies(self) -> bool:
        """Whether a certificate is to be written, also for a run without ranks."""
        return bool(self.report_dir or self.history_dir or self.prometheus)


OPTIONS = {  # by field of Settings
    "nodes": Option(
        "nodes", "N|free|free:N",
        "run tests that need ranks on N nodes (default: as many as the most demanding test needs); "
        "free: on all nodes that are free now; free:N: on N of them at most, those that were "
        "tested longest ago by --mnode-history",
        option_texts.nodes, see="certificate.md#a-busy-cluster",
    ),
    "budget_s": Option(
        "budget", "TIME",
        "start no test later than this after the run began, such as 2h or 90min; the certificate "
        "names what was not run",
        option_texts.budget, see="certificate.md#a-busy-cluster",
    ),
    "soak_s": Option(
        "soak", "TIME",
        "load all nodes for this time, such as 4h, in rounds of checked products, collectives and "
        "transfers between changing pairs; with the --mnode-report of a soak that was cut, the "
        "time that it lasted counts (default: as criteria.soak.for promises, else none)",
        option_texts.budget, see="soak.md",
    ),
    "tune": Option(
        "tune", "NAME[,…]|all",
        "try settings in turns, and say what they gain and what to write to have them: "
        f"{', '.join(option_texts.EXPERIMENTS)} (default: those that criteria.tuning names)",
        option_texts.experiments, see="tuning.md",
    ),
    "procs_per_node": Option(
        "procs-per-node", "G",
        "ranks per node (default: one per accelerator, else 1)",
        option_texts.whole(1),
    ),
    "launcher": Option(
        "launcher", "auto|local|rack|ssh|slurm|…",
        f"how commands reach the nodes: {', '.join(LAUNCHERS[1:])}; auto: slurm, pbs, lsf or flux "
        "inside an allocation, ssh with a hostfile, kubernetes with a --mnode-k8s option, else the "
        "rack, or plain processes (local) where namespaces are not allowed",
        option_texts.choice_or_installed(LAUNCHERS, BACKENDS_GROUP), initial="auto",
    ),
    "hostfile": Option(
        "hostfile", "FILE",
        "nodes to reach by ssh, mpi or exec: one 'host slots=8' per line, ranges node[01-16]",
        option_texts.path, see="ssh.md",
    ),
    "exec": Option(
        "exec", "COMMAND",
        "the site's command that starts a program on nodes, such as 'pdsh -w {hosts}', or one for "
        "each node, such as 'blaunch {host}'; {nodes}: their number",
        option_texts.words, see="backends.md",
    ),
    "slurm_args": Option(
        "slurm-args", "ARGS",
        "extra arguments of the allocation that the run asks Slurm for, such as '--partition=gpu'; "
        "used only outside an allocation",
        option_texts.words, see="slurm.md",
    ),
    "srun_args": Option(
        "srun-args", "ARGS",
        "extra arguments of each step of the run and its jobs on Slurm, such as a container: "
        "'--container-image=… --container-mounts=…'",
        option_texts.words, see="backends.md#options-of-a-site",
    ),
    "k8s_context": Option(
        "k8s-context", "NAME",
        "the context of your kubeconfig whose Kubernetes gives the nodes",
        option_texts.text, see="kubernetes.md",
    ),
    "k8s_namespace": Option(
        "k8s-namespace", "NAME",
        "the namespace of the run's pods (default: the context's)",
        option_texts.text, see="kubernetes.md",
    ),
    "k8s_template": Option(
        "k8s-template", "FILE",
        "manifest of the run's pods: a Pod, PodTemplate, Job, JobSet, TrainJob, PyTorchJob or a "
        "Job of Volcano; command, names and count are filled in, all else is kept",
        option_texts.path, see="kubernetes.md",
    ),
    "k8s_image": Option(
        "k8s-image", "IMAGE",
        "image of the run's pods where no template is given (default: that of the pod in which "
        "pytest runs)",
        option_texts.text, see="kubernetes.md",
    ),
    "k8s_wait_s": Option(
        "k8s-wait", "SECONDS",
        "how long pods may take until they run, images and queues included",
        option_texts.seconds, initial="300", see="kubernetes.md",
    ),
    "start_limit_s": Option(
        "start-limit", "SECONDS",
        "how long a node may take to start a command, or to dial in: Slurm's Prolog, the login, "
        "and Python from storage that is slow at the first access; five times as long to import "
        "torch and the tests; as long again for every 256 nodes",
        option_texts.seconds, initial="60", see="slurm.md#slow-starts",
    ),
    "report_limit_s": Option(
        "report-limit", "SECONDS",
        "how long a node may take to report what it is, once its program has started",
        option_texts.seconds, initial="30", see="slurm.md#slow-starts",
    ),
    "connect_limit_s": Option(
        "connect-limit", "SECONDS",
        "how long a connection may take: ssh's, a stream to a pod, one from a node to this "
        "machine, and that to a node that has come back",
        option_texts.seconds, initial="15", see="slurm.md#slow-starts",
    ),
    "silence_limit_s": Option(
        "silence-limit", "SECONDS",
        "how long a connection to a node may carry nothing before the node is lost; raise it where "
        "nodes or the network between them and pytest stall for longer",
        option_texts.seconds, initial="6", see="ssh.md",
    ),
    "python": Option(
        "python", "PATH",
        "the Python on the nodes of ssh, slurm (default: this one) and kubernetes (default: "
        "python3)",
        option_texts.text,
    ),
    "prologue": Option(
        "prologue", "FILE",
        "a script on the nodes that bash reads before each command there, such as one that loads "
        "modules",
        option_texts.path, see="backends.md#options-of-a-site",
    ),
    "shared_dir": Option(
        "shared-dir", "DIR",
        "a directory that all nodes see (default: a hidden temporary one below the root of the "
        "tests)",
        option_texts.directory,
    ),
    "discover": Option(
        "discover", "FILE",
        "run no test: read what the nodes have, and write a first spec into FILE",
        option_texts.path, see="spec.md",
    ),
    "spec": Option(
        "spec", "FILE|profile:NAME",
        "YAML page of what the cluster promises, or a profile of the package (default: the rack's "
        "own)",
        option_texts.spec, see="spec.md",
    ),
    "backend": Option(
        "backend", "auto|gloo|nccl|…",
        f"of process groups: {', '.join(BACKENDS)}; auto: nccl where the spec promises "
        "accelerators, else gloo",
        option_texts.choice(BACKENDS), initial="auto",
    ),
    "reuse": Option(
        "reuse", "warm|group|fresh",
        "what tests share: ranks and process group (warm), ranks with a new group (group), or "
        "nothing (fresh)",
        option_texts.choice(REUSE), initial="warm",
    ),
    "timeout_s": Option(
        "timeout", "SECONDS",
        "limit of a test that runs in ranks; tests of the fabric have less, as follows from the "
        "spec",
        option_texts.seconds, initial="300",
    ),
    "report_dir": Option(
        "report", "DIR",
        "append evidence.jsonl.gz in DIR as the run goes, write certificate.json, .xml and .html "
        "at its end, and fail a run that is not certified",
        option_texts.directory, see="certificate.md",
    ),
    "history_dir": Option(
        "history", "DIR",
        "keep this run's certificate in DIR, and add what the runs kept there found out",
        option_texts.directory, see="certificate.md#history",
    ),
    "history_key": Option(
        "history-key", "FILE",
        "believe only those runs of --mnode-history that the owner of this public key has signed",
        option_texts.path, see="certificate.md#history",
    ),
    "prometheus": Option(
        "prometheus", "FILE",
        "write verdicts, measurements and expiry as metrics of Prometheus",
        option_texts.new_file, see="certificate.md#prometheus",
    ),
    "log_dir": Option(
        "log-dir", "DIR",
        "keep the logs of all ranks, in a new directory in DIR for each run; the header names it",
        option_texts.directory,
    ),
    "locate_budget_s": Option(
        "locate-budget", "SECONDS",
        "how long to look for what slows the fabric; left out: what the rounds over the nodes take",
        option_texts.seconds_if_given, see="locating.md",
    ),
    "numa_bind": Option(
        "numa-bind", "auto|none|node|exclusive",
        "which CPUs ranks are bound to: none; node (all beside the accelerator) or exclusive "
        "(cores of their own there), as torchrun's --numa-binding; auto: torch's own default if it "
        "has one, else exclusive",
        option_texts.choice(NUMA_BIND), initial="auto", see="placement.md",
    ),
    "faults": Option(
        "fault", "NAME:NODE[:VALUE][@AFTER][,…]",
        "inject faults on the rack before the first test; such a run never certifies (an unknown "
        "name lists all)",
        option_texts.text, see="faults.md",
    ),
    "may_leave": Option(
        "may-leave", "PATTERN[,…]",
        "what tests in ranks may leave behind: threads by name, child processes by command, such "
        "as 'courier-*'; memory; alarm",
        option_texts.patterns, see="#what-a-test-leaves-behind",
    ),
    "unequal_calls": Option(
        "unequal-calls", "fail|allow",
        "a test that passes in all ranks although their calls of torch.distributed differ",
        option_texts.choice(UNEQUAL_CALLS), initial="fail", see="#calls-that-differ",
    ),
    "env": Option(
        "env", "NAME[=VALUE] …",
        "variables of all programs on nodes, such as 'NCCL_DEBUG=INFO HF_*'; a name or a pattern "
        "without a value passes variables of pytest's own environment",
        option_texts.variables, see="#environment",
    ),
    "debug_rank": Option(
        "debug-rank", "RANK",
        "the rank that breakpoint(), --pdb and --trace stop; the other ranks wait for it (default: "
        "the first that reaches a breakpoint or fails)",
        option_texts.whole(0), see="#debugging",
    ),
}  # fmt: skip

_FLAGS = {
    "locate": (
        "measure every path between two nodes, also of more than 64 nodes", "locating.md"
    ),
    "plan": (
        "run no test: print criteria, expected minutes, what they load, and what nodes lack",
        "plan.md",
    ),
}  # fmt: skip
"""Options without a value: an optional one would take the next word, often a path of tests."""


def add_options(parser: pytest.Parser) -> None:
    """Add every option, and an ini key `mnode_*` for each."""
    group = parser.getgroup("mnode", "multi-node training clusters")
    for option in OPTIONS.values():
        group.addoption(
            option.flag, dest=option.ini_key, metavar=option.metavar, help=option.full_help
        )
        kind: Any = "linelist" if option.read is option_texts.patterns else "string"
        parser.addini(option.ini_key, f"as {option.flag}", kind, option.initial)
    for name, (text, _) in _FLAGS.items():
        group.addoption(f"--mnode-{name}", action="store_true", help=text)


def read_settings(config: pytest.Config) -> Settings:
    """Settings of a run. Raises pytest.UsageError, one line, naming the option or the ini key."""
    values = {field: setting(config, field) for field in OPTIONS}
    if isinstance(values["nodes"], option_texts.Free):
        values |= {"nodes": None, "free_at_most": values["nodes"].at_most}
    return Settings(**values)


def setting(config: pytest.Config, field: str) -> Any:
    """One of the Settings of a run, also in a rank."""
    return OPTIONS[field].read(_given(config, OPTIONS[field]))


def locate_budget_s(config: pytest.Config) -> float | None:
    """Seconds to spend on locating slow links; None if not given. In ranks and the controller."""
    given: float | None = setting(config, "locate_budget_s")
    return given


def faults_given_by(config: pytest.Config) -> str:
    """The option or the ini key that names the faults."""
    return _given(config, OPTIONS["faults"]).where


def _given(config: pytest.Config, option: Option) -> Given:
    text: Any = config.getoption(option.ini_key)
    if text is not None:
        return Given(option.flag, str(text), config.invocation_params.dir)
    file = f" in {config.inipath.name}" if config.inipath else ""
    value = config.getini(option.ini_key)
    text = "\n".join(map(str, value)) if isinstance(value, list) else str(value).strip()
    return Given(f"{option.ini_key}{file}", text, config.rootpath)


def documentation() -> str:
    """The options as rows of a Markdown table."""
    rows = []
    for option in OPTIONS.values():
        see = f": [more]({option.see})" if option.see else ""
        rows.append((f"{option.flag}={option.metavar}", option.full_help + see))
    rows += [(f"--mnode-{name}", f"{text}: [more]({see})") for name, (text, see) in _FLAGS.items()]
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join(f"| `{flag}` | {text} |" for flag, text in cells)


if __name__ == "__main__":
    print(documentation())
