"""`python -m benchmarks.mutants`: how many mutations the tests of each room catch."""

from __future__ import annotations

import argparse
import json
import queue
import random
import re
import signal
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import yaml

from benchmarks import table
from benchmarks.mutants.nearest import nearest_tests, room_of
from benchmarks.mutants.operators import Mutation, mutations
from benchmarks.mutants.trial import Copy, Outcome
from tests.limits import LIMITS

ROOT = Path(__file__).resolve().parents[2]
_EXPLAINED = Path(__file__).with_name("explained.yaml")
_CAUGHT = 0.95
_HEAVY = {"agent", "controller", "criteria", "jobs", "launchers", "outcome", "protocol", "rank"}
"""Rooms of the engine and of the judges: a line there counts twice."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A mutation and what became of it. why: the reason for which it is right to survive."""

    mutation: Mutation
    changed: str
    outcome: Outcome
    why: str

    @property
    def room(self) -> str:
        return room_of(self.mutation.path)

    @property
    def caught(self) -> bool:
        return bool(self.outcome.by)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=200, help="mutations to draw")
    parser.add_argument("--jobs", type=int, default=2, help="mutations tried at the same time")
    parser.add_argument("--under", default="pytest_mnode", help="only modules below this path")
    parser.add_argument("--operators", nargs="+", help="only these, such as handler clean-up")
    parser.add_argument("--limit-s", type=float, default=900.0, help="for the tests of a mutation")
    parser.add_argument("--test-limit-s", type=float, default=120.0, help="for one test")
    parser.add_argument("--files", type=int, help="only this many test files, the nearest")
    parser.add_argument("--record", type=Path, help="file to which each result is appended")
    parser.add_argument("--again", type=Path, help="a record: only the survivors in it")
    parser.add_argument("--list", action="store_true", help="print the mutations, run nothing")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _terminate)

    sources = _sources(options.under)
    drawn = _survivors(options.again, sources) if options.again else _drawn(options, sources)
    if options.list:
        for mutation in drawn:
            print(f"{mutation.path}:{mutation.line} {mutation.operator}")
            print(mutation.diff(sources[mutation.path]))
        return
    tried: list[Tried] = []
    for one in _try_all(drawn, sources, options):
        tried.append(one)
        print(_line(one, len(tried), len(drawn)), flush=True)
        if not one.caught:
            print(one.mutation.diff(sources[one.mutation.path]), flush=True)
        if options.record:
            with options.record.open("a") as file:
                file.write(json.dumps(_record(one)) + "\n")
    print("\n" + _table(tried))
    sys.exit(0 if _share(tried) >= _CAUGHT else 1)


