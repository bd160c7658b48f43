"""Entry points of the fork server into this package: once before a fork, then in every rank.

The tests are collected as in the controller, through pytest's own `Config.fromdictargs`; then the
session serves the controller instead of running them.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import pickle
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
from _pytest._io import TerminalWriter

from pytest_mnode import processes
from pytest_mnode.logs.causes.table import candidates
from pytest_mnode.other_plugins import is_for_controller, other_loops
from pytest_mnode.protocol.agent_messages import AgentOrder, Launch, PartLost
from pytest_mnode.protocol.hub_messages import Collect
from pytest_mnode.protocol.world import HUB
from pytest_mnode.rank import exit_handlers, loop, process_group, recorder, shared_test
from pytest_mnode.rank.live_output import SHOWN_LIVE
from pytest_mnode.rank.session import RankSession
from pytest_mnode.rank.trial import Trial

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
    candidates(
        ""
    )  # its rules are cached here: others would wait while a rank that failed computes it


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

    def main(launch: Launch, elastic_pid: int, by_torch: bool) -> None:
        loop.follow(loop.begin(order, launch, elastic_pid, by_torch), session)

    return main


def importing_rank_main(
    order: AgentOrder, collect_order: Collect
) -> Callable[[Launch, int, bool], None]:
    """A function that runs a rank which collects for itself, in a child forked before that."""

    def main(launch: Launch, elastic_pid: int, by_torch: bool) -> None:
        rank = loop.begin(order, launch, elastic_pid, by_torch)

        def fail(text: str) -> None:
            rank.line.send(HUB, PartLost(launch.node, launch.world.id, text))
            signal.pause()  # until the hub ends this world

        # own_imports is empty for functions of cluster.world(): then no file can be shared.
        wanted = collect_order.only(frozenset(launch.own_imports) or collect_order.files)
        collect(wanted, order, partial(loop.follow, rank), fail)

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
    config = pytest.Config.fromdictargs(options, args)
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
