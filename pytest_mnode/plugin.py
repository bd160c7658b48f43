"""This package's pytest hooks: they place each test and report at the end.

Every pytest run in an environment with this package loads this module. Modules that a run without
ranks does not need are imported where they are used.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_mnode import contrib, marks, options, stop_rules, suites
from pytest_mnode.certifying.narrowing import Narrowing
from pytest_mnode.env_reads import READS
from pytest_mnode.errors import MnodeError, UsageError
from pytest_mnode.fixtures import (  # noqa: F401  found by pytest here
    _fabric_ports,
    _mnode_nodes,
    _mnode_size,
    _node,
    cluster,
    device,
    local_rank,
    measure,
    process_group,
    rank,
    shared_tmp_path,
    spec,
    spec_of,
    take_cluster,
    world,
    world_size,
)
from pytest_mnode.judge_hooks import JudgeHooks
from pytest_mnode.other_plugins import RANK_TESTS, conflict, give_controller_hooks, note_ids

if TYPE_CHECKING:
    from pytest_mnode.controller.session import Run

SETTINGS = pytest.StashKey[options.Settings]()
STOP_RULES = pytest.StashKey[stop_rules.StopRules]()
_LEFT_OUT = pytest.StashKey[dict[str, tuple[str, list[str]]]]()
"""Files that were skipped at import, or have no tests, and which variables of ranks they read."""
_HEADED = pytest.StashKey[bool]()
"""Whether the header of the run is shown."""
_IMPORT_AGAIN = "mnode-import-again"
_SHOWS = (
    *("collectonly", "setupplan", "showfixtures", "show_fixtures_per_test", "cacheshow"),
    "mnode_plan",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    options.add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    READS.start()  # until collection ends, in ranks too


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    if (file := collector.getparent(pytest.Module)) is None:
        return (yield)
    with READS.collecting(file.path):
        report = yield
    left_out = collector is file and (report.skipped or not report.result)
    if left_out and (names := READS.alone(file.path)):
        collector.config.stash.setdefault(_LEFT_OUT, {})[report.nodeid] = report.outcome, names
    return report


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(contrib.Hooks)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", marks.MARKER)
    config.addinivalue_line("markers", marks.CRITERION)
    config.addinivalue_line("markers", marks.ALONE)
    config.addinivalue_line("markers", stop_rules.MARKER)
    settings = config.stash[SETTINGS] = options.read_settings(config)
    _check_faults(config, settings)
    config.pluginmanager.register(JudgeHooks(in_rank=_follows(config)), "mnode-judge")
    if _follows(config):
        contrib.register(config, in_rank=True)
        return
    if _is_xdist_worker(config) or config.getoption("dist", "no") != "no":
        from pytest_mnode.worker_errors import WorkerErrors

        config.pluginmanager.register(WorkerErrors(), "mnode-worker-errors")
    config.stash[STOP_RULES] = stop_rules.StopRules()
    config.pluginmanager.register(config.stash[STOP_RULES], "mnode-stop-rules")
    # Needed without an --mnode option too: a run may be created once tests are collected.
    config.pluginmanager.register(Narrowing(), "mnode-narrowing")
    if settings.discover is not None:
        _discover_instead(config, settings)
    elif config.getoption("mnode_plan"):
        _plan_instead(config)
    elif settings.nodes or settings.free_at_most or settings.spec or settings.certifies:
        from pytest_mnode.controller.import_again import ImportAgain

        config.pluginmanager.register(ImportAgain(_make_run(config)), _IMPORT_AGAIN)


def _check_faults(config: pytest.Config, settings: options.Settings) -> None:
    given_by = options.faults_given_by(config)
    if not settings.faults and not given_by.startswith("--"):
        return
    from pytest_mnode.faults import parse

    try:
        parse(settings.faults)
    except UsageError as error:
        raise pytest.UsageError(f"{given_by}: {error}") from None


def _discover_instead(config: pytest.Config, settings: options.Settings) -> None:
    """Run no test; write a first spec from the facts of the nodes."""
    from pytest_mnode.controller.session import Run
    from pytest_mnode.controller.terminated import end_at_sigterm
    from pytest_mnode.discover.session import Discovery, settings_to_discover

    end_at_sigterm(config)
    try:
        settings = config.stash[SETTINGS] = settings_to_discover(config, settings)
        run = config.stash[options.RUN] = Run(config, settings)
    except MnodeError as error:
        raise pytest.UsageError(str(error)) from None
    config.pluginmanager.register(Discovery(run), "mnode-discovery")


def _plan_instead(config: pytest.Config) -> None:
    """Run no test; say what a run would ask, take, load and lack."""
    from pytest_mnode.certifying.plan import FLAG, Plan

    if config.getoption("numprocesses", default=None):
        raise pytest.UsageError(f"{FLAG} runs no tests; leave out pytest-xdist's -n")
    config.pluginmanager.register(Plan(_make_run(config)), "mnode-plan")


def _follows(config: pytest.Config) -> bool:
    """Whether this is the session of a fork server or a rank."""
    return config.pluginmanager.has_plugin("mnode-rank-session")


def _only_shows(config: pytest.Config) -> bool:
    """Whether no test is executed, so that no nodes are needed."""
    return any(config.getoption(name, None) for name in _SHOWS)


def _is_xdist_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def _run(config: pytest.Config) -> Run | None:
    """The run of this process; None if there is none, and in a rank."""
    return None if _follows(config) else config.stash.get(options.RUN, None)


def _make_run(config: pytest.Config) -> Run:
    from pytest_mnode.controller.session import Run
    from pytest_mnode.controller.terminated import end_at_sigterm

    if (run := _run(config)) is not None:
        return run
    try:
        if config.stash[SETTINGS].free_at_most and not _only_shows(config):
            from pytest_mnode.certifying.free_nodes import on_free_nodes

            settings = config.stash[SETTINGS] = on_free_nodes(config.stash[SETTINGS])
            # Ranks and workers of pytest-xdist read the number from the option.
            config.option.mnode_nodes = None if settings.nodes is None else str(settings.nodes)
        if not _is_xdist_worker(config):
            end_at_sigterm(config)
        run = config.stash[options.RUN] = Run(config, config.stash[SETTINGS])
        if _is_xdist_worker(config):
            from pytest_mnode.controller.xdist import WorkerRows, join

            join(run, config.workerinput)  # type: ignore[attr-defined]
            if run.settings.report_dir is not None:
                config.pluginmanager.register(WorkerRows(config), "mnode-worker-rows")
    except MnodeError as error:
        raise pytest.UsageError(str(error)) from None
    if (budget_s := run.settings.budget_s) is not None:
        from pytest_mnode.certifying.budget import Budget

        config.pluginmanager.register(Budget(run, budget_s), "mnode-budget")
    from pytest_mnode.outcome.ranks_repr import RanksReprHooks

    config.pluginmanager.register(RanksReprHooks(), "mnode-ranks-repr")
    if not (_is_xdist_worker(config) or _only_shows(config)):
        from pytest_mnode.controller.console import LivePlugin
        from pytest_mnode.controller.xdist import XdistController
        from pytest_mnode.report_record import SuitePropertiesPlugin

        shown = LivePlugin(
            config, run.console, lambda: f"{run.nodes}x{run.procs_per_node}", run.limit_of
        )
        config.pluginmanager.register(shown, "mnode-live")
        config.pluginmanager.register(XdistController(run), "mnode-xdist")
        config.pluginmanager.register(SuitePropertiesPlugin(config), "mnode-suite-properties")
    if not (_is_xdist_worker(config) or _only_shows(config) or config.getoption("setuponly", None)):
        from pytest_mnode.certifying.certificate_plugin import CertificatePlugin

        narrowing: Any = config.pluginmanager.getplugin("mnode-narrowing")
        config.pluginmanager.register(CertificatePlugin(run, narrowing), "mnode-certificate")
    return run


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Start the nodes and the import of torch while pytest collects, if they will be needed."""
    config = session.config
    run = _run(config)
    if run is None or _is_xdist_worker(config) or run.nodes is None:
        return
    if _only_shows(config) or run.settings.discover is not None or run.holds_nodes:
        return
    from pytest_mnode.controller.expected import expects_nodes

    # A certificate says which nodes it covers, whatever the tests.
    expected = run.settings.certifies or expects_nodes(config)
    if not expected and config.getoption("dist", "no") == "no":
        return  # with pytest-xdist, workers must know the hub before they collect
    try:
        pool = run.make_pool()
        if expected:
            pool.client.tell("start")
    except MnodeError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_report_header(config: pytest.Config) -> list[str]:
    run = _run(config)
    if run is None or not run.launcher:
        return []
    from pytest_mnode.spec import doubts

    config.stash[_HEADED] = True
    return [*run.header(), *(f"mnode: doubtful spec: {line}" for line in doubts(run.spec))]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marks.parametrise_nodes(metafunc)
    suites.parametrise_sizes(metafunc)
    marks.parametrise_node(metafunc, metafunc.config.stash[SETTINGS])


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect without garbage collection: test modules of ranks import torch here too."""
    if _run(session.config) is None:
        return (yield)
    from pytest_mnode.processes import made_to_stay

    with made_to_stay():
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None, object, object]:
    note_ids(items)  # before plugins that rename tests
    result = yield
    items[:] = stop_rules.in_order(items)  # after plugins that shuffle
    return result


@pytest.hookimpl(tryfirst=True)  # before the terminal reports the collection
def pytest_collection_finish(session: pytest.Session) -> None:
    READS.stop()
    config = session.config
    if _follows(config):
        if any(marks.asks_for(item, "spec") for item in session.items):
            with contextlib.suppress(MnodeError):  # the fixture reports the error
                spec_of(config)
        return
    if _only_shows(config):
        return
    items = [i for i in session.items if marks.takes_nodes(i)]
    if not items:
        _end_early_start(session)
        return
    for item in items:
        marks.world_request(item, config.stash[SETTINGS])  # raises for an invalid mark
    if why := conflict(config, filter(marks.runs_in_ranks, items)):
        raise pytest.UsageError(why)
    run = _make_run(config)
    if not config.pluginmanager.has_plugin(RANK_TESTS):
        if any(marks.asks_for(item, marks.PORTS_FIXTURE) for item in items):
            from pytest_mnode.criteria.port_counters.watching import PortWatch

            config.pluginmanager.register(PortWatch(run, session), marks.PORTS_FIXTURE)
        contrib.register(config, in_rank=False)
        from pytest_mnode.controller.rank_tests import Guard, RankTests
        from pytest_mnode.controller.trial import trial

        config.stash[STOP_RULES].trial = functools.partial(trial, run, {})
        config.pluginmanager.register(RankTests(run, config.stash[STOP_RULES]), RANK_TESTS)
        config.pluginmanager.register(Guard(), "mnode-guard")
        give_controller_hooks(
            i for i in items if marks.runs_in_ranks(i) and not marks.contradiction(i)
        )
    _make_ready(run, session, items)


def _end_early_start(session: pytest.Session) -> None:
    """End what the text of the test files seemed to need, as no test needs nodes."""
    run = _run(session.config)
    if run is None or run.settings.certifies or run.settings.discover is not None:
        return
    if _is_xdist_worker(session.config):
        return
    if not any(item.get_closest_marker("criterion") for item in session.items):
        run.close()


def _make_ready(run: Run, session: pytest.Session, items: list[pytest.Item]) -> None:
    """Start nodes, and ranks' imports, for those of these tests that can run."""
    here = not _is_xdist_worker(run.config)
    if here:
        run.decide_nodes(items)
    items = [i for i in items if not marks.too_many_nodes(i, run.settings, run.nodes)]
    if not items:
        return
    postpones = here and run.pool is None and run.holds_nodes
    if postpones and any(map(stop_rules.without_nodes, session.items)):
        run.postponed = items
        return
    try:
        if here:
            run.make_pool()
            run.require_rack(items)
    except MnodeError as error:
        raise pytest.UsageError(str(error)) from None
    if run.client is not None:
        run.send_collect(items)


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    run = _run(config)
    # Whether tests need nodes, and how many, may be known only after collection.
    return [] if run is None or _HEADED in config.stash else pytest_report_header(config)


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    """Leave pytest-timeout's limit of a test in ranks to the controller, which can name ranks."""
    if (follower := item.config.pluginmanager.getplugin("mnode-rank-session")) is not None:
        follower.limit(settings.timeout, settings.func_only)
        return True
    return True if marks.runs_in_ranks(item) and not marks.contradiction(item) else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if _follows(item.config):
        return
    if why := marks.contradiction(item):
        pytest.fail(f"{item.nodeid} {why}", pytrace=False)
    if (run := _run(item.config)) is not None and marks.takes_nodes(item):
        too_many = marks.too_many_nodes(item, run.settings, run.nodes)
        if too_many:
            pytest.fail(too_many, pytrace=False)
    if why := item.config.stash[STOP_RULES].stop_reason(item):
        pytest.fail(why, pytrace=False)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if (run := _run(session.config)) is not None:
        run.run_exit_handlers()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    run = _run(config)
    for notice in run.exit_notices if run is not None else ():
        terminalreporter.write_line(f"mnode: {notice}", yellow=True)
    tried = config.pluginmanager.has_plugin(_IMPORT_AGAIN)
    for file, (how, names) in config.stash.get(_LEFT_OUT, {}).items() if run is not None else ():
        text = ""
        if how == "skipped" and not tried:
            text = "give --mnode-nodes, so that it is imported as by a rank"
            text = f"was skipped at import, which read {', '.join(names)}; {text}"
        elif how == "passed":
            text = "tests that only some ranks define were not run; define one in all, and skip it"
            text = f"has no test here, and its import read {', '.join(names)}: {text}"
        if text:
            terminalreporter.write_line(f"mnode: {file} {text}", yellow=True)
    if run is not None and run.pool is not None:
        for notice in run.pool.hub.worlds.notices:
            terminalreporter.write_line(f"mnode: {notice}", yellow=True)


def pytest_unconfigure(config: pytest.Config) -> None:
    READS.stop()
    if SETTINGS not in config.stash or _follows(config):
        return
    if (run := _run(config)) is not None:
        # A second Ctrl-C ends this process at once; its remaining processes end by themselves.
        with contextlib.suppress(KeyboardInterrupt):
            run.close()
