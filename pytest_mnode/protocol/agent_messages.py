"""Messages between the hub and the agents on nodes, and between an agent and its fork server."""

from __future__ import annotations

from dataclasses import dataclass, field

from pytest_mnode.machine.cgroup import OomKills
from pytest_mnode.machine.sysfs import AS_IT_IS, SysfsView
from pytest_mnode.protocol.world import WorldInfo


@dataclass(frozen=True)
class NodeEntry:
    """A node as its agent needs it; `namespace_pid` is a process whose namespaces are the node."""

    name: str
    index: int
    address: str
    fabric_interface: str | None
    namespace_pid: int | None


@dataclass(frozen=True)
class StartForkServer:
    """Ranks are wanted: have torch imported."""


@dataclass(frozen=True)
class NodeBooted:
    """A node of this agent was booted again, and is reached by this entry now."""

    entry: NodeEntry


@dataclass(frozen=True)
class RankStart:
    """What a launcher wants of the ranks that a node starts.

    cpus: for local ranks 0, 1, … of a node, from the start where there are more ranks; empty CPUs
    leave a rank unbound. None: ranks are bound as --mnode-numa-bind says.
    first: a Python file, a function of it and its arguments, called before anything else, as faults
    of the rack want it.
    """

    cpus: tuple[tuple[int, ...], ...] | None = None
    first: tuple[str, ...] = ()


@dataclass(frozen=True)
class BindingOrder:
    """How the ranks of a node are to be bound, and to start.

    mode: a choice of --mnode-numa-bind. shown: where the node shows its sockets.
    start: what the launcher wants. nics: names and patterns of NICs that ranks are bound beside,
    where they have no accelerators.
    """

    mode: str = "auto"
    shown: SysfsView = AS_IT_IS
    start: RankStart = RankStart()
    nics: tuple[str, ...] = ()


@dataclass(frozen=True)
class Launch:
    """Start the ranks of one node of a world. accelerators: that the spec promises of it.

    own_imports: files that each rank imports for itself; without any it is forked with all others
    imported.
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
    """Files that ranks must import for themselves, and why."""

    files: dict[str, str]


@dataclass(frozen=True)
class StopWorld:
    """End a node's part of a world, with everything that it started."""

    node: str
    world: str


@dataclass(frozen=True)
class TakeStacks:
    """`look` is for the answer, which then has the places of ranks, their calls, and who runs.

    native: ranks whose C stacks are asked for, and nothing else.
    """

    node: str
    world: str
    look: int | None = None
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
    """Ranks can be started on a node; `store_port` is of the next store that is led from there."""

    node: str
    store_port: int


@dataclass(frozen=True)
class NodeGone:
    """The namespaces of a node have ended."""

    node: str


@dataclass(frozen=True)
class PartLost:
    """A node's part of a world is not there: it could not start, or it went. "" is all nodes."""

    node: str
    world: str
    text: str


@dataclass(frozen=True)
class Death:
    """A rank ended. Exactly one of `code` and `signal` is not None.

    output: end of what the test printed; log: end of the rank's own log; fault: the stacks that
    faulthandler wrote; peak_rss_bytes: its resident memory at its largest, None where not known;
    oom_kills: on its node since the world started;
    ordinal, phase: of the test that it had begun last, None and "" before its first.
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
    """`ordinal` of the test that a rank began last, None before its first; "after" is its end."""

    ordinal: int | None = None
    phase: str = ""


@dataclass(frozen=True)
class StackTexts:
    """Raw faulthandler dumps by rank; "" where a rank gave none in time.

    outputs: end of what the test had printed; states: why there is no stack, where that is known;
    places: the test and the phase that each rank was in, which its own reports may lag behind;
    calls: its record of collectives, for call_record.parse; kernel: where its threads are in the
    kernel; native: C stacks; running: ranks that run or wait for a core, in the answer to a look.
    """

    node: str
    world: str
    texts: dict[int, str] = field(default_factory=dict)
    outputs: dict[int, str] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    places: dict[int, Progress] = field(default_factory=dict)
    calls: dict[int, str] = field(default_factory=dict)
    kernel: dict[int, str] = field(default_factory=dict)
    native: dict[int, str] = field(default_factory=dict)
    look: int | None = None
    running: tuple[int, ...] = ()


@dataclass(frozen=True)
class AgentOrder:
    """What an agent reads on its standard input, as JSON.

    run_id: value of the variable RUN of what the controller starts on its nodes. remote: its nodes
    are another machine, where it makes a directory of its own (run_dir is empty then). prefixes:
    of the controller's Python, where the nodes have another one; own_sys_path: the agent's, of it.
    incarnation: how many agents of this number were started before; the hub listens to the last
    alone.
    open_files: how many it and its ranks may have open each, where the controller may have more.
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

    @property
    def peer(self) -> str:
        """The agent's name on the hub's switchboard."""
        return f"agent/{self.agent}.{self.incarnation}"

    @property
    def logs_are_temporary(self) -> bool:
        """Logs go with the run's directory unless the user named one for them."""
        return self.log_dir.startswith(self.run_dir)


@dataclass(frozen=True)
class ForkServerReady:
    """Torch is imported and the tests are collected; own_imports: why some files are not."""

    own_imports: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ForkServerFailed:
    text: str


@dataclass(frozen=True)
class ForkLauncher:
    """Fork the elastic launcher of a node's part of a world, in the namespaces of the node.

    Its descriptors come along: its pipe to the agent and, on the first node, the listening store.
    """

    launch: Launch
    namespace_pid: int | None


@dataclass(frozen=True)
class LauncherForked:
    """The process at the root of a node's part of a world."""

    node: str
    world: str
    pid: int
