"""The place where a test's body runs, by its `mnode` mark and its fixtures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from pytest_mnode.env_reads import READS
from pytest_mnode.options import REUSE, UNEQUAL_CALLS, Settings, setting
from pytest_mnode.suites import Suite, needs_no_world, size_of, suite_of

if TYPE_CHECKING:
    from pytest_mnode.measurement import Measurement
    from pytest_mnode.spec import Spec

RANK_FIXTURES = frozenset(
    {
        *("world", "rank", "world_size", "local_rank", "device", "process_group"),
        "shared_tmp_path",
    }
)
CLUSTER_FIXTURE = "cluster"
NODE_FIXTURE = "node"
NODE_OF_TEST = pytest.StashKey[tuple[str]]()
"""The node for which a test with the `node` fixture runs."""
MEASURES = pytest.StashKey[bool]()
"""Set for a test that has got the `measure` fixture, also by `request.getfixturevalue`."""
RUNS = pytest.StashKey[int]()
"""How often the body of a test was run, whatever a plugin reported of it."""
PORTS_FIXTURE = "fabric_ports"
CONTROLLER_FIXTURES = (CLUSTER_FIXTURE, "take_cluster", NODE_FIXTURE, PORTS_FIXTURE)
NODES_FIXTURE = "_mnode_nodes"
_COLLECTORS: dict[str, type[pytest.Collector]] = {
    "session": pytest.Session,
    "package": pytest.Package,
    "module": pytest.Module,
    "class": pytest.Class,
}
FEWEST_NODES = 2
"""Number of nodes of a run if neither an option nor a mark gives one."""

MARKER = (
    "mnode(nodes=N or [N, …], procs_per_node=G, min_procs_per_node=G, "
    "reuse='warm'|'group'|'fresh', timeout=SECONDS or a function of (spec, settings, nodes, "
    "ranks_per_node) that returns them, still=SECONDS or such a function, exclusive=True, "
    "may_leave=PATTERN or [PATTERN, …], unequal_calls='fail'|'allow', on_failure=FUNCTION): "
    "run the test's body in every rank of a world of N nodes × G ranks; a list of nodes "
    "parametrises the test. Without nodes the test gets all nodes. A test has hung where no rank "
    "makes a call of torch.distributed for `still`. Where ranks fail before they measured "
    "anything, on_failure is called in the controller with (nodes, spec) and returns measurements."
)
CRITERION = (
    "criterion(first=True, last=True, without_nodes=True): this file is a question of the "
    "acceptance suite, certified; with first its tests come before those of other files, with last "
    "after, with without_nodes before all, while the run holds no nodes of an allocation of its own"
)
ALONE = (
    "alone: a node by itself can be judged, without another node or ranks: a health check of one "
    "node runs these"
)
_ACCEPTED = (
    *("nodes", "procs_per_node", "min_procs_per_node"),
    *("reuse", "timeout", "still", "exclusive", "may_leave", "unequal_calls", "on_failure"),
)


LimitOf = Callable[["Spec", Settings, int, int], float]
"""(spec, settings, nodes, ranks per node) -> seconds; never more than --mnode-timeout."""
OnFailure = Callable[[Any, "Spec"], "list[Measurement]"]
"""Measures in the controller why the ranks of a test failed; gets all nodes of the run, as
`launchers.nodes.Nodes`."""


@dataclass(frozen=True, slots=True)
class WorldRequest:
    """The world that a test requests. nodes: None for all. procs_per_node: None for the default."""

    nodes: int | None
    procs_per_node: int | None
    reuse: str
    timeout_s: float | LimitOf
    exclusive: bool
    min_procs_per_node: int = 1
    """Minimum number of ranks per node; it applies only if ranks run on CPUs."""
    on_failure: OnFailure | None = None
    still_s: float | LimitOf = math.inf
    """Seconds without a torch.distributed call of any rank after which the test has hung."""
    size: int | None = None
    """Number of ranks on all nodes, if the test's class gives it and its mark does not."""
    unequal_calls: str = "fail"
    """Whether a test fails that passes in all ranks although their calls differ."""


def fixture_names(item: pytest.Item) -> Sequence[str]:
    return getattr(item, "fixturenames", ())


def asks_for(item: pytest.Item, name: str) -> bool:
    """Whether this test gets this plugin's fixture `name`, and not another plugin's.

    Many test suites have fixtures named `device` or `rank`.
    """
    if name not in fixture_names(item):
        return False
    known = getattr(item, "_fixtureinfo", None)
    return _is_ours(known.name2fixturedefs.get(name, ()) if known else (), name)


