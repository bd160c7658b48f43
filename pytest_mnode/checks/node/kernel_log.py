"""The kernel log: device failures, corrected errors, and links that went down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import BeforeValidator

from pytest_mnode.criteria.preflight.answers import NodeSurvey
from pytest_mnode.criteria.preflight.survey_check import SurveyCheck
from pytest_mnode.evidence.check import check
from pytest_mnode.evidence.row import Row, row
from pytest_mnode.evidence.rules import Rows
from pytest_mnode.logs.kernel_log import Severity
from pytest_mnode.measurement import Measurement, listed
from pytest_mnode.spec.fields import Count, Page
from pytest_mnode.spec.quantity import shown

_METRICS = {
    Severity.FAULT: "failures of devices in the kernel log",
    Severity.CORRECTED: "corrected errors in the kernel log",
    Severity.LINK_DOWN: "times a link went down in the kernel log",
}
_SINCE, _EARLIER = "the log goes back to", "events that are not judged"


def _since(written: Any) -> Any:
    """A time as text with its zone, UTC if it has none; YAML reads some as times."""
    if written in ("boot", "last_pass"):
        return written
    try:
        moment = datetime.fromisoformat(str(written))
    except ValueError:
        accepted = "boot, last_pass, or a time such as 2026-11-28 or 2026-11-28T21:30:00+01:00"
        raise ValueError(f"{shown(written)}; accepted: {accepted}") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat()


class KernelLogPromise(Page):
    """The kernel has logged no failure of a device: GPUs (Xid), PCIe, NICs, memory."""

    since: Annotated[str, BeforeValidator(_since)] = "last_pass"
    """From when on: boot; last_pass, the end of the latest run in the history in which this node
    passed, if it did since boot; or a time, such as that of a repair. An event whose time is not
    known counts."""

    corrected_at_most: Count = 100
    """Number of corrected errors of PCIe (AER) and memory (EDAC) that is tolerated."""
    link_downs_at_most: Count = 3
    """How often one link that was up may go down; drivers do that while a node boots."""


@check("preflight.kernel_log")
class KernelLogHasNoFailures(SurveyCheck):
    """Has this node's kernel logged no failing device since boot, or since the time promised?"""

    promise: KernelLogPromise
    parts = ("kernel_log",)
    alone = True

    def rows(self, node: NodeSurvey) -> Iterator[Row]:
        log = node.machine.kernel_log
        assert log is not None  # it is one of `parts`
        if log.since:
            yield row(_SINCE, log.since)
        since = self.promise.since
        since = (node.passed_at or "boot") if since == "last_pass" else since
        from_s = 0.0 if since == "boot" else datetime.fromisoformat(since).timestamp()
        judged = [one for one in log.events if one.at_s is None or one.at_s >= from_s]
        if len(judged) < len(log.events):
            yield row(_EARLIER, f"{len(log.events) - len(judged)} events before {since} left out")
        for severity, metric in _METRICS.items():
            events = [one for one in judged if one.severity is severity]
            counts = Counter(one.device for one in events) or {"": 0}
            yield from (row(metric, count, device=device) for device, count in counts.items())
            for one in events:
                yield row(severity, f"{one.when}: {one.what}", device=one.device)

    def rule(self, rows: Rows) -> Iterator[Measurement]:
        corrected, downs = self.promise.corrected_at_most, self.promise.link_downs_at_most
        since = [f"{_SINCE} {one.value} only" for one in rows.of(_SINCE)]
        since += [str(one.value) for one in rows.of(_EARLIER)]

        def note(severity: Severity) -> str:
            return listed([*since, *(f"{one.device} {one.value}" for one in rows.of(severity))])

        fault, fixed, down = _METRICS
        yield rows.total(_METRICS[fault], 0, source=f"{self.key} none", note=note(fault))
        part = "corrected_at_most"
        yield rows.total(_METRICS[fixed], corrected, part=part, note=note(fixed))
        part = "link_downs_at_most"
        yield rows.at_most(_METRICS[down], downs, part=part, note=note(down))
