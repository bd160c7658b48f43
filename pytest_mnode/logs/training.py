"""Steps that a training program prints: loss, time and rate, of the frameworks people use. Pure.

Programs print a step once, or once per rank; progress bars print it many times, and end lines by
carriage returns.

Sources: torchtitan, components/metrics.py; Megatron-LM, training/training.py; NeMo, lightning
progress_printer.py; DeepSpeed, utils/timer.py and runtime/engine.py; transformers,
trainer_callback.py; tqdm. Seen printed: torchtitan 0.2.2; transformers 5.24 by trl 1.16.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, pairwise
from math import nan
from statistics import median

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_NUMBER = r"([-+]?(?:(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[nN]a[nN]|[iI]nf(?:inity)?))"
_BAR = r"\| *(?P<step>\d+)/(?P<total>\d+) \[(?:(?P<hours>\d+):)?(?P<minutes>\d+):(?P<rest>\d\d)<"
"""The end of a bar of tqdm; a Trainer's has no words before it, unlike those of other work."""
_WORDS = r"^(?:\[[^\]]*\]:)?\s*(?:(?:[Tt]rain(?:ing)?|(?:[Tt]raining )?[Ss]teps?) *:)? *\d+%\|[^|]*"
_OF_LOSSES = r"(?i:^(?=.*(?:\b|_)loss\b)(?!.*\b(?:e?val|valid|test|predict)).*?)\d+%\|[^|]*"
"""Before the end of a bar that shows a loss, and that of no evaluation."""
FORMATS: Mapping[str, str] = {
    "torchtitan": r"\bstep: +(?P<step>\d+) .*\bloss: .*\b(?:tps|wps): ",
    "megatron": r"\biteration +(?P<step>\d+)/ *\d+ \|.*elapsed time per iteration \(ms\): ",
    "nemo": r"(?=.*reduced_train_loss).*\bglobal_step[:=] *(?P<step>\d+)\b",
    "deepspeed": r"\bglobal_step=(?P<step>\d+), RunningAvg|\bsteps: (?P<step_>\d+) loss: .*iter ",
    "lightning": rf"\bEpoch \d+(?:/\d+)?: .*{_BAR}",
    "huggingface": rf"(?:{_WORDS}|{_OF_LOSSES}){_BAR}",
    "plain": r"(?i)^(?=.*(?:\b|_|CrossEntropy)loss\b)(?:"
    r".*?(?:\b|_)(?:step|iter(?:ation)?)['\"]?[ :=#\[]+(?P<step>\d+(?:,\d{3})*)\b"
    r"|.*?\b(?:batch|(?:num_)?updates?)['\"]?[ :=#\[]+(?P<step_>\d+(?:,\d{3})*)\b"
    r"|.*?\bepoch:? *\[\d+\]\[ *(?P<step__>\d+)/"
    r"|\[\d+, *(?P<step___>\d+)\])",
}
"""By the name of a format, a pattern of the lines about a step."""
_KEY = r"['\"]?\s*[:=]?\s*['\"]?"
_OF_STEP = r"(?:step|iter(?:ation)?|batch)"
_TIME = rf"(?:\b{_OF_STEP}[ _]time|(?<![a-z] )\btime|\bdt)"
"""Of a step: not that of another word, such as elapsed, data or eta."""
_TOKENS = r"tok(?:en)?s?(?:/s(?:ec)?|_per_s(?:ec(?:ond)?)?)"
_PER_DEVICE = r"(?:/|_per_)(?:device|gpu|accelerator)"
_VALUES: Mapping[str, str] = {
    "loss": r"(?:\blm[ _]loss|\breduced_train_loss|\btrain_loss(?:_step)?|\bCrossEntropyLoss"
    r"|(?<!val[ /-])(?<!valid[ /-])(?<!validation[ /-])(?<!test[ /-])\bloss(?:[ /]train)?)"
    rf"{_KEY}%s",
    "seconds": r"(?:_timing in s[:=]|iter time \(s\):|\bdt[ :=]+(?=[\d.]+ ?s\b)"
    rf"|(?<!elapsed )(?<!total )\bseconds:|\b{_OF_STEP}_time_s(?:ec(?:onds)?)?{_KEY}) *%s",
    "shown": rf"(?<![\d.])%s ?s(?:ec)?/(?:it|{_OF_STEP})\b",
    "time": rf"{_TIME}{_KEY}(?=[\d.]+ ?s\b)%s",
    "milliseconds": rf"(?:per[ _]iteration(?: \(ms\):|_ms{_KEY})|\b{_OF_STEP}_time_ms{_KEY}"
    rf"|{_TIME}{_KEY}(?=[\d.]+ ?ms\b)) *%s",
    "tokens_per_s": rf"\b(?:tps|wps|{_TOKENS})['\"]?[ :=]+%s",
    "device_tokens_per_s": rf"\b{_TOKENS}{_PER_DEVICE}{_KEY}%s",
    "samples_per_s": r"(?:CurrSamplesPerSec=|samples/sec: )%s",
    "batch": r"global batch size: +%s",
    "tflops": r"(?:throughput per GPU \(TFLOP/s/GPU\): |\btflops: +)%s",
    "device_tflops": rf"\b(?:model_)?tflops?(?:/s)?{_PER_DEVICE}{_KEY}%s",
    "mfu_percent": r"\bmfu:? +%s ?%",
}
"""Values of a step, each searched in such a line; a pattern of one's own names them as groups."""
_CLOCK = ("minutes", "rest", "hours")
_OWN = ("time", "shown", "device_tokens_per_s", "device_tflops")
VALUE_NAMES = ("step", *(one for one in _VALUES if one not in _OWN), "job_tokens_per_s", *_CLOCK)
_OF_WHOM = ("tokens_per_s", "samples_per_s", "tflops")
"""Rates of which a plain line leaves open whether they are of a rank or of the whole job."""
_CLEAR = ("torchtitan", "megatron", "deepspeed")
"""Formats that do not leave it open. What NeMo's programs log beside the loss is their own."""
_SCALES = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}
"""Of rates, such as 12.3K tok/s."""
_BESIDE = re.compile(r"\b(?:val|valid|validation|eval|test)[ _/-]?loss\b")
"""An evaluation's line, which may repeat the loss of training over other batches."""
_COMPILED = {
    name: re.compile(
        pattern.replace("%s", _NUMBER[:-1] + "(?: ?[kmgb]\\b)?)" if "per_s" in name else _NUMBER),
        re.IGNORECASE,
    )
    for name, pattern in _VALUES.items()
}
_ONLY = re.compile(rf"\s*{_NUMBER} ?([kKmMgGbB]?)\W*$")
_BAR_RATE = re.compile(r"<[^,\]]*, *([\d.]+) ?(it/s|s/it)")
_HF_LOSS = re.compile(rf"\{{'loss': '?{_NUMBER}'?, ")
_HF_RAN = re.compile(
    rf"\{{'train_runtime': '?{_NUMBER}'?, 'train_samples_per_second': '?{_NUMBER}'?, "
)


