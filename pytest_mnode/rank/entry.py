"""Entry points of the fork server into this package: once before a fork, then in every rank.

The tests are collected as in the controller, through pytest's own `Config.fromdictargs`; then the
session serves the controller instead of running them.
"""

from __future__ import annotations

import contextlib
import faulthandler
import inspect
import io
import logging
import multiprocessing.process
import os
import pickle
import runpy
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from _pytest._io import TerminalWriter

from pytest_mnode import processes, progress
from pytest_mnode.other_plugins import is_for_controller, other_loops
from pytest_mnode.protocol.messages import (
    HUB,
    AgentOrder,
    Call,
    Collect,
    Launch,
    PartLost,
    TornDown,
)
from pytest_mnode.protocol.rank_files import STACK_SIGNAL, give_output
from pytest_mnode.rank import binding, exit_handlers, process_group, recorder, shared_test
from pytest_mnode.rank.live_output import SHOWN_LIVE
from pytest_mnode.rank.rank import Rank
from pytest_mnode.rank.session import RankSession
from pytest_mnode.rank.trial import Trial
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
    session.start_others(rank)
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
    hello = Call(0, "hello", (world, rank.world.rank, session.only_here()))
    # After a PartLost the hub ends this world.
    rank.line.send(HUB, PartLost(node, world, missing) if missing else hello)
    while True:
        rank.tidy()
        call = rank.receive()
        match call.method:
            case "run_item":
                rank.begin(call.seq, "setup")
                session.run(*call.args)
            case "call_function":
                rank.begin(call.seq, "call")
                session.leak_check.forget()
                _answer(rank, session, _call(rank, session, *call.args))
            case "end_fixtures":
                rank.begin(call.seq, "teardown")
                _answer(rank, session, session.end_fixtures(*call.args))


def _answer(rank: Rank, session: RankSession, returned: TornDown) -> None:
    returned = replace(returned, data=session.taken(), new_group=rank.groups.stale_keys)
    rank.tell("ended", returned)


def _call(
    rank: Rank, session: RankSession, blob: bytes, group: bool, keep_group: bool = True
) -> TornDown:
    """Call a function. blob: the function and its arguments, by cloudpickle.

    group: whether the call needs a process group. keep_group: see RunItem.
    """
    try:
        if not keep_group:
            rank.groups.renew()
        if group:
            rank.groups.get()
        function, args, kwargs = cloudpickle.loads(blob)
        value = _with_world(function, rank.world)(*args, **kwargs)
        try:
            return TornDown(value=cloudpickle.dumps(value))
        except Exception as error:  # what is pickled may be anything
            what = f"its result, a {type(value).__name__}, cannot be sent to the controller"
            raise TypeError(f"{what}: {error}") from None
    except BaseException as error:
        session.debugger.leave(error)
        # The frames above the function belong to this package and do not help the reader.
        trace = error.__traceback__.tb_next if error.__traceback__ else None
        text = "".join(traceback.format_exception(type(error), error, trace))
        summary = "".join(traceback.format_exception_only(error)).strip()
        return TornDown(problem=text, summary=summary)
    finally:
        session.debugger.end()


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


# Only the controller selects tests, prints, writes files and starts processes.
_NOT_IN_RANKS: dict[str, object] = {
    "lf": False,
    "failedfirst": False,
    "newfirst": False,
    "stepwise": False,
    "stepwise_skip": False,
    "cacheclear": False,
    "cacheshow": None,
    "collectonly": False,
    "maxfail": 0,
    "xmlpath": None,
    "pastebin": None,
    "log_file": os.devnull,  # None would leave it to the ini file
    "report_log": None,
    "dist": "no",
    "tx": [],
    "numprocesses": None,
    "maxprocesses": None,
    "looponfail": False,
    "cov_source": [],
    "htmlpath": None,
    "allure_report_dir": None,
    "clean_alluredir": False,
    "force_sugar": False,
    "testmon": False,
    "testmon_noselect": False,
    "testmon_nocollect": False,
    "testmon_forceselect": False,
    "tmnet": False,
}


def prepare() -> None:
    """Wrap functions before any test module is imported, because modules import them by name."""
    processes.guard_forks()
    exit_handlers.install()
    recorder.install()
    process_group.install()
    shared_test.install()
    _share_torch_handler()


def _share_torch_handler() -> None:
    """Make loggers below `torch` use its handler instead of equal handlers of their own.

    torch has some forty loggers that do not propagate, and pytest attaches its handlers to each of
    them, and removes them, six times per test. The printed lines stay the same.
    """
    top = logging.getLogger("torch")
    if len(top.handlers) != 1:
        return
    shared = {top}
    for log in map(logging.getLogger, sorted(logging.root.manager.loggerDict)):
        ancestor = log.parent
        while ancestor is not None and ancestor not in shared and ancestor.propagate:
            ancestor = ancestor.parent
        if ancestor not in shared or log.propagate or len(log.handlers) != 1:
            continue
        own, others = log.handlers[0], top.handlers[0]
        if _look(own) == _look(others):
            log.handlers.clear()
            log.propagate = True
            shared.add(log)


