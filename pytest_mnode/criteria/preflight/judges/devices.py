"""Judges of accelerators, of PCIe links, and of device errors in the kernel log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from pytest_mnode.criteria.preflight.answers import NodeSurvey, Survey
from pytest_mnode.criteria.preflight.judges.common import Subject, listed, promises, why_unread
from pytest_mnode.logs.kernel_log import Log, Severity
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.netdev import physical_below
from pytest_mnode.machine.nvml import Accelerator
from pytest_mnode.machine.pci import PciFunction, full_link
from pytest_mnode.measurement import Measurement, at_least, at_most, equals
from pytest_mnode.spec import Spec
from pytest_mnode.spec.quantity import SIZE

_State = Callable[[Accelerator], tuple[str, bool] | None]
"""An accelerator's state in words, and whether it is right; None if it is unknown."""


def accelerators(survey: Survey, spec: Spec, name: str) -> list[Measurement]:
    """One measurement each: number of accelerators that answer, their model, memory and state."""
    promise, promised = promises(spec).accelerators, spec.accelerators
    if promise is None or not promised.per_node:
        return []
    me = survey.node(name)
    source = f"accelerators.per_node {promised.per_node}"
    count = Subject(
        "accelerators",
        "",
        equals(promised.per_node).of("accelerators.per_node", promised.per_node),
        source,
    )
    there = me.machine.accelerators
    if there is None:
        others = [one.maker for one in me.machine.pci.accelerators if not one.is_nvidia]
        why = f"{name}: NVML does not know accelerators of {listed(others)}" if others else ""
        return [count.unknown(why or why_unread(me, "accelerators"))]
    # NVML still counts a device that it has lost.
    lost = listed([str(one.index) for one in there if one == Accelerator(index=one.index)])
    culprit = f"{name} accelerator {lost}" if lost else f"{name} accelerators"
    note = f"{name}: accelerator {lost} does not answer" if lost else ""
    answers = sum(one != Accelerator(index=one.index) for one in there)
    found = [count.measured(answers, culprit, note)]
    checks: list[tuple[str, str, _State]] = []
    if promised.model is not None:
        what = f"of another model than {promised.model}"
        checks.append((what, "accelerators.model", _model(promised.model)))
    if promised.memory_bytes is not None:
        source = f"accelerators.memory {SIZE.text(promised.memory_bytes)}"
        bound = at_least(promised.memory_bytes).of("accelerators.memory", promised.memory_bytes)
        least = Subject("least memory of an accelerator", "B", bound, source)
        found.append(_worst(me, there, least, lambda one: one.memory_bytes))
    key = "preflight.accelerators"
    for switch, wanted, read in (
        ("ecc", promise.ecc, lambda one: one.ecc_enabled),
        ("persistence", promise.persistence, lambda one: one.persistence),
        ("MIG mode", promise.mig, lambda one: one.mig_enabled),
    ):
        if wanted is not None:
            what = f"whose {switch} is not {wanted}"
            checks.append((what, f"{key}.{switch} {wanted}", _switch(wanted, read)))
    if promise.throttling is not None:
        checks.append(("that are throttled", f"{key}.throttling none", _throttling))
    if promise.remapped_rows is not None:
        what = "with failed or pending row remaps"
        checks.append((what, f"{key}.remapped_rows none", _remapped_rows))
    found += [_in_wrong_state(me, there, what, source, state) for what, source, state in checks]
    if promise.ecc_errors_at_most is not None:
        what = "most uncorrected errors of an accelerator's memory"
        most = Subject(what, "", at_most(promise.ecc_errors_at_most), key)
        found.append(_worst(me, there, most, lambda one: one.ecc_uncorrected))
    return found


def _model(wanted: str) -> _State:
    return lambda one: None if one.name is None else (one.name, one.name == wanted)


def _switch(wanted: str, read: Callable[[Accelerator], bool | None]) -> _State:
    def state(one: Accelerator) -> tuple[str, bool] | None:
        value = read(one)
        return None if value is None else ("on" if value else "off", value == (wanted == "on"))

    return state