_STEPS = tuple(re.compile(pattern) for pattern in FORMATS.values())


def step_in(line: str) -> int | None:
    """The number of the step that a line of any format is about; None for other lines."""
    for pattern in _STEPS:
        if (match := pattern.search(line)) is not None:
            numbers = (text for key, text in match.groupdict().items() if key.startswith("step"))
            return next((int(text.replace(",", "")) for text in numbers if text), None)
    return None


@dataclass(frozen=True, slots=True)
class Step:
    """A step, as far as the log says. seconds: its time. tokens_per_s, tflops: of one accelerator;
    samples_per_s: of the whole job. mfu: as a fraction."""

    number: int
    loss: float | None = None
    seconds: float | None = None
    tokens_per_s: float | None = None
    samples_per_s: float | None = None
    tflops: float | None = None
    mfu: float | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """What a log says of a run. format: its name; "" if no line of it was understood. epochs: how
    often its steps begin at the first again, other than by restarts. first: its first lines.
    unclear: rates that its lines leave open whether they are of a rank or of the whole job."""

    format: str
    steps: tuple[Step, ...] = ()
    epochs: int = 1
    first: tuple[str, ...] = ()
    unclear: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Numbers:
    """Numbers the steps of one output on, where each epoch begins at the first again.

    Ranks that share it may be a line apart, so only a return by two lines or more counts.
    """

    restarts: int
    first: int | None = None
    seen: list[int] = field(default_factory=list)
    """Rising."""
    returns: int = 0
    offset: int = 0
    clock: float = 0.0
    passed: float = 0.0

    def of(self, number: int, *, bar: bool) -> int:
        above = self.seen[bisect_right(self.seen, number) :]
        self.first = number if self.first is None else self.first
        if len(above) > 1:
            self.returns += 1
            if not self.restarts and number <= max(1, self.first):
                self.offset += above[-1] - number + (0 if bar else above[-1] - above[-2])
                self.clock += self.passed
                self.seen.clear()
            del self.seen[bisect_right(self.seen, number) :]
        at = bisect_left(self.seen, number)
        if self.seen[at : at + 1] != [number]:
            self.seen.insert(at, number)
        return self.offset + number


