"""Reports and warnings of ranks, merged and passed to pytest as those of one test."""

from __future__ import annotations

import pickle
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from pytest_mnode.charts import Chart
from pytest_mnode.errors import MnodeError
from pytest_mnode.launchers.hosts import named_nodes
from pytest_mnode.measure import charts_of, summed_up
from pytest_mnode.measurement import Measurement, Verdict, all_of
from pytest_mnode.outcome.merge import merge, recorded_by_all
from pytest_mnode.outcome.outcome import PHASES, Outcome
from pytest_mnode.outcome.stacks import is_hidden
from pytest_mnode.protocol.messages import TIMES, PhaseReport
from pytest_mnode.report_record import attach_suite_properties, describe

Later = Callable[[], list[Measurement]] | None
_LATER = "Measured after the ranks had failed"
MOST_WARNINGS = 20
"""Maximum number of different warnings shown per test."""


def merged(item: pytest.Item, outcome: Outcome, later: Later = None) -> list[pytest.TestReport]:
    """Pytest reports of a test that ran in ranks; the last holds the certificate's data.

    later: measures in place of ranks that failed before they measured.
    """
    keywords: dict[str, Literal[1]] = dict.fromkeys(item.keywords, 1)
    own: dict[int, dict[str, pytest.TestReport]] = {rank: {} for rank in outcome.states}
    plain: list[pytest.TestReport] = []
    for when in PHASES:
        sent = {r: s.reports[when] for r, s in outcome.states.items() if when in s.reports}
        passed = pytest.TestReport(item.nodeid, item.location, keywords, "passed", None, when)
        for rank, report in _read_all(item.config, sent, passed).items():
            own[rank][when] = report
        if sent:
            plain.append(passed)
    partial = {
        rank: [_read(item.config, {**r.data, "nodeid": item.nodeid}) for _, r in state.partial]
        for rank, state in outcome.states.items()
        if state.partial
    }
    shared = all(list(phases.values()) == plain for phases in own.values())
    if shared and not partial and outcome.plainly_passed:
        reports = plain  # there is nothing to merge
        for report in reports:
            report.user_properties = [*outcome.properties]
    else:
        reports = merge(outcome, own, item.nodeid, item.location, keywords, partial=partial)
    torn = {r: s.torn_down for r, s in outcome.states.items() if s.torn_down is not None}
    nodes = outcome.world.nodes
    measurements: list[Measurement] = []
    charts: list[Chart] = []
    if any(t.measurements or t.charts or t.suite_properties for t in torn.values()):
        by_rank = {r: [_with_nodes(m, nodes) for m in t.measurements] for r, t in torn.items()}
        measurements, charts = summed_up(by_rank), charts_of(t.charts for t in torn.values())
        recorded = {rank: t.suite_properties for rank, t in torn.items()}
        attach_suite_properties(reports[-1], recorded_by_all(recorded, len(outcome.states)))
    failed = next((report for report in reports if report.failed), None)
    if failed is not None and not measurements and later is not None:
        measurements = _measured_later(failed, later)
    describe(reports[-1], item, measurements, nodes, charts)
    return reports


def _read_all(
    config: pytest.Config, sent: dict[int, PhaseReport], passed: pytest.TestReport
) -> dict[int, pytest.TestReport]:
    """Reports of one phase by rank. Plain passes, which are nearly all of thousands, share one
    report, `passed`, with the longest duration."""
    plain = [report.data for report in sent.values() if report.data.keys() == TIMES]
    if plain:
        passed.duration = max(data["duration"] for data in plain)
        passed.start = min(data["start"] for data in plain)
        passed.stop = max(data["stop"] for data in plain)
    return {
        rank: passed if report.data.keys() == TIMES else _read(config, report.data)
        for rank, report in sent.items()
    }


def _read(config: pytest.Config, data: dict[str, Any]) -> pytest.TestReport:
    """A rank's report; a plain TestReport if this process does not have its class."""
    hook = config.hook.pytest_report_from_serializable
    try:
        report = hook(config=config, data=dict(data))
    except Exception:  # the class is a plugin's, and pytest or the plugin may fail on it
        report = None
    if not isinstance(report, pytest.TestReport):
        report = hook(config=config, data={**data, "$report_type": "TestReport"})
        assert isinstance(report, pytest.TestReport)
    return report


def _with_nodes(measurement: Measurement, nodes: Sequence[str]) -> Measurement:
    """The measurement; of a culprit in plain words the nodes that these name."""
    culprit = measurement.culprit
    if culprit is None:
        return measurement
    return replace(measurement, culprit=named_nodes(culprit, nodes))


def _measured_later(
    failed: pytest.TestReport, later: Callable[[], list[Measurement]]
) -> list[Measurement]:
    """Measurements in place of the ranks'; their culprits become culprits of the failure.

    Whatever the user's function raises or returns, the failure of the ranks stays the finding.
    """
    try:
        found: object = later()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        text = str(error) if isinstance(error, MnodeError) else _raised(error)
        failed.sections.append((_LATER, text))
        return []
    if not (isinstance(found, list | tuple) and all(isinstance(m, Measurement) for m in found)):
        text = f"on_failure returned {found!r:.200}; accepted: a list of measurements"
        failed.sections.append((_LATER, text))
        return []
    failed.sections.append((_LATER, "\n".join(map(str, found))))
    culprit = all_of((m.culprit for m in found if m.verdict is not Verdict.PASS), separator=", ")
    if culprit is not None:
        failed.mnode_culprit = culprit.record  # type: ignore[attr-defined]
    return list(found)


def _raised(error: BaseException) -> str:
    """One line for an error of the user's function, with the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    last = next((one for one in reversed(frames) if not is_hidden(one.filename)), frames[-1])
    text = "".join(traceback.format_exception_only(error)).strip()
    return f"on_failure raised {text} ({Path(last.filename).name}:{last.lineno}, in {last.name})"


class Warner:
    """Passes warnings of ranks to pytest: equal ones only once, at most MOST_WARNINGS per test."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._shown: set[str] = set()
        self._of_test: Counter[str] = Counter()

    def warn(  # noqa: PLR0917  the fields of a warning as the rank sent them
        self,
        blob: bytes,
        text: str,
        filename: str,
        lineno: int,
        when: str,
        nodeid: str,
        location: Any,
    ) -> None:
        key = f"{text}{filename}{lineno}{nodeid}"
        if key in self._shown:  # the same warning from another rank
            return
        self._shown.add(key)
        self._of_test[nodeid] += 1
        if self._of_test[nodeid] > MOST_WARNINGS:
            return
        message, category = _warning(blob, text)
        if self._of_test[nodeid] == MOST_WARNINGS:
            text = f"{text} (further warnings of this test's ranks are not shown)"
            message = category(text) if category is UserWarning else UserWarning(text)
        self._config.hook.pytest_warning_recorded.call_historic(
            kwargs={
                "warning_message": warnings.WarningMessage(message, category, filename, lineno),
                "when": when,
                "nodeid": nodeid,
                "location": location,
            }
        )


def _warning(blob: bytes, text: str) -> tuple[Warning, type[Warning]]:
    """A rank's warning; a UserWarning with its text if only ranks have its class."""
    try:
        message, category = pickle.loads(blob)
    except Exception:  # unpickling runs the user's own classes
        return UserWarning(text), UserWarning
    return message, category