def _throttling(one: Accelerator) -> tuple[str, bool] | None:
    return None if one.throttled is None else (listed(one.throttled), not one.throttled)


def _remapped_rows(one: Accelerator) -> tuple[str, bool] | None:
    rows = {"failed": one.remapped_rows_failed, "pending": one.remapped_rows_pending}
    if None in rows.values():
        return None
    found = [name for name, is_so in rows.items() if is_so]
    return listed(found), not found


def _in_wrong_state(
    me: NodeSurvey, there: Sequence[Accelerator], what: str, source: str, state: _State
) -> Measurement:
    """Number of accelerators in a wrong state; inconclusive if it is 0 and a state is unknown."""
    subject = Subject(f"accelerators {what}", "", equals(0), source)
    states = {one.index: state(one) for one in there}
    wrong = {i: one[0] for i, one in states.items() if one is not None and not one[1]}
    unreadable = [str(i) for i, one in states.items() if one is None]
    if not wrong and (unreadable or not there):
        why = (
            f"accelerator {listed(unreadable)} does not report it"
            if unreadable
            else "no accelerator"
        )
        return subject.unknown(f"{me.name}: {why}")
    culprit = f"{me.name} accelerator {listed([str(i) for i in wrong])}"
    note = listed([f"accelerator {i}: {text}" for i, text in wrong.items()])
    return subject.measured(len(wrong), culprit, note)


def _worst(
    me: NodeSurvey,
    there: Sequence[Accelerator],
    subject: Subject,
    read: Callable[[Accelerator], int | None],
) -> Measurement:
    """The value with the least margin; inconclusive if it passes and another is unknown."""
    known = {one.index: value for one in there if (value := read(one)) is not None}
    index = min(known, key=lambda one: subject.bound.margin(known[one]), default=None)
    if index is None or (len(known) < len(there) and subject.bound.holds(known[index])):
        mute = listed([str(one.index) for one in there if one.index not in known])
        why = f"accelerator {mute} does not report it" if mute else "no accelerator"
        return subject.unknown(f"{me.name}: {why}")
    return subject.measured(known[index], f"{me.name} accelerator {index}")


@dataclass(frozen=True, slots=True)
class PciLink:
    """The PCIe link of an accelerator or a NIC.

    name: such as "accelerator 0000:1b:00.0" or "mlx5_0". full_…: the most that both card and slot
    support.
    """

    name: str
    accelerator: bool
    width: int | None
    full_width: int | None
    gtransfers_s: float | None
    full_gtransfers_s: float | None


def pci_links(machine: Machine, fabric: Sequence[str]) -> tuple[PciLink, ...]:
    """PCIe links of accelerators, and of the NICs that match a pattern of the fabric.

    Source: Linux, Documentation/ABI/testing/sysfs-bus-pci.
    """
    return tuple(
        _pci_link(machine, card, card.bridges[-1] if card.bridges else None, name, is_accelerator)
        for card, name, is_accelerator in _cards(machine, fabric)
    )


def _cards(machine: Machine, fabric: Sequence[str]) -> list[tuple[PciFunction, str, bool]]:
    """Functions with a link, each with its name and whether it is an accelerator."""
    known = machine.by_name
    physical = (name for one in machine.matching(fabric) for name in physical_below(one, known))
    nics = {known[name].pci_address: name for name in physical}
    for device in machine.rdma or ():
        of_fabric = any(fnmatchcase(device.name, pattern) for pattern in fabric)
        if not device.virtual and (of_fabric or device.pci_address in nics):
            nics[device.pci_address] = device.name
    tree = machine.pci
    found = [(f, f"accelerator {f.address}", True) for f in tree.accelerators]
    found += [(f, nics[f.address], False) for f in tree.networks if f.address in nics]
    # A virtual function has no link of its own.
    return [one for one in found if one[0].physical_function is None]


