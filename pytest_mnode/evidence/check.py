"""A check: one question, with its promise, its reading, its rule and its fault, in one class.

    @check("preflight.huge_pages")
    class HugePagesAreAlike(Check):
        "Do all nodes use transparent huge pages alike?"

        promise: Literal["same", "always", "madvise", "never"]
        "The mode of the kernel; same: that of the other nodes, whatever it is."

        def read(self, root: Path) -> Iterator[Row]: …
        def rule(self, rows: Rows) -> Iterator[Measurement]: …

From it follow the key of the spec and its JSON Schema, the case `test_huge_pages_are_alike` of the
acceptance suite for every node, its row in docs/checks.md, the entry in a draft of
`--mnode-discover` (`draft`), and its red run on the rack (`fault`).

Checks of `devices` and `numa` are measured by all ranks of a world together: see
`checks.world_check`.

Checks are found in `pytest_mnode.checks.node`, `.devices` and `.placement`, by the entry points of
the group `pytest_mnode.checks`, each of which names a module, and in every conftest.py.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from importlib.metadata import entry_points
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar

from pytest_mnode.errors import UsageError
from pytest_mnode.evidence.rules import Rows
from pytest_mnode.measurement import Measurement

if TYPE_CHECKING:
    from pytest_mnode.evidence.row import Row

GROUP = "pytest_mnode.checks"
"""Group of entry points; each names a module that has checks."""
_OURS = tuple(f"pytest_mnode.checks.{folder}" for folder in ("node", "devices", "placement"))
_READ_ON: Mapping[str, tuple[Place, ...]] = {
    "preflight": ("node", "rank"),
    "devices": ("world",),
    "numa": ("world",),
}
"""Where checks of a criterion are read, first where they are if they do not say it."""
CRITERIA = tuple(_READ_ON)
"""Criteria whose keys are those of checks; their tests request them."""
_WORD = re.compile(r"(?<!^)(?=[A-Z])")
C = TypeVar("C", bound="type[Check]")
Place = Literal["node", "rank", "world"]


class Evidence(Protocol):
    """What was read for checks on all nodes, or in all ranks. It is hashed by its identity."""

    def rows(self, case: str) -> Mapping[str, Sequence[Row]]:
        """Rows of a check by node, or why a node has none."""


class Check:
    """Base of all checks. Its docstring is the question, one line, and then what a reader of the
    docs has to know.

    promise: what the spec promises; its annotation is the type of the spec's key, and the docstring
    below it describes the key. None while `--mnode-discover` reads: a reading that depends on it
    then reads everything. spec: the whole spec; not there while a node reads.
    """

    key: ClassVar[str]
    """The key of the spec, below `criteria`: "preflight.huge_pages". Several checks may share one,
    with the same type of promise; "devices.{part}" is a key for each part."""
    on: ClassVar[Place] = "node"
    """Where it reads: once on each node, in each rank of a world over all nodes, or in all ranks of
    a world together."""
    stops: ClassVar[tuple[str, ...]] = ()
    """Criteria that are of no use on a cluster that fails this."""
    alone: ClassVar[bool] = False
    """Whether a node by itself can be judged, as by a scheduler's health check: without another
    node, without ranks, and by what is the node's own."""
    needs: ClassVar[str] = ""
    """Key below `key` without which there is nothing to judge."""
    of_accelerators: ClassVar[bool] = False
    """Whether it is about accelerators: of a cluster without any, its promise is doubtful."""
    each: ClassVar[tuple[str, ...]] = ()
    """Parts that are cases of their own, `part` of which is judged; () for a single case."""
    of_paths: ClassVar[bool] = False
    """Whether it judges what nodes found on their paths to each other: they grow by the square of
    nodes, and the evidence of a run with many does not have them. `judge` then has its bounds
    alone, as where what was read depends on another value of its promise or of the cluster."""
    fault: ClassVar[str] = ""
    """A fault of the rack (`--mnode-fault`) that turns it red, with {node} for the node; if it
    has {other} for another one, both are suspect."""
    promised_as: ClassVar[str] = ""
    """The promise, in YAML, with which `fault` turns it red."""
    read_by: ClassVar[frozenset[str]] = frozenset()
    """Keys of the promise, and with a dot of the spec, that decide what is read: where they have
    other values, `judge` does not take its rows. "": the promise as a whole; "*": all keys that its
    test requested, but the promise itself, and all that the cluster is."""
    compared_only: ClassVar[frozenset[str]] = frozenset()
    """Exceptions of `read_by`: keys that only its rule reads."""
    file: ClassVar[str]
    """Where its class is. Its module is no help: all conftest.py may share one name."""
    _names: ClassVar[Mapping[str, Any]] = globals()
    promise: Any
    part: str = ""
    nodes: tuple[tuple[str, str], ...] = ()
    """Name and address of each node of the run, for a reading with a limit of its own."""
    index: int = 0
    """Number of the node that reads, in `nodes`."""

    def __init_subclass__(cls) -> None:
        frame = sys._getframe(1)  # of the class statement
        cls.file, cls._names = frame.f_code.co_filename, frame.f_globals

    def __init__(self, promise: Any, spec: Any = None, part: str = "") -> None:
        self.promise, self.spec, self.part = promise, spec, part

    @property
    def limit_s(self) -> float | None:
        """Time that its reading may take, if it is longer than others, as that of a test under
        load: it is then made after all other readings, by itself. None: `READ_LIMIT_S`."""
        return None

    def read(self, root: Path) -> Iterator[Row]:
        """Rows of this machine, or of a recorded one below `root`. Runs on the node, in a thread
        with a limit; an error is the reason why nothing was read."""
        raise NotImplementedError

    def rule(self, rows: Any) -> Iterable[Measurement]:
        """Judge the node `rows.node` by the `Rows` of all nodes. Pure."""
        raise NotImplementedError

    def by_node(self, evidence: Any) -> Mapping[str, Sequence[Row]]:
        """Its rows by node, or why a node has none. evidence: an `Evidence`. Pure."""
        read: Evidence = evidence
        return read.rows(self.case())

    def judge(self, evidence: Any, node: str) -> Iterable[Measurement]:
        """Findings about a node: those of `rule`. evidence: an `Evidence`. Pure."""
        return self.rule(replace(_rows(self, evidence), node=node))

    def doubts(self, cluster: Any) -> Iterator[str]:
        """One line, without its key, for each promise that cannot be right, given the cluster."""
        if self.of_accelerators and not cluster.accelerators.per_node:
            yield ": given, but accelerators.per_node is 0"

    @classmethod
    def programs(cls, promise: Any) -> Iterable[str]:  # noqa: ARG003
        """Programs that nodes must have, without which this promise can only be inconclusive."""
        return ()

    @classmethod
    def draft(cls, rows: Mapping[str, Sequence[Row]]) -> Any:  # noqa: ARG003
        """The promise of a first spec of nodes with these rows, as plain values that a page would
        have, such as "same" or {"cpus": 64}; None to promise nothing."""
        return None

    @classmethod
    def reads(cls) -> bool:
        """Whether it has a reading of its own."""
        return cls.read is not Check.read

    @classmethod
    def drafts(cls) -> bool:
        """Whether a draft of a spec may promise it, from what it reads."""
        return cls.reads() and cls.draft.__func__ is not Check.draft.__func__  # type: ignore[attr-defined]

    @classmethod
    def all_keys(cls) -> tuple[str, ...]:
        """Its keys of the spec: one, or one for each part."""
        return tuple(dict.fromkeys(cls.key.format(part=part) for part in cls.each or ("",)))

    @classmethod
    def case(cls) -> str:
        """The name of its test: test_huge_pages_are_alike for HugePagesAreAlike."""
        return f"test_{_WORD.sub('_', cls.__name__).lower()}"

    @classmethod
    def question(cls) -> str:
        """The first line of its docstring."""
        return inspect.cleandoc(cls.__doc__ or "").partition("\n")[0]

    @classmethod
    @cache
    def promise_type(cls) -> Any:
        """The type of its promise, from the annotation; the same object at every call."""
        for base in cls.__mro__:
            if "promise" in vars(base).get("__annotations__", {}):
                annotation = vars(base)["__annotations__"]["promise"]
                text = isinstance(annotation, str)
                return eval(annotation, dict(vars(base)["_names"])) if text else annotation
        raise AssertionError("Check itself has one")

    @classmethod
    def promise_doc(cls) -> str:
        """The docstring below its promise; "" if it has none, as where another check has it."""
        return docs_below(cls.file, cls.__name__).get("promise", "")


