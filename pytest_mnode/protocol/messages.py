"""The messages between controller, agents and ranks: frozen values, pickled.

Pickles are read only after their sender was authenticated. The classes have no slots: thousands of
messages arrive per test, and a frozen class with slots is slow to unpickle.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pytest_mnode.machine.cgroup import OomKills
from pytest_mnode.machine.sysfs import AS_IT_IS, SysfsView
from pytest_mnode.measurement import Curve, Measurement
from pytest_mnode.protocol.launcher_requests import LauncherRequest

HUB = "hub"
BEAT = b"mnode-hub-is-there"
"""From the hub to agents of other machines, as it is: an agent that misses it for long ends."""
RUN = "MNODE_RUN"
"""Variable of what is started on nodes; its value is the directory of the run it goes with."""


@dataclass(frozen=True)
class Shape:
    """How large a world is: `nodes` × `procs_per_node` ranks."""

    nodes: int
    procs_per_node: int

    @property
    def size(self) -> int:
        return self.nodes * self.procs_per_node

    def __str__(self) -> str:
        return f"{self.nodes}×{self.procs_per_node}"


@dataclass(frozen=True)
class WorldInfo:
    """A world as the controller knows it. `nodes` holds one name a group rank."""

    id: str
    shape: Shape
    nodes: tuple[str, ...]
    fresh: bool = True
    log_dir: str = ""

    def node_of(self, rank: int) -> str:
        return self.nodes[rank // self.shape.procs_per_node]

    def place(self, rank: int) -> str:
        return f"rank {rank} on {self.node_of(rank)}"


@dataclass(frozen=True)
class Lease:
    """Nodes that are a client's own until it gives them back."""

    id: int
    nodes: tuple[str, ...]


# Controller to hub.


@dataclass(frozen=True)
class StartPool:
    """Bring nodes, agents and torch up, before anything asks for a world."""


@dataclass(frozen=True)
class Collect:
    """How the controller's pytest was configured, so that fork servers collect the same items.

    args: what to collect from, of which only `files` are wanted.
    """

    args: tuple[str, ...]
    files: frozenset[str]
    options: dict[str, Any]
    inifile: str | None
    rootdir: str
    cwd: str
    sys_path: tuple[str, ...]
    basetemp: str
    markers: tuple[str, ...] = ()


@dataclass(frozen=True)
class LeaseNodes:
    """Ask for `nodes` free nodes (None: all), alone on the fabric if `exclusive`."""

    seq: int
    nodes: int | None
    exclusive: bool
    label: str


@dataclass(frozen=True)
class ReleaseNodes:
    lease: int


@dataclass(frozen=True)
class OpenWorld:
    """Ask for a world on nodes of a lease (None: all of them in order)."""

    seq: int
    lease: int
    procs_per_node: int
    fresh: bool
    nodes: tuple[str, ...] | None = None


@dataclass(frozen=True)
class CloseWorld:
    world: str
    reusable: bool


@dataclass(frozen=True)
class AskLauncher:
    seq: int
    request: LauncherRequest


@dataclass(frozen=True)
class Withdraw:
    """Nobody waits for the answer to this client's request `seq` any more."""

    seq: int


@dataclass(frozen=True)
class ClientGone:
    """A pytest-xdist worker ended; what it held is free."""

    client: str


@dataclass(frozen=True)
class StopHub:
    pass


# Hub to controller.


@dataclass(frozen=True)
class Granted:
    seq: int
    lease: int
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Opened:
    seq: int
    world: WorldInfo


@dataclass(frozen=True)
class Answer:
    seq: int
    value: Any


@dataclass(frozen=True)
class Refused:
    """`kind` is the name of the class in errors.py to raise."""

    seq: int
    kind: str
    text: str
    node: str = ""


# Hub to agent.


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
class BindingOrder:
    """How the ranks of a node are to be bound.

    mode: a choice of --mnode-numa-bind. shown: where the node shows its sockets.
    cpus: as `Launcher.rank_cpus` gives them, where the launcher binds ranks.
    """

    mode: str = "auto"
    shown: SysfsView = AS_IT_IS
    cpus: tuple[tuple[int, ...], ...] | None = None


@dataclass(frozen=True)
class Launch:
    """Start the ranks of one node of a world. accelerators: that the spec promises of it."""

    node: str
    world: WorldInfo
    node_rank: int
    master_addr: str
    master_port: int
    backend: str
    accelerators: int
    env: dict[str, str]
    binding: BindingOrder


@dataclass(frozen=True)
class StopWorld:
    """End a node's part of a world, with everything that it started."""

    node: str
    world: str