def read_progress(
    texts: Iterable[str],
    patterns: Mapping[str, str] = FORMATS,
    *,
    ranks: int = 1,
    restarts: int = 0,
) -> Progress:
    """The steps in the output of a job, by the format that most of its lines have.

    texts: of its nodes, or ranks. restarts: how often it began again; without any, steps that begin
    at the first again are of a next epoch, and numbered on. Of formats with equally many steps the
    first counts. A step that several ranks print has the median of what they say; NaN, if one does.
    """
    outputs = [list(_lines(text)) for text in texts]
    lines = (line.strip() for text in outputs for line in text)
    best = Progress("", first=tuple(islice(filter(None, lines), 3)))
    for name, pattern in patterns.items():
        found = _read(name, outputs, re.compile(pattern), ranks, restarts)
        if len(found.steps) > len(best.steps):
            best = found
    return best


def _lines(text: str) -> Iterator[str]:
    for line in _ANSI.sub("", text).split("\n"):
        yield from filter(None, line.split("\r"))


def _read(
    name: str,
    outputs: Sequence[Sequence[str]],
    pattern: re.Pattern[str],
    ranks: int,
    restarts: int,
) -> Progress:
    """Of a bar, the loss belongs to what is drawn after it: what was drawn before may be old."""
    said: dict[int, dict[str, list[float]]] = {}
    passed: dict[int, float] = {}
    total, epochs = _total(outputs, pattern), 1
    vague, unclear = name not in _CLEAR, set[str]()
    for lines in outputs:
        numbers, last, loss = _Numbers(restarts), None, None
        for line in lines:
            if (match := pattern.search(line)) is None:
                if last is not None and (found := _HF_LOSS.search(line)):
                    loss = _number(found[1])
                continue
            values = _values(line, match, vague=vague)
            rates = [one for one in _OF_WHOM if one not in values] if vague else []
            unclear.update(one for one in rates if _COMPILED[one].search(line))
            if values.pop("total", total) != total or not math.isfinite(values.get("step", nan)):
                continue
            bar = "minutes" in values and "rest" in values
            last = numbers.of(int(values.pop("step")), bar=bar)
            if bar:
                minutes = 60 * values.get("hours", 0) + values["minutes"]
                numbers.passed = 60 * minutes + values["rest"]
                passed[last] = numbers.clock + numbers.passed
                if rate := _BAR_RATE.search(line):
                    shown = float(rate[1]) or nan
                    values["shown"] = shown if rate[2] == "s/it" else 1 / shown
            if loss is not None:
                values["loss"], loss = loss, None
            of_step = said.setdefault(last, {})
            for key, value in values.items():
                of_step.setdefault(key, []).append(value)
        if loss is not None and said:
            said[max(said)].setdefault("loss", []).append(loss)
        epochs = max(epochs, 1 + numbers.returns - restarts)
    if passed:
        said.pop(0, None)
    batch = _batch(outputs, total) if total else {}
    middle = {
        number: batch | {key: _middle(values) for key, values in said[number].items()}
        for number in sorted(said)
    }
    _drop_elapsed(list(middle.values()))
    drawn = sorted(passed)
    took = {one: _between(one, passed, drawn) for one in middle}
    steps = (_step(one, of_it, took[one], ranks) for one, of_it in middle.items())
    return Progress(name, tuple(steps), epochs, unclear=frozenset(unclear))


