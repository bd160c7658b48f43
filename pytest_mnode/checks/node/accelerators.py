"""Accelerators: their number, model and memory, and the state of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from pytest_mnode.criteria.preflight.answers import NodeSurvey
from pytest_mnode.criteria.preflight.survey_check import SurveyCheck
from pytest_mnode.evidence.check import check
from pytest_mnode.evidence.row import Row, row
from pytest_mnode.evidence.rules import Rows
from pytest_mnode.machine.nvml import Accelerator
from pytest_mnode.measurement import Measurement, listed
from pytest_mnode.spec.fields import Count, OnOff, Section
from pytest_mnode.spec.quantity import SIZE

_COUNT, _MODEL, _MEMORY = "accelerators", "accelerator model", "memory of an accelerator"
_ERRORS = "uncorrected memory errors of an accelerator"
_EVER = "uncorrected memory errors of an accelerator over its life"
_CORRECTED = "corrected memory errors of an accelerator"
_BLOCKS = "parts with uncorrected errors"
_REPORT = "model, memory and state of accelerators"
_STATES = {
    "ecc": "ECC of accelerators",
    "persistence": "persistence of accelerators",
    "throttling": "throttling of accelerators",
    "mig": "MIG mode of accelerators",
    "remapped_rows": "row remaps of accelerators that failed or are pending",
    "sram_threshold": "uncorrected SRAM errors of accelerators against NVIDIA's limit",
    "recovery": "what the driver asks for accelerators",
    "inforom": "infoROM of accelerators",
}
"""Metric of each key of the promise that is a state."""
_LIMITS = {
    "ecc_errors_at_most": _ERRORS,
    "ecc_corrected_at_most": _CORRECTED,
    "ecc_ever_at_most": _EVER,
}


class AcceleratorHealth(Section):
    """Accelerators are as `accelerators` says, and in the state of each given key."""

    ecc: OnOff | None = None
    """Error correction of their memory."""
    ecc_errors_at_most: Count | None = None
    """Uncorrected memory errors of one accelerator since its driver was loaded."""
    ecc_corrected_at_most: Count | None = None
    """Corrected memory errors of one accelerator since its driver was loaded."""
    ecc_ever_at_most: Count | None = None
    """Uncorrected memory errors of one accelerator over its life, as its infoROM keeps them."""
    persistence: OnOff | None = None
    """The driver stays loaded between jobs."""
    throttling: Literal["none"] | None = None
    """No clock is held down by heat, power or hardware."""
    mig: OnOff | None = None
    """Multi-Instance GPU mode."""
    remapped_rows: Literal["none"] | None = None
    """No remapping of a memory row has failed, and none waits for a reset; no bank of memory is
    without spare rows; no page (before Ampere) and no other repair waits for a reset."""
    sram_threshold: Literal["kept"] | None = None
    """Uncorrected errors of SRAM are below the number at which NVIDIA replaces a GPU; Hopper and
    later, with a driver that tells."""
    recovery: Literal["none"] | None = None
    """The driver asks neither for a reset, a reboot nor a drain; drivers of 2025 and later."""
    inforom: Literal["valid"] | None = None
    """Checksums of a GPU's infoROM, which keeps its history of errors, are right."""