def _uplinks(machine: Machine, fabric: Sequence[str]) -> Iterator[PciLink]:
    """Links of the PCIe switches above accelerators and NICs, as far as they are known.

    A switch is two bridges deep, and some accelerators have one inside.
    """
    seen = set()
    for card, name, _ in _cards(machine, fabric):
        above = card.bridges[:-1]
        for address, slot in zip(above[::-2], above[-2::-2], strict=False):
            switch = machine.pci.function(address)
            if switch is None or address in seen:
                continue
            seen.add(address)
            link = _pci_link(machine, switch, slot, f"switch {address} above {name}", False)
            if link.width and link.full_width:
                yield link


def _pci_link(
    machine: Machine, card: PciFunction, slot_address: str | None, name: str, accelerator: bool
) -> PciLink:
    slot = machine.pci.function(slot_address)
    full_width, full_gtransfers_s = full_link(card, slot)
    return PciLink(
        name,
        accelerator,
        card.link_width,
        full_width,
        card.link_gtransfers_s,
        full_gtransfers_s,
    )


def pcie(survey: Survey, spec: Spec, name: str) -> list[Measurement]:
    """Number of PCIe links narrower than card and slot support, and of slower links of NICs.

    A link may be slower to save power while its accelerators are idle.
    """
    if promises(spec).pcie is None:
        return []
    me = survey.node(name)
    links = pci_links(me.machine, spec.fabric.interfaces)
    nics = [one for one in links if not one.accelerator]
    wide = (*links, *_uplinks(me.machine, spec.fabric.interfaces))
    widths = [(one.name, one.width, one.full_width) for one in wide]
    rates = [(one.name, one.gtransfers_s, one.full_gtransfers_s) for one in nics]
    return [_below_maximum(me, "width", "x", widths), _below_maximum(me, "speed", "GT/s ", rates)]


def _below_maximum(
    me: NodeSurvey, label: str, unit: str, links: Sequence[tuple[str, float | None, float | None]]
) -> Measurement:
    """Number of links below their maximum. links: name, actual value and maximum of each."""
    subject = Subject(f"PCIe links below their full {label}", "", equals(0), "preflight.pcie full")
    if not links:
        unread = me.facts is None or "pci" in me.machine.unread
        why = why_unread(me, "pci") if unread else f"{me.name}: no such link found"
        return subject.unknown(why)
    low = [f"{n} {unit}{a:g} of {b:g}" for n, a, b in links if a and b and a < b]
    if not low and (unreadable := [n for n, a, b in links if a is None or b is None]):
        return subject.unknown(f"{me.name}: {listed(unreadable)} does not report its {label}")
    return subject.measured(len(low), f"{me.name} {listed(low)}", listed(low))


def kernel_log(survey: Survey, spec: Spec, name: str) -> list[Measurement]:
    """Device failures, corrected errors, and times that the worst link went down, since boot."""
    promise = promises(spec).kernel_log
    if promise is None:
        return []
    me = survey.node(name)
    log = me.machine.kernel_log
    found = []
    for severity, label, key, most in (
        (Severity.FAULT, "failures of devices", "none", 0),
        (Severity.CORRECTED, "corrected errors", "corrected_at_most", promise.corrected_at_most),
        (
            *(Severity.LINK_DOWN, "times a link went down"),
            *("link_downs_at_most", promise.link_downs_at_most),
        ),
    ):
        source = f"preflight.kernel_log {key} {most}"
        subject = Subject(f"{label} in the kernel log", "", at_most(most), source)
        if log is None:
            found.append(subject.unknown(why_unread(me, "kernel_log")))
        else:
            found.append(_logged(me, log, severity, most, subject))
    return found


def _logged(
    me: NodeSurvey, log: Log, severity: Severity, most: int, subject: Subject
) -> Measurement:
    ours = [event for event in log.events if event.severity is severity]
    counts = Counter(event.device for event in ours)
    value, devices = len(ours), list(counts)
    if severity is Severity.LINK_DOWN:  # the bound is for each link by itself
        value = max(counts.values(), default=0)
        devices = [device for device, count in counts.items() if count > most]
    notes = [f"the log goes back to {log.since} only"] if log.since else []
    notes += [f"{event.device} {event.when}: {event.what}" for event in ours]
    return subject.measured(value, f"{me.name} {listed(devices)}", listed(notes))
