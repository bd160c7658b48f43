"""The loop of a rank: sends Hello, then carries out the controller's orders one by one."""

from __future__ import annotations

import faulthandler
import inspect
import multiprocessing.process
import os
import runpy
import signal
import socket
import traceback
from collections.abc import Callable, MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from pytest_mnode import processes, progress
from pytest_mnode.protocol.agent_messages import AgentOrder, Launch, PartLost
from pytest_mnode.protocol.rank_files import STACK_SIGNAL, give_output
from pytest_mnode.protocol.rank_messages import CallFunction, EndFixtures, Hello, Returned, RunItem
from pytest_mnode.protocol.world import HUB
from pytest_mnode.rank import binding, coverage_plugin, exit_handlers, of_plugins
from pytest_mnode.rank.debugger import Debugger
from pytest_mnode.rank.rank import Rank
from pytest_mnode.rank.session import RankSession
from pytest_mnode.rank.world import World


def begin(order: AgentOrder, launch: Launch, elastic_pid: int, by_torch: bool) -> Rank:
    """The first step in a rank, called by torch's elastic agent with torchrun's environment set.

    by_torch: the elastic agent has already bound the rank to CPUs.
    """
    processes.die_with_parent(elastic_pid)
    os.setpgid(0, 0)  # a test that signals its process group must not end the agent
    processes.set_name(f"mnode-rank{os.environ['RANK']}")
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)  # the fork inherited the launcher's handlers
    signal.signal(signal.SIGINT, signal.default_int_handler)
    processes.adopt_orphans()  # so that processes of a test are found at any depth
    exit_handlers.disown()
    world = World.from_env(os.environ, launch.world.nodes)
    binding.bind(launch.binding, world.local_rank, world.local_size, by_torch)
    if launch.binding.start.first:
        path, function, *values = launch.binding.start.first
        runpy.run_path(path)[function](*values)
    rank = Rank(order, launch, world)
    # multiprocessing removes its temporary directory at exit, but a rank is killed: use the run's.
    process: Any = multiprocessing.process.current_process()
    process._config["tempdir"] = order.run_dir
    if launch.backend == "nccl":
        have_nccl_log(os.environ, rank.files.nccl)
    # The file stays open for the life of the process, because faulthandler writes to it.
    faulthandler.register(STACK_SIGNAL, rank.files.stacks.open("a"), all_threads=True, chain=False)
    _note_faults(rank)
    return rank


def _note_faults(rank: Rank) -> None:
    """Make crashes write stacks to the rank's file, even if faulthandler was enabled before."""
    # A descriptor, because a file object warns that it was not closed when another replaces it.
    fault = os.open(rank.files.fault, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    faulthandler.enable(fault, all_threads=True)


def follow(rank: Rank, session: RankSession) -> None:
    """Carry out the controller's orders, after collection."""
    _note_faults(rank)  # again: pytest's own plugin enables it for stderr in ranks that collect
    session.become(rank)
    with socket.socket(fileno=int(os.environ.pop("MNODE_OUTPUT_FD"))) as line:
        give_output(line, rank.files, rank.world.local_rank)
    if rank.world.rank == 0:
        progress.listen(rank.say_progress)
    of_plugins.start(session.config, rank, session.collect)
    serve(rank, session)


def have_nccl_log(environ: MutableMapping[str, str], path: Path) -> None:
    """Make NCCL log its devices and transports once it is used; the user's settings stay."""
    environ.setdefault("NCCL_DEBUG", "INFO")
    environ.setdefault("NCCL_DEBUG_SUBSYS", "INIT,NET,ENV,GRAPH")
    environ.setdefault("NCCL_DEBUG_FILE", str(path))


def serve(rank: Rank, session: RankSession) -> None:
    """Carry out orders for ever, because the elastic agent's processes are ended from outside."""
    world, node = rank.launch.world.id, rank.launch.node
    missing = rank.groups.missing_accelerators()
    hello = Hello(world, rank.world.rank, session.only_here())
    # After a PartLost the hub ends this world.
    rank.line.send(HUB, PartLost(node, world, missing) if missing else hello)
    while True:
        message = rank.receive()
        match message:
            case RunItem():
                rank.begin(message, "setup")
                session.run(message)
            case CallFunction():
                rank.begin(message, "call")
                _answer(rank, session, _call(rank, message, session.debugger))
            case EndFixtures():
                rank.begin(message, "teardown")
                _answer(rank, session, session.end_fixtures(message))


def _answer(rank: Rank, session: RankSession, returned: Returned) -> None:
    coverage = coverage_plugin.measured(session.config)
    rank.tell(replace(returned, coverage=coverage, new_group=rank.groups.stale_keys))


def _call(rank: Rank, message: CallFunction, debugger: Debugger) -> Returned:
    place = rank.world.rank, message.ordinal
    try:
        if not message.keep_group:
            rank.groups.renew()
        if message.group:
            rank.groups.get()
        function, args, kwargs = cloudpickle.loads(message.blob)
        value = _with_world(function, rank.world)(*args, **kwargs)
        return Returned(*place, cloudpickle.dumps(value))
    except BaseException as error:
        debugger.leave(quits=isinstance(error, pytest.exit.Exception))
        # The frames above the function belong to this package and do not help the reader.
        trace = error.__traceback__.tb_next if error.__traceback__ else None
        text = "".join(traceback.format_exception(type(error), error, trace))
        summary = "".join(traceback.format_exception_only(error)).strip()
        return Returned(*place, None, text, summary)
    finally:
        debugger.end()


def _with_world(function: Callable[..., Any], world: World) -> Callable[..., Any]:
    """`function`, called with `world` if it has a keyword-only parameter of that name."""
    try:
        parameter = inspect.signature(function).parameters.get("world")
    except (TypeError, ValueError):
        return function
    if parameter is None or parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
        return function

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **{"world": world, **kwargs})

    return call
