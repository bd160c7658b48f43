"""What to run, what became of it, and what happened in between: values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.node import count


@dataclass(frozen=True, slots=True)
class Job:
    """What to run: `argv` as after torchrun's own options, such as ["train.py", "--steps=5"].

    nodes: how many, or which (None: all but the spares). torchrun: further options of torchrun
    itself.
    env: of every process of the job. GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME name the fabric's
    interface unless they are set here or in the environment of the run.
    restarts: how often torchrun starts all ranks anew because one failed (--max-restarts). Nodes
    then meet by torchrun's c10d rendezvous: with the static one a node restarts its own ranks
    alone, and they wait for the others in vain.
    requeues: how often the whole job is started again, as a scheduler does: when a node is gone,
    or when it was preempted. MNODE_REQUEUE counts them in the ranks' environment, from 0.
    spares: nodes that stand in for lost ones. fewest_nodes: a requeued job may be as small; None:
    as large as at first, so that without spares it waits for the lost node to be booted again.
    back_within_s: how long it waits for that.

    Raises UsageError for a number below what makes sense, nodes or spares named twice, no nodes at
    all, or a spare that the job runs on.
    """

    argv: Sequence[str]
    nodes: int | Sequence[str] | None = None
    procs_per_node: int = 1
    env: Mapping[str, str] = field(default_factory=dict)
    torchrun: Sequence[str] = ()
    restarts: int = 0
    requeues: int = 0
    spares: Sequence[str] = ()
    fewest_nodes: int | None = None
    back_within_s: float = 120.0

    def __post_init__(self) -> None:
        for name in ("restarts", "requeues"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name}={getattr(self, name)}: give 0 or more")
        if self.procs_per_node < 1:
            raise UsageError(f"procs_per_node={self.procs_per_node}: give 1 or more")
        named = () if isinstance(self.nodes, int | None) else tuple(self.nodes)
        for what, names in (("nodes", named), ("spares", tuple(self.spares))):
            twice = [name for number, name in enumerate(names) if name in names[:number]]
            if twice:
                raise UsageError(f"{what}: {twice[0]} is named twice; give each node once")
        if not isinstance(self.nodes, int | None) and not named:
            raise UsageError("nodes: none; give one or more, or leave it out for all")
        if self.fewest_nodes is not None and self.fewest_nodes < 1:
            raise UsageError(f"fewest_nodes={self.fewest_nodes}: give 1 or more")
        if not isinstance(self.nodes, int | None):
            for name in set(self.spares) & set(self.nodes):
                raise UsageError(f"spares: the job runs on {name}; give nodes that it does not use")

    def placed_on(self, there: Sequence[str]) -> tuple[str, ...]:
        """Names of the nodes it begins on, of those there are. Raises UsageError."""
        for name in (*self.spares, *(() if isinstance(self.nodes, int | None) else self.nodes)):
            if name not in there:
                raise UsageError(f"no node {name!r} in this test; it has {', '.join(there)}")
        if not isinstance(self.nodes, int | None):
            return tuple(self.nodes)
        free = tuple(name for name in there if name not in self.spares)
        if self.nodes is not None and not 1 <= self.nodes <= len(free):
            spared = f", {len(self.spares)} of them spares" if self.spares else ""
            raise UsageError(f"nodes={self.nodes}: this test has {count(len(there))}{spared}")
        if not free:
            raise UsageError("spares: all nodes of this test; leave one for the job")
        return free[: self.nodes]


@dataclass(frozen=True, slots=True)
class JobResult:
    """Exit status of torchrun on every node that it ran on last, and what the job printed there."""

    returncodes: dict[str, int]
    output: dict[str, str]

    @property
    def ok(self) -> bool:
        return all(code == 0 for code in self.returncodes.values())


@dataclass(frozen=True, slots=True)
class JobEvent:
    """Something that happened to a job, or was done to it.

    time_s: wall clock, seconds since 1970: the node's own for a signal, else the controller's.
    what: "submitted", "started", "signalled", "ended", "node lost", "preempted", "killed",
    "requeued", "gave up".
    requeue: which start of the job it belongs to, from 0.
    """

    time_s: float
    what: str
    requeue: int
    node: str | None = None
    pids: tuple[int, ...] = ()
    detail: str = ""

    def __str__(self) -> str:
        where = f" on {self.node}" if self.node else ""
        pids = f", pids {' '.join(map(str, self.pids))}" if self.pids else ""
        return f"{self.time_s:.3f} {self.what}{where}{pids}{': ' * bool(self.detail)}{self.detail}"
