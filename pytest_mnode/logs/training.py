"""Steps that a training program prints: loss, time and rate, of the frameworks people use. Pure.

Programs print a step once, or once per rank; progress bars print it many times, and end lines by
carriage returns.

Sources: torchtitan, components/metrics.py; Megatron-LM, training/training.py; NeMo, lightning
progress_printer.py; DeepSpeed, utils/timer.py and runtime/engine.py; transformers,
trainer_callback.py; tqdm. Seen printed: torchtitan 0.2.2; transformers 5.24 by trl 1.16.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_NUMBER = r"([-+]?(?:\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?|nan|inf))"
_BAR = r"\| *(?P<step>\d+)/(?P<total>\d+) \[(?:(?P<hours>\d+):)?(?P<minutes>\d+):(?P<rest>\d\d)<"
"""The end of a bar of tqdm; a Trainer's has no words before it, unlike those of other work."""
_WORDS = r"^(?:\[[^\]]*\]:)?\s*(?:(?:[Tt]rain(?:ing)?|(?:[Tt]raining )?[Ss]teps?) *:)? *\d+%\|[^|]*"
FORMATS: Mapping[str, str] = {
    "torchtitan": r"\bstep: +(?P<step>\d+) .*\bloss: .*\b(?:tps|wps): ",
    "megatron": r"\biteration +(?P<step>\d+)/ *\d+ \|.*elapsed time per iteration \(ms\): ",
    "nemo": r"(?=.*reduced_train_loss).*\bglobal_step[:=] *(?P<step>\d+)\b",
    "deepspeed": r"\bglobal_step=(?P<step>\d+), RunningAvg|\bsteps: (?P<step_>\d+) loss: .*iter ",
    "lightning": rf"\bEpoch \d+: .*{_BAR}",
    "huggingface": _WORDS + _BAR,
    "plain": r"\b(?:step|iter(?:ation)?)[ :=#]+(?P<step>\d+)\b.*\bloss\b",
}
"""By the name of a format, a pattern of the lines about a step."""
_VALUES: Mapping[str, str] = {
    "loss": r"(?:\blm loss|\breduced_train_loss|\btrain_loss(?:_step)?|\bloss)'?[:=]? *'?%s",
    "seconds": r"(?:_timing in s[:=]|iter time \(s\):|\b(?:time|dt)[ :=]+(?=[\d.]+ ?s\b)) *%s",
    "milliseconds": r"(?:per iteration \(ms\):|\b(?:time|dt)[ :=]+(?=[\d.]+ ?ms\b)) *%s",
    "tokens_per_s": r"\b(?:tps|wps|tok(?:ens)?/s(?:ec)?)[ :=]+%s",
    "samples_per_s": r"(?:CurrSamplesPerSec=|samples/sec: )%s",
    "batch": r"global batch size: +%s",
    "tflops": r"(?:throughput per GPU \(TFLOP/s/GPU\): |\btflops: +)%s",
    "mfu_percent": r"\bmfu:? +%s ?%%",
}
"""Values of a step, each searched in such a line; a pattern of one's own names them as groups."""
VALUE_NAMES = (*_VALUES, "step", "minutes", "rest", "hours")
_COMPILED = {name: re.compile(pattern % _NUMBER) for name, pattern in _VALUES.items()}
_BAR_RATE = re.compile(r"<[^,\]]*, *([\d.]+) ?(it/s|s/it)")
_HF_LOSS = re.compile(rf"\{{'loss': '?{_NUMBER}'?, ")
_HF_RAN = re.compile(
    rf"\{{'train_runtime': '?{_NUMBER}'?, 'train_samples_per_second': '?{_NUMBER}'?, "
)


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
    """What a log says of a run. format: its name; "" if no line of it was understood."""

    format: str
    steps: tuple[Step, ...] = ()


def read_progress(texts: Iterable[str], patterns: Mapping[str, str] = FORMATS) -> Progress:
    """The steps in the output of a job, by the format that most of its lines have.

    texts: of its nodes, or ranks. Of formats with equally many steps the first counts. A step that
    several ranks print has the median of what they say.
    """
    lines = [line for text in texts for line in _lines(text)]
    best = Progress("")
    for name, pattern in patterns.items():
        found = _steps(lines, re.compile(pattern))
        if len(found) > len(best.steps):
            best = Progress(name, found)
    return best


def _lines(text: str) -> Iterator[str]:
    for line in _ANSI.sub("", text).split("\n"):
        yield from filter(None, line.split("\r"))


def _steps(lines: Sequence[str], pattern: re.Pattern[str]) -> tuple[Step, ...]:
    """Of a bar, the loss belongs to what is drawn after it: what was drawn before may be old."""
    said: dict[int, dict[str, list[float]]] = {}
    passed: dict[int, float] = {}
    total = last = loss = None
    for line in lines:
        if (match := pattern.search(line)) is None:
            if last is not None and (found := _HF_LOSS.search(line)):
                loss = _number(found[1])
            continue
        values = _values(line, match)
        last = int(values.pop("step"))
        if "minutes" in values:
            of = values.pop("total", None)
            if (total := total or of) != of:
                continue  # of an evaluation within the training
            passed[last] = 60 * (60 * values.get("hours", 0) + values["minutes"]) + values["rest"]
            if rate := _BAR_RATE.search(line):
                values["shown"] = float(rate[1]) if rate[2] == "s/it" else 1 / float(rate[1])
        if loss is not None:
            values["loss"], loss = loss, None
        of_step = said.setdefault(last, {})
        for name, value in values.items():
            of_step.setdefault(name, []).append(value)
    if passed:
        said.pop(0, None)
    if loss is not None and said:
        said[max(said)].setdefault("loss", []).append(loss)
    batch = _batch(lines, total) if total else {}
    return tuple(
        _step(
            number,
            batch | {name: median(values) for name, values in said[number].items()},
            _between(number, passed),
        )
        for number in sorted(said)
    )


def _batch(lines: Iterable[str], steps: float) -> dict[str, float]:
    """Samples of a step, by what a Trainer says at its end."""
    ran = next(filter(None, map(_HF_RAN.search, lines)), None)
    return {"batch": round(_number(ran[1]) * _number(ran[2]) / steps)} if ran else {}


def _values(line: str, match: re.Match[str]) -> dict[str, float]:
    found = {name: one[1] for name, pattern in _COMPILED.items() if (one := pattern.search(line))}
    found |= {name.rstrip("_"): one for name, one in match.groupdict().items() if one is not None}
    return {name: _number(one) for name, one in found.items()}


def _step(number: int, said: Mapping[str, float], seconds: float | None) -> Step:
    if "milliseconds" in said:
        seconds = said["milliseconds"] / 1000
    seconds = said.get("seconds", seconds or said.get("shown"))
    samples = said.get("samples_per_s")
    if samples is None and seconds and "batch" in said:
        samples = said["batch"] / seconds
    return Step(
        number,
        said.get("loss"),
        seconds,
        said.get("tokens_per_s"),
        samples,
        said.get("tflops"),
        said["mfu_percent"] / 100 if "mfu_percent" in said else None,
    )


def _between(number: int, passed: Mapping[int, float]) -> float | None:
    """Seconds of a step by a progress bar, which shows whole seconds: those since ten steps before,
    or as many as there are; None if that is too short to be told: its smoothed rate then is."""
    before = [one for one in passed if one < number]
    if number not in passed or not before:
        return None
    since = max((one for one in before if one <= number - 10), default=min(before))
    took = passed[number] - passed[since]
    return took / (number - since) if took >= 10 else None


def _number(text: str) -> float:
    return float(text.replace(",", ""))