def _total(outputs: Sequence[Sequence[str]], pattern: re.Pattern[str]) -> float | None:
    """Steps of the training's bar, not an evaluation's: drawn after losses, else of most steps."""
    drawn: dict[str, set[str]] = {}
    losses, said = Counter[str](), False
    for line in chain.from_iterable(outputs if "total" in pattern.groupindex else ()):
        if _HF_LOSS.search(line):
            said = True
        elif (match := pattern.search(line)) and (total := match.groupdict().get("total")):
            drawn.setdefault(total, set()).add(match["step"])
            losses[total] += said
            said = False
    most = max(drawn, key=lambda one: (losses[one], len(drawn[one])), default=None)
    return None if most is None else float(most)


def _middle(values: Sequence[float]) -> float:
    return median(values) if all(map(math.isfinite, values)) else nan


def _drop_elapsed(steps: Sequence[dict[str, float]]) -> None:
    """Drop a time that rises from step to step: the time since the begin, not of a step."""
    pairs = list(pairwise(one["time"] for one in steps if "time" in one))
    if len(pairs) > 1 and sum(after > before for before, after in pairs) >= 0.9 * len(pairs):
        for one in steps:
            one.pop("time", None)


def _batch(outputs: Sequence[Sequence[str]], steps: float) -> dict[str, float]:
    """Samples of a step, by what a Trainer says at its end."""
    ran = next(filter(None, map(_HF_RAN.search, chain.from_iterable(outputs))), None)
    samples = (_number(ran[1]) or nan) * (_number(ran[2]) or nan) if ran else nan
    return {"batch": round(samples / steps)} if math.isfinite(samples) else {}


def _values(line: str, match: re.Match[str], *, vague: bool) -> dict[str, float]:
    """vague: whether a line says less than its words, unless a pattern names them."""
    found = {name: one[1] for name, pattern in _COMPILED.items() if (one := pattern.search(line))}
    if vague:
        found = {name: one for name, one in found.items() if name not in _OF_WHOM}
        if "loss" in found and _BESIDE.search(line):
            found["loss beside"] = found.pop("loss")
    for name in _OF_WHOM:
        if (of_device := found.pop(f"device_{name}", None)) is not None:
            found[name] = of_device
    found |= {name.rstrip("_"): one for name, one in match.groupdict().items() if one is not None}
    known = {name: _number(one, scaled="per_s" in name) for name, one in found.items()}
    return {name: one for name, one in known.items() if one is not None}


def _step(number: int, said: Mapping[str, float], seconds: float | None, ranks: int) -> Step:
    tokens = said.get("tokens_per_s")
    if tokens is None and "job_tokens_per_s" in said:
        tokens = said["job_tokens_per_s"] / ranks
    if "milliseconds" in said:
        seconds = said["milliseconds"] / 1000
    seconds = said.get("seconds", said.get("time", seconds or said.get("shown")))
    samples = said.get("samples_per_s")
    if samples is None and seconds and "batch" in said:
        samples = said["batch"] / seconds
    return Step(
        number,
        said.get("loss", said.get("loss beside")),
        seconds,
        tokens,
        samples,
        said.get("tflops"),
        said["mfu_percent"] / 100 if "mfu_percent" in said else None,
    )


def _between(number: int, passed: Mapping[int, float], drawn: Sequence[int]) -> float | None:
    """Seconds of a step by a progress bar, which shows whole seconds: those since ten steps before,
    or as many as there are; None if that is too short to be told: its smoothed rate then is."""
    if number not in passed or number == drawn[0]:
        return None
    since = drawn[max(0, bisect_right(drawn, number - 10) - 1)]
    took = passed[number] - passed[since]
    return took / (number - since) if took >= 10 else None


def _number(text: str, *, scaled: bool = False) -> float | None:
    """None if it is none; what is not of a word may follow it, such as ";" or "%". scaled: whether
    it may be in thousands or more, such as 12.3K."""
    found = _ONLY.match(text)
    if found is None or (found[2] and not scaled):
        return None
    return float(found[1].replace(",", "")) * _SCALES.get(found[2].lower(), 1)
