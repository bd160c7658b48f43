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

Checks are found in `pytest_mnode.checks.node`, by the entry points of the group
`pytest_mnode.checks`, each of which names a module, and in every conftest.py.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar

from pytest_mnode.errors import UsageError
from pytest_mnode.evidence.rules import Rows

if TYPE_CHECKING:
    from pytest_mnode.evidence.row import Row
    from pytest_mnode.measurement import Measurement

GROUP = "pytest_mnode.checks"
"""Group of entry points; each names a module that has checks."""
_OURS = "pytest_mnode.checks.node"
_WORD = re.compile(r"(?<!^)(?=[A-Z])")
C = TypeVar("C", bound="type[Check]")


class Evidence(Protocol):
    """What was read for checks on all nodes, or in all ranks."""

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
    with the same type of promise."""
    on: ClassVar[Literal["node", "rank"]] = "node"
    """Where it reads: once on each node, or in each rank of a world over all nodes."""
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
    fault: ClassVar[str] = ""
    """A fault of the rack (`--mnode-fault`) that turns it red, with {node} for the node; if it
    has {other} for another one, both are suspect."""
    promised_as: ClassVar[str] = ""
    """The promise, in YAML, with which `fault` turns it red."""
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

    def rule(self, rows: Rows) -> Iterable[Measurement]:
        """Judge the node `rows.node` by the rows of all nodes. Pure."""
        raise NotImplementedError

    def judge(self, evidence: Any, node: str) -> Iterable[Measurement]:
        """Findings about a node: those of `rule`. evidence: an `Evidence`. Pure."""
        read: Evidence = evidence
        return self.rule(Rows(node, self.key, self.promise, read.rows(self.case())))

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
    def case(cls) -> str:
        """The name of its test: test_huge_pages_are_alike for HugePagesAreAlike."""
        return f"test_{_WORD.sub('_', cls.__name__).lower()}"

    @classmethod
    def question(cls) -> str:
        """The first line of its docstring."""
        return inspect.cleandoc(cls.__doc__ or "").partition("\n")[0]

    @classmethod
    def promise_type(cls) -> Any:
        """The type of its promise, from the annotation."""
        for base in cls.__mro__:
            if "promise" in vars(base).get("__annotations__", {}):
                annotation = vars(base)["__annotations__"]["promise"]
                text = isinstance(annotation, str)
                return eval(annotation, dict(vars(base)["_names"])) if text else annotation
        raise AssertionError("Check itself has one")

    @classmethod
    def promise_doc(cls) -> str:
        """The docstring below its promise; "" if it has none, as where another check has it."""
        classes = (one for one in _parsed(cls.file) if one.name == cls.__name__)
        body = next((one.body for one in classes), [])
        for field, text in pairwise(body):
            match field, text:
                case (
                    ast.AnnAssign(target=ast.Name(id="promise")),
                    ast.Expr(value=ast.Constant(value=str(found))),
                ):
                    return inspect.cleandoc(found)
        return ""


CHECKS: dict[str, type[Check]] = {}
"""Every check by its case, in the order of its registration."""
_on_late: list[Callable[[type[Check]], None]] = []


def check(key: str, *, on: Literal["node", "rank"] = "node") -> Callable[[C], C]:
    """Decorator that enters a check. key: of the spec, below `criteria`.

    Raises ValueError, one line, for a class that cannot be a check, and for a name that is taken.
    """

    def enter(found: C) -> C:
        found.key, found.on = key, on
        criterion, _, name = key.partition(".")
        if criterion != "preflight" or not name.isidentifier():
            raise ValueError(
                f"check {found.__name__}: key {key!r}; accepted: preflight.NAME, one word"
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


def on_late_check(hear: Callable[[type[Check]], None]) -> None:
    """Have `hear` called with each check that is entered from now on, as by a conftest.py."""
    _on_late.append(hear)


@cache
def load() -> None:
    """Import the modules of all checks. Raises UsageError for an entry point that cannot be."""
    folder = importlib.import_module(_OURS)
    for module in sorted(found.name for found in pkgutil.iter_modules(folder.__path__)):
        importlib.import_module(f"{_OURS}.{module}")
    for entry in sorted(entry_points(group=GROUP), key=lambda one: one.name):
        try:
            entry.load()
        except Exception as error:  # modules of other people may raise anything
            package = f"package {entry.dist.name}" if entry.dist else "a package"
            why = " ".join(f"{type(error).__name__}: {error}".split())
            named = f"entry point {entry.name} = {entry.value!r} of {GROUP}"
            raise UsageError(f"{package}, {named}: {why}; correct or uninstall it") from None


def catalogue() -> tuple[type[Check], ...]:
    """All checks: those of nodes before those of ranks, and first those that stop others."""
    load()
    return tuple(sorted(CHECKS.values(), key=lambda one: (one.on == "rank", not one.stops)))
