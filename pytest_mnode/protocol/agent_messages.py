"""Messages between the hub and the agents on nodes, and between an agent and its fork server."""

from __future__ import annotations

from dataclasses import dataclass, field

from pytest_mnode.machine.cgroup import OomKills
from pytest_mnode.machine.sysfs import AS_IT_IS, SysfsView
from pytest_mnode.machine.tcp import TcpState
from pytest_mnode.protocol.world import WorldInfo


@dataclass(frozen=True)
class NodeEntry:
    """A node, for its agent. namespace_pid: a process in the namespaces that are the node."""

    name: str
    index: int
    address: str
    fabric_interface: str | None
    namespace_pid: int | None


@dataclass(frozen=True)
class StartForkServer:
    """Import torch, because ranks are needed."""


@dataclass(frozen=True)
class NodeBooted:
    """A node of this agent was booted again; `entry` replaces its earlier entry."""

    entry: NodeEntry


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
    files imported.
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


@dataclass(frozen=True)
class OwnImports:
    """Files that ranks must import for themselves, each with the reason."""

    files: dict[str, str]


@dataclass(frozen=True)
class StopWorld:
    """End a node's part of a world, with every process that it started."""

    node: str
    world: str


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
class AgentAlive:
    agent: int
    incarnation: int = 0


@dataclass(frozen=True)
class AgentFailed:
    """An agent's fork server ended or could not do its work; `text` is for the user."""

    agent: int
    text: str
    incarnation: int = 0


@dataclass(frozen=True)
class NodeReady:
    """Ranks can be started on a node. store_port: for the next world whose first node it is."""

    node: str
    store_port: int


@dataclass(frozen=True)
class NodeGone:
    """The namespaces of a node have ended."""

    node: str


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

    run_id: value of the variable RUN in processes that the controller starts on the agent's nodes.
    remote: the agent's node is another machine, where the agent makes a directory of its own
    (run_dir is empty then). prefixes: prefixes of the controller's Python, if the nodes run
    another one. own_sys_path: sys.path of the agent's own Python.
    incarnation: how many agents of this number were started before; the hub listens only to the
    last one.
    open_files: limit of open files of the agent and of each rank; None if the controller's own
    limit is no higher.
    silence_s: how long a hub on another machine, which sends a message every second, may be silent.
    """

    agent: int
    endpoint: str
    keys: dict[str, str]
    run_dir: str
    log_dir: str
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
class ForkServerReady:
    """Torch is imported and tests are collected. own_imports: files left out, with the reasons."""

    own_imports: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ForkServerFailed:
    text: str


@dataclass(frozen=True)
class ForkLauncher:
    """Fork the elastic launcher of a node's part of a world, in the namespaces of the node.

    Its descriptors: the launcher's pipe to the agent and, on the first node, the listening store.
    """

    launch: Launch
    namespace_pid: int | None


@dataclass(frozen=True)
class LauncherForked:
    """The first process of a node's part of a world was forked; `pid` is its pid."""

    node: str
    world: str
    pid: int
