"""Are accelerators and RDMA devices as promised, and does the one reach the other's memory?"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytest_mnode.criteria.preflight.facts import (
    UNKNOWN_GID,
    Accelerator,
    NodeSurvey,
    PciLink,
    RdmaPort,
    Survey,
)
from pytest_mnode.criteria.preflight.questions.answer import (
    Answer,
    NotPromised,
    listed,
    silence,
    unknown,
)
from pytest_mnode.criteria.preflight.questions.links import ports, why_unread
from pytest_mnode.measurement import Bound, Measurement, at_least, at_most, equals
from pytest_mnode.spec import Spec
from pytest_mnode.spec.quantity import SIZE


def accelerators(survey: Survey, spec: Spec, name: str) -> Answer:
    """Count, model, memory and state of this node's accelerators; one measurement each."""
    promise, promised = spec.criteria.preflight, spec.accelerators
    if promise is None or promise.accelerators is None:
        return NotPromised("the state of accelerators")
    if not promised.per_node:
        return NotPromised("there are no accelerators")
    me = survey.node(name)
    there = me.facts.accelerators if me.facts else None
    label, bound = "accelerators", equals(promised.per_node)
    source = f"accelerators.per_node {promised.per_node}"
    if there is None:
        return unknown(label, "", bound, source, why_unread(me, "accelerators"))
    found = [Measurement(label, len(there), "", bound, source, f"{name} accelerators")]
    if promised.model is not None:
        model = promised.model
        found.append(
            _unlike(
                me,
                there,
                f"of another model than {model}",
                "accelerators.model",
                lambda a: None if a.model is None else _shown(a.model, a.model == model),
            )
        )
    if promised.memory_bytes is not None:
        found.append(_memory(me, there, promised.memory_bytes))
    state = promise.accelerators
    for key, wanted, read in (
        ("ecc", state.ecc, lambda a: a.ecc),
        ("persistence", state.persistence, lambda a: a.persistence),
        ("MIG mode", state.mig, lambda a: a.mig),
    ):
        if wanted is not None:
            found.append(_switched(me, there, key, wanted, read))
    if state.throttling is not None:
        found.append(
            _unlike(
                me,
                there,
                "with clocks held down",
                "preflight.accelerators.throttling none",
                lambda a: (
                    None if a.throttling is None else _shown(listed(a.throttling), not a.throttling)
                ),
            )
        )
    if state.remapped_rows is not None:
        found.append(
            _unlike(
                me,
                there,
                "with rows of memory that failed to be remapped, or wait for it",
                "preflight.accelerators.remapped_rows none",
                lambda a: (
                    None
                    if a.remapped_rows is None
                    else _shown(listed(a.remapped_rows), not a.remapped_rows)
                ),
            )
        )
    if state.ecc_errors_at_most is not None:
        found.append(_ecc_errors(me, there, state.ecc_errors_at_most))
    return tuple(found)


def pcie(survey: Survey, spec: Spec, name: str) -> Answer:
    """How many PCIe links are narrower than card and slot can, and how many of NICs are slower."""
    promise = spec.criteria.preflight
    if promise is None or promise.pcie is None:
        return NotPromised("PCIe links")
    me = survey.node(name)
    links = me.facts.pci if me.facts is not None else None
    nics = None if links is None else [one for one in links if not one.accelerator]
    widths = _full(me, "width", "x", links, [(x.width, x.full_width) for x in links or ()])
    rates = [(x.gtransfers_s, x.full_gtransfers_s) for x in nics or ()]
    return (widths, _full(me, "speed", "GT/s ", nics, rates))


def _full(
    me: NodeSurvey,
    label: str,
    unit: str,
    links: Sequence[PciLink] | None,
    read: Sequence[tuple[float | None, float | None]],
) -> Measurement:
    """How many links have less than they could, by what each has and could have."""
    what, source = f"PCIe links below their full {label}", "preflight.pcie full"
    if not links:
        why = why_unread(me, "pci") if links is None else f"{me.name}: no such link is shown"
        return unknown(what, "", equals(0), source, why)[0]
    pairs = list(zip([one.name for one in links], read, strict=True))
    low = [f"{n} {unit}{a:g} of {b:g}" for n, (a, b) in pairs if a and b and a < b]
    if not low and (mute := [name for name, told in pairs if None in told]):
        why = f"{me.name}: {listed(mute)} does not tell its {label}"
        return unknown(what, "", equals(0), source, why)[0]
    culprit = f"{me.name} {listed(low)}"
    return Measurement(what, len(low), "", equals(0), source, culprit, listed(low))


