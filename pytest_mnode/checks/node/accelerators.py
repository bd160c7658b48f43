"""Accelerators: their number, model and memory, and the state of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from pytest_mnode.criteria.preflight.answers import NodeSurvey
from pytest_mnode.criteria.preflight.survey_check import SurveyCheck
from pytest_mnode.evidence.check import check
from pytest_mnode.evidence.row import Row, row
from pytest_mnode.evidence.rules import Rows
from pytest_mnode.machine.nvml import Accelerator
from pytest_mnode.measurement import Measurement, listed
from pytest_mnode.spec.fields import Count, OnOff, Page
from pytest_mnode.spec.inventory import Inventory
from pytest_mnode.spec.quantity import SIZE

_COUNT, _MODEL, _MEMORY = "accelerators", "accelerator model", "memory of an accelerator"
_ERRORS = "uncorrected memory errors of an accelerator"
_REPORT = "model, memory and state of accelerators"
_STATES = {
    "ecc": "ECC of accelerators",
    "persistence": "persistence of accelerators",
    "throttling": "throttling of accelerators",
    "mig": "MIG mode of accelerators",
    "remapped_rows": "row remaps of accelerators that failed or are pending",
}
"""Metric of each key of the promise that is a state."""


class AcceleratorHealth(Page):
    """Accelerators are as `accelerators` says, and in the state of each given key."""

    ecc: OnOff | None = None
    """Error correction of their memory."""
    ecc_errors_at_most: Count | None = None
    """Uncorrected memory errors of one accelerator since its driver was loaded."""
    persistence: OnOff | None = None
    """The driver stays loaded between jobs."""
    throttling: Literal["none"] | None = None
    """No clock is held down by heat, power or hardware."""
    mig: OnOff | None = None
    """Multi-Instance GPU mode."""
    remapped_rows: Literal["none"] | None = None
    """No remapping of a memory row has failed, and none waits for a reset."""


@check("preflight.accelerators")
class AcceleratorsAreAsPromised(SurveyCheck):
    """Does this node have the accelerators promised, in the state promised?"""

    promise: AcceleratorHealth
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
            answers = one != Accelerator(index=one.index)
            values = {
                _COUNT: 1 if answers else None,
                _MODEL: one.name,
                _MEMORY: one.memory_bytes,
                _ERRORS: one.ecc_uncorrected,
                _STATES["ecc"]: _switch(one.ecc_enabled),
                _STATES["persistence"]: _switch(one.persistence),
                _STATES["mig"]: _switch(one.mig_enabled),
                _STATES["throttling"]: _or_none(one.throttled),
                _STATES["remapped_rows"]: _remaps(one),
            }
            why = "does not report it" if answers else "does not answer"
            device = f"accelerator {one.index}"
            yield from (row(metric, v, device=device, why=why) for metric, v in values.items())

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
        if (most := promise.ecc_errors_at_most) is not None:
            yield rows.at_most(_ERRORS, most, part="ecc_errors_at_most")

    def doubts(self, cluster: Inventory) -> Iterator[str]:
        if not cluster.accelerators.per_node:
            yield ": given, but accelerators.per_node is 0"


def _switch(is_on: bool | None) -> str | None:
    return None if is_on is None else "on" if is_on else "off"


def _or_none(found: Sequence[str] | None) -> str | None:
    return None if found is None else ", ".join(found) or "none"


def _remaps(one: Accelerator) -> str | None:
    states = {"failed": one.remapped_rows_failed, "pending": one.remapped_rows_pending}
    known = None not in states.values()
    return _or_none([name for name, is_so in states.items() if is_so]) if known else None
