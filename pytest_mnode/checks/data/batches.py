"""Judges the optimiser's steps: the number of samples and their weights. Without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isclose

import numpy as np
from numpy.typing import NDArray

from pytest_mnode.checks.judged import At, texts_by_who, unlike_most
from pytest_mnode.measurement import Measurement, all_of, equals

_KEPT = "gradients of earlier steps are in it: zero_grad"
_SHARE = 1e-6
"""Part by which weights of samples may differ, because gradients are sums of rounded numbers."""


@dataclass(frozen=True, slots=True)
class Step:
    """The input of one rank's optimiser in one step.

    samples, weights: of equal length: each sample in the gradient, and its weight; in a mean over
    the global batch each weight is 1 / its size. fed: samples that this rank computed since
    the step before, in order.
    """

    samples: NDArray[np.int64]
    weights: NDArray[np.float64]
    fed: NDArray[np.int64]

    @property
    def gradient(self) -> tuple[bytes, bytes]:
        """A key that is equal for steps with the same gradient."""
        return self.samples.tobytes(), self.weights.tobytes()


def judge_batches(
    label: str, seen: Sequence[tuple[At, Sequence[Step]]], local: int, accumulation: int
) -> list[Measurement]:
    """Judge whether each step takes the mean over `local` samples × ranks × micro-batches.

    seen: the steps of every rank. local: samples of one rank's micro-batch. If ranks took different
    numbers of steps, steps of one number are not the same step, and nothing else is judged.
    """
    ranks = len(seen)
    expected = local * ranks * accumulation
    uneven = [
        at.culprit(f": {number} step{'' if number == 1 else 's'}{others}", sure=bool(others))
        for at, number, others in unlike_most((at, len(steps)) for at, steps in seen)
    ]
    in_order = [] if uneven else list(zip(*(steps for _, steps in seen), strict=True))
    unseen = "" if in_order else "no step of the optimiser was seen"
    if uneven:
        unseen = "ranks took different numbers of steps"
    sizes, wrong_sizes, totals, unequal, unreduced = [], [], [], [], []
    earlier: set[int] = set()
    for number, steps in enumerate(in_order, 1):
        largest = max(int(step.samples.max(initial=0)) for step in steps)
        # How often all ranks together computed each sample, by sample.
        times = np.bincount(np.concatenate([s.fed for s in steps]), minlength=largest + 1)
        for (at, _), step in zip(seen, steps, strict=True):
            drawn = times[step.samples]
            stray = step.samples[drawn == 0]
            kept = not earlier.isdisjoint(stray.tolist())
            size = int(np.maximum(1, drawn).sum())
            sizes.append(size)
            if size != expected:
                why = _why_size(len(step.fed), size, expected, ranks, accumulation)
                if kept or len(stray):
                    why = _KEPT if kept else f"{len(stray)} of them no rank computed"
                text = f"{size} samples in a step, expected {expected}"
                wrong_sizes.append((at, f"{text}; {why}" if why else text))
            with np.errstate(all="ignore"):
                total = float(step.weights.sum())
            if not isclose(total, 1, rel_tol=_SHARE):
                why = _KEPT if kept else _why_total(total, ranks, accumulation)
                totals.append((at, f"weights add up to {total:.6g}, {why}"))
            if text := _unequal(step.samples, step.weights / np.maximum(1, drawn)):
                unequal.append((at, f"in step {number} {text}"))
        gradients = [(at, step.gradient) for (at, _), step in zip(seen, steps, strict=True)]
        for at, *_ in unlike_most(gradients):
            unreduced.append((at, "a gradient that most ranks do not have"))
        earlier.update(times.nonzero()[0].tolist())
    judged = (
        (
            "gradients that are not the mean over the batch",
            "weights of samples add up to 1",
            totals,
        ),
        ("gradients with unequal weights of samples", "all samples have the same weight", unequal),
        ("gradients unlike those of most ranks", "ranks step by the same gradient", unreduced),
    )
    return [
        Measurement(
            f"{label}: samples in a step of the optimiser",
            max(sizes, key=lambda size: abs(size - expected), default=None),
            "samples",
            equals(expected),
            f"{local} samples × {ranks} ranks × {accumulation} micro-batches",
            all_of(texts_by_who(wrong_sizes, ranks)),
            unseen or f"{len(in_order)} steps seen",
        ),
        Measurement.none_allowed(
            f"{label}: ranks with more or fewer steps",
            uneven,
            "all ranks step together",
            unsure=unseen,
        ),
        *(
            Measurement.none_allowed(
                f"{label}: {name}",
                texts_by_who(texts, ranks),
                why,
                count=len(texts),
                unsure=unseen,
            )
            for name, why, texts in judged
        ),
    ]


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


def _why_size(own: int, size: int, expected: int, ranks: int, accumulation: int) -> str:
    """Why a step has so many samples. own: how many of them this rank computed."""
    if own and size == own != expected:
        return "its own only: gradients were not reduced over ranks"
    if size * accumulation == expected:
        return "one micro-batch: it stepped at each, or dropped the others"
    if size * ranks == expected:
        return "one rank's"
    if own * ranks != expected and own:
        return f"{own} computed by this rank, expected {expected // ranks}"
    return ""


def _unequal(samples: NDArray[np.int64], each: NDArray[np.float64]) -> str:
    """Number of samples with an unusual weight, and the first of them; "" if all weigh alike."""
    strange = ~np.isfinite(each)
    middle = 0.0 if strange.any() or not len(each) else float(np.sort(each)[len(each) // 2])
    odd = strange if strange.any() else ~np.isclose(each, middle, rtol=_SHARE, atol=0)
    if not odd.any():
        return ""
    weight = float(each[odd][0])
    if strange.any():
        how = f"weight {weight}"
    else:
        how = f"{weight / middle:.4g} of the usual" if middle else f"weight {weight:.4g}, usual 0"
    return f"{odd.sum()} of {len(each)} samples, such as {samples[odd][0]}: {how}"
