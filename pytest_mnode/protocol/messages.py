"""Messages of the processes of a run, and the values in them: worlds, leases, reports, stacks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pytest_mnode.machine.cgroup import OomKills
from pytest_mnode.machine.sysfs import AS_IT_IS, SysfsView
from pytest_mnode.machine.tcp import TcpState

if TYPE_CHECKING:
    from pytest_mnode.charts import Chart
    from pytest_mnode.measurement import Measurement

HUB = "hub"
BEAT = b"mnode-is-there"
"""Heartbeat of agents to the hub, and of the hub to agents on other machines, in raw bytes."""
BEAT_S = 1.0
RUN = "MNODE_RUN"
"""Environment variable of processes started on nodes; its value is the directory of their run."""


@dataclass(frozen=True)
class Shape:
    """The size of a world: `nodes` × `procs_per_node` ranks."""

    nodes: int
    procs_per_node: int

    @property
    def size(self) -> int:
        return self.nodes * self.procs_per_node

    def __str__(self) -> str:
        return f"{self.nodes}×{self.procs_per_node}"


@dataclass(frozen=True)
class WorldInfo:
    """The controller's description of a world.

    nodes: name of the node of each group rank.
    log_dir: set by the agent that starts its ranks.
    new_group: the world's next test shares no process group with an earlier test.
    own_imports: each rank imported for itself the test modules that cannot be shared.
    only_in_ranks: node ids of tests that some of its ranks have and the controller does not have.
    """

    id: str
    shape: Shape
    nodes: tuple[str, ...]
    new_group: bool = True
    log_dir: str = ""
    own_imports: bool = False
    only_in_ranks: tuple[str, ...] = ()

    def node_of(self, rank: int) -> str:
        return self.nodes[rank // self.shape.procs_per_node]

    def place(self, rank: int) -> str:
        return f"rank {rank} on {self.node_of(rank)}"


@dataclass(frozen=True)
class Lease:
    """Nodes that a client has exclusively until it gives them back."""

    id: int
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class NodeEntry:
    """A node, for its agent; sent again when the node was booted again.

    namespace_pid: a process in the namespaces that are the node.
    """

    name: str
    address: str
    namespace_pid: int | None


@dataclass(frozen=True)
class RankStart:
    """A launcher's instructions for starting the ranks of a node.

    cpus: CPUs of local ranks 0, 1, …; further ranks start again from the first entry. An empty
    entry leaves its rank unbound. None: ranks are bound as --mnode-numa-bind says.
    first: a Python file, a function in it and its arguments; each rank calls the function before
    anything else. The rack injects faults this way.
    """

    cpus: tuple[tuple[int, ...], ...] | None = None
    first: tuple[str, ...] = ()


@dataclass(frozen=True)
class BindingOrder:
    """How to bind and start the ranks of a node.

    mode: a choice of --mnode-numa-bind. shown: where the node shows its CPU sockets.
    start: the launcher's instructions. nics: names and patterns of the NICs whose CPUs ranks are
    bound to if there are no accelerators.
    """

    mode: str = "auto"
    shown: SysfsView = AS_IT_IS
    start: RankStart = RankStart()
    nics: tuple[str, ...] = ()


@dataclass(frozen=True)
class Launch:
    """Start the ranks of one node of a world. accelerators: number promised by the spec.

    own_imports: files that each rank imports for itself; if empty, ranks are forked with all other
    files imported. namespace_pid: see NodeEntry; the agent knows it.

    To the fork server it comes with descriptors: the launcher's pipe to the agent and, on the first
    node, the listening store.
    """

    node: str
    world: WorldInfo
    node_rank: int
    master_addr: str
    master_port: int
    backend: str
    accelerators: int
    env: dict[str, str]
    binding: BindingOrder
    own_imports: tuple[str, ...] = ()
    namespace_pid: int | None = None


@dataclass(frozen=True)
class TakeStacks:
    """Request the stacks of a node's ranks.

    poll_id: if given, the answer repeats it and holds places, calls and running ranks, not stacks.
    native: if not empty, the answer holds only the C stacks of these ranks.
    """

    node: str
    world: str
    poll_id: int | None = None
    native: tuple[int, ...] = ()


@dataclass(frozen=True)
class PartLost:
    """A node's part of a world could not start, or was lost. node: "" means all nodes."""

    node: str
    world: str
    text: str


@dataclass(frozen=True)
class Death:
    """A rank ended. Exactly one of `code` and `signal` is not None.

    output: end of what the test printed; log: end of the rank's own log; fault: the stacks that
    faulthandler wrote; peak_rss_bytes: the rank's peak resident memory, None if not known;
    oom_kills: OOM kills on the rank's node since the world started;
    ordinal, phase: of the last test that the rank began, None and "" before its first test.
    """

    node: str
    world: str
    rank: int
    pid: int
    code: int | None
    signal: int | None
    output: str = ""
    log: str = ""
    fault: str = ""
    peak_rss_bytes: int | None = None
    oom_kills: OomKills = field(default_factory=OomKills)
    error: str = ""
    ordinal: int | None = None
    phase: str = ""


