"""The loop of a rank: says hello, then does what the controller asks, one thing at a time."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import cloudpickle

from pytest_mnode.agent import process
from pytest_mnode.agent.agent import STACK_SIGNAL
from pytest_mnode.machine import namespaces
from pytest_mnode.protocol.channel import Keys, Line
from pytest_mnode.protocol.messages import (
    HUB,
    CallFunction,
    GateOrder,
    Hello,
    Launch,
    PartLost,
    Ping,
    Pong,
    Returned,
    RunItem,
)
from pytest_mnode.rank import binding, traces
from pytest_mnode.rank.process_group import GroupKeeper
from pytest_mnode.rank.progress import Mark
from pytest_mnode.rank.recorder import Recorder
from pytest_mnode.rank.world import World

if TYPE_CHECKING:
    from pytest_mnode.rank.session import Follower


_CONTRACT = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
    *("MASTER_ADDR", "MASTER_PORT"),
)
"""What torchrun tells a rank, and a test may have changed when the next one starts."""


def main(
    order: GateOrder, launch: Launch, follower: Follower, elastic_pid: int, by_torch: bool
) -> None:
    """Entry of a rank, called by torchrun's elastic launcher with its environment in place.

    by_torch: that launcher has bound it to CPUs already.
    """
    process.die_with_parent(elastic_pid)
    namespaces.set_process_name(f"mnode-rank{os.environ['RANK']}")
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)  # the launcher's handlers came along with the fork
    signal.signal(signal.SIGINT, signal.default_int_handler)
    process.adopt_orphans()  # so that what a test started is found however deep it hides
    world = World.from_env(os.environ, launch.world.nodes)
    binding.bind(launch.binding, world.local_rank, world.local_size, by_torch)
    if launch.backend == "nccl":
        _have_nccl_log(traces.nccl_file(launch.world, world.rank))
    # Kept open for the life of the process: faulthandler writes to the descriptor.
    stacks = traces.stack_file(launch.world, world.rank).open("a")
    fault = traces.fault_file(launch.world, world.rank).open("a")
    faulthandler.enable(fault, all_threads=True)
    faulthandler.register(STACK_SIGNAL, stacks, all_threads=True, chain=False)
    captured = int(os.environ.pop("MNODE_CAPTURED_FD"))
    rank = Rank(order, launch, world, follower)
    os.write(captured, bytes([world.local_rank]))
    os.close(captured)
    rank.serve()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _have_nccl_log(path: Path) -> None:
    """NCCL tells what it runs on, once it is used; what the user asked of it is left alone."""
    os.environ.setdefault("NCCL_DEBUG", "INFO")
    os.environ.setdefault("NCCL_DEBUG_SUBSYS", "INIT,NET,ENV,GRAPH")
    os.environ.setdefault("NCCL_DEBUG_FILE", str(path))


class Rank:
    """One rank, between the hub and pytest."""

    def __init__(self, order: GateOrder, launch: Launch, world: World, follower: Follower) -> None:
        self.launch = launch
        self.world = world
        self.order = order
        self.groups = GroupKeeper(world, launch.backend, launch.accelerators)
        name = f"rank/{launch.world.id}/{world.rank}"
        self.line = Line(name, order.endpoint, Keys.from_dict(order.keys))
        self.reply_to = HUB
        self.ordinal = -1
        self.follower = follower
        self.pid = os.getpid()
        self.mark = Mark(traces.mark_file(launch.world, world.rank))
        self.fault_file = traces.fault_file(launch.world, world.rank)
        self.calls = Recorder(traces.calls_file(launch.world, world.rank), world.size)
        self.contract = {name: os.environ[name] for name in _CONTRACT if name in os.environ}
        follower.become(self)

    def tell(self, message: Any) -> None:
        if os.getpid() != self.pid:
            self.child_left("what it was forked in")
        self.line.send(self.reply_to, message)

    def child_left(self, what: str) -> NoReturn:
        """A child that a test forked has no part in the talk with the controller: ends it."""
        self.mark.stray(f"a forked child (pid {os.getpid()}) left {what}; it must end by os._exit")
        os._exit(1)

    def serve(self) -> None:
        world, node = self.launch.world.id, self.launch.node
        missing = self.groups.missing_accelerators()
        first = PartLost(node, world, missing) if missing else Hello(world, self.world.rank)
        self.line.send(HUB, first)  # after a PartLost the hub ends this world
        while True:
            message = self.line.receive(None)
            match message:
                case RunItem():
                    self._begin(message)
                    self.follower.run(message)
                case CallFunction():
                    self._begin(message)
                    self.mark.place(self.ordinal, "call")
                    self.calls.begin()
                    self._call(message)
                case Ping(ordinal):
                    self.tell(Pong(self.world.rank, ordinal))

    def _begin(self, message: RunItem | CallFunction) -> None:
        self.reply_to, self.ordinal = message.reply_to, message.ordinal
        with contextlib.suppress(OSError):  # what crashed in an earlier test explains nothing here
            os.truncate(self.fault_file, 0)

    def wait_for(self, kind: type[Any]) -> Any:
        """The next message, which must be of `kind`; pings in between are answered."""
        while True:
            message = self.line.receive(None)
            if isinstance(message, kind):
                return message
            if isinstance(message, Ping):
                self.tell(Pong(self.world.rank, message.ordinal))

    def _call(self, message: CallFunction) -> None:
        try:
            if message.group:
                self.groups.get()
            function, args, kwargs = cloudpickle.loads(message.blob)
            value = _with_world(function, self.world)(*args, **kwargs)
            answer = Returned(
                self.world.rank,
                message.ordinal,
                cloudpickle.dumps(value),
            )
        except BaseException as error:
            # The frames above the function are ours and tell the reader nothing.
            trace = error.__traceback__.tb_next if error.__traceback__ else None
            text = "".join(traceback.format_exception(type(error), error, trace))
            summary = "".join(traceback.format_exception_only(error)).strip()
            answer = Returned(self.world.rank, message.ordinal, None, text, summary)
        self.tell(answer)


def _with_world(function: Callable[..., Any], world: World) -> Callable[..., Any]:
    """`function`, given `world` by name where it asks for it as a keyword-only parameter."""
    import inspect

    try:
        parameter = inspect.signature(function).parameters.get("world")
    except (TypeError, ValueError):
        return function
    if parameter is None or parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
        return function

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **{"world": world, **kwargs})

    return call
