"""The end of a run: cases are gathered from reports, the certificate is written and shown."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_mnode.certificate import (
    CaseResult,
    Certificate,
    RunFacts,
    build_certificate,
    criterion_name,
    git_commit,
    installed_versions,
    summary_lines,
    write_report,
)
from pytest_mnode.certificate.files import replace_file
from pytest_mnode.certificate.headline import headline
from pytest_mnode.certificate.kept import earlier_runs, keep, with_history
from pytest_mnode.certificate.page import missing_pictures
from pytest_mnode.certificate.results import (
    Outcome,
    charts_from_json,
    measurements_from_json,
)
from pytest_mnode.certificate.spec_facts import facts_of, unconfirmed
from pytest_mnode.certificate.text import Recorded, fit, recorded_from
from pytest_mnode.controller.narrowing import Narrowing, name_of
from pytest_mnode.controller.session import ENDED
from pytest_mnode.installed import Installed, RequestedKeys
from pytest_mnode.path_rates import PathRates
from pytest_mnode.skipping import NOT_PROMISED, skip_reason
from pytest_mnode.spec import doubts

if TYPE_CHECKING:
    from pytest_mnode.controller.session import Run


@dataclass(slots=True)
class _Case:
    outcome: Outcome = "passed"
    message: str = ""
    culprit: dict[str, Any] = field(default_factory=dict)
    duration_s: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)
    phases: set[str] = field(default_factory=set)
    recorded: tuple[Recorded, ...] = ()
    stopped: bool = False
    by_bounds: bool = True
    lacks: str | None = None

    @property
    def cut_off(self) -> bool:
        """Whether the test's end is unknown: pytest does not report a phase that Ctrl-C ends."""
        return self.outcome == "passed" and not self.phases >= {"call", "teardown"}


