"""Judging what the optimiser saw: how many samples a step, and at what weight. Pure."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from math import fsum, isclose, isfinite

from pytest_mnode.checks.data.facts import At, StepSeen, StepsSeen
from pytest_mnode.checks.judged import most_common, none_wrong, texts_by_who
from pytest_mnode.measurement import Measurement, equals, listed

_Text = tuple[At, str]
_UNSEEN = "no step of the optimiser was seen"
_UNEVEN = "ranks took unequally many steps"
_KEPT = "gradients of earlier steps are in it: zero_grad"
_SHARE = 1e-6
"""Weights of samples may differ by this part: gradients are sums of rounded numbers."""


def judge_batches(
    label: str, seen: Sequence[StepsSeen], local: int, accumulation: int
) -> list[Measurement]:
    """Does each step take the gradient of `local` samples × ranks × micro-batches, all alike?

    seen: of every rank. local: samples of one rank's micro-batch. Where ranks took unequally many
    steps, steps of one number are not the same step, and no more is judged.
    """
    ranks = len(seen)
    expected = local * ranks * accumulation
    uneven = _uneven(seen)
    steps = len(seen[0].steps) if seen and not uneven else 0
    sizes: list[int] = []
    wrong_sizes: list[_Text] = []
    totals: list[_Text] = []
    unequal: list[_Text] = []
    unreduced: list[_Text] = []
    earlier: set[int] = set()
    for number in range(steps):
        of_all = Counter(itertools.chain.from_iterable(one.steps[number].fed for one in seen))
        most = most_common(one.steps[number].weights for one in seen)
        for one in seen:
            step = one.steps[number]
            stray = [sample for sample, _ in step.weights if not of_all[sample]]
            kept = not earlier.isdisjoint(stray)
            size = sum(of_all[sample] for sample, _ in step.weights) + len(stray)
            sizes.append(size)
            if size != expected:
                if kept:
                    why = _KEPT
                elif stray:
                    why = f"{len(stray)} of them no rank computed"
                else:
                    why = _why_size(step, size, expected, ranks, accumulation)
                text = f"{size} samples in a step, expected {expected}"
                wrong_sizes.append((one.at, f"{text}; {why}" if why else text))
            total = _total(step)
            if not isclose(total, 1, rel_tol=_SHARE):
                why = _KEPT if kept else _why_total(total, ranks, accumulation)
                totals.append((one.at, f"weights add up to {total:.6g}, {why}"))
            if text := _unequal(step, of_all):
                unequal.append((one.at, f"in step {number + 1} {text}"))
            if step.weights != most:
                unreduced.append((one.at, "a gradient that most ranks do not have"))
        earlier.update(of_all)
    worst = max(sizes, key=lambda size: abs(size - expected), default=None)
    judged = (
        ("gradients that are not the mean over the batch", "samples weigh one in all", totals),
        ("gradients with samples that weigh otherwise", "all weigh alike", unequal),
        ("gradients unlike those of most ranks", "ranks step by the same gradient", unreduced),
    )
    unseen = _UNEVEN if uneven else "" if steps else _UNSEEN
    return [
        Measurement(
            f"{label}: samples in a step of the optimiser",
            worst,
            "samples",
            equals(expected),
            f"{local} samples × {ranks} ranks × {accumulation} micro-batches",
            listed(texts_by_who(wrong_sizes, ranks)) or None,
            unseen or f"{steps} steps seen",
        ),
        none_wrong(
            f"{label}: ranks with more or fewer steps",
            uneven,
            "all ranks step together",
            unsure="" if uneven else unseen,
        ),
        *(
            none_wrong(
                f"{label}: {name}",
                texts_by_who(texts, ranks),
                why,
                count=len(texts),
                unsure=unseen,
            )
            for name, why, texts in judged
        ),
    ]


def _uneven(seen: Sequence[StepsSeen]) -> list[str]:
    """Ranks that took another number of steps than most; all of them where no number is most's."""
    numbers = [len(one.steps) for one in seen]
    if len(set(numbers)) < 2:
        return []
    most = most_common(numbers)
    others = "" if most is None else f", most ranks {most}"
    return [
        f"{one.at}: {number} step{'' if number == 1 else 's'}{others}"
        for one, number in zip(seen, numbers, strict=True)
        if number != most
    ]


def _total(step: StepSeen) -> float:
    """The sum of a step's weights; what float64 has for it where they have none."""
    weights = [weight for _, weight in step.weights]
    try:
        return fsum(weights)
    except (OverflowError, ValueError):  # too large, or of infinities that are opposed
        return sum(weights)


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
    if own and size == own != expected:
        return "its own only: gradients were not reduced over ranks"
    if size * accumulation == expected:
        return "one micro-batch: it stepped at each, or dropped the others"
    if size * ranks == expected:
        return "one rank's"
    if own * ranks != expected and own:
        return f"{own} computed by this rank, expected {expected // ranks}"
    return ""


def _unequal(step: StepSeen, of_all: Counter[int]) -> str:
    """The sample that weighs least otherwise than the usual one; "" where all weigh alike."""
    each = {sample: weight / max(1, of_all[sample]) for sample, weight in step.weights}
    if not each:
        return ""
    if strange := [sample for sample, weight in each.items() if not isfinite(weight)]:
        which = f"{strange[0]}: weight {each[strange[0]]}"
        return f"{len(strange)} of {len(each)} samples, such as {which}"
    middle = sorted(each.values())[len(each) // 2]
    odd = {s: w for s, w in each.items() if not isclose(w, middle, rel_tol=_SHARE)}
    if not odd:
        return ""
    sample, weight = next(iter(odd.items()))
    how = f"{weight / middle:.4g} of the usual" if middle else f"weight {weight:.4g}, usual 0"
    return f"{len(odd)} of {len(each)} samples, such as {sample}: {how}"
