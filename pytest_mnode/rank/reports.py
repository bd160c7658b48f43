"""Prepares a rank's reports for the controller: known outcomes, plain values, bounded output."""

from __future__ import annotations

import contextlib
import copy
import pickle
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import DistError

from pytest_mnode.outcome import stacks
from pytest_mnode.outcome.merge import OF_A_PLAIN_PASS
from pytest_mnode.protocol.messages import TIMES
from pytest_mnode.protocol.rank_files import NCCL_SECTION, nccl_causes
from pytest_mnode.rank.rank import Rank

OUTPUT_LIMIT_CHARS = 16 * 1024
"""Maximum of a test's output in a report."""


def serialised(
    report: pytest.TestReport,
    config: pytest.Config,
    rank: Rank,
    nccl_start: int,
    keep_in: Path | None,
) -> Any:
    """A serialized report of bounded size, with NCCL's causes of a failure.

    nccl_start: byte of NCCL's log where this test begins. keep_in: see `trim`.
    """
    if report.failed and (causes := nccl_causes(rank.files.nccl, nccl_start)):
        report.sections.append((NCCL_SECTION, causes))
    trim(report, rank.world.rank, keep_in)
    return plain(config.hook.pytest_report_to_serializable(config=config, report=report))


def trim(report: pytest.TestReport, rank: int, keep_in: Path | None) -> None:
    """Cut long output to its end; write all of it to a file in `keep_in`, if given."""
    sections = []
    for name, whole in report.sections:
        text = whole
        if len(text) > OUTPUT_LIMIT_CHARS:
            where = "are not shown; --mnode-log-dir=DIR keeps them"
            if keep_in is not None:
                safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in report.nodeid)[-100:]
                path = keep_in / f"{safe}.rank{rank}.{name.lower().replace(' ', '-')}.log"
                path.write_text(text, errors="replace")
                where = f"are in {path}"
            cut = f"{len(text) - OUTPUT_LIMIT_CHARS:,} characters before this"
            text = f"({cut} {where})\n{text[-OUTPUT_LIMIT_CHARS:]}"
        sections.append((name, text))
    report.sections = sections


def times_of_plain_pass(report: pytest.TestReport) -> dict[str, Any]:
    """TIMES of a plain pass, whose other fields the controller knows; {} for other reports."""
    if report.sections or report.user_properties or report.longrepr or not report.passed:
        return {}
    fields = vars(report)
    return {} if fields.keys() - OF_A_PLAIN_PASS else {name: fields[name] for name in TIMES}


def with_known_outcome(report: pytest.TestReport) -> pytest.TestReport:
    """The report; as failed if its outcome is not passed, failed or skipped."""
    if report.outcome in ("passed", "failed", "skipped"):
        return report
    known = copy.copy(report)
    known.outcome = "failed"
    known.longrepr = (
        f"a plugin reported the outcome {report.outcome!r} of {report.when}; accepted in ranks: "
        f"passed, failed, skipped\n{report.longreprtext}"
    ).rstrip()
    return known


def plain(value: Any) -> Any:
    """`value` in types that any process can unpickle, because a property may be of any class."""
    if value is None or type(value) in (str, int, float, bool, bytes):
        return value
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        items = [plain(v) for v in value]
        return tuple(items) if isinstance(value, tuple) else items
    for base in (int, float):
        if isinstance(value, base):
            return base(value)
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__}>"


def plain_warning(message: warnings.WarningMessage) -> tuple[bytes, str, str, int]:
    """The pickled warning (b"" if that fails), its text, file and line."""
    blob = b""
    with contextlib.suppress(Exception):  # a user's class may raise anything when pickled
        blob = pickle.dumps((message.message, message.category))
    text = f"{message.category.__name__}: {message.message}"
    return blob, text, message.filename, message.lineno


