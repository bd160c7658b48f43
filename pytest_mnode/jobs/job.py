"""Values: a job, its result, its events, and the decision whether to start it again. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.node import check_argv, check_env, count


@dataclass(frozen=True, slots=True)
class Job:
    """A torchrun job: `argv` is what follows torchrun's own options, such as ["train.py"].

    nodes: their number or their names, or one name; None for all nodes except the spares.
    torchrun: further options of torchrun.
    env: variables of every process of the job. GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME name the
    fabric's interface unless they are set here or in the environment of the run.
    restarts: how often torchrun restarts all ranks after one failed (--max-restarts). Nodes then
    use torchrun's c10d rendezvous; with the static one, a node would restart only its own ranks,
    which would wait for the others in vain.
    requeues: how often the whole job is started again, as a scheduler does, after a node was lost
    or the job was preempted. MNODE_REQUEUE in the ranks is the number of the start, from 0.
    spares: nodes that replace lost ones. fewest_nodes: the smallest size of a requeued job; None
    for its first size, so that without spares it waits until the lost node is booted again.
    back_within_s: the longest such wait.

    Raises UsageError for a number that is too small, a node named twice, an empty list of nodes, a
    spare that the job runs on, or what is no command and no variable.
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
        for name in ("argv", "torchrun"):
            words = getattr(self, name)
            if words or name == "argv":
                check_argv(words, name)
            object.__setattr__(self, name, tuple(map(str, words)))  # a Path is not JSON
        check_env(self.env)
        spares = (self.spares,) if isinstance(self.spares, str) else tuple(self.spares)
        object.__setattr__(self, "spares", spares)
        for name, least in (("restarts", 0), ("requeues", 0), ("procs_per_node", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"{name}={getattr(self, name)}: give {least} or more")
        if self.fewest_nodes is not None and self.fewest_nodes < 1:
            raise UsageError(f"fewest_nodes={self.fewest_nodes}: give 1 or more")
        if (named := self._named) is not None:
            check_named(named)
        each_once("spares", self.spares)
        for name in set(self.spares) & set(named or ()):
            raise UsageError(f"spares: the job runs on {name}; give nodes that it does not use")

    @property
    def _named(self) -> tuple[str, ...] | None:
        """The nodes if given by name; None if given by number, or not at all."""
        if isinstance(self.nodes, str):
            return (self.nodes,)
        return None if isinstance(self.nodes, int | None) else tuple(self.nodes)

    def placed_on(self, there: Sequence[str]) -> tuple[str, ...]:
        """The nodes of its first start, chosen from `there`. Raises UsageError if impossible."""
        for name in (*self.spares, *(self._named or ())):
            if name not in there:
                raise UsageError(f"no node {name!r} in this test; it has {', '.join(there)}")
        if self._named is not None:
            return self._named
        free = tuple(name for name in there if name not in self.spares)
        if not free:
            raise UsageError("spares: all nodes of this test; leave one for the job")
        number = self.nodes if isinstance(self.nodes, int) else len(free)
        if not 1 <= number <= len(free):
            spared = f", {len(self.spares)} of them spares" if self.spares else ""
            raise UsageError(f"nodes={number}: this test has {count(len(there))}{spared}")
        return free[:number]


def check_named(nodes: Sequence[str]) -> None:
    """Raises UsageError for an empty list, and for a node that is named twice."""
    if not nodes:
        raise UsageError("nodes: none; give one or more, or leave it out for all")
    each_once("nodes", nodes)


def each_once(what: str, names: Sequence[str]) -> None:
    """Raises UsageError for a node that is named twice."""
    twice = [name for number, name in enumerate(names) if name in names[:number]]
    if twice:
        raise UsageError(f"{what}: {twice[0]} is named twice; give each node once")


@dataclass(frozen=True, slots=True)
class JobResult:
    """Exit status of torchrun and output of the job, by node of its last start."""

    returncodes: dict[str, int]
    output: dict[str, str]

    @property
    def ok(self) -> bool:
        return all(code == 0 for code in self.returncodes.values())


@dataclass(frozen=True, slots=True)
class JobEvent:
    """An event of a job.

    time_s: seconds since 1970, by the node's clock for a signal, else by the controller's.
    what: "submitted", "started", "signalled", "ended", "node lost", "preempted", "killed",
    "requeued", "gave up".
    requeue: number of the start of the job, from 0.
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
        detail = f": {self.detail}" if self.detail else ""
        return f"{self.time_s:.3f} {self.what}{where}{pids}{detail}"


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """A running job at one moment.

    nodes: of this start, in the order of ranks. first_size: number of nodes of the first start.
    ended: exit status of torchrun, by node on which it ended. there: all nodes that answer now,
    including spares. lost: nodes of this start that were lost at some time, back or not.
    requeue: number of this start, from 0. preempted: the job got SIGTERM from its scheduler.
    """

    nodes: tuple[str, ...]
    first_size: int
    ended: Mapping[str, int]
    there: Sequence[str]
    lost: tuple[str, ...]
    requeue: int
    preempted: bool = False

    @property
    def is_over(self) -> bool:
        return len(self.ended) == len(self.nodes)


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with a job: wait, start it again on `nodes`, or end it (`final`).

    nodes: () while the job waits for enough nodes. why: the detail of the event.
    """

    final: bool = False
    nodes: tuple[str, ...] = ()
    why: str = ""


WAIT = Decision()


def decide(job: Job, snapshot: JobSnapshot) -> Decision:
    """Whether a scheduler would start this job again now, and on which nodes."""
    lost = snapshot.lost
    if not lost and not snapshot.is_over:
        return WAIT
    if not lost and (not snapshot.preempted or not any(snapshot.ended.values())):
        return Decision(final=True)
    why = f"{', '.join(lost)} is gone" if lost else "preempted"
    if snapshot.requeue >= job.requeues:
        # Ranks on other nodes still run: they fail by themselves, or the caller's limit ends them.
        return Decision(final=True, why=why) if snapshot.is_over else WAIT
    return Decision(nodes=_nodes_of_next_start(job, snapshot), why=why)


def _nodes_of_next_start(job: Job, snapshot: JobSnapshot) -> tuple[str, ...]:
    """The remaining nodes, with spares in the places of lost ones; () if too few remain."""
    free = [name for name in job.spares if name in snapshot.there and name not in snapshot.nodes]
    kept: list[str] = []
    for name in snapshot.nodes:
        if name in snapshot.there:
            kept.append(name)
        elif free:
            kept.append(free.pop(0))
    enough = snapshot.first_size if job.fewest_nodes is None else job.fewest_nodes
    return tuple(kept) if len(kept) >= enough else ()