def _ecc_errors(me: NodeSurvey, there: Sequence[Accelerator], most: int) -> Measurement:
    label, source = "most uncorrected errors of an accelerator's memory", "preflight.accelerators"
    known = {one.index: one.ecc_errors for one in there if one.ecc_errors is not None}
    if not known or (len(known) < len(there) and max(known.values()) <= most):
        return unknown(label, "", at_most(most), source, f"{me.name}: not all tell theirs")[0]
    index = max(known, key=known.__getitem__)
    culprit = f"{me.name} accelerator {index}"
    return Measurement(label, known[index], "", at_most(most), source, culprit)


def _shown(value: str, right: bool) -> tuple[str, bool]:
    return value, right


def _switched(
    me: NodeSurvey,
    there: Sequence[Accelerator],
    key: str,
    wanted: str,
    read: Callable[[Accelerator], bool | None],
) -> Measurement:
    def judged(one: Accelerator) -> tuple[str, bool] | None:
        value = read(one)
        return None if value is None else ("on" if value else "off", value == (wanted == "on"))

    return _unlike(
        me, there, f"whose {key} is not {wanted}", f"preflight.accelerators.{key} {wanted}", judged
    )


def _unlike(
    me: NodeSurvey,
    there: Sequence[Accelerator],
    what: str,
    source: str,
    judged: Callable[[Accelerator], tuple[str, bool] | None],
) -> Measurement:
    """How many are not as they should be; one that does not tell leaves a pass open."""
    answers = {one.index: judged(one) for one in there}
    wrong = {i: a[0] for i, a in answers.items() if a is not None and not a[1]}
    mute = [i for i, a in answers.items() if a is None]
    label = f"accelerators {what}"
    if not wrong and (mute or not there):
        told = f"accelerator {listed([str(i) for i in mute])} does not tell" if mute else "none"
        return unknown(label, "", equals(0), source, f"{me.name}: {told}")[0]
    note = listed([f"accelerator {i}: {value}" for i, value in wrong.items()])
    culprit = f"{me.name} accelerator {listed([str(i) for i in wrong])}"
    return Measurement(label, len(wrong), "", equals(0), source, culprit, note)


def _memory(me: NodeSurvey, there: Sequence[Accelerator], least: int) -> Measurement:
    label, source = "least memory of an accelerator", f"accelerators.memory {SIZE.text(least)}"
    known = {one.index: one.memory_bytes for one in there if one.memory_bytes is not None}
    if not known or (len(known) < len(there) and min(known.values()) >= least):
        return unknown(label, "B", at_least(least), source, f"{me.name}: not all tell theirs")[0]
    index = min(known, key=known.__getitem__)
    return Measurement(
        label, known[index], "B", at_least(least), source, f"{me.name} accelerator {index}"
    )


def rdma_ports(survey: Survey, spec: Spec, name: str) -> Answer:
    """How many RDMA ports of the fabric are ACTIVE, and how many have a GID of a type promised."""
    promise = spec.criteria.preflight
    if promise is None or promise.rdma is None:
        return NotPromised("RDMA ports")
    me, count = survey.node(name), spec.fabric.nics_per_node
    label, bound = "RDMA ports that are ACTIVE", at_least(count)
    source = f"fabric.nics_per_node {count}"
    if me.facts is None or me.facts.rdma is None:
        return unknown(label, "", bound, source, why_unread(me, "rdma"))
    there = ports(me, spec.fabric)
    faults = {port: _port_fault(port, spec.fabric.protocol) for port in there}
    active = [port for port, fault in faults.items() if fault == ""]
    mute = [port for port, fault in faults.items() if fault is None]
    dull = [f"{_name(p)} {fault}" for p, fault in faults.items() if fault]
    if len(active) < count <= len(active) + len(mute):
        why = f"{name}: {listed([_name(p) for p in mute])} does not tell its state or protocol"
        found = list(unknown(label, "", bound, source, why))
    else:
        told = listed(dull) or f"{len(there)} ports"
        note = f"{name}: {told}" if there else f"{name}: no RDMA port"
        culprit = f"{name} {listed(dull)}" if dull else f"{name}: RDMA devices are missing"
        found = [Measurement(label, len(active), "", bound, source, culprit, note)]
    wanted = promise.rdma.gid_types
    if wanted is not None:
        lacking = [p for p in active if not set(wanted) & set(p.gid_types)]
        untold = [_name(p) for p in lacking if UNKNOWN_GID in p.gid_types]
        without = {
            _name(p): listed(p.gid_types) or "none"
            for p in lacking
            if UNKNOWN_GID not in p.gid_types
        }
        label, source = f"ports without a GID of {' or '.join(wanted)}", "preflight.rdma.gid_types"
        words = [f"{port} has {types}" for port, types in without.items()]
        if untold and not without:
            why = f"{name}: not every GID of {listed(untold)} tells its type"
            found += unknown(label, "", equals(0), source, why)
        elif active:
            found.append(
                Measurement(
                    label,
                    len(without),
                    "",
                    equals(0),
                    source,
                    f"{name} {listed(words)}",
                    f"{name}: {listed(words)}" if words else "",
                )
            )
        else:
            found += unknown(label, "", equals(0), source, f"{name}: no port is ACTIVE")
    return tuple(found)


