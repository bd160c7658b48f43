"""Judging what the optimiser saw: how many samples a step, and at what weight. Pure."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, isclose
from typing import TYPE_CHECKING

from pytest_mnode.data.facts import At, StepSeen, StepsSeen
from pytest_mnode.wrong import Wrong, alike, found, listed

if TYPE_CHECKING:
    from pytest_mnode.measure import Measure

_Said = tuple[At, str]
_UNSEEN = "no step of the optimiser was seen"
_SHARE = 1e-6
"""Weights of samples may differ by this part: gradients are sums of rounded numbers."""


@dataclass(frozen=True, slots=True)
class GlobalBatch:
    """Samples in a step of the optimiser, and what else was seen of its gradients.

    samples: of the step and rank furthest from what is expected; None where nothing was seen.
    """

    label: str
    samples: int | None
    expected: int
    source: str
    culprit: str | None
    note: str
    wrong: tuple[Wrong, ...]

    @property
    def right(self) -> bool:
        return self.samples == self.expected and all(one.right for one in self.wrong)

    def record(self, measure: Measure) -> None:
        """Have it judged with the test."""
        measure(
            f"{self.label}: samples in a step of the optimiser",
            self.samples,
            "samples",
            equals=self.expected,
            source=self.source,
            culprit=self.culprit,
            note=self.note,
        )
        for one in self.wrong:
            one.record(measure)


def judge_batches(
    label: str, seen: Sequence[StepsSeen], local: int, accumulation: int
) -> GlobalBatch:
    """Does each step take the gradient of `local` samples × ranks × micro-batches, all alike?

    seen: of every rank. local: samples of one rank's micro-batch.
    """
    ranks = len(seen)
    expected = local * ranks * accumulation
    source = f"{local} samples × {ranks} ranks × {accumulation} micro-batches"
    steps = min((len(one.steps) for one in seen), default=0)
    sizes: list[int] = []
    wrong_sizes: list[_Said] = []
    unequal: list[_Said] = []
    unreduced: list[_Said] = []
    for number in range(steps):
        of_all = Counter(itertools.chain.from_iterable(one.steps[number].fed for one in seen))
        for one in seen:
            step = one.steps[number]
            size = sum(of_all[sample] for sample, _ in step.weights)
            sizes.append(size)
            if size != expected:
                why = _why_size(step, size, expected, ranks, accumulation)
                wrong_sizes.append((one.at, f"{size} samples in a step, {why}"))
            if text := _unequal(step, of_all):
                unequal.append((one.at, f"in step {number + 1} {text}"))
            if step.weights != seen[0].steps[number].weights:
                unreduced.append((one.at, f"another gradient than {seen[0].at}"))
    worst = max(sizes, key=lambda size: abs(size - expected), default=None)
    uneven = [
        (one.at, f"{len(one.steps)} steps, others {steps}")
        for one in seen
        if len(one.steps) != steps
    ]
    totals = _totals(seen, steps, ranks, accumulation)
    judged = (
        ("gradients that are not the mean over the batch", "samples weigh one in all", totals),
        ("gradients with samples that weigh otherwise", "all weigh alike", unequal),
        ("gradients unlike rank 0's", "ranks step by the same gradient", [*unreduced, *uneven]),
    )
    return GlobalBatch(
        label,
        worst,
        expected,
        source,
        listed(alike(wrong_sizes, ranks)) or None,
        f"{steps} steps seen" if steps else _UNSEEN,
        tuple(
            found(f"{label}: {name}", why, alike(said, ranks), len(said))
            if steps
            else Wrong(f"{label}: {name}", None, why, note=_UNSEEN)
            for name, why, said in judged
        ),
    )


def _totals(seen: Sequence[StepsSeen], steps: int, ranks: int, accumulation: int) -> list[_Said]:
    """Where the weights of a step do not add up to one."""
    texts: list[_Said] = []
    for one in seen:
        for step in one.steps[:steps]:
            total = fsum(weight for _, weight in step.weights)
            if not isclose(total, 1, rel_tol=_SHARE):
                why = _why_total(total, ranks, accumulation)
                texts.append((one.at, f"weights add up to {total:.6g}, {why}"))
    return texts


def _why_total(total: float, ranks: int, accumulation: int) -> str:
    causes = (
        (accumulation, "the loss were not divided by the micro-batches"),
        (1 / accumulation, "the loss were divided by the micro-batches once too often"),
        (ranks, "gradients were summed over ranks, not averaged"),
        (1 / ranks, "gradients were divided by the ranks once too often"),
    )
    fitting = [
        why for factor, why in causes if factor != 1 and isclose(total, factor, rel_tol=1e-3)
    ]
    return f"as if {', or '.join(fitting)}" if fitting else "expected 1"


def _why_size(step: StepSeen, size: int, expected: int, ranks: int, accumulation: int) -> str:
    own = len(step.fed)
    texts = [f"expected {expected}"]
    if own and size == own != expected:
        texts.append("its own only: gradients were not reduced over ranks")
    elif size * accumulation == expected:
        texts.append("one micro-batch: it stepped at each, or dropped the others")
    elif size * ranks == expected:
        texts.append("one rank's")
    elif own * ranks != expected and own:
        texts.append(f"{own} computed by this rank, expected {expected // ranks}")
    return "; ".join(texts)


def _unequal(step: StepSeen, of_all: Counter[int]) -> str:
    """The sample that weighs least otherwise than the usual one; "" where all weigh alike."""
    each = {sample: weight / max(1, of_all[sample]) for sample, weight in step.weights}
    if not each:
        return ""
    usual = sorted(each.values())[len(each) // 2]
    odd = {s: w for s, w in each.items() if not isclose(w, usual, rel_tol=_SHARE)}
    if not odd:
        return ""
    sample, weight = next(iter(odd.items()))
    return f"{len(odd)} of {len(each)} samples, such as {sample}: {weight / usual:.4g} of the usual"