def shorten(excinfo: pytest.ExceptionInfo[BaseException]) -> None:
    """Drop torch's own frames if communication failed: an error that c10d raises, or a DistError.

    Formatting them takes half a second, and they are hundreds of lines of init_process_group.
    """
    last, inner, frame = None, "", excinfo.value.__traceback__
    while frame is not None:
        inner = frame.tb_frame.f_code.co_filename
        if not stacks.is_torchs(inner):
            last = frame
        frame = frame.tb_next
    failed = isinstance(excinfo.value, DistError) or (
        isinstance(excinfo.value, RuntimeError) and inner.endswith(stacks.C10D)
    )
    if failed and last is not None:
        last.tb_next = None
        excinfo.traceback = type(excinfo.traceback)(excinfo.tb)


def shorten_frames(report: pytest.TestReport, tree: Path) -> None:
    """Show frames of installed code by one line each; the last also by its error. tree: the test's
    directory, which may be installed too.

    The source of a library says little about the test that called it, and is long.
    """
    longrepr: Any = report.longrepr
    chain = getattr(longrepr, "chain", None) or [(getattr(longrepr, "reprtraceback", None),)]
    for traceback_repr, *_ in chain:
        for entry in getattr(traceback_repr, "reprentries", None) or []:
            place = getattr(entry, "reprfileloc", None)
            if place is None or not _is_installed(str(place.path), tree):
                continue
            lines = list(entry.lines)
            raised = next((n for n, line in enumerate(lines) if line.startswith(">")), len(lines))
            errors = [n for n, line in enumerate(lines) if line.startswith("E")]
            entry.lines = lines[min(raised, *errors, len(lines)) :] if errors else []
            entry.reprfuncargs = None


def _is_installed(path: str, tree: Path) -> bool:
    whole = Path(path).absolute()  # pytest shows paths from the directory it started in
    installed = "-packages/" in str(whole) or stacks.is_pythons(str(whole))
    return installed and not whole.is_relative_to(tree)


def problem(error: BaseException) -> str:
    """Text of an error that escaped pytest's protocol, such as pytest.exit, and its test line."""
    text = "".join(traceback.format_exception_only(error)).strip().removesuffix(":")
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not stacks.is_hidden(frame.filename):
            return f"{text}\n{Path(frame.filename).name}:{frame.lineno}: {frame.line}"
    return text


class Recorded:
    """pytest plugin of a rank: collects warnings and junit suite properties for the controller.

    Registered before collection, as fixtures must be.
    """

    NAME = "mnode-recorded"

    def __init__(self) -> None:
        self._warnings: list[tuple[Any, ...]] = []
        self._properties: list[tuple[str, Any]] = []

    @pytest.hookimpl
    def pytest_warning_recorded(
        self,
        warning_message: warnings.WarningMessage,
        when: str,
        nodeid: str,
        location: tuple[str, int, str] | None,
    ) -> None:
        self._warnings.append((*plain_warning(warning_message), when, nodeid, location))

    @pytest.fixture(scope="session")
    @classmethod  # pytest 10 refuses a fixture of wide scope that is a method of an instance
    def record_testsuite_property(
        cls, request: pytest.FixtureRequest
    ) -> Callable[[str, object], None]:
        """Add a property to junit's whole suite; it names the ranks if not all record it."""
        recorded: Any = request.config.pluginmanager.getplugin(cls.NAME)

        def record(name: str, value: object) -> None:
            if not isinstance(name, str):
                raise TypeError(f"record_testsuite_property: name={name!r} is not a string")
            recorded._properties.append((name, plain(value)))

        return record

    def take_warnings(self) -> tuple[tuple[Any, ...], ...]:
        """Warnings recorded since the last call."""
        taken, self._warnings = self._warnings, []
        return tuple(taken)

    def take_properties(self) -> tuple[tuple[str, Any], ...]:
        """Properties recorded since the last call."""
        taken, self._properties = self._properties, []
        return tuple(taken)