def _port_fault(port: RdmaPort, wanted: str | None) -> str | None:
    """Why a port does not carry a fabric of this protocol; "" where it does, None where not told.

    A card that can be either may have come up as the other: InfiniBand as RoCE, or RoCE as iWARP.
    """
    if port.protocol is not None and wanted is not None and port.protocol != wanted:
        return f"is {port.protocol}, not {wanted}"
    if port.state is not None and port.state != "ACTIVE":
        return port.state
    if port.physical_state not in (None, "LinkUp"):
        return f"{port.state or 'of unknown state'}, {port.physical_state}"
    return None if port.state is None or (wanted and port.protocol is None) else ""


def _name(port: RdmaPort) -> str:
    return f"{port.device}:{port.port}"


def rdma_errors(survey: Survey, spec: Spec, name: str) -> Answer:
    """By how much error counters of the fabric's RDMA ports rose during the survey."""
    promise = spec.criteria.preflight
    if promise is None or promise.rdma is None or promise.rdma.errors_at_most is None:
        return NotPromised("RDMA error counters that stand still")
    me, most = survey.node(name), promise.rdma.errors_at_most
    label, bound = "errors counted by RDMA ports", at_most(most)
    source = f"preflight.rdma.errors_at_most {most}"
    if me.facts is None or me.last is None:
        return unknown(label, "", bound, source, silence(me))
    mine = {(port.device, port.port) for port in ports(me, spec.fabric)}
    rises = [rise for rise in me.last.rdma or () if (rise.device, rise.port) in mine]
    risen = {f"{r.device}:{r.port} {name}": n for r in rises for name, n in r.risen.items()}
    mute = [f"{r.device}:{r.port} {name}" for r in rises for name in r.unknown]
    told = {(r.device, r.port) for r in rises if r.counted}
    mute += [f"{device}:{port}, which counts none," for device, port in sorted(mine - told)]
    total, counted = sum(risen.values()), sum(rise.counted for rise in rises)
    if not counted:
        return unknown(label, "", bound, source, f"{name}: no error counter can be read")
    if mute and total <= most:
        why = f"{name}: {listed(mute)} may have risen: read no more, set back, or at its largest"
        return unknown(label, "", bound, source, why)
    words = listed([f"{what} +{rise}" for what, rise in risen.items()])
    note = words or f"{counted} counters of {len(rises)} ports"
    return (Measurement(label, total, "", bound, source, f"{name} {words}", note),)


def gpudirect(survey: Survey, spec: Spec, name: str) -> Answer:
    """Whether the kernel has a way for NICs to reach the memory of accelerators."""
    promise = spec.criteria.preflight
    if promise is None or promise.gpudirect is None:
        return NotPromised("GPUDirect RDMA")
    me = survey.node(name)
    label, source = "ways of GPUDirect RDMA", f"preflight.gpudirect {promise.gpudirect}"
    bound: Bound = at_least(1)
    if me.facts is None or me.facts.software is None:
        return unknown(label, "", bound, source, why_unread(me, "software"))
    software = me.facts.software
    has = {
        "peermem": software.peermem is not None,
        "dma-buf": software.driver_is_open,
    }
    wanted = tuple(has) if promise.gpudirect == "either" else (promise.gpudirect,)
    there = [way for way in wanted if has[way]]
    lacking = {
        "peermem": "module nvidia_peermem is not loaded",
        "dma-buf": "the driver is not the open kernel module",
    }
    if software.driver is None:
        lacking = dict.fromkeys(lacking, "no NVIDIA driver")
    why = listed(list(dict.fromkeys(lacking[way] for way in wanted)))
    note = f"{name}: {listed(there) or why}"
    return (Measurement(label, len(there), "", bound, source, f"{name}: {why}", note),)