@dataclass(frozen=True)
class Progress:
    """The last test that a rank began (None: none yet) and its phase, "after" once it has ended."""

    ordinal: int | None = None
    phase: str = ""


@dataclass(frozen=True)
class StackTexts:
    """Raw faulthandler dumps (`texts`) by rank; "" if a rank wrote none in time.

    outputs: end of what the test had printed; states: why there is no stack, if known;
    children: stacks of the rank's child processes, such as a DataLoader's workers;
    places: the test and phase that each rank was in, which may be ahead of the rank's reports;
    calls: each rank's record of collectives, for call_record.parse; kernel: where each rank's
    threads are in the kernel; tcp: peers of each rank that do not answer; native: C stacks;
    poll_id: as in the TakeStacks that this answers; running: ranks that run or wait for a core,
    only in the answer to a poll.
    """

    node: str
    world: str
    texts: dict[int, str] = field(default_factory=dict)
    outputs: dict[int, str] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    children: dict[int, str] = field(default_factory=dict)
    places: dict[int, Progress] = field(default_factory=dict)
    calls: dict[int, str] = field(default_factory=dict)
    kernel: dict[int, str] = field(default_factory=dict)
    tcp: dict[int, TcpState] = field(default_factory=dict)
    native: dict[int, str] = field(default_factory=dict)
    poll_id: int | None = None
    running: tuple[int, ...] = ()


@dataclass(frozen=True)
class AgentOrder:
    """The order that an agent reads from its standard input, as JSON.

    path, token: of the switchboard that the agent's ranks speak to: the hub's, or the agent's own
    if its node is another machine, where it makes a directory of its own (run_dir is empty then).
    remote: the agent's node is another machine: its standard input and output lead to the hub.
    run_id: value of the variable RUN in processes that the controller starts on the agent's nodes.
    prefixes: prefixes of the controller's Python, if the nodes run
    another one. own_sys_path: sys.path of the agent's own Python.
    incarnation: how many agents of this number were started before; the hub listens only to the
    last one, which has a name of its own.
    open_files: limit of open files of the agent and of each rank; None if the controller's own
    limit is no higher.
    silence_s: how long a hub on another machine, which sends a message every second, may be silent.
    """

    agent: int
    run_dir: str
    log_dir: str
    path: str = ""
    token: str = ""
    nodes: tuple[NodeEntry, ...] = ()
    sys_path: tuple[str, ...] = field(default=())
    run_id: str = ""
    remote: bool = False
    prefixes: tuple[str, ...] = ()
    own_sys_path: tuple[str, ...] = ()
    incarnation: int = 0
    open_files: int | None = None
    silence_s: float = 15.0

    @property
    def peer(self) -> str:
        """The agent's name on the hub's switchboard."""
        return f"agent/{self.agent}.{self.incarnation}"

    @property
    def logs_are_temporary(self) -> bool:
        """Whether logs are deleted with the run's directory: the user named no log directory."""
        return self.log_dir.startswith(self.run_dir)


@dataclass(frozen=True)
class Collected:
    """The tests are collected, and ranks can be forked.

    own_imports: files that ranks must import for themselves, each with the reason. failure: why an
    agent can start no ranks, now or any more, for the user; "" if it can. fit: false if no rank can
    be forked from this collector, but perhaps from another one without these files.
    """

    own_imports: dict[str, str] = field(default_factory=dict)
    failure: str = ""
    fit: bool = True


@dataclass(frozen=True)
class Call:
    """A call of a method of the process that gets it: nearly all messages are calls.

    seq: to the hub, of the Answer that the client waits for, 0 if the method has none; between a
    client and its ranks, the ordinal of the test or function.

    The methods of the hub are `on_METHOD` in `controller.hub`; their first argument is an Asked if
    they have an answer. Those of a rank are in `rank.entry.serve`, those of a test, with the rank
    as first argument, in `WorldTest`. An agent has two: stop_world(node, world) ends a node's part
    of a world, with every process that it started; forked(node, world, pid) says that the first
    process of such a part was forked. A fork server has one: import_torch(), as ranks are needed.
    """

    seq: int
    method: str
    args: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Answer:
    """The value of a Call, or an MnodeError that the client raises."""

    seq: int
    value: Any


