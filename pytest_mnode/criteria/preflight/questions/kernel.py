"""What has the kernel logged of failing devices?"""

from __future__ import annotations

from collections import Counter

from pytest_mnode.criteria.preflight.facts import Survey
from pytest_mnode.criteria.preflight.questions.answer import Answer, NotPromised, listed, unknown
from pytest_mnode.criteria.preflight.questions.links import why_unread
from pytest_mnode.logs.kernel_log import Severity
from pytest_mnode.measurement import Measurement, at_most
from pytest_mnode.spec import Spec


def kernel_log(survey: Survey, spec: Spec, name: str) -> Answer:
    """How many failures and corrected errors since boot, and how often the worst link went down."""
    promise = spec.criteria.preflight
    if promise is None or promise.kernel_log is None:
        return NotPromised("the kernel log")
    me, promised = survey.node(name), promise.kernel_log
    log = me.facts.kernel_log if me.facts else None
    found: list[Measurement] = []
    for severity, label, key, most in (
        (Severity.FAULT, "failures of devices", "none", 0),
        (Severity.CORRECTED, "corrected errors", "corrected_at_most", promised.corrected_at_most),
        (
            Severity.LINK_DOWN,
            "times a link went down",
            "link_downs_at_most",
            promised.link_downs_at_most,
        ),
    ):
        what, source = f"{label} in the kernel log", f"preflight.kernel_log {key} {most}"
        if log is None:
            found += unknown(what, "", at_most(most), source, why_unread(me, "kernel_log"))
            continue
        ours = [event for event in log.events if event.severity is severity]
        counts = Counter(event.device for event in ours)
        value, devices = len(ours), list(counts)
        if severity is Severity.LINK_DOWN:  # each link by itself
            value = max(counts.values(), default=0)
            devices = [device for device, count in counts.items() if count > most]
        culprit = f"{name} {listed(devices)}"
        notes = [f"the log goes back to {log.since} only"] if log.since else []
        notes += [f"{event.device} {event.when}: {event.what}" for event in ours]
        found.append(Measurement(what, value, "", at_most(most), source, culprit, listed(notes)))
    return tuple(found)
