"""Plugin of a pytest session that discovers the cluster instead of running tests, and checks the
nodes against the page drafted from them, by preflight's checks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from pytest_mnode.criteria.preflight.answers import Survey
from pytest_mnode.criteria.preflight.survey_check import promised_checks
from pytest_mnode.discover.cluster import named
from pytest_mnode.discover.draft import Draft, draft
from pytest_mnode.discover.nodes import FoundCluster, read_nodes
from pytest_mnode.discover.page import printable
from pytest_mnode.errors import ClusterError, MnodeError, SpecError, UsageError
from pytest_mnode.evidence.check import catalogue
from pytest_mnode.marks import FEWEST_NODES
from pytest_mnode.measurement import Measurement, Verdict
from pytest_mnode.options import Settings
from pytest_mnode.spec import Spec, doubts, load_spec

if TYPE_CHECKING:
    from pytest_mnode.launchers.nodes import Nodes


@dataclass(frozen=True, slots=True)
class Findings:
    """Failed and inconclusive measurements, one line each; measured: number of all measurements."""

    broken: tuple[str, ...]
    unknown: tuple[str, ...]
    measured: int

    def paragraphs(self) -> Iterator[str]:
        """Paragraphs for the head of the page."""
        done = f"preflight was run with this page, and made {self.measured} measurements"
        if not self.broken and not self.unknown:
            yield f"Then {done}: all nodes meet it."
            return
        yield f"Then {done}. Measurements that failed, or could not be made:"
        yield from (f"- {line}" for line in self.broken)
        yield from (f"- could not be measured: {line}" for line in self.unknown)


def findings(survey: Survey, spec: Spec) -> Findings:
    """Judge each node from a survey that was made with this page."""
    broken, unknown, measured = [], [], 0
    checks = promised_checks(spec, (one for one in catalogue("preflight") if one.on == "node"))
    for node in survey.nodes:
        found = [measured for one in checks for measured in one.judge(survey, node.name)]
        measured += len(found)
        broken += [_line(m, node.name) for m in found if m.verdict is Verdict.FAIL]
        unknown += [_line(m, node.name) for m in found if m.verdict is Verdict.INCONCLUSIVE]
    return Findings(tuple(broken), tuple(unknown), measured)


def _line(one: Measurement, node: str) -> str:
    """Description of a measurement with the node that it concerns."""
    if one.value is None:
        return f"{one.name} on {node}: {one.note}"
    note = f" ({one.note})" if one.note else ""
    return f"{one.culprit or node}: {one.name} {one.measured}{note}"


FLAG = "--mnode-discover"


class DiscoveryRun(Protocol):
    """Interface of a run that discovery needs; the controller's session implements it."""

    settings: Settings
    launcher: str
    reason: str

    def make_pool(self) -> Any:
        """Start the nodes; the pool's `run_dir` is a directory for temporary files."""

    def all_nodes(self) -> Nodes:
        """All nodes of the run."""


class Discovery:
    """pytest plugin: collects no tests, reads the nodes of a run, and writes a page.

    The session's exit status is 0 if every node could be read, no key is left to fill in and the
    page has no doubts, else 1; it is pytest's usage error if no page could be written.
    """

    def __init__(self, run: DiscoveryRun) -> None:
        assert run.settings.discover is not None
        self._run = run
        self._file = run.settings.discover
        self._complete = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> bool:
        terminal: Any = session.config.pluginmanager.getplugin("terminalreporter")
        try:
            for line in self._discover():
                if terminal is not None:
                    terminal.write_line(printable(line))
        except MnodeError as error:
            raise pytest.UsageError(str(error)) from None
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> bool:
        return True

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            done = pytest.ExitCode.OK if self._complete else pytest.ExitCode.TESTS_FAILED
            session.exitstatus = done

    def _discover(self) -> list[str]:
        """Read the nodes and write the page; return the lines for the terminal."""
        pool = self._run.make_pool()
        nodes = self._run.all_nodes()
        found = read_nodes(nodes, self._run.launcher, self._run.reason)
        if not found.shown:
            reasons = "; ".join(f"{node.name}: {node.problem}" for node in found.silent[:4])
            raise ClusterError(f"{FLAG}: no node could be read: {reasons}")
        page = draft(found)
        spec, refused = _loaded(page, pool.run_dir / "discovered.yaml")
        tried: list[str] = []
        kept = None
        if spec is not None:
            from pytest_mnode.criteria.preflight.survey import survey

            checks = promised_checks(spec, catalogue("preflight"))
            kept = findings(survey(nodes, spec, [], checks), spec)
            tried = list(kept.paragraphs())
        elif not page.missing:
            tried = [f"The page cannot be loaded: {refused}"]
        write_new(self._file, page.text(tried))
        doubtful = [] if spec is None else doubts_but_unconfirmed(spec)
        self._complete = complete(spec, found, page, doubtful)
        return summary(self._file, found, page, kept, refused, doubtful=doubtful)


