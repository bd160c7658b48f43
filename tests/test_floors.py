"""The layers of the package, from its imports: a module imports only lower layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import grimp
import pytest

import pytest_mnode

FLOORS = (
    {"pytest_mnode", "plugin", "__main__"},
    {"commands", "fixtures"},
    {"certifying", "contrib", "controller", "virtual"},
    {
        *(
            "backends",
            "certificate",
            "checks",
            "cluster",
            "criteria",
            "discover",
            "faults",
            "gang",
            "jobs",
        ),
        *("judge_hooks", "measuring", "reference_job", "report_record", "stop_rules"),
    },
    {"launchers"},
    {"agent", "outcome", "rank"},
    {
        *("marks", "option_texts", "options", "other_plugins", "protocol", "skipping"),
        *("suites", "worker_errors"),
    },
    {"logs", "machine", "spec"},
    {"measure", "table"},
    {
        *("charts", "culprit", "detection", "env_reads", "errors", "installed", "intervals"),
        "limits",
        *("evidence", "measurement", "path_rates", "processes", "progress"),
    },
)
"""From the top. A package or module may import those of its own layer, but not in a cycle."""


@pytest.fixture(scope="module")
def graph() -> Iterator[grimp.ImportGraph]:
    """Import graph of the package alone: a clone adds its root to the package's path."""
    spec = pytest_mnode.__spec__
    assert spec is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spec, "submodule_search_locations", pytest_mnode.__path__[:1])
        yield grimp.build_graph("pytest_mnode", cache_dir=None)


def test_no_module_imports_a_higher_layer(graph: grimp.ImportGraph) -> None:
    number = {name: index for index, names in enumerate(FLOORS) for name in names}
    upward = [
        f"{module} imports {imported}"
        for module in graph.modules
        for imported in graph.find_modules_directly_imported_by(module)
        if number[_folder(module)] > number[_folder(imported)]
    ]
    assert not upward, "imports of a higher layer:\n" + "\n".join(sorted(upward))


def test_there_are_no_import_cycles(graph: grimp.ImportGraph) -> None:
    """Also none of imports for types alone."""
    assert [sorted(circle) for circle in _circles(graph)] == []


def _folder(module: str) -> str:
    """The part of the package that a module belongs to; the root belongs to itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def _circles(graph: grimp.ImportGraph) -> Iterator[set[str]]:
    """Strongly connected sets: each module of a set reaches all others."""
    below = {m: graph.find_modules_directly_imported_by(m) for m in graph.modules}
    above = {m: graph.find_modules_that_directly_import(m) for m in graph.modules}
    left = set(graph.modules)
    while left:
        start = next(iter(left))
        circle = _reached(start, below) & _reached(start, above)
        left -= circle
        if len(circle) > 1:
            yield {module.removeprefix("pytest_mnode.") for module in circle}


def _reached(start: str, arrows: dict[str, set[str]]) -> set[str]:
    found, new = {start}, [start]
    while new:
        nexts: Iterable[str] = arrows[new.pop()] - found
        found.update(nexts)
        new.extend(nexts)
    return found