class CertificatePlugin:
    """pytest plugin: collects the reports of criteria and writes a certificate at the end."""

    def __init__(self, run: Run, narrowing: Narrowing) -> None:
        self.run = run
        self._narrowing = narrowing
        self.started = datetime.now(UTC)
        self.cases: dict[str, _Case] = {}
        self.certificate: Certificate | None = None
        self._ended_itself = False
        self._broken_off: list[str] = []
        self._written: list[str] = []
        self._not_written: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if "criterion" not in report.keywords:
            if str(report.when) == "???":  # the report of a dead worker, without keywords
                self._broken_off.append(f"the end of a pytest-xdist worker in {report.nodeid}")
            return
        test = name_of(report.nodeid, report.location[0])
        case = self.cases.setdefault(test, _Case())
        case.duration_s += report.duration
        case.phases.add(str(report.when))
        case.facts = getattr(report, "mnode", case.facts)
        case.recorded = recorded_from(report.user_properties)  # the last report has all phases'
        outcome = _outcome(report)
        if _SEVERITY[outcome] > _SEVERITY[case.outcome]:
            case.outcome, case.message = outcome, fit(_message(report))
            case.culprit = getattr(report, "mnode_culprit", {})
            case.stopped = getattr(report, "mnode_stopped", False)
            case.lacks = getattr(report, "mnode_lacks", None) or None
        if outcome != "passed":
            case.by_bounds = case.by_bounds and getattr(report, "mnode_by_bounds", False)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Note why a worker of pytest-xdist ended itself."""
        output = getattr(node, "workeroutput", None) or {}
        self.run.ended = self.run.ended or output.get(ENDED, "")

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Note that the run was stopped, by its own decision or by Ctrl-C or another plugin."""
        self._ended_itself = bool(self.run.ended) and str(excinfo.value) == self.run.ended
        if not self._ended_itself:  # `pytest.exit` may end with any status
            self._broken_off.append("interrupted")

    def pytest_internalerror(self) -> None:
        self._broken_off.append("an internal error of pytest")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Build and write the certificate; fail a run that had to certify and did not."""
        run = self.run
        if not self.cases and run.settings.report_dir is None:
            return
        cases = [_result(test, case) for test, case in self.cases.items()]
        promised = run.spec.promised_criteria
        # Results under an injected fault say nothing about the cluster.
        kept_in = None if run.settings.faults else run.settings.history_dir
        earlier = earlier_runs(kept_in, facts_of(run.spec, run.spec_path), spec=run.spec)
        certificate = build_certificate(
            run=self._facts(session, run, exitstatus),
            cases=cases,
            promised=promised,
            not_promised={
                **dict.fromkeys(_skipped_whole(cases) - set(promised), _SILENT),
                **{n.question: n.reason for n in run.spec.not_promised},
            },
            earlier=earlier.coverage,
        )
        if kept_in is not None:
            certificate = with_history(certificate, earlier)
            with self._writing(kept_in):
                self._written.append(str(keep(kept_in, certificate)))
        self.certificate = certificate
        metrics = run.settings.prometheus
        if metrics is not None:
            from pytest_mnode.certificate.prometheus import prometheus_text

            with self._writing(metrics):
                replace_file(metrics, prometheus_text(certificate))
                self._written.append(str(metrics))
        directory = run.settings.report_dir
        whole = exitstatus == pytest.ExitCode.OK
        if directory is not None:
            with self._writing(directory):
                self._written += [str(path) for path in write_report(directory, certificate)]
            if self._ended_itself or (whole and not headline(certificate).holds):
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if whole and self._not_written:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @contextlib.contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        """Record a path that cannot be written, and continue with the others."""
        try:
            yield
        except OSError as error:
            self._not_written.append(f"{path}: {(error.strerror or str(error)).lower()}")

    def _facts(self, session: pytest.Session, run: Run, exitstatus: int) -> RunFacts:
        config = session.config
        launcher = run.pool.launcher if run.pool else None
        nodes = tuple(n.name for n in launcher.nodes) if launcher else ()
        # Nodes on the controller's own kernel are made for the run, so they are the whole cluster.
        made = len(nodes) if launcher and launcher.shared_kernel else None
        return RunFacts(
            launcher=run.launcher or "none",
            launcher_reason=run.reason,
            nodes=nodes,
            cluster_nodes=run.spec.nodes or made,
            not_covered=tuple(launcher.unused) if launcher else (),
            ranks=len(nodes) * run.procs_per_node,
            backend=run.backend,
            spec=facts_of(run.spec, run.spec_path),
            versions=installed_versions(),
            start=self.started,
            end=datetime.now(UTC),
            commit=git_commit(config.rootpath),
            emulated="; ".join(run.spec.emulated) or None,
            doubts=tuple(doubts(run.spec)),
            cut_short=tuple(self._cut_short(session, exitstatus)),
            validity_s=run.spec.certificate.valid_for_s,
        )

    def _cut_short(self, session: pytest.Session, exitstatus: int) -> list[str]:
        why = []
        if self.run.settings.faults:
            why.append(f"fault injected: {self.run.settings.faults}")
        why += unconfirmed(facts_of(self.run.spec, self.run.spec_path))
        why += self._narrowing.why
        if chosen := [a for a in session.config.args if "::" in a]:
            why.append(f"only {', '.join(chosen)}")
        if exitstatus == pytest.ExitCode.INTERRUPTED and not self._ended_itself:
            why.append("interrupted")
        why += self._broken_off
        stops = (self._ended_itself and self.run.ended, session.shouldstop, session.shouldfail)
        why += [str(stop) for stop in stops if stop]
        if not why and (missing := self._narrowing.without_result(self.cases)):
            why.append(missing)  # no other reason explains them
        return list(dict.fromkeys(why))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.certificate is None:
            return
        terminalreporter.write_sep("=", "certificate")
        verbose = terminalreporter.config.getoption("verbose", 0) > 0
        tw = terminalreporter._tw
        width = tw.fullwidth
        for line in summary_lines(
            self.certificate,
            width,
            every_measurement=verbose,
            wraps=terminalreporter.isatty,
            paint=lambda text: _painted(tw, text),
        ):
            terminalreporter.write_line(line)
        for path in self._written:
            terminalreporter.write_line(f"written: {path}")
        for why in self._not_written:
            terminalreporter.write_line(f"NOT written: {why}", red=True)
        if self._written and (missing := missing_pictures(self.certificate)):
            terminalreporter.write_line(f"the page is {missing}")


_COLOURS = {
    **dict.fromkeys(("pass", "certified"), "green"),
    **dict.fromkeys(("FAIL", "NOT certified"), "red"),
    **dict.fromkeys(("inconclusive", "incomplete", "did not run", "partly certified"), "yellow"),
}
"""Colours of verdicts on a terminal with colours; criteria that were not judged have none."""


def _painted(terminal: Any, text: str) -> str:
    colour = _COLOURS.get(text.strip())
    return text if colour is None else str(terminal.markup(text, bold=True, **{colour: True}))


_CUT_OFF = "the test was interrupted before it ended"
_SILENT = f"{NOT_PROMISED} by the spec"


def _skipped_whole(cases: Sequence[CaseResult]) -> set[str]:
    """Criteria whose tests were all skipped."""
    ran = {criterion_name(c.test) for c in cases if c.outcome not in ("skipped", NOT_PROMISED)}
    return {criterion_name(case.test) for case in cases} - ran


_SEVERITY: dict[Outcome, int] = {
    "passed": 0,
    "not promised": 1,
    "skipped": 2,
    "error": 3,
    "failed": 4,
}


def _outcome(report: pytest.TestReport) -> Outcome:
    if report.failed:
        return "failed" if report.when == "call" else "error"
    if not report.skipped:  # a plugin's own outcome does not count as passed
        return "passed" if report.passed else "error"
    return "not promised" if hasattr(report, "mnode_lacks") else "skipped"


def _message(report: pytest.TestReport) -> str:
    if report.skipped:
        return skip_reason(report)
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(crash.message) if crash is not None else report.longreprtext
    return text if report.failed else f"a plugin reported the outcome {report.outcome!r}"


def _result(test: str, case: _Case) -> CaseResult:
    charts = charts_from_json(case.facts.get("charts", ()))
    return CaseResult(
        test=test,
        question=case.facts.get("question", ""),
        outcome="error" if case.cut_off else case.outcome,
        message=_CUT_OFF if case.cut_off else case.message,
        stopped_by="interruption" if case.cut_off else "failure" if case.stopped else None,
        by_bounds=case.by_bounds and case.outcome in ("failed", "error"),
        lacks=case.lacks,
        **case.culprit,
        measurements=measurements_from_json(case.facts.get("measurements", ())),
        charts=tuple(
            one for one in charts if not isinstance(one, PathRates | Installed | RequestedKeys)
        ),
        paths=tuple(one for one in charts if isinstance(one, PathRates)),
        promises=tuple(key for one in charts if isinstance(one, RequestedKeys) for key in one.keys),
        facts=tuple(f for one in charts if isinstance(one, Installed) for f in one.facts),
        nodes=tuple(case.facts.get("nodes", ())),
        duration_s=case.duration_s,
        recorded=case.recorded,
    )