@lru_cache(maxsize=16)
def _rows(check: Check, evidence: Any) -> Rows:
    """The rows of all nodes, of which no node is judged yet."""
    return Rows("", check.key, check.promise, check.by_node(evidence))


def findings(
    one: Check, rule: Callable[..., Iterable[Measurement]], *judged: Any
) -> list[Measurement]:
    """What a rule of a check finds; inconclusive if it raises, which is no fault of the cluster."""
    try:
        return [*rule(*judged)]
    except Exception as error:  # the rule of a site may raise anything
        return [Measurement.unknown(one.key, raised("rule", error))]


def raised(what: str, error: Exception) -> str:
    """What a part of a check raised, and where, in a line."""
    why = " ".join(f"{type(error).__name__}: {error}".split())
    at = traceback.extract_tb(error.__traceback__)[-1]
    return f"its {what} raised {why} ({Path(at.filename).name}, line {at.lineno}); correct it"


CHECKS: dict[str, type[Check]] = {}
"""Every check by its case, in the order of its registration."""
_on_late: list[Callable[[type[Check]], None]] = []


def check(key: str, *, on: Place | None = None) -> Callable[[C], C]:
    """Decorator that enters a check. key: of the spec, below `criteria`. on: where it is read: of
    preflight on the node, or in a rank; of devices and numa in a world.

    Raises ValueError, one line, for a class that cannot be a check, and for a name that is taken.
    """

    def enter(found: C) -> C:
        criterion = key.partition(".")[0]
        places = _READ_ON.get(criterion, ())
        found.key, found.on = key, on or (places[0] if places else "node")
        named = {one.partition(".")[2] for one in found.all_keys()}
        if found.on not in places or not all(map(str.isidentifier, named)):
            raise ValueError(
                f"check {found.__name__}: key {key!r} on a {found.on}; accepted: preflight.NAME on "
                "a node or a rank, devices.NAME and numa.NAME on a world, NAME one word"
            )
        if not found.question().endswith("?"):
            raise ValueError(f"check {found.__name__}: its docstring begins with no question")
        other = CHECKS.get(found.case())
        if other is not None and _home(other) != _home(found):
            raise ValueError(
                f"check {found.__name__} of {found.file}: {other.file} has one of that name; "
                "give it another"
            )
        for hear in _on_late:
            hear(found)
        CHECKS[found.case()] = found
        return found

    return enter


