"""Whether ranks see the accelerators that were asked for, and are split over them as they can be.

Pure. More accelerators than were asked for are no fault: few sites hide those of others.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from pytest_mnode.criteria.launching.contract import Expected, Wrong
from pytest_mnode.criteria.launching.reports import RankReport
from pytest_mnode.spec.quantity import shown

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_MASKS = (_VISIBLE, "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
"""By which a scheduler gives a rank its own, of any vendor."""
_NUMBER = re.compile("[0-9]{1,9}")
_TENSOR, _PIPELINE = "--tensor-model-parallel-size", "--pipeline-model-parallel-size"


def wrong_devices(expected: Expected, reports: Sequence[RankReport]) -> Iterator[Wrong]:
    """All accelerators that a node was asked for, or one of its own for each rank."""
    by_node: dict[str, list[RankReport]] = defaultdict(list)
    for report in reports:
        by_node[report.node].append(report)
    for node, there in by_node.items():
        one_each = len(_told_apart(there)) == len(there) == expected.accelerators
        for report in there:
            count = report.accelerators
            if count is None and expected.accelerators:
                yield Wrong(node, report.rank, _VISIBLE, "its accelerators could not be counted")
            elif count is not None and count < expected.accelerators:
                if count == 1 and one_each:
                    continue
                what = f"{count} of {expected.accelerators} accelerators are visible"
                yield Wrong(node, report.rank, _VISIBLE, what)


def _told_apart(there: Sequence[RankReport]) -> set[tuple[str, ...]]:
    """What the ranks of a node see, once for each that sees something else.

    By the devices themselves where all ranks said which they are: numbers in a variable mean what
    a rank sees, which is 0 for each where cgroups hide the others. A name there, as of a part of a
    device, means the same for all.
    """
    known = all(report.devices for report in there)
    found = set()
    for report in there:
        masks = tuple(text for name in _MASKS if (text := report.contract.get(name)))
        names = tuple(text for text in masks if not text[0].isdigit())
        found.add((*report.devices, *names) if known else masks)
    return found - {()}


def more_visible(expected: Expected, reports: Sequence[RankReport]) -> list[str]:
    """Where ranks see more accelerators than the job asked for, a line for each number."""
    nodes: dict[int, dict[str, None]] = defaultdict(dict)
    for report in reports:
        if report.accelerators is not None and report.accelerators > expected.accelerators:
            nodes[report.accelerators][report.node] = None
    asked = f"and the job asked for {expected.accelerators}"
    return [
        f"accelerators visible on {', '.join(there)}: {count}, {asked}"
        for count, there in sorted(nodes.items())
    ]


def wrong_parallel(expected: Expected, reports: Sequence[RankReport]) -> Iterator[Wrong]:
    """Megatron's tensor × pipeline sizes divide the ranks, and tensor groups stay on a node."""
    for report in reports:
        sizes = {}
        for name in (_TENSOR, _PIPELINE):
            given = _given(name, report.arguments)
            if given is not None and not _NUMBER.fullmatch(given):
                what = f"{name}={shown(given)} is no number"
                yield Wrong(report.node, report.rank, name, what)
                given = None
            sizes[name] = 1 if given is None else int(given)
        tensor, pipeline = sizes[_TENSOR], sizes[_PIPELINE]
        if not tensor or not pipeline or expected.size % (tensor * pipeline):
            what = f"{_TENSOR} {tensor} × {_PIPELINE} {pipeline} does not divide {expected.size}"
            yield Wrong(report.node, report.rank, _TENSOR, f"{what} ranks")
        elif expected.per_node % tensor:
            what = f"{_TENSOR} {tensor} does not divide the {expected.per_node} ranks of a node"
            yield Wrong(report.node, report.rank, _TENSOR, what)


def _given(name: str, arguments: Sequence[str]) -> str | None:
    """An option's value, after = or as the next word, the last one given; None without it."""
    found = None
    for number, word in enumerate(arguments):
        if word == name:
            found = "".join(arguments[number + 1 : number + 2])
        elif word.startswith(f"{name}="):
            found = word.partition("=")[2]
    return found