@dataclass(frozen=True)
class TakeStacks:
    """`look` is for the answer, which then has only what the ranks recorded of their calls.

    native: ranks whose C stacks are asked for, and nothing else.
    """

    node: str
    world: str
    look: int | None = None
    native: tuple[int, ...] = ()


# Agent to hub.


@dataclass(frozen=True)
class AgentAlive:
    agent: int
    life: int = 0


@dataclass(frozen=True)
class AgentFailed:
    """An agent's fork server ended or could not do its work; `text` is for the user."""

    agent: int
    text: str
    life: int = 0


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
    calls: its record of collectives, for calls.parse; kernel: where its threads are in the kernel;
    native: C stacks.
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


# Rank to hub, controller.


@dataclass(frozen=True)
class Hello:
    world: str
    rank: int


@dataclass(frozen=True)
class PhaseReport:
    """A serialised pytest report.

    partial: not pytest's own report of setup, call or teardown, but one more beside it, such as
    that of a subtest.
    """

    rank: int
    ordinal: int
    when: str
    outcome: str
    data: dict[str, Any]
    partial: bool = False


@dataclass(frozen=True)
class Limit:
    """From now on the test, or only its body, has to end within this time."""

    rank: int
    ordinal: int
    timeout_s: float
    body_only: bool


@dataclass(frozen=True)
class BodyDone:
    """Setup and call are over in this rank, whatever their outcome; it waits for TearDown.

    `reports` has that of the call, which nothing comes between: one message is quicker than two.
    """

    rank: int
    ordinal: int
    reports: tuple[PhaseReport, ...] = ()


@dataclass(frozen=True)
class TornDown:
    """Teardown is over. `leaks` are lines for the user; a world with leaks is not reused.

    entered: how many operations of the default process group this rank has entered so far.
    """

    rank: int
    ordinal: int
    leaks: tuple[str, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    warnings: tuple[tuple[Any, ...], ...] = ()
    reusable: bool = True
    problem: str = ""
    entered: int | None = None
    reports: tuple[PhaseReport, ...] = ()
    curves: tuple[Curve, ...] = ()


@dataclass(frozen=True)
class Pong:
    rank: int
    ordinal: int


@dataclass(frozen=True)
class Returned:
    """What a function gave in this rank: `value` pickled by cloudpickle, or the error's text."""

    rank: int
    ordinal: int
    value: bytes | None
    error: str = ""
    summary: str = ""


# Controller to ranks.


@dataclass(frozen=True)
class RunItem:
    """Run one test. `keep_group` False: a new process group if the test asks for one."""

    ordinal: int
    reply_to: str
    nodeid: str
    next_nodeid: str | None
    keep_group: bool


@dataclass(frozen=True)
class TearDown:
    """`last`: nothing of this world's fixtures is to survive."""

    ordinal: int
    last: bool


@dataclass(frozen=True)
class Ping:
    ordinal: int


@dataclass(frozen=True)
class CallFunction:
    """Call a function pickled by cloudpickle with its arguments, in every rank."""

    ordinal: int
    reply_to: str
    blob: bytes
    group: bool


@dataclass(frozen=True)
class AgentOrder:
    """What an agent reads on its standard input, as JSON.

    run_id: value of the variable RUN of what the controller starts on its nodes. remote: its nodes
    are another machine, where it makes a directory of its own (run_dir is empty then). prefixes:
    of the controller's Python, where the nodes have another one; own_sys_path: the agent's, of it.
    life: how often an agent of this number was started before; the hub listens to the last alone.
    open_files: how many it and its ranks may have open each, where the controller may have more.
    """

    agent: int
    endpoint: str
    keys: dict[str, str]
    run_dir: str
    log_dir: str
    nodes: tuple[NodeEntry, ...] = ()
    sys_path: tuple[str, ...] = field(default=())
    remove_run_dir: bool = False
    run_id: str = ""
    remote: bool = False
    prefixes: tuple[str, ...] = ()
    own_sys_path: tuple[str, ...] = ()
    life: int = 0
    open_files: int | None = None

    @property
    def peer(self) -> str:
        """The agent's name on the hub's switchboard."""
        return f"agent/{self.agent}.{self.life}"

    @property
    def logs_are_temporary(self) -> bool:
        """Logs go with the run's directory unless the user named one for them."""
        return self.log_dir.startswith(self.run_dir)


# Between agent, fork server and elastic launchers, which share a machine.


@dataclass(frozen=True)
class ForkServerReady:
    """Torch is imported and the tests are collected."""


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