def _home(one: type[Check]) -> tuple[str, str]:
    return one.file, one.__qualname__


@cache
def _parsed(file: str) -> list[ast.ClassDef]:
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def docs_below(file: str, name: str) -> dict[str, str]:
    """The docstrings below the fields of class `name` of a source file, by the fields' names."""
    body = next((one.body for one in _parsed(file) if one.name == name), [])
    found = {}
    for field, text in pairwise(body):
        match field, text:
            case (
                ast.AnnAssign(target=ast.Name(id=of)),
                ast.Expr(value=ast.Constant(value=str(docstring))),
            ):
                found[of] = inspect.cleandoc(docstring)
    return found


def on_late_check(hear: Callable[[type[Check]], None]) -> None:
    """Have `hear` called with each check that is entered from now on, as by a conftest.py."""
    _on_late.append(hear)


@cache
def load() -> None:
    """Import the modules of all checks. Raises UsageError for an entry point that cannot be."""
    for folder in _OURS:
        modules = pkgutil.iter_modules(importlib.import_module(folder).__path__)
        for module in sorted(found.name for found in modules):
            importlib.import_module(f"{folder}.{module}")
    for entry in sorted(entry_points(group=GROUP), key=lambda one: one.name):
        try:
            entry.load()
        except Exception as error:  # modules of other people may raise anything
            package = f"package {entry.dist.name}" if entry.dist else "a package"
            why = " ".join(f"{type(error).__name__}: {error}".split())
            named = f"entry point {entry.name} = {entry.value!r} of {GROUP}"
            raise UsageError(f"{package}, {named}: {why}; correct or uninstall it") from None


def catalogue(criterion: str = "") -> tuple[type[Check], ...]:
    """All checks, or those of a criterion: those of nodes before those of ranks, first those that
    stop others, and ours by their modules, whichever was imported first."""
    load()
    every = [one for one in CHECKS.values() if one.key.startswith(criterion and f"{criterion}.")]

    def place(one: type[Check]) -> tuple[bool, bool, int, str]:
        folder = one.__module__.rpartition(".")[0]
        which = _OURS.index(folder) if folder in _OURS else len(_OURS)
        return one.on == "rank", not one.stops, which, one.__module__ if folder in _OURS else ""

    return tuple(sorted(every, key=place))
