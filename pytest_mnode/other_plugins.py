"""Selects which hooks of other pytest plugins run in the controller and which in ranks.

A test in ranks goes through pytest's protocol twice, once in the controller and once in each rank.
A plugin's hooks of setup, body and teardown run in ranks, its wrappers around these hooks run in
both, and its hooks of reports run in the controller alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, cached_property
from pathlib import Path, PurePath
from types import new_class
from typing import Any

import pytest

from pytest_mnode.env_reads import READS

RANK_TESTS = "mnode-rank-tests"
"""Name under which our own plugin for tests in ranks is registered."""
OF_RANKS = "_mnode_longrepr"
"""Attribute of an exception that stands for one of ranks: how their report shows it."""
_PHASES = (
    *("pytest_runtest_setup", "pytest_runtest_call", "pytest_runtest_teardown"),
    *("pytest_runtest_makereport", "pytest_exception_interact"),
)
_REPORTS = ("pytest_runtest_logstart", "pytest_runtest_logreport", "pytest_runtest_logfinish")
_RANKS_ALONE = "_hypothesis_pytestplugin"
"""Its wrappers run in ranks alone: they need the test's fixtures, which are set up there."""
_CONTROLLER_ALONE = ("pytest_retry",)
"""Plugins that run a test again inside a wrapper, which is for the controller to do."""
_HOOKS = pytest.StashKey["_Relay"]()
_COLLECTED_ID = pytest.StashKey[str]()
_COLLECTED_IDS = pytest.StashKey[dict[str, set[str]]]()


def note_ids(items: Iterable[pytest.Item]) -> None:
    """Note the node ids of tests as collected, which ranks know even if a plugin renames tests.

    pytest-xdist does so in its workers with --dist=loadgroup, and conftest.py files do so to show
    letters that pytest escapes.
    """
    ids: dict[str, set[str]] = {}
    for item in items:
        item.stash[_COLLECTED_ID] = item.nodeid
        ids.setdefault(str(item.path), set()).add(item.nodeid)
    for item in items:
        item.config.stash[_COLLECTED_IDS] = ids
        break


def collected_ids(config: pytest.Config, files: Iterable[Path]) -> dict[str, frozenset[str]]:
    """Node ids as collected, before any was deselected, of files that read a rank's variables."""
    ids = config.stash.get(_COLLECTED_IDS, {})
    return {str(f): frozenset(ids[str(f)]) for f in files if READS.of(f) and str(f) in ids}


def collected_id(item: pytest.Item) -> str:
    """The node id of a test in its ranks."""
    return item.stash.get(_COLLECTED_ID, item.nodeid)


def other_loops(manager: pytest.PytestPluginManager) -> dict[str, Any]:
    """Plugins with their own loop for running tests, such as repeats, by name."""
    return {
        impl.plugin_name: impl.plugin
        for impl in manager.hook.pytest_runtest_protocol.get_hookimpls()
        if not (impl.wrapper or impl.hookwrapper) and impl.plugin_name not in ("runner", RANK_TESTS)
    }


def is_for_controller(plugin: Any) -> bool:
    return _is_of(plugin, _CONTROLLER_ALONE)


def conflict(config: pytest.Config, items: Iterable[pytest.Item]) -> str:
    """Why an option of another plugin cannot be used with these tests in ranks; else ""."""
    options = (
        ("update_snapshots", "--snapshot-update"),
        (
            "update_new_snapshots_only",
            "--snapshot-update-new-only",
        ),
    )
    given = [flag for name, flag in options if config.getoption(name, None)]
    own = [item.nodeid for item in items if "snapshot" in getattr(item, "fixturenames", ())]
    if not given or not own:
        return ""
    return (
        f"{given[0]}: {own[0]} runs in ranks, where syrupy writes no snapshots, and it would "
        "delete those that exist; deselect the tests in ranks, and edit their snapshots"
    )


def one_protocol(manager: pytest.PytestPluginManager) -> Any:
    """pytest's own protocol inside the wrappers of all plugins, without any plugin's own loop.

    The controller decides how often a test runs, because it waits for each rank once.
    """
    others = other_loops(manager).values()
    return manager.subset_hook_caller("pytest_runtest_protocol", others)