def _is_ours(definitions: Sequence[Any], name: str) -> bool:
    """Whether the last definition, which overrides the others, is this plugin's or uses it."""
    for definition in reversed(definitions):
        if definition.func.__module__ == "pytest_mnode.fixtures":
            return True
        if name not in definition.argnames:
            return False  # overrides this plugin's fixture without using it
    return False


def _rank_fixtures(item: pytest.Item) -> list[str]:
    return [name for name in sorted(RANK_FIXTURES) if asks_for(item, name)]


def controller_fixtures(item: pytest.Item) -> list[str]:
    """The fixtures of a test that run in the controller."""
    return [name for name in CONTROLLER_FIXTURES if asks_for(item, name)]


def runs_in_ranks(item: pytest.Item) -> bool:
    """Whether the body of this test runs in ranks, not in the controller."""
    if is_always_skipped(item):
        return False
    if _rank_fixtures(item):
        return True
    if item.get_closest_marker("mnode") is None or controller_fixtures(item):
        return False
    return not needs_no_world(getattr(item, "cls", None))


def takes_nodes(item: pytest.Item) -> bool:
    """Whether this test runs in ranks, or in the controller with nodes."""
    if is_always_skipped(item):
        return False
    return runs_in_ranks(item) or bool(controller_fixtures(item))


def is_always_skipped(item: pytest.Item) -> bool:
    """Whether a plain skip mark skips this test in every process, so that pytest does it here.

    Not if a hook of any file may have given the mark by a variable that only ranks have.
    """
    return item.get_closest_marker("skip") is not None and not READS.any


def too_many_nodes(item: pytest.Item, settings: Settings, nodes: int | None) -> str:
    """Why a test cannot run, if it requests more than the run's nodes (None: not known yet)."""
    if nodes is None or (wanted := world_request(item, settings).nodes or 0) <= nodes:
        return ""
    return (
        f"{item.nodeid} needs {wanted} nodes, but the run has {nodes}; give --mnode-nodes={wanted}"
    )


def wide_fixtures_node(item: pytest.Item) -> pytest.Collector | None:
    """The collector of the widest fixture of this test that depends on rank fixtures.

    None if no such fixture is wider than the test.
    """
    known = getattr(item, "_fixtureinfo", None)
    definitions = {n: d[-1] for n, d in known.name2fixturedefs.items() if d} if known else {}
    scopes = {
        d.scope for d in definitions.values() if _is_built_on_ranks(d, definitions, frozenset())
    }
    for scope, kind in _COLLECTORS.items():
        if scope in scopes and (node := item.getparent(kind)) is not None:
            return node
    return None


def _is_built_on_ranks(definition: Any, definitions: dict[str, Any], seen: frozenset[str]) -> bool:
    """Whether a fixture of other code depends on a rank fixture, directly or indirectly."""
    if definition.func.__module__ == "pytest_mnode.fixtures":
        return False
    return any(
        name in RANK_FIXTURES
        or (
            name not in seen
            and name in definitions
            and _is_built_on_ranks(definitions[name], definitions, seen | {name})
        )
        for name in definition.argnames
    )


def contradiction(item: pytest.Item) -> str | None:
    """Why a test cannot run, if it uses fixtures of the controller and of ranks; else None."""
    mixed, own = _rank_fixtures(item), controller_fixtures(item)
    if mixed and own:
        return (
            f"uses {own[0]} (controller) and {', '.join(mixed)} (ranks); a test can use only one "
            "side: cluster.world(...).run(function) runs a function in ranks from the controller"
        )
    return None


