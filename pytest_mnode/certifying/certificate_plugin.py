"""The end of a run: cases are gathered from reports, the certificate is written and shown."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_mnode.certificate import (
    Certificate,
    RunFacts,
    git_commit,
    installed_versions,
    summary_lines,
    write_report,
)
from pytest_mnode.certificate.files import replace_file
from pytest_mnode.certificate.gathered import CaseRecord, Gathered
from pytest_mnode.certificate.headline import headline
from pytest_mnode.certificate.kept import earlier_runs, keep, with_history
from pytest_mnode.certificate.page import missing_pictures
from pytest_mnode.certificate.results import Outcome
from pytest_mnode.certificate.run_facts import facts_of, unconfirmed
from pytest_mnode.certificate.text import fit, recorded_from
from pytest_mnode.certifying.narrowing import Narrowing, name_of
from pytest_mnode.controller.session import ENDED
from pytest_mnode.controller.xdist import ROWS_OF_WORKER
from pytest_mnode.criteria.soak.found import KEY as SOAK
from pytest_mnode.criteria.soak.found import latest
from pytest_mnode.evidence import file
from pytest_mnode.evidence.file import EvidenceFile
from pytest_mnode.skipping import skip_reason
from pytest_mnode.spec import doubts

if TYPE_CHECKING:
    from pytest_mnode.controller.pool import Pool
    from pytest_mnode.controller.session import Run


class CertificatePlugin:
    """pytest plugin: collects the reports of criteria and writes a certificate at the end."""

    def __init__(self, run: Run, narrowing: Narrowing) -> None:
        self.run = run
        self._narrowing = narrowing
        self.started = datetime.now(UTC)
        self.cases: dict[str, CaseRecord] = {}
        self._begun: dict[str, None] = {}
        """Tests of criteria that were begun, and have no report so far."""
        self._due: frozenset[str] = frozenset()
        self._evidence: EvidenceFile | None = None
        self._noted: RunFacts | None = None
        """Facts of the run as the evidence has them, with nodes that are those of `_pool`."""
        self._pool: Pool | None = None
        self.certificate: Certificate | None = None
        self._ended_itself = False
        self._broken_off: list[str] = []
        self._written: list[str] = []
        self._not_written: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Begin the evidence of the run, if it is to have a report."""
        directory = self.run.settings.report_dir
        if directory is not None:
            # Of a soak that was cut, so that it goes on where it was.
            path, digest = directory / file.NAME, self.run.spec.digest()
            rows, why = file.rows_to_keep(path, SOAK, digest)
            kept = latest(rows)
            with self._writing(path):
                self._evidence = EvidenceFile(directory, kept)
                session.config.stash[file.RECORD] = self._record
                earlier = [file.rows_from_json(values)[1] for values in kept]
                session.config.stash[file.EARLIER] = earlier, why
            self._note_run()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        self._due = frozenset(self._narrowing.due())
        by_workers = session.config.getoption("dist", "no") != "no"
        if not (self._due or by_workers or self.run.settings.report_dir):
            session.config.pluginmanager.unregister(self)  # there is nothing to certify
        self._append(file.COLLECTED, {"tests": sorted(self._due)})
        self._note_run()
        return (yield)

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        test = name_of(nodeid, location[0])
        if test in self._due and test not in self.cases:
            self._begun[test] = None
            self._append(file.BEGAN, {"test": test})

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._append(file.ROWS, *getattr(report, ROWS_OF_WORKER, ()))
        if "criterion" not in report.keywords:
            if str(report.when) == "???":  # the report of a dead worker, without keywords
                self._broken_off.append(f"the end of a pytest-xdist worker in {report.nodeid}")
            return
        test = name_of(report.nodeid, report.location[0])
        is_known = test in self.cases or test in self._begun
        self._begun.pop(test, None)
        case = self.cases.setdefault(test, CaseRecord())
        case.duration_s += report.duration
        case.phases.append(str(report.when))
        case.reruns += report.outcome not in ("passed", "failed", "skipped")
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
        if not is_known or outcome != "passed" or report.when == "teardown":
            self._note_case(test)

    def _note_case(self, test: str) -> None:
        """Append all that is known of a test; its last row counts."""
        if self._evidence is not None:
            if self.run.pool is not self._pool:  # made for this test
                self._note_run()
            self._append(file.TEST, {"test": test, "record": self.cases[test].to_json()})

    def _note_run(self) -> None:
        """Append the facts of the run, if they have changed since."""
        if self._evidence is None:
            return
        self._pool = self.run.pool
        facts = replace(self._facts(), end=self.started)
        if facts != self._noted:
            self._noted = facts
            self._append(file.RUN, self._gathered(facts).run_to_json())

    def _record(self, values: Iterable[Mapping[str, Any]]) -> None:
        self._append(file.ROWS, *values)

    def _append(self, kind: str, *rows: Mapping[str, Any]) -> None:
        """Append rows to the evidence; after an error none, as a row may have been cut."""
        if self._evidence is not None and rows:
            evidence, self._evidence = self._evidence, None
            with self._writing(evidence.path):
                evidence.append(kind, *rows)
                self._evidence = evidence

    def _gathered(self, facts: RunFacts) -> Gathered:
        spec = self.run.spec
        reasons = {one.question: one.reason for one in spec.not_promised}
        return Gathered(facts, spec.promised_criteria, reasons, self.cases)

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
        if self._interrupted(exitstatus):
            for test in self._begun:
                self.cases[test] = CaseRecord()
                self._note_case(test)
        # Results under an injected fault say nothing about the cluster.
        kept_in = None if run.settings.faults else run.settings.history_dir
        earlier = earlier_runs(
            kept_in, self._fixed_facts["spec"], spec=run.spec, key=run.settings.history_key
        )
        gathered = self._gathered(self._facts(exitstatus))
        self._append(file.END, gathered.run_to_json())
        certificate = gathered.certificate(earlier.coverage)
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
            if self._evidence is not None:
                with self._writing(self._evidence.path):
                    self._evidence.close()
                    self._written.append(str(self._evidence.path))
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

    @functools.cached_property
    def _fixed_facts(self) -> dict[str, Any]:
        """Facts that do not change during the run, some of which take a moment to find."""
        run = self.run
        return {
            "spec": facts_of(run.spec, run.spec_path),
            "versions": installed_versions(),
            "commit": git_commit(run.config.rootpath),
            "emulated": "; ".join(run.spec.emulated) or None,
            "doubts": tuple(doubts(run.spec)),
            "validity_s": run.spec.certificate.valid_for_s,
        }

    def _facts(self, exitstatus: int | None = None) -> RunFacts:
        """Facts of the run so far. exitstatus: None before its end."""
        run = self.run
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
            start=self.started,
            end=datetime.now(UTC),
            cut_short=tuple(self._cut_short(exitstatus)),
            manifest=self._narrowing.manifest(None if exitstatus is None else self.cases),
            **self._fixed_facts,
        )

    def _interrupted(self, exitstatus: int | None) -> bool:
        return exitstatus == pytest.ExitCode.INTERRUPTED and not self._ended_itself

    def _cut_short(self, exitstatus: int | None) -> list[str]:
        session: Any = self.run.config.pluginmanager.getplugin("session")
        why = []
        if self.run.settings.faults:
            why.append(f"fault injected: {self.run.settings.faults}")
        why += unconfirmed(self._fixed_facts["spec"])
        why += self._narrowing.why
        if chosen := [a for a in session.config.args if "::" in a]:
            why.append(f"only {', '.join(chosen)}")
        if self._interrupted(exitstatus):
            why.append("interrupted")
        why += self._broken_off
        stops = (self._ended_itself and self.run.ended, session.shouldstop, session.shouldfail)
        why += [str(stop) for stop in stops if stop]
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