def _terminate(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not interrupt the clean-up
    sys.exit("terminated")


def _sources(under: str) -> dict[str, str]:
    files = sorted(ROOT.glob("pytest_mnode/**/*.py"))
    named = {str(f.relative_to(ROOT)): f.read_text() for f in files}
    return {path: text for path, text in named.items() if path.startswith(under)}


def _drawn(options: argparse.Namespace, sources: dict[str, str]) -> list[Mutation]:
    """Rooms by their weight, in them operators alike, of each any mutation; none twice."""
    chance = random.Random(options.seed)
    rooms: dict[str, dict[str, list[Mutation]]] = {}
    weights: dict[str, int] = {}
    for path, source in sources.items():
        room = room_of(path)
        weights[room] = weights.get(room, 0) + len(source.splitlines()) * (1 + (room in _HEAVY))
        for mutation in mutations(path, source):
            if mutation.operator not in (options.operators or [mutation.operator]):
                continue
            rooms.setdefault(room, {}).setdefault(mutation.operator, []).append(mutation)
    drawn: dict[Mutation, None] = {}
    names = list(rooms)
    wanted = min(options.count, sum(len(m) for kinds in rooms.values() for m in kinds.values()))
    while len(drawn) < wanted:
        [room] = chance.choices(names, [weights[name] for name in names])
        kind = chance.choice(list(rooms[room]))
        drawn[chance.choice(rooms[room][kind])] = None
    return list(drawn)


def _survivors(record: Path, sources: dict[str, str]) -> list[Mutation]:
    """Mutations that are not caught in the last result that a record has of them."""
    last = {}
    for line in record.read_text().splitlines():
        found = json.loads(line)
        last[found["module"], found["operator"], found["changed"]] = found["by"]
    wanted = {key for key, by in last.items() if not by}
    drawn = []
    for path in sorted({module for module, *_ in wanted} & sources.keys()):
        for mutation in mutations(path, sources[path]):
            key = (path, mutation.operator, mutation.changed(sources[path]))
            if key in wanted:
                wanted.remove(key)
                drawn.append(mutation)
    return drawn


def _try_all(
    drawn: Sequence[Mutation],
    sources: dict[str, str],
    options: argparse.Namespace,
) -> Iterable[Tried]:
    explained = explained_survivors()
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as directory:
        copies = [
            Copy(ROOT, Path(directory), number, options.test_limit_s)
            for number in range(options.jobs)
        ]
        idle: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for copy in copies:
            idle.put(copy)

        def try_out(mutation: Mutation) -> Tried:
            copy = idle.get()
            try:
                tests = nearest_tests(ROOT, mutation.path)[: options.files]
                outcome = copy.try_out(mutation, tests, options.limit_s)
            finally:
                idle.put(copy)
            changed = mutation.changed(sources[mutation.path])
            why = explained.get((mutation.path, changed), "") or _expires(mutation, changed)
            return Tried(mutation, changed, outcome, why)

        with ThreadPoolExecutor(options.jobs) as pool:
            try:
                for done in as_completed([pool.submit(try_out, mutation) for mutation in drawn]):
                    yield done.result()
            finally:
                for copy in copies:
                    copy.end()
                pool.shutdown(cancel_futures=True)


def explained_survivors() -> dict[tuple[str, str], str]:
    listed = yaml.safe_load(_EXPLAINED.read_text()) or []
    return {(one["module"], one["changed"].strip()): one["why"] for one in listed}


def _expires(mutation: Mutation, changed: str) -> str:
    """The test that lets a limit expire, with a shorter value than the one that is mutated."""
    name = f"{mutation.path.removeprefix('pytest_mnode/')} {re.split('[: =-]', changed[1:])[0]}"
    test = LIMITS.get(name) if mutation.operator == "limit" else None
    return f"{test} lets it expire with a shorter value" if test else ""


def _record(one: Tried) -> dict[str, object]:
    return {
        "module": one.mutation.path,
        "operator": one.mutation.operator,
        "changed": one.changed,
        "by": one.outcome.by,
        "seconds": round(one.outcome.seconds, 1),
    }


def _line(one: Tried, number: int, count: int) -> str:
    how = f"caught by {one.outcome.by}" if one.caught else "SURVIVED"
    if not one.caught and not one.outcome.finished:
        how += ", and not all tests ran within the limit"
    if one.why and not one.caught:
        how = f"survived, explained: {one.why}"
    where = f"{one.mutation.path}:{one.mutation.line} {one.mutation.operator}"
    return f"[{number}/{count}] {one.outcome.seconds:.0f} s  {where}: {how}"


def _share(tried: Sequence[Tried]) -> float:
    """Share of mutations that are caught, of those that should be."""
    counted = [one for one in tried if one.caught or not one.why]
    return sum(one.caught for one in counted) / max(len(counted), 1)


def _table(tried: Sequence[Tried]) -> str:
    rows = []
    for room in [*sorted({one.room for one in tried}), "all"]:
        here = [one for one in tried if room in ("all", one.room)]
        caught, explained = (sum(one.caught for one in here), sum(bool(one.why) for one in here))
        seconds = sum(one.outcome.seconds for one in here)
        cells = (str(caught), str(explained), str(len(here)), f"{_share(here):.1%}")
        rows.append((room, *cells, table.number(seconds)))
    head = ("room", "caught", "explained", "of", "share", "s")
    return table.terminal("Mutations caught by the tests of their room", head, rows)


if __name__ == "__main__":
    main()