def world_request(item: pytest.Item, settings: Settings) -> WorldRequest:
    """The world that a test requests. Raises pytest.UsageError, one line, for an invalid mark."""
    given: dict[str, Any] = {}
    for mark in reversed(list(item.iter_markers("mnode"))):  # the closest mark wins
        _check(item.nodeid, mark)
        given.update(mark.kwargs)
    params = getattr(getattr(item, "callspec", None), "params", {})
    nodes = params.get(NODES_FIXTURE, given.get("nodes"))
    if isinstance(nodes, list | tuple):
        raise pytest.UsageError(
            f"{item.nodeid}: @pytest.mark.mnode(nodes={nodes!r}): a method of unittest, or a mark "
            "given after collection, makes no variants; give one whole number of 1 or more"
        )
    # Tests written for processes of their own may leave any state behind in them.
    of_its_own = suite_of(getattr(item, "cls", None)) is Suite.PROCESSES
    size = None if "procs_per_node" in given else size_of(item)
    if size and nodes and size % nodes:
        raise pytest.UsageError(
            f"{item.nodeid}: its class asks for {size} ranks, which are not equally many on "
            f"nodes={nodes}; give the mnode mark other nodes, or procs_per_node for another world"
        )
    return WorldRequest(
        nodes,
        given.get("procs_per_node", settings.procs_per_node),
        given.get("reuse", "fresh" if of_its_own else settings.reuse),
        given.get("timeout", settings.timeout_s),
        bool(given.get("exclusive", False)) or asks_for(item, "measure"),
        int(given.get("min_procs_per_node", 1)),
        given.get("on_failure"),
        given.get("still", math.inf),
        size,
        given.get("unequal_calls", settings.unequal_calls),
    )


def may_leave(item: pytest.Item) -> list[str]:
    """Patterns of leftovers that a test may leave in its rank, from its marks and the run."""
    found = list(setting(item.config, "may_leave"))
    for mark in item.iter_markers("mnode"):
        given = mark.kwargs.get("may_leave", ())
        found += [given] if isinstance(given, str) else given
    return found


def _check(nodeid: str, mark: pytest.Mark) -> None:
    def wrong(what: str, accepted: str) -> pytest.UsageError:
        return pytest.UsageError(f"{nodeid}: @pytest.mark.mnode({what}): accepted: {accepted}")

    if mark.args:
        raise wrong(repr(mark.args[0]), "keywords only, such as nodes=2")
    for name, value in mark.kwargs.items():
        text = f"{name}={value!r}"
        if name not in _ACCEPTED:
            raise wrong(text, ", ".join(_ACCEPTED))
        if name == "nodes" and isinstance(value, list | tuple) and value:
            if not all(_is_count(n) for n in value):
                raise wrong(text, "whole numbers of 1 or more")
        elif name.removeprefix("min_") in ("nodes", "procs_per_node") and not _is_count(value):
            raise wrong(text, "a whole number of 1 or more")
        elif name == "reuse" and value not in REUSE:
            raise wrong(text, ", ".join(REUSE))
        elif name == "unequal_calls" and value not in UNEQUAL_CALLS:
            raise wrong(text, ", ".join(UNEQUAL_CALLS))
        elif name in ("timeout", "still") and not (
            callable(value)
            or (isinstance(value, int | float) and not isinstance(value, bool) and value > 0)
        ):
            raise wrong(text, "seconds, more than 0, or a function that returns them")
        elif name == "may_leave" and not _is_patterns(value):
            raise wrong(text, "a pattern, or a list of them, such as 'courier-*'")
        elif name == "exclusive" and not isinstance(value, bool):
            raise wrong(text, "True or False")
        elif name == "on_failure" and not callable(value):
            raise wrong(text, "a function of (nodes, spec) that returns measurements")


def _is_patterns(value: object) -> bool:
    given = [value] if isinstance(value, str) else value
    return isinstance(given, list | tuple) and all(isinstance(p, str) and p for p in given)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def parametrise_nodes(metafunc: pytest.Metafunc) -> None:
    """Make one variant of a test for each number of `nodes=[1, 2, 4]`."""
    for mark in metafunc.definition.iter_markers("mnode"):
        nodes = mark.kwargs.get("nodes")
        if nodes is None:
            continue
        if isinstance(nodes, list | tuple):
            _check(metafunc.definition.nodeid, mark)
            metafunc.fixturenames.append(NODES_FIXTURE)
            metafunc.parametrize(
                NODES_FIXTURE, nodes, ids=[f"nodes{n}" for n in nodes], indirect=True
            )
        return


def parametrise_node(metafunc: pytest.Metafunc, settings: Settings) -> None:
    """Make one variant per node, node0, node1, …, of a test that uses the `node` fixture."""
    if not _is_ours(metafunc._arg2fixturedefs.get(NODE_FIXTURE, ()), NODE_FIXTURE):
        return
    marks = metafunc.definition.iter_markers("mnode")
    given = next((m.kwargs["nodes"] for m in marks if "nodes" in m.kwargs), None)
    count: int = settings.nodes or (given if _is_count(given) else FEWEST_NODES)  # type: ignore[assignment]
    metafunc.parametrize(
        NODE_FIXTURE,
        [(index, count) for index in range(count)],
        ids=[f"node{index}" for index in range(count)],
        indirect=True,
    )
