"""Stacks of ranks, by Python's faulthandler or `py-spy dump`, as text or with --json. Pure.

Source: CPython, Python/traceback.c; py-spy, src/dump.rs and src/stack_trace.rs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pytest_mnode.logs.causes import Cause
from pytest_mnode.logs.causes.culprits import RANK_OF_FILE
from pytest_mnode.logs.causes.table import known_cause

_NOT_OF_THE_JOB = re.compile(r"(?:^|/)torch/|(?:^|/)sitecustomize\.py$")
_C10D = "torch/distributed/distributed_c10d.py"
_THREADS = re.compile(r"\n+(?=(?:Current thread|Thread) )")
_FAULTHANDLER = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)')
_PY_SPY = re.compile(r"^\s+(?P<function>\S.*) \((?P<file>[^()]+):(?P<line>\d+)\)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Frame:
    file: str
    line: str
    function: str


def where(text: str) -> str:
    """Where a rank is: the innermost line of its main thread outside of torch and the observer,
    such as "train.py:31 in load"; "" if the text has no stack of it."""
    own = [one for one in _main_thread(text) if not _NOT_OF_THE_JOB.search(one.file)]
    return next((f"{f.file.rpartition('/')[2]}:{f.line} in {f.function}" for f in own), "")


def not_joined(texts: Mapping[str, str]) -> Iterator[Cause]:
    """Ranks in no collective while at least twice as many are. texts: see `located`."""
    stacks = {
        rank: [one.function for one in _main_thread(text) if one.file.endswith(_C10D)]
        for rank, text in _by_rank(texts).items()
    }
    absent = tuple(sorted(rank for rank, calls in stacks.items() if not calls))
    calls = sorted({calls[-1] for calls in stacks.values() if calls})
    if 0 < 2 * len(absent) <= (waiting := len(stacks) - len(absent)):
        detail = f"{waiting} other ranks are in {' or '.join(calls)}"
        yield Cause(known_cause("rank did not join"), detail, absent, detail=detail)


def _by_rank(texts: Mapping[str, str]) -> dict[int, str]:
    """The text that has a stack of a rank."""
    ranks = ((RANK_OF_FILE.search(name), text) for name, text in texts.items())
    return {int(rank[1]): text for rank, text in ranks if rank and where(text)}


def located(cause: Cause, texts: Mapping[str, str]) -> Cause:
    """The cause, with where its ranks are. texts: by names of files, in which the rank stands."""
    stacks = _by_rank(texts)
    lines = [f"rank {r} is at {where(stacks[r])}" for r in cause.ranks if r in stacks]
    return replace(cause, detail="; ".join(filter(None, [cause.detail, *lines])) or None)


def _main_thread(text: str) -> Iterator[_Frame]:
    """Its frames, the innermost first."""
    if text.lstrip().startswith("["):
        yield from _of_json(text)
        return
    for stack in _THREADS.split(text):
        if '"MainThread"' in stack.partition("\n")[0]:
            pattern = _PY_SPY
        elif stack.rstrip().endswith("in <module>") and "threading.py" not in stack:
            pattern = _FAULTHANDLER
        else:
            continue
        yield from (_Frame(**one.groupdict()) for one in pattern.finditer(stack))
        return


def _of_json(text: str) -> Iterator[_Frame]:
    try:
        threads: list[Any] = json.loads(text)
        main = next(one for one in threads if one.get("thread_name") == "MainThread")
        frames = [
            _Frame(str(f["filename"]), str(f["line"]), str(f["name"])) for f in main["frames"]
        ]
    except (AttributeError, LookupError, RecursionError, StopIteration, TypeError, ValueError):
        return
    yield from frames
