"""A sweep as nccl-tests prints it, with the spread of the repeats beside it. Pure."""

from __future__ import annotations

from pytest_mnode.measuring.sweep import Sweep

_COLUMNS = (
    ("size", "(B)", 12),
    ("count", "(elements)", 14),
    ("type", "", 10),
    ("redop", "", 8),
    ("root", "", 8),
    ("time", "(us)", 11),
    ("algbw", "(GB/s)", 9),
    ("busbw", "(GB/s)", 9),
    ("#wrong", "", 8),
    ("min", "(us)", 13),
    ("p99", "(us)", 11),
    ("max", "(us)", 11),
    ("calls", "", 9),
)
_BEFORE_TIMES, _TIMES = 5, 4


def table(sweep: Sweep) -> str:
    """Lines of text: a head of nccl-tests' columns, a row for each size, sizes left out and why.

    time is the median of the repeats; calls are repeats × calls in a row of each. In place is what
    torch.distributed does in place. There is no average over sizes: it would say nothing.
    """
    measured = sweep.measured
    widths = [width for _, _, width in _COLUMNS]
    left, times = sum(widths[:_BEFORE_TIMES]), sum(widths[_BEFORE_TIMES:][:_TIMES])
    place = "in-place" if measured.in_place else "out-of-place"
    repeats = sum(widths[_BEFORE_TIMES + _TIMES :])
    lines = [
        f"# {measured.collective} over {sweep.ranks} ranks",
        "#" + f"{'':{left - 1}}{place:^{times}}{'repeats':^{repeats}}".rstrip(),
        _line(["#", *(name for name, _, _ in _COLUMNS)]),
        _line(["#", *(unit for _, unit, _ in _COLUMNS)]),
    ]
    for row in sweep.rows:
        point = row.point
        cells = (
            *(str(row.moved_bytes), str(row.count), "float", measured.redop, str(measured.root)),
            _us(point.time_median_us),
            *(f"{point.algbw_gbytes_s:.4g}", f"{point.busbw_gbytes_s:.4g}", str(row.wrong)),
            *(_us(t) for t in (point.time_min_us, point.time_p99_us, point.time_max_us)),
            f"{len(row.times_s)}×{row.calls}",
        )
        lines.append(_line([" ", *cells]))
    lines += [
        f"# {left_out.size_bytes} not measured: {left_out.why}" for left_out in sweep.unmeasured
    ]
    return "\n".join(lines)


def _line(cells: list[str]) -> str:
    first, *rest = cells
    text = "".join(f"{cell:>{width}}" for cell, (_, _, width) in zip(rest, _COLUMNS, strict=True))
    return (first + text[1:]).rstrip()


def _us(time_us: float) -> str:
    return f"{time_us:.1f}" if time_us < 1e5 else f"{time_us:.0f}"