@check("preflight.accelerators")
class AcceleratorsAreAsPromised(SurveyCheck):
    """Does this node have the accelerators promised, in the state promised?"""

    promise: AcceleratorHealth
    of_accelerators = True
    parts = ("accelerators", "pci")
    alone = True
    stops = ("mesh", "fabric", "numa", "devices", "accelerators")

    def unread(self, node: NodeSurvey) -> str:
        return "" if node.machine.pci.accelerators else super().unread(node)

    def rows(self, node: NodeSurvey) -> Iterator[Row]:
        if why := super().unread(node):
            makers = dict.fromkeys(one.maker for one in node.machine.pci.accelerators)
            yield from (row(_COUNT, 1, device=one.address) for one in node.machine.pci.accelerators)
            yield row(_REPORT, None, why=f"of {listed(makers, separator=', ')}: {why}")
        for one in node.machine.accelerators or ():
            # NVML still counts a device that it has lost, and knows nothing else of it.
            values = {
                _COUNT: 1 if one.answers else None,
                _MODEL: one.name,
                _MEMORY: one.memory_bytes,
                _ERRORS: one.ecc_uncorrected,
                _CORRECTED: one.ecc_corrected,
                _EVER: one.ecc_uncorrected_ever,
                _STATES["ecc"]: _switch(one.ecc_enabled),
                _STATES["persistence"]: _switch(one.persistence),
                _STATES["mig"]: _switch(one.mig_enabled),
                _STATES["throttling"]: _or_none(one.throttled),
                _STATES["remapped_rows"]: _remaps(one),
                _STATES["sram_threshold"]: _word(one.sram_exceeded, "exceeded", "kept"),
                _STATES["recovery"]: one.recovery,
                _STATES["inforom"]: _word(one.inforom_valid, "valid", "corrupted"),
            }
            why = one.problem or ("does not report it" if one.answers else "does not answer")
            device = f"accelerator {one.index}"
            yield from (row(metric, v, device=device, why=why) for metric, v in values.items())
            if one.ecc_blocks:
                parts = ", ".join(f"{name} {count}" for name, count in one.ecc_blocks)
                yield row(_BLOCKS, parts, device=device)
        yield from self._unshown(node)

    def _unshown(self, node: NodeSurvey) -> Iterator[Row]:
        """Accelerators on PCI that the driver does not show, where it shows too few."""
        shown = node.machine.accelerators
        if not shown or len(shown) >= self.spec.accelerators.per_node:
            return
        known = {one.pci_address for one in shown}
        # A driver that tells of a lost device alone was not asked about the others.
        value = None if any(one.answers for one in shown) else 1
        for one in node.machine.pci.accelerators:
            if None not in known and one.address not in known and one.physical_function is None:
                why = "on PCI, and the driver does not show it: lost, or not given to this job"
                yield row(_COUNT, value, device=f"accelerator {one.address}", why=why)

    def rule(self, rows: Rows) -> Iterator[Measurement]:
        there, promise = self.spec.accelerators, self.promise
        if not there.per_node:
            return
        yield rows.under("accelerators.per_node", there.per_node).count(_COUNT, there.per_node)
        if not rows.mine:
            return  # why, is said once
        if rows.of(_REPORT):
            yield rows.equals(_REPORT, "read")  # said once; their number is known from PCI
            return
        if there.model is not None:
            yield rows.under("accelerators.model", there.model).equals(_MODEL, there.model)
        if (least := there.memory_bytes) is not None:
            source = f"accelerators.memory {SIZE.text(least)}"
            of_memory = rows.under("accelerators.memory", least)
            yield of_memory.at_least(_MEMORY, least, "B", source=source)
        for key, metric in _STATES.items():
            if (wanted := getattr(promise, key)) is not None:
                yield rows.equals(metric, wanted, part=key)
        for key, metric in _LIMITS.items():
            if (most := getattr(promise, key)) is not None:
                found = rows.at_most(metric, most, part=key)
                parts = rows.of(_BLOCKS) if metric == _ERRORS else []
                of = [f"{one.device}: {one.shown}" for one in parts]
                yield replace(found, note="; ".join([found.note, *of])) if of else found


def _switch(is_on: bool | None) -> str | None:
    return _word(is_on, "on", "off")


def _word(is_so: bool | None, yes: str, no: str) -> str | None:
    return None if is_so is None else yes if is_so else no


def _or_none(found: Sequence[str] | None) -> str | None:
    return None if found is None else ", ".join(found) or "none"


def _remaps(one: Accelerator) -> str | None:
    """What is wrong with spare memory. Before Ampere pages are retired, and rows not remapped.

    Source: NVIDIA, GPU Memory Error Management; Dynamic Page Retirement.
    """
    states = {"failed": one.remapped_rows_failed, "pending": one.remapped_rows_pending}
    found = [name for name, is_so in states.items() if is_so]
    found += ["retirement of a page pending"] if one.pages_pending else []
    found += one.repairs
    if one.banks_without_spare:
        found.append(f"no spare row left in {one.banks_without_spare} banks")
    old = one.pages_pending is not None and set(states.values()) == {None}
    known = found or old or None not in states.values()
    return _or_none(found) if known else None
