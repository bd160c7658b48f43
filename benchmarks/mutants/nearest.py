"""The tests of a mutated module: those of its room and those that import it, nearest first."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path, PurePath

ENGINE = {"agent", "controller", "outcome", "protocol", "rank"}
"""Rooms that only work together: tests/worlds is for all of them."""
_WHOLE_ENGINE = "tests/worlds/test_worlds.py"
"""Comes early for each module of ENGINE, because few of them work alone."""
_OF_THEIR_FOLDER = ("__init__", "launcher")
"""Modules that are named by their folder."""
_ELSEWHERE = {"acceptance", "engines", "gpu", "machines"}
"""Tests that need an engine, a GPU, virtual machines or the whole suite."""
_FAR = 9


def room_of(path: str) -> str:
    """`pytest_mnode/jobs/job.py` is in the room jobs, modules at the top in the room `.`."""
    parts = PurePath(path).parts
    return parts[1] if len(parts) > 2 else "."


def nearest_tests(root: Path, path: str) -> list[str]:
    """Test files for the module at `path`; both are relative to `root`."""
    module = _module(path)
    distances = _distances(root, module)
    room = room_of(path)
    rooms = {room} | ({"worlds", "debugging"} if room in ENGINE else set())
    mirrored = PurePath("tests", *PurePath(path).parts[1:-1])
    stem = PurePath(path).stem
    name = mirrored.name if stem in _OF_THEIR_FOLDER else stem
    found = []
    for file in _test_files(root):
        distance = distances.get(_module(file), _FAR)
        top = PurePath(file).parts[1]
        named = _alike(PurePath(file).stem.removeprefix("test_"), name)
        in_room = (top if not top.endswith(".py") else ".") in rooms
        if distance <= 1 or named or in_room:
            beside = PurePath(file).is_relative_to(mirrored)
            near = distance - beside + 2 * _runs_programs(root, file)
            whole = room in ENGINE and file == _WHOLE_ENGINE
            found.append((not (named and (in_room or distance <= 1)), not whole, near, file))
    return [file for *_, file in sorted(found)]


def _alike(one: str, other: str) -> bool:
    """Whether one name is a part of the other: test_coverage and coverage_plugin."""
    short, long = sorted((one, other), key=len)
    return len(short) > 4 and f"_{short}_" in f"_{long}_"


def _module(path: str) -> str:
    return ".".join(PurePath(path).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def _test_files(root: Path) -> tuple[str, ...]:
    files = (str(f.relative_to(root)) for f in sorted(root.glob("tests/**/test_*.py")))
    return tuple(f for f in files if PurePath(f).parts[1] not in _ELSEWHERE)


@functools.cache
def _imports(root: Path) -> dict[str, set[str]]:
    """What each module of the package and of the tests imports."""
    files = [f for top in ("pytest_mnode", "tests") for f in root.glob(f"{top}/**/*.py")]
    modules = {_module(str(f.relative_to(root))): f for f in files}
    return {name: set(_imported(file)) & modules.keys() for name, file in modules.items()}


def _imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def _distances(root: Path, module: str) -> dict[str, int]:
    """The number of imports from each module to this one; a package's names count as its own."""
    importers: dict[str, set[str]] = {}
    for name, imported in _imports(root).items():
        for other in imported:
            importers.setdefault(other, set()).add(name)
    distances = {module: 0}
    edge = [module]
    while edge:
        reached = {name for one in edge for name in importers.get(one, ())} - distances.keys()
        distances |= dict.fromkeys(reached, distances[edge[0]] + 1)
        edge = sorted(reached)
    return distances


@functools.cache
def _runs_programs(root: Path, file: str) -> bool:
    """Whether a test file starts programs, which takes longer."""
    text = (root / file).read_text()
    return any(word in text for word in ("subprocess", "tests.inner", "tests.scenario", "Rack"))