@dataclass(frozen=True)
class Collect:
    """Configuration of the controller's pytest, so that fork servers collect the same items.

    args: pytest's arguments, of which only `files` are collected. options: each pickled, because
    its class may be of a conftest.py. ranks: whether some items run in ranks. collected: node ids
    that the controller collected, by file, of files in which ranks may have further tests.
    """

    args: tuple[str, ...]
    files: frozenset[str]
    options: dict[str, bytes]
    inifile: str | None
    rootdir: str
    cwd: str
    sys_path: tuple[str, ...]
    basetemp: str
    markers: tuple[str, ...] = ()
    ranks: bool = True
    collected: dict[str, frozenset[str]] = field(default_factory=dict)

    def only(self, files: frozenset[str]) -> Collect:
        """The same configuration, restricted to these files."""
        others = self.files - files
        return replace(self, args=tuple(a for a in self.args if a not in others), files=files)


@dataclass(frozen=True)
class OpenTerminal:
    """Open a terminal for a rank; a DebuggerAnswer answers.

    The agent's side, not the rank, holds the terminal of a debugged rank, so that it can be read
    and interrupted while the rank computes or is stuck. Between it and the user's terminal is a
    tunnel of bytes.

    size: lines and columns; None: two pipes instead, because the user's own input is no terminal.
    term: the value of TERM.
    """

    node: str
    world: str
    rank: int
    size: tuple[int, int] | None = None
    term: str = ""


@dataclass(frozen=True)
class DebuggerAnswer:
    """The answer to OpenTerminal, and to a rank that asks for the debugger.

    reads, writes: paths of the rank's terminal; "" if another rank is debugged. term: the value of
    TERM. error: why this rank cannot be debugged; "" if one can.
    """

    world: str
    rank: int
    reads: str = ""
    writes: str = ""
    term: str = ""
    error: str = ""


@dataclass(frozen=True)
class TerminalData:
    """Bytes in the tunnel: the user's input for the rank, of which b"" is the end, or its output.

    None closes the terminal, and says that it is closed, after all output.
    """

    node: str
    world: str
    rank: int
    data: bytes | None


@dataclass(frozen=True)
class LiveOutput:
    """Whole lines that a node's ranks printed since the previous message, by rank."""

    world: str
    lines: dict[int, list[str]] = field(default_factory=dict)


TIMES = frozenset(("duration", "start", "stop"))
"""Fields of a passed report that differ between ranks if nothing was captured or added."""

Made = tuple[tuple[str, int, int], ...]
"""The calls of one rank in a test: by group or channel their number, and a digest of what must be
equal in all ranks of the group."""


@dataclass(frozen=True)
class PhaseReport:
    """A pytest report as pytest serialises it; for a plain pass only its TIMES.

    partial: an additional report, such as a subtest's, and not pytest's own report of setup, call
    or teardown. unexpected_pass: the outcome is failed, because the body passed against its mark.
    apart: the outcome is skipped, by a mark that may depend on the rank's own variables.
    """

    when: str
    outcome: str
    data: dict[str, Any]
    partial: bool = False
    unexpected_pass: bool = False
    apart: bool = False


@dataclass(frozen=True)
class TornDown:
    """The test, or the function, is over, and the rank waits for its next order. `leaks` are lines
    for the user; a world with leaks is not reused.

    problem: what made it fail; of a function the whole error, whose last lines are `summary`.
    value: what the function returned, by cloudpickle.
    entered: how many operations of the default process group this rank has entered so far.
    made: its calls in this test, if they can be compared with those of other ranks.
    new_group: the store holds keys of destroyed groups, which the next group would find.
    holds_group: a fixture of wide scope made a process group, which the next test uses.
    absent: this rank does not have the test, whose file may decide so by the rank's own variables.
    data: of other plugins, by the name of the adaptor in `contrib`.
    """

    leaks: tuple[str, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    warnings: tuple[tuple[Any, ...], ...] = ()
    reusable: bool = True
    new_group: bool = False
    holds_group: bool = False
    problem: str = ""
    entered: int | None = None
    made: Made | None = None
    reports: tuple[PhaseReport, ...] = ()
    charts: tuple[Chart, ...] = ()
    suite_properties: tuple[tuple[str, Any], ...] = ()
    absent: bool = False
    data: dict[str, Any] = field(default_factory=dict)
    value: bytes = b""
    summary: str = ""


@dataclass(frozen=True)
class RunItem:
    """A test to run. keep_group: if False, a test that uses a process group gets a new one.

    next_nodeid: node id of the controller's next test, wherever that test runs. keep: node id of
    the innermost collector whose fixtures outlive this test; None: no fixture does. shared_tmp: a
    new directory that all ranks see; "" if there is none.
    """

    nodeid: str
    next_nodeid: str | None
    keep_group: bool
    keep: str | None = None
    shared_tmp: str = ""
