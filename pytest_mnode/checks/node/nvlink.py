"""NVLinks of accelerators: with one that is down or slow, its GPU holds up all others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import Field

from pytest_mnode.evidence.check import Check, check
from pytest_mnode.evidence.row import Row, row, seen
from pytest_mnode.evidence.rules import Rows
from pytest_mnode.machine.nvlink import NvLink, read_nvlinks
from pytest_mnode.measurement import Measurement, listed
from pytest_mnode.spec.fields import BytesPerSecond, Count, Fraction, Section, Some
from pytest_mnode.spec.quantity import BYTE_RATE

_ACTIVE, _SPEED, _DOWN = "active NVLinks", "rate of the slowest NVLink", "inactive NVLinks"
_ERRORS, _RECOVERIES = "errors of an NVLink", "recoveries of an NVLink"
_BER = "bit error rate of an NVLink"
STAND_IN = (
    "other_program:{node}:nvidia-smi:GPU 0: A (UUID: GPU-0)\\n Link 0: <inactive>\\n"
    "GPU 00000000:1B:00.0\\n    Fabric\\n        State : In Progress"
)
"""A fault of NVLink and of its fabric."""


class NvLinks(Section):
    """Links of each accelerator. What is left out is not promised."""

    links: Some | None = None
    """Number of active links of each accelerator, such as 18."""
    rate_bytes_s: BytesPerSecond | None = Field(None, alias="rate")
    """Rate of each active link in one direction, at least, such as 26.5 GB/s."""
    errors_at_most: Count | None = None
    """Errors of one link that it corrected by sending again (CRC, replay): since the driver was
    loaded, and again by how much they may rise from one criterion to the next."""
    recoveries_at_most: Count | None = None
    """How often one link was set up again or lost packets; counted as errors_at_most is."""
    bit_error_rate_at_most: Fraction | None = None
    """Bit error rate of one link after its correction, as NVLink 5 and later show it."""


@check("preflight.nvlink")
class NvLinksAreUp(Check):
    """Has each accelerator of this node the NVLinks promised, at their rate, without errors?

    By `nvidia-smi nvlink`, or by NVML without it. Errors that rise later are found with those of
    the fabric's ports, after each criterion.
    """

    promise: NvLinks
    """Active links of each accelerator, their rate, and their errors."""
    of_accelerators = True
    alone = True

    def read(self, root: Path) -> Iterator[Row]:
        if root != Path("/"):
            raise OSError("NVLinks are not part of a recorded machine")
        for gpu, links in read_nvlinks().items():
            yield from _rows(f"accelerator {gpu}", links)

    def rule(self, rows: Rows) -> Iterator[Measurement]:
        promise = self.promise
        if promise.links is not None:
            down = [f"{one.device} {one.value} inactive" for one in rows.of(_DOWN)]
            yield rows.at_least(_ACTIVE, promise.links, part="links", note=listed(down))
        if (least := promise.rate_bytes_s) is not None:
            source = f"{rows.key}.rate {BYTE_RATE.text(least)}"
            yield rows.at_least(_SPEED, least / 1e9, "GB/s", part="rate", source=source)
        for part, metric in (
            ("errors_at_most", _ERRORS),
            ("recoveries_at_most", _RECOVERIES),
            ("bit_error_rate_at_most", _BER),
        ):
            if (most := getattr(promise, part)) is not None:
                yield rows.at_most(metric, most, part=part)

    @classmethod
    def programs(cls, promise: object) -> tuple[str, ...]:  # noqa: ARG003
        return ("nvidia-smi",)

    fault = STAND_IN
    promised_as = "{links: 1}"

    @classmethod
    def draft(cls, rows: Mapping[str, Sequence[Row]]) -> dict[str, object] | None:
        """Links and rates that all accelerators of all nodes have alike."""
        counts, rates = seen(rows, _ACTIVE), seen(rows, _SPEED)
        if len(counts) != 1 or not counts[0] or len(rates) != 1:
            return None
        return {"links": counts[0], "rate": f"{rates[0]:g} GB/s"}


def _rows(name: str, links: Mapping[int, NvLink] | str) -> Iterator[Row]:
    """The links of an accelerator, each metric of its worst link only."""
    if isinstance(links, str):
        for metric in (_ACTIVE, _SPEED, _ERRORS, _RECOVERIES, _BER):
            yield row(metric, why=links, device=name)
        return
    unknown = [number for number, one in links.items() if one.gbytes_s is None]
    active = {number: one.gbytes_s for number, one in links.items() if one.gbytes_s}
    yield row(_ACTIVE, len(active) if not unknown else None, device=name, why="in no known state")
    down = [number for number, one in links.items() if one.gbytes_s == 0.0]
    if down:
        yield row(_DOWN, "link " + listed(map(str, down), 8, ", "), device=name)
    for number, rate in sorted(active.items(), key=lambda one: one[1] or 0.0)[:1]:
        yield row(_SPEED, rate, "GB/s", device=f"{name} link {number}")
    for metric, values in (
        (_ERRORS, {number: one.errors for number, one in links.items()}),
        (_RECOVERIES, {number: one.recoveries for number, one in links.items()}),
        (_BER, {number: one.bit_error_rate for number, one in links.items()}),
    ):
        known = {number: value for number, value in values.items() if value is not None}
        if not known:
            yield row(metric, why="its links show none", device=name)
            continue
        worst = max(known, key=known.__getitem__)
        yield row(metric, known[worst], device=f"{name} link {worst}")
