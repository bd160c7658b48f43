"""Judges what InfiniBand's tools said of the switches. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pytest_mnode.culprit import Culprit
from pytest_mnode.logs.subnet import PortLink
from pytest_mnode.measurement import Measurement, at_least, at_most, equals, listed

if TYPE_CHECKING:
    from pytest_mnode.measuring.switches import Switches
    from pytest_mnode.spec.at_once import SwitchesPromise
    from pytest_mnode.spec.fields import OnOff

_ERRORS = frozenset(
    (
        *("SymbolErrorCounter", "LinkErrorRecoveryCounter", "LinkDownedCounter", "PortRcvErrors"),
        *("PortRcvRemotePhysicalErrors", "PortXmitDiscards", "LocalLinkIntegrityErrors"),
        "ExcessiveBufferOverrunErrors",
    )
)
"""Not waiting (PortXmitWait), and not relay errors, which multicast causes. Source:
infiniband-diags, ibqueryerrors(8)."""


def judge_switches(
    found: Switches, promise: SwitchesPromise, nodes: Sequence[str]
) -> Iterator[Measurement]:
    """One measurement for each promise. Culprits are ports of switches; a node at the other end of
    a cable is only suspected."""
    key = "fabric.switches"
    if promise.links is not None:
        name, source = "links of the subnet below their speed", f"{key}.links full"
        if isinstance(found.links, str) or found.links is None:
            yield Measurement.unknown(name, f"{found.node}: {found.links}", source=source)
        else:
            slow = {one.ends: one for one in reversed(found.links) if one.fault}
            culprits = [_end(f"{one.name} ({one.fault})", one, nodes) for one in slow.values()]
            total = len({one.ends for one in found.links if one.peer})
            note = f"{total} links, seen from {found.node}"
            yield Measurement.none_allowed(name, culprits, source, note=note)
    if promise.errors_at_most is not None:
        yield _errors(found, promise.errors_at_most, f"{key}.errors_at_most", nodes)
    if promise.subnet_manager is not None:
        yield _manager(found, f"{key}.subnet_manager stable")
    if promise.ibdiagnet is not None:
        yield _diagnosed(found, f"{key}.ibdiagnet clean")
    if promise.adaptive_routing is not None:
        yield _adaptive(found, f"{key}.adaptive_routing", promise.adaptive_routing)


def _diagnosed(found: Switches, source: str) -> Measurement:
    name, diagnosis = "errors that ibdiagnet found", found.diagnosis
    if isinstance(diagnosis, str) or diagnosis is None:
        return Measurement.unknown(name, f"{found.node}: {diagnosis}", source=source)
    stages = listed(f"{stage} {count}" for stage, count in diagnosis.errors.items() if count)
    value, culprit = sum(diagnosis.errors.values()), Culprit(listed(diagnosis.lines) or stages)
    return Measurement(name, value, "", equals(0), source, culprit, stages)


def _adaptive(found: Switches, source: str, wanted: OnOff) -> Measurement:
    name, diagnosis = "switches with adaptive routing", found.diagnosis
    bound, source = at_least(1) if wanted == "on" else equals(0), f"{source} {wanted}"
    known = None if isinstance(diagnosis, str) or diagnosis is None else diagnosis.adaptive
    if known is None:
        why = diagnosis if isinstance(diagnosis, str) else "ibdiagnet says nothing of it"
        return Measurement.unknown(name, f"{found.node}: {why}", expected=bound, source=source)
    culprit = Culprit("routing engine of the subnet manager")
    return Measurement(name, known, "", bound, source, culprit)


def _errors(found: Switches, most: int, source: str, nodes: Sequence[str]) -> Measurement:
    name = "errors of the subnet's ports while all nodes send"
    bound, (before, after) = at_most(most).of(f"criteria.{source}", most), found.errors
    why = next((one for one in (before, after) if isinstance(one, str) or one is None), None)
    if before is None or after is None or isinstance(before, str) or isinstance(after, str):
        why = f"{found.node}: {why}"
        return Measurement.unknown(name, why, expected=bound, source=source)
    rises = {
        key: count - before.get(key, 0)
        for key, count in after.items()
        if key[2] in _ERRORS and count > before.get(key, 0)
    }
    culprits = [
        _end(f"{node} port {port} ({counter} +{by})", PortLink(node, port), nodes)
        for (node, port, counter), by in rises.items()
    ]
    text = listed(culprits)
    culprit = Culprit.merged(text, culprits) if culprits else None
    return Measurement(name, sum(rises.values()), "", bound, f"{source} {most}", culprit)


def _manager(found: Switches, source: str) -> Measurement:
    name, (before, after) = "changes of the subnet manager", found.managers
    if before is None or after is None or isinstance(before, str) or isinstance(after, str):
        why = next(one for one in (before, after) if isinstance(one, str) or one is None)
        return Measurement.unknown(name, f"{found.node}: {why}", source=source)
    changed = (before.guid, before.lid) != (after.guid, after.lid)
    ends = [f"{one.guid} (LID {one.lid}, {one.state})" for one in (before, after)]
    bad = changed or after.state != "MASTER"
    note = " then ".join(dict.fromkeys(ends))
    return Measurement(
        name, int(bad), "", equals(0), source, Culprit(f"subnet manager {note}"), note
    )


def _end(words: str, link: PortLink, nodes: Sequence[str]) -> Culprit:
    """A link, with the nodes of this run that it ends at."""
    hosts = {one.partition(".")[0]: one for one in nodes}
    ends = [(text.split() or [""])[0] for text in (link.node, link.peer)]
    there = [hosts[end] for end in ends if end in hosts]
    return Culprit(words, either=[there]) if there else Culprit(words)