def _look(handler: logging.Handler) -> tuple[object, ...]:
    """The properties that determine how a handler prints."""
    stream = getattr(handler, "stream", None)
    return type(handler), handler.level, stream, type(handler.formatter), tuple(handler.filters)


def rank_main(order: AgentOrder, session: RankSession) -> Callable[[Launch, int, bool], None]:
    """A function that runs a rank in a child that is forked after collection."""
    return lambda *given: follow(begin(order, *given), session)


def importing_rank_main(
    order: AgentOrder, collect_order: Collect
) -> Callable[[Launch, int, bool], None]:
    """A function that runs a rank which collects for itself, in a child forked before that."""

    def main(launch: Launch, elastic_pid: int, by_torch: bool) -> None:
        rank = begin(order, launch, elastic_pid, by_torch)

        def fail(text: str) -> None:
            rank.line.send(HUB, PartLost(launch.node, launch.world.id, text))
            signal.pause()  # until the hub ends this world

        # own_imports is empty for functions of cluster.world(): then no file can be shared.
        wanted = collect_order.only(frozenset(launch.own_imports) or collect_order.files)
        collect(wanted, order, partial(follow, rank), fail)

    return main


def collect(
    collect: Collect,
    order: AgentOrder,
    serve: Callable[[RankSession], None],
    fail: Callable[[str], None],
    trial: Trial | None = None,
) -> None:
    """Collect the tests, then call `serve`, which does not return.

    fail: called with the reason if pytest itself fails. trial: None unless imports are tried first.
    """
    options, of_modules = _loaded(collect.options)
    options |= _NOT_IN_RANKS
    options.pop("file_or_dir", None)
    # As command line arguments, because their order matters as in the controller.
    plugins = [*options.pop("plugins", []), "no:terminal"]
    if trial is not None:
        plugins.insert(0, trial.__module__)
    options["plugins"] = []
    args = [word for name in plugins for word in ("-p", name)] + list(collect.args)
    # In ranks a plugin may be imported before pytest could rewrite its asserts; do not warn.
    quiet = "ignore::pytest.PytestAssertRewriteWarning"
    options["pythonwarnings"] = [*(options.get("pythonwarnings") or ()), quiet]
    options["basetemp"] = collect.basetemp
    if options.get("capture") not in SHOWN_LIVE:
        options["capture"] = "fd"
    options["inifilename"] = collect.inifile
    options["rootdir"] = collect.rootdir
    # With --pyargs the controller reads the conftest.py of the directory that it was started in;
    # beside paths pytest reads only theirs.
    started_in = [os.curdir] if options.get("pyargs") else []
    config = pytest.Config.fromdictargs(options, [*args, *started_in])
    config.args = list(collect.args)
    for name, blob in of_modules.items():  # now that plugins and conftest.py files are imported
        with contextlib.suppress(Exception):  # this node may lack the module
            setattr(config.option, name, pickle.loads(blob))
    writer = TerminalWriter(io.StringIO())
    writer.hasmarkup = False
    # pytest before 9.1 compares the two sides of an assert with its terminal, which ranks lack.
    config.get_terminal_writer = lambda: writer  # type: ignore[method-assign]
    _without_other_loops(config)
    config.pluginmanager.set_blocked("pdbinvoke")  # needs a terminal reporter; see rank.debugger
    session = RankSession(collect, order.logs_are_temporary, fail)
    session.serve = lambda: serve(session)
    config.pluginmanager.register(session, "mnode-rank-session")
    config.pluginmanager.register(session.recorded, session.recorded.NAME)
    if trial is not None:
        trial.begin(collect)
        config.pluginmanager.register(trial)
    config.hook.pytest_cmdline_main(config=config)


class _Plain(pickle.Unpickler):
    """Loads values of Python's own classes only."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] not in sys.stdlib_module_names:
            raise pickle.UnpicklingError
        return super().find_class(module, name)


def _loaded(pickled: Mapping[str, bytes]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Options of Python's own classes, and those of other modules, still pickled."""
    plain: dict[str, Any] = {}
    for name, blob in pickled.items():
        with contextlib.suppress(pickle.UnpicklingError):
            plain[name] = _Plain(io.BytesIO(blob)).load()
    return plain, {name: blob for name, blob in pickled.items() if name not in plain}


def _without_other_loops(config: pytest.Config) -> None:
    """Unregister plugins whose only purpose is to run tests in their own way.

    The controller decides how often a test runs, and such a plugin may also keep threads.
    """
    for plugin in filter(is_for_controller, config.pluginmanager.get_plugins()):
        config.pluginmanager.unregister(plugin)
    for name, plugin in other_loops(config.pluginmanager).items():
        of_fixtures = ("_fixture_function_marker", "_pytestfixturefunction")
        values = [getattr(plugin, attribute, None) for attribute in dir(plugin)]
        defined = any(hasattr(v, a) for v in values for a in of_fixtures)
        if not defined and not name.endswith("conftest.py"):
            config.pluginmanager.unregister(plugin)
