"""The kernel log: device failures, corrected errors, and links that went down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import BeforeValidator

from pytest_mnode.criteria.preflight.answers import NodeSurvey
from pytest_mnode.criteria.preflight.survey_check import SurveyCheck
from pytest_mnode.culprit import Culprit
from pytest_mnode.evidence.check import check
from pytest_mnode.evidence.row import Row, row
from pytest_mnode.evidence.rules import Rows
from pytest_mnode.logs.kernel_log import Severity
from pytest_mnode.logs.xids import Action
from pytest_mnode.machine.pci import full_address
from pytest_mnode.measurement import Measurement, listed
from pytest_mnode.spec.fields import Count, Section
from pytest_mnode.spec.quantity import shown

_METRICS = {
    Severity.FAULT: "failures of devices in the kernel log",
    Severity.CORRECTED: "corrected errors in the kernel log",
    Severity.LINK_DOWN: "times a link went down in the kernel log",
}
_SINCE, _EARLIER = "the log goes back to", "events that are not judged"
_ACTION = "action that the error asks for"


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


class KernelLogPromise(Section):
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
    """Has this node's kernel logged no failing device since boot, or since the time promised?

    Errors of NVIDIA's driver (Xid) and of NVSwitches (SXid) are named with what each asks for, by
    NVIDIA's catalogue or by Xid 154; those that programs cause are no failures.
    """

    promise: KernelLogPromise
    parts = ("kernel_log",)
    read_by = frozenset(("since",))
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
        index = {one.pci_address: one.index for one in node.machine.accelerators or ()}
        judged = [replace(one, device=_device(one.device, index)) for one in judged]
        for severity, metric in _METRICS.items():
            events = [one for one in judged if one.severity is severity]
            counts = Counter(one.device for one in events) or {"": 0}
            yield from (row(metric, count, device=device) for device, count in counts.items())
            for one in events:
                yield row(severity, f"{one.when}: {one.what}", device=one.device)
            if severity is Severity.FAULT:
                asked = dict.fromkeys((one.device, one.action) for one in events if one.action)
                yield from (row(_ACTION, action, device=device) for device, action in asked)

    def rule(self, rows: Rows) -> Iterator[Measurement]:
        corrected, downs = self.promise.corrected_at_most, self.promise.link_downs_at_most
        since = [f"{_SINCE} {one.value} only" for one in rows.of(_SINCE)]
        since += [str(one.value) for one in rows.of(_EARLIER)]

        def note(severity: Severity) -> str:
            return listed([*since, *(f"{one.device} {one.value}" for one in rows.of(severity))])

        fault, fixed, down = _METRICS
        asked = [f"{one.device} asks to {one.value}" for one in rows.of(_ACTION)]
        faults = "; ".join(filter(None, [listed(asked), note(fault)]))
        found = rows.total(_METRICS[fault], 0, source=f"{self.key} none", note=faults)
        yield replace(found, culprit=_with_actions(found.culprit, rows)) if asked else found
        part = "corrected_at_most"
        yield rows.total(_METRICS[fixed], corrected, part=part, note=note(fixed))
        part = "link_downs_at_most"
        yield rows.at_most(_METRICS[down], downs, part=part, note=note(down))


def _device(address: str, index: Mapping[str | None, int]) -> str:
    """With the accelerator's index where it is known. An Xid's address has no function."""
    full = full_address(f"{address.partition('.')[0]}.0") if ":" in address else None
    number = index.get(full) if full else None
    return address if number is None else f"{address} (accelerator {number})"


def _with_actions(culprit: str | None, rows: Rows) -> Culprit | None:
    """The same nodes and devices, in words that have the most that each device asks for."""
    if culprit is None:
        return None
    asked = dict[str, str]()
    for one in sorted(rows.of(_ACTION), key=lambda one: [*Action].index(Action(str(one.value)))):
        asked[one.device] = f": {one.value}"
    devices = dict.fromkeys(one.device for one in rows.of(Severity.FAULT))
    words = [one + asked.get(one, "") for one in devices]
    return Culprit.merged(f"{rows.node} {listed(words, separator=', ')}", [culprit])
