"""What settings gain, which are advised, and where ring and tree cross. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from pytest_mnode.certificate.text import first_line
from pytest_mnode.charts import Advice, AdviceRow
from pytest_mnode.criteria.tuning.experiment import Broken, Experiment, Found, Metric, Setting
from pytest_mnode.culprit import Culprit, Parts
from pytest_mnode.errors import MnodeError, NodeLostError, RankError
from pytest_mnode.intervals import CONFIDENCE, Interval, interval_of
from pytest_mnode.measurement import Bound, HeadlineMark, Measurement, at_least, at_most
from pytest_mnode.spec.quantity import SIZE, size_bytes
from pytest_mnode.spec.tuning import GainPromise

WORTH = 0.01
"""[choice] A gain that may be smaller is not advised: it changes from day to day."""

_BEYOND = 1 + 1e-6
"""They cross beyond a size at which the tree is faster for sure."""
SEVERAL = "no single crossing: the ring is faster at a smaller size than the tree"


@dataclass(frozen=True, slots=True)
class Compared:
    """A setting against the first, in one case. ratio: times as good; None if not known."""

    case: str
    setting: Setting
    ratio: Interval | None

    @property
    def gain(self) -> tuple[float, float, float] | None:
        """Per cent: the lowest that it may be, the estimate, the highest."""
        if self.ratio is None:
            return None
        low, high = self.ratio.low, self.ratio.high
        return tuple(100 * (one - 1) for one in (low, math.sqrt(low * high), high))  # type: ignore[return-value]

    @property
    def sure(self) -> bool:
        return self.ratio is not None and self.ratio.low > 1 + WORTH


def _measured(found: Found, setting: Setting, case: str, metric: Metric) -> list[float]:
    return [one[case][metric.name] for one in found.values[setting.name]]


def _cases(found: Found) -> list[str]:
    first = found.values[found.settings[0].name]
    return [*first[0]] if first else []


def _there(found: Found) -> list[Setting]:
    return [one for one in found.settings if one.name not in {*found.dropped, *found.failed}]


def _ratios(found: Found, case: str, metric: Metric, one: Setting, other: Setting) -> list[float]:
    """How many times as good `other` is, round by round."""
    pairs = zip(
        _measured(found, one, case, metric), _measured(found, other, case, metric), strict=True
    )
    return [b / a if metric.more else a / b for a, b in pairs if a > 0 and b > 0]


def compare(found: Found) -> list[Compared]:
    """All settings against the first, by case. The intervals hold together with 95 %."""
    first, *others = found.settings
    others = [one for one in others if one in _there(found)]
    cases = _cases(found) if first in _there(found) else []
    confidence = 1 - (1 - CONFIDENCE) / max(1, len(others) * len(cases))
    return [
        Compared(case, one, _interval(found, case, first, one, confidence))
        for case in cases
        for one in others
    ]


def _interval(
    found: Found, case: str, first: Setting, one: Setting, confidence: float
) -> Interval | None:
    """Not trimmed: so it keeps a confidence near 1."""
    ratios = _ratios(found, case, found.experiment.metrics[0], first, one)
    return interval_of(ratios, confidence, trimmed=False)


def worse(found: Found, setting: Setting) -> str:
    """By what else a setting is too bad to be advised; "" if it is not."""
    for metric in found.experiment.metrics:
        for case in _cases(found) if metric.at_most_worse is not None else ():
            ratios = _ratios(found, case, metric, found.settings[0], setting)
            share = 1 / median(ratios) - 1 if ratios else 0.0
            if share > (metric.at_most_worse or 0.0):
                return f"{setting.name}: {metric.name} {share:.1%} worse"
    return ""


def best(found: Found, compared: Sequence[Compared]) -> dict[str, Compared]:
    """The setting to advise, by case: that which gains most, of those whose gain is no noise."""
    chosen: dict[str, Compared] = {}
    for one in compared:
        if not one.sure or worse(found, one.setting):
            continue
        other = chosen.get(one.case)
        if other is None or (one.gain or (0, 0, 0))[1] > (other.gain or (0, 0, 0))[1]:
            chosen[one.case] = one
    return chosen


def lines(found: Found, compared: Sequence[Compared]) -> Iterator[str]:
    """What to put into nccl.conf or the job, with what it gains, and costs elsewhere."""
    chosen = best(found, compared)
    for setting in dict.fromkeys(one.setting.name for one in chosen.values()):
        mine = [one for one in compared if one.setting.name == setting]
        where = [one for one in mine if chosen.get(one.case) is one]
        loses = [one for one in mine if one.ratio and one.ratio.high < 1 - WORTH]
        text = _shown(where) + (f"; loses {_shown(loses)}" if loses else "")
        if not mine[0].setting.lines:
            yield f"# {setting}: gains {text}; it is no setting of this library"
            continue
        only = ", only for jobs of such sizes" if loses else ""
        yield f"# gains {text}{only}"
        yield from mine[0].setting.lines


def _shown(every: Sequence[Compared]) -> str:
    shown = [
        f"{abs(one.gain[1]):.3g} %{f' at {one.case}' if one.case else ''}"
        for one in every
        if one.gain
    ]
    return ", ".join(shown)


def advice(found: Found) -> Advice:
    """The table of all settings, and the lines to paste."""
    compared = compare(found)
    chosen = best(found, compared)
    rows = list[AdviceRow]()
    gains = {(one.case, one.setting.name): one for one in compared}
    for case in _cases(found):
        for setting in _there(found):
            for number, metric in enumerate(found.experiment.metrics):
                one = None if number else gains.get((case, setting.name))
                every = _measured(found, setting, case, metric)
                if not (known := [one for one in every if not math.isnan(one)]):
                    continue  # no trace showed it
                value = median(known)
                what = case, setting.name, metric.name, value, metric.unit
                advised = one is not None and chosen.get(case) is one
                rows.append(AdviceRow(*what, one.gain if one else None, advised))
    notes = [f"{name}: not measured: {why}" for name, why in found.dropped.items()]
    notes += [f"{name}: failed: {why}" for name, why in found.failed.items()]
    notes += filter(None, (worse(found, one) for one in _there(found)[1:]))
    rounds = max(map(len, found.values.values()), default=0)
    question = f"{found.experiment.name}: {found.experiment.question}"
    pasted = tuple(lines(found, compared))
    return Advice(question, rounds, found.took_s, tuple(rows), pasted, tuple(notes))


def not_tried(experiment: Experiment, why: str) -> Measurement:
    """A promise that cannot be judged here."""
    return Measurement.unknown(_name(experiment), why, unit="%", culprit=_setting(experiment))


def _setting(experiment: Experiment) -> Culprit:
    """What is to blame for a gain: no node."""
    key = f"tuning.{experiment.name}"
    return Culprit(f"settings of {key}", parts=Parts(settings=(key,)))


def broke(experiment: Experiment, error: Broken | MnodeError) -> Measurement:
    """What failed, whatever is promised: a wrong sum, a lost node, ranks without a setting."""
    words = first_line(str(error), 160)
    if isinstance(error, Broken):
        who = error.culprit
    elif isinstance(error, RankError) and error.culprit:
        who = Culprit.of_record(error.culprit)
    else:
        who = Culprit(words, error.node if isinstance(error, NodeLostError) else ())
    name = f"{experiment.name}: failures while settings were tried"
    return Measurement.none_allowed(name, [who], "tuning needs none", note=words)


def _name(experiment: Experiment) -> str:
    return f"{experiment.name}: gain of the best other setting"


def judge(found: Found, promise: GainPromise | None) -> Iterator[Measurement]:
    """The largest gain over the first setting, and where ring and tree cross.

    The true one is no less than the highest of the lowest gains of all settings, and no more than
    the highest of all; 0 where none is worth having.
    """
    key, first = f"tuning.{found.experiment.name}", found.settings[0].name
    least = promise.gain_at_least if promise else None
    most = promise.gain_at_most if promise else None
    compared = compare(found)
    costly = [one for one in compared if worse(found, one.setting)]
    known = [(one.gain, one) for one in compared if one.gain is not None and one not in costly]
    failed = "; ".join(f"{one}: {why}" for one, why in found.failed.items())
    name = _name(found.experiment)
    bounds = [
        (at_least(100 * least), f"{key}.gain_at_least", least) if least is not None else None,
        (at_most(100 * most), f"{key}.gain_at_most", most) if most is not None else None,
    ]
    judged: list[tuple[Bound, str, float] | None] = [one for one in bounds if one]
    for bound in judged or [None]:
        expected = bound and bound[0].of(f"criteria.{bound[1]}", bound[2])
        source = f"{bound[1]} {bound[2]:g}" if bound else ""
        blamed = _setting(found.experiment) if bound else None
        low, middle, high = (max((gain[n] for gain, _ in known), default=0.0) for n in range(3))
        open_ = len(known) + len(costly) < len(compared) or not compared
        decided = expected and expected.decides(low, math.inf if failed else high) is not None
        if open_ or (failed and expected and not decided):
            others = "; ".join(f"{one}: {why}" for one, why in found.dropped.items())
            why = "; ".join(filter(None, (failed, others))) or "too few rounds"
            yield Measurement(name, None, "%", expected, source, blamed, note=why)
            continue
        if known:
            _, largest = max(known, key=lambda one: one[0][1])
            at = f" at {largest.case}" if largest.case else ""
            note = f"{largest.setting.name} over {first}{at}"
        else:
            note = f"none is worth having: {worse(found, costly[0].setting)}"
        note += f", {len(found.values[first])} rounds"
        mark = HeadlineMark(found.experiment.name, "gained")
        what = name, middle, "%", expected, source, blamed
        yield Measurement(*what, note=note, interval=(low, high), headline=mark)
    if found.experiment.crosses:
        yield from _crossing(found, promise)


def _crossing(found: Found, promise: GainPromise | None) -> Iterator[Measurement]:
    """The size from which on a ring is faster than a tree, on a line between logarithms."""
    named = dict[str, Setting]()
    for word in found.experiment.crosses or ():
        for one in _there(found):
            if re.split("[ =]", one.name.lower())[-1] == word and word not in named:
                named[word] = one
    most = getattr(promise, "ring_and_tree_cross_at_most_bytes", None)
    key = "tuning.algorithm.ring_and_tree_cross_at_most"
    bound = None if most is None else at_most(most / 1024).of(f"criteria.{key}", most)
    source = "" if most is None else f"{key} {SIZE.text(most)}"
    name = "size from which on a ring is faster than a tree"
    blamed = _setting(found.experiment) if bound else None
    if len(named) < 2 or not _cases(found):
        note = "not both were measured"
        yield Measurement(name, None, "KiB", bound, source, blamed, note=note)
        return
    tree, ring = named["tree"], named["ring"]
    metric = found.experiment.metrics[0]
    points = [
        (size_bytes(case), interval_of(_ratios(found, case, metric, tree, ring)))
        for case in _cases(found)
    ]
    crossed = crossing([(size, one) for size, one in points if one is not None])
    if isinstance(crossed, str):
        sizes = f"{SIZE.text(points[0][0])} to {SIZE.text(points[-1][0])}"
        if crossed == "ring" and bound is not None and bound.holds(points[0][0] / 1024):
            crossed = (points[0][0],) * 3
        elif (
            crossed == "tree"
            and bound is not None
            and not bound.holds(points[-1][0] * _BEYOND / 1024)
        ):
            crossed = (points[-1][0] * _BEYOND,) * 3
        else:
            note = f"the {crossed} is faster at all sizes, {sizes}" if crossed else "all is noise"
            if crossed == SEVERAL:
                note = crossed
            yield Measurement(name, None, "KiB", bound, source, blamed, note=note)
            return
    low, middle, high = (one / 1024 for one in crossed)
    yield Measurement(name, middle, "KiB", bound, source, blamed, interval=(low, high))


def crossing(points: Sequence[tuple[float, Interval]]) -> tuple[float, float, float] | str:
    """Size at which ratios, ring over tree, pass 1: lowest, estimate, highest. Otherwise the
    faster of them at all sizes; "" without a sure ratio; `SEVERAL` where the ring is surely faster
    at a smaller size than the tree.

    points: sizes in bytes, ascending, with the interval of how many times as fast the ring is.
    """
    surely_tree = [size for size, one in points if one.high < 1]
    surely_ring = [size for size, one in points if one.low > 1]
    if not (surely_tree and surely_ring):
        return "tree" if surely_tree else "ring" if surely_ring else ""
    low, high = max(surely_tree) * _BEYOND, min(surely_ring)
    if low > high:
        return SEVERAL
    logs = [(math.log(size), math.log(one.low * one.high) / 2) for size, one in points]
    for (x, y), (next_x, next_y) in pairwise(logs):
        if y < 0 <= next_y and math.exp(next_x) > low:
            middle = math.exp(x - y * (next_x - x) / (next_y - y))
            return min(low, middle), middle, max(high, middle)
    return low, math.sqrt(low * high), high
