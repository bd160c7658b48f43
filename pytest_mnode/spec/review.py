"""Finds promises that links cannot keep, or that are so low that they would hide a fault."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_mnode.spec import bandwidth
from pytest_mnode.spec.fabric import BusbwPromise
from pytest_mnode.spec.fields import Page
from pytest_mnode.spec.models import Criteria, Spec
from pytest_mnode.spec.quantity import RATE

_PATTERN = frozenset("*?[")


def doubts(spec: Spec) -> list[str]:
    """One line for each promise that cannot be right: its key, its value, what the wire allows.

    A doubtful spec is used as it stands; the certificate lists its doubts. Empty for a sound spec.
    """
    return [
        *_bounds(spec),
        *_links(spec),
        *_words(spec),
        *_clauses(spec),
        *(line for one in spec.promises.values() for line in one.doubts(spec)),
    ]


def wire_allows_fraction(spec: Spec) -> tuple[float, str]:
    """The fraction of the line rate that a collective on a ring can reach, and the reason.

    On ethernet it is the payload share of TCP, of the bytes that a shaper counts if links are
    emulated; on RDMA fabrics 1, because headers there differ by kind and are a few per cent.
    """
    fabric = spec.fabric
    if fabric.kind != "ethernet":
        return 1.0, "the line rate itself"
    framing = bandwidth.ETHERNET_HEADER_BYTES if spec.emulated else bandwidth.ETHERNET_WIRE_BYTES
    share = bandwidth.tcp_payload_share(fabric.mtu_bytes, framing_bytes=framing)
    return share, f"TCP payload at MTU {fabric.mtu_bytes}"


def _promises(page: Page, key: str) -> Iterator[tuple[str, BusbwPromise]]:
    if isinstance(page, BusbwPromise):
        yield key, page
    for name in type(page).model_fields:
        value = getattr(page, name)
        if isinstance(value, Page):
            yield from _promises(value, f"{key}.{name}")


def _bounds(spec: Spec) -> Iterator[str]:
    allowed, why = wire_allows_fraction(spec)
    for key, promise in _promises(spec.criteria, "criteria"):
        asked = promise.at_least_fraction
        least = asked - promise.tolerance_fraction
        if asked > allowed:
            yield (
                f"{key}.at_least_fraction: {asked:g} is more than the wire allows, "
                f"{allowed:.3f} of the line rate ({why}): no healthy cluster reaches it"
            )
        if least < allowed / 2:
            less = f" less tolerance_fraction {promise.tolerance_fraction:g}"
            yield (
                f"{key}.at_least_fraction: {asked:g}{less if promise.tolerance_fraction else ''} "
                f"is below half of what the wire allows, {allowed:.3f} of the line rate ({why}): "
                f"a cluster at half speed passes"
            )


def _links(spec: Spec) -> Iterator[str]:
    fabric, management = spec.fabric, spec.management
    named = len(fabric.interfaces)
    if named != fabric.nics_per_node and _PATTERN.isdisjoint("".join(fabric.interfaces)):
        yield (
            f"fabric.nics_per_node: {fabric.nics_per_node}, but fabric.interfaces names "
            f"{named} ({', '.join(fabric.interfaces)})"
        )
    if management is None:
        return
    if management.line_rate_bits_s >= fabric.line_rate_bits_s * fabric.nics_per_node:
        nics = f" × {fabric.nics_per_node} NICs" if fabric.nics_per_node > 1 else ""
        yield (
            f"management.line_rate: {RATE.text(management.line_rate_bits_s)} is no slower than "
            f"the fabric's {RATE.text(fabric.line_rate_bits_s)}{nics}: traffic on the wrong "
            "network would not show"
        )
    shared = [name for name in management.interfaces if fabric.has_interface(name)]
    shared += [
        name for name in fabric.interfaces if management.has_interface(name) and name not in shared
    ]
    if shared:
        yield (
            f"management.interfaces: {', '.join(shared)} is in fabric.interfaces too: "
            f"traffic on the wrong network would not show"
        )


def _words(spec: Spec) -> Iterator[str]:
    if not spec.confirmed:
        yield (
            "confirmed: false: a draft from the nodes or a profile, which nobody has compared with "
            "what was bought: no run with it certifies"
        )
    if not spec.promised_criteria:
        yield f"criteria: none is promised; known are {', '.join(Criteria.model_fields)}"
    if spec.nodes == 1 and spec.promised("fabric"):
        yield "criteria.fabric: promised for nodes: 1, which has no other node to send to"
    if spec.topology is not None and not spec.emulated:
        yield (
            "topology: ignored on nodes that are real: only the rack shows its sockets, in a spec "
            "with emulated"
        )
    if spec.fabric.gpudirect and (spec.fabric.kind == "ethernet" or not spec.accelerators.per_node):
        lacking = "kind: ethernet has no RDMA" if spec.accelerators.per_node else "no accelerators"
        yield f"fabric.gpudirect: promised, with {lacking}: nothing to keep it with"
    if spec.accelerators.per_node == 0:
        for key in ("model", "memory"):
            if getattr(spec.accelerators, {"memory": "memory_bytes"}.get(key, key)) is not None:
                yield f"accelerators.{key}: given, but accelerators.per_node is 0"
    asked: set[str] = set()
    for i, entry in enumerate(spec.not_promised):
        key = f"not_promised[{i}].question"
        if spec.promised(entry.question):
            yield f"{key}: {entry.question} is promised by criteria.{entry.question} at once"
        if entry.question in asked:
            yield f"{key}: {entry.question} is listed twice"
        asked.add(entry.question)


def _clauses(spec: Spec) -> Iterator[str]:
    for clause, keys in spec.requirements.items():
        for key in keys:
            if spec.value_of(key) is None:
                yield f"requirements.{clause}: {key} is not promised: the clause stays open"
