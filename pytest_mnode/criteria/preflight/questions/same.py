"""Do all nodes have the same code, packages, driver, kernel …?"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_mnode.criteria.preflight.facts import Software, Survey
from pytest_mnode.criteria.preflight.questions.answer import (
    Answer,
    NotPromised,
    difference,
    listed,
    unknown,
)
from pytest_mnode.criteria.preflight.questions.links import why_unread
from pytest_mnode.machine.software import NOT_THERE, UNREADABLE
from pytest_mnode.measurement import Measurement, equals
from pytest_mnode.spec import Spec
from pytest_mnode.spec.preflight import Part

PARTS: tuple[Part, ...] = (
    *("code", "python", "torch", "packages", "nccl", "driver", "firmware", "kernel", "sysctl"),
)
_NONE = "none"


def same(survey: Survey, spec: Spec, name: str, part: Part) -> Answer:
    """How many items of a part differ from what most nodes have: files, packages, versions."""
    promise = spec.criteria.preflight
    if promise is None or part not in (promise.same or ()):
        return NotPromised(f"the same {part} on all nodes")
    if len(survey.nodes) == 1:
        return NotPromised("one node has no other to be the same as")
    me = survey.node(name)
    label, bound = f"{part} unlike that of other nodes", equals(0)
    source = "preflight.same"
    if me.facts is None or me.facts.software is None:
        return unknown(label, "", bound, source, why_unread(me, "software"))
    told = {
        node.name: items_of(node.facts.software, part)
        for node in survey.nodes
        if node.facts is not None and node.facts.software is not None
    }
    if not any(told.values()) or len(told) == 1:
        alone = f"only {name} tells its {part}"
        why = alone if any(told.values()) else f"no node has any {part}, or none can be read"
        return unknown(label, "", bound, source, why)
    items = sorted({item for mine in told.values() for item in mine})
    found, compared = {}, 0
    for item in items:
        values = {
            node: mine.get(item, _NONE)
            for node, mine in told.items()
            if part != "sysctl" or item in mine  # what a namespace does not show is not known
        }
        if name not in values or len(values) == 1:
            continue
        compared += 1
        if (odd := difference(values, name)) is not None:
            found[item] = f"{_named(item, part)}{values[name]}, {odd.usual} on {odd.who}"
    unread = [i for i, v in told[name].items() if v.startswith((NOT_THERE, UNREADABLE))]
    if (unread and not found) or not compared:
        # The same words on all nodes say nothing of what is in the files.
        why = listed([f"{item} is {told[name][item]}" for item in unread], 3)
        why = why or f"no {part} that another node shows too"
        return unknown(label, "", bound, source, f"{name}: {why}")
    mute = len(survey.nodes) - len(told)
    note = listed(list(found.values()), 3) or f"{compared} compared on {len(told)} nodes"
    if compared < len(items):
        note += f"; {len(items) - compared} not readable here, or on no other node"
    if mute:
        note += f"; {mute} nodes told nothing"
    culprit = f"{name} {part}"
    return (Measurement(label, len(found), "", bound, source, culprit, f"{name}: {note}"),)


def _named(item: str, part: str) -> str:
    return "" if item == part else f"{item} "


def items_of(software: Software, part: Part) -> Mapping[str, str]:
    """A part as what is compared one by one; empty where there is no such thing."""
    match part:
        case "code":
            return software.code
        case "packages":
            return software.packages
        case "firmware":
            return software.firmware
        case "sysctl":
            return software.sysctl
    value: str | None = getattr(software, part)
    return {part: value} if value is not None else {}