def give_controller_hooks(items: Iterable[pytest.Item]) -> None:
    """Keep, of the setup, body and teardown hooks of these tests, other plugins' wrappers only.

    Inside the wrappers only this package's plugin for tests in ranks is left.
    """

    def is_outside(impl: Any) -> bool:
        around = impl.wrapper or impl.hookwrapper
        return impl.plugin_name == RANK_TESTS or (around and _is_of_others(impl))

    _give_hooks(items, _PHASES, is_outside)


def give_rank_hooks(items: Iterable[pytest.Item]) -> None:
    """Limit report hooks to pytest and this package: others get reports in the controller."""
    items = list(items)
    for item in items:
        _ = item.location  # computed once here, not in each rank
    _give_hooks(items, _REPORTS, lambda impl: _is_of(impl.plugin, ("_pytest", "pytest_mnode")))


def in_ranks(item: pytest.Item) -> bool:
    """Whether the hooks of a test were replaced in this process."""
    return isinstance(item, _WithHooks)


def others_come_between(item: pytest.Item) -> bool:
    """Whether hooks of others run in the controller between this test's ranks and the next's."""
    own = ("_pytest", "pytest_mnode", _RANKS_ALONE)
    return any(
        not _is_of(impl.plugin, own)
        for name in ("pytest_runtestloop", "pytest_runtest_protocol", *_PHASES, *_REPORTS)
        for impl in getattr(item.ihook, name).get_hookimpls()
    )


def _is_of_others(impl: Any) -> bool:
    is_conftest = PurePath(impl.plugin_name).name == "conftest.py"
    not_here = ("_pytest", "pytest_mnode", _RANKS_ALONE)
    return not is_conftest and not _is_of(impl.plugin, not_here)


def _is_of(plugin: Any, packages: tuple[str, ...]) -> bool:
    name = getattr(plugin, "__name__", "") if type(plugin).__name__ == "module" else ""
    return (name or type(plugin).__module__).partition(".")[0] in packages


def _give_hooks(
    items: Iterable[pytest.Item], names: tuple[str, ...], is_kept: Callable[[Any], bool]
) -> None:
    given: dict[str, Any] = {}
    relays: dict[Path, _Relay] = {}
    for item in items:
        manager = item.config.pluginmanager
        for name in () if given else names:
            impls = getattr(manager.hook, name).get_hookimpls()
            unwanted = [impl.plugin for impl in impls if not is_kept(impl)]
            given[name] = manager.subset_hook_caller(name, unwanted)
        if not in_ranks(item):
            item.__class__ = _class_of(type(item))
        if item.path not in relays:
            hooks: Any = super(_WithHooks, item).ihook  # type: ignore[misc]
            relays[item.path] = _Relay(hooks, given)
        item.stash[_HOOKS] = relays[item.path]


class _WithHooks:
    """Mixin for the class of a pytest item, because hooks are reached only through its `ihook`."""

    __slots__ = ()

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *args: Any) -> Any:
        """The ranks' own report of an error, also for a plugin that makes its reports itself."""
        of_ranks = getattr(excinfo.value, OF_RANKS, None)
        item: Any = super()
        return of_ranks or item.repr_failure(excinfo, *args)

    @cached_property
    def ihook(self) -> _Relay:
        item: Any = self
        relay: _Relay = item.stash[_HOOKS]
        return relay


class _Relay:
    """pytest's hooks for the tests of a file, some of them replaced."""

    def __init__(self, hooks: Any, replaced: dict[str, Any]) -> None:
        self._hooks, self._replaced = hooks, replaced

    def __getattr__(self, name: str) -> Any:
        hook = self._replaced.get(name) or getattr(self._hooks, name)
        setattr(self, name, hook)  # looked up once
        return hook


@cache
def _class_of(kind: type[pytest.Item]) -> type[pytest.Item]:
    """A subclass with the same name, because pytest prints the name."""
    space = {"__slots__": (), "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return new_class(kind.__name__, (_WithHooks, kind), {}, lambda own: own.update(space))