def doubts_but_unconfirmed(spec: Spec) -> list[str]:
    """Doubts about a page, other than that it is not confirmed."""
    return doubts(spec.model_copy(update={"confirmed": True}))


def complete(spec: Spec | None, found: FoundCluster, page: Draft, doubtful: Sequence[str]) -> bool:
    """Whether a page only needs to be confirmed. spec: the loaded page; None if it did not load."""
    return not (spec is None or found.silent or page.unread or doubtful)


def summary(
    file: Path,
    found: FoundCluster,
    page: Draft,
    kept: Findings | None,
    refused: str,
    *,
    doubtful: Sequence[str] = (),
) -> list[str]:
    """Lines for the terminal."""
    names = named([node.name for node in found.shown])
    lines = [f"mnode: launcher {found.launcher} ({found.reason}): read {names}"]
    lines += [f"mnode: {node.name} could not be read: {node.problem}" for node in found.silent]
    lines += [f"mnode: nodes differ: {line}" for line in page.differences]
    lines += [f"mnode: could not be read: {line}" for line in page.unread]
    if kept is not None:
        lines += [f"mnode: nodes do not meet the spec: {line}" for line in kept.broken]
        lines += [f"mnode: could not be measured: {line}" for line in kept.unknown]
    lines += [f"mnode: doubtful: {line}" for line in doubtful]
    lines.append(f"written: {file}")
    if page.missing:
        lines.append(
            f"mnode: keys to fill in before the page can be loaded: {', '.join(page.missing)}"
        )
    elif refused:
        lines.append(f"mnode: the page cannot be loaded, correct it: {refused}")
    lines.append(
        "mnode: compare the page with what was bought, then set confirmed: true, and run with "
        f"--mnode-spec={file}"
    )
    return lines


def _loaded(page: Draft, path: Path) -> tuple[Spec | None, str]:
    """A page as a spec, or the error, without the file's path. The file goes with the run."""
    path.write_text(page.text(), encoding="utf-8")
    try:
        return load_spec(path), ""
    except SpecError as error:
        return None, "; ".join(one.removeprefix(f"{path}: ") for one in str(error).splitlines())


def check_place(file: Path) -> None:
    """Check before the run starts. Raises UsageError if `file` cannot be created."""
    if os.path.lexists(file):
        raise UsageError(f"{FLAG}={file}: the file exists; accepted: the name of a new file")
    folder = file.parent
    if not folder.is_dir():
        raise UsageError(
            f"{FLAG}={file}: no directory {folder}; accepted: a file in an existing one"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{FLAG}={file}: {folder} cannot be written to")


def write_new(file: Path, text: str) -> None:
    """Write a new file, completely or not at all. Raises UsageError."""
    try:
        with file.open("x", encoding="utf-8") as page:
            try:
                page.write(text)
                page.flush()
            except OSError:
                file.unlink()
                raise
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise UsageError(f"{FLAG}={file}: {reason}") from None


def settings_to_discover(config: pytest.Config, settings: Settings) -> Settings:
    """Settings of a run that discovers. Raises UsageError if discovery is not possible."""
    if config.getoption("numprocesses", default=None):
        raise UsageError(f"{FLAG} runs no tests; leave out pytest-xdist's -n")
    assert settings.discover is not None
    check_place(settings.discover)
    return replace(settings, nodes=node_count(settings, os.environ))


def node_count(settings: Settings, environment: Mapping[str, str]) -> int:
    """Number of nodes: as requested, else all of the allocation or of the hostfile.

    Without a cluster it is FEWEST_NODES. Raises UsageError if a scheduler must allocate nodes and
    their number is not given.
    """
    if settings.nodes is not None:
        return settings.nodes
    from pytest_mnode.backends.backend import Here
    from pytest_mnode.backends.registry import chosen

    backend, _ = chosen(settings, environment)
    try:
        return backend.count(Here(settings, environment)) or FEWEST_NODES
    except UsageError as error:
        raise UsageError(f"{FLAG}: {error}") from None
