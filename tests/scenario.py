"""Runs a module of broken tests once in real ranks, and reads the report of each test."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.inner import InnerRun, run_pytest

SCENARIOS = Path(__file__).with_name("worlds") / "scenarios"
TWO_OF_TWO = ("--mnode-nodes=2", "--mnode-procs-per-node=2")
"""Four ranks on two nodes."""
LIMIT = "no end within "
"""Text before the seconds in a report of ranks that were ended by the limit of their test."""
_HEADING = re.compile(r"^_+ (?:ERROR at \w+ of )?(test_\S+) _+$", re.MULTILINE)


@dataclass(frozen=True)
class Case:
    """One broken test: its outcome, summary line, report, and all terminal output."""

    outcome: str
    message: str
    text: str
    shown: str
    time_s: float

    @property
    def first_line(self) -> str:
        """The failed rank, as at the beginning of the report."""
        return self.text.partition("\n")[0]

    def part(self, title: str) -> str:
        """The section of the report after `[title`, up to the next title."""
        _, found, rest = self.text.partition(f"[{title}")
        assert found, f"no [{title} in:\n{self.text}"
        return re.split(r"^\[ranks? \d", rest, maxsplit=1, flags=re.MULTILINE)[0]


@dataclass(frozen=True)
class Scenario:
    """The result of a scenario. Names are without `test_`."""

    run: InnerRun
    directory: Path
    cases: Mapping[str, Case]
    nexts: Mapping[str, str]
    """Outcome of the healthy test after each broken one."""

    def __getitem__(self, name: str) -> Case:
        return self.cases[name]

    @property
    def logs(self) -> Path:
        (logs,) = (self.directory / "logs").iterdir()
        return logs

    def shown_of_next(self, name: str) -> str:
        """Terminal output, under -rA, of the healthy test after a broken one."""
        return dict(_shown(self.run.output))[f"test_next[{name}]"]

    def ended_by_limit(self) -> list[str]:
        """Tests that were ended only by a limit, according to their reports."""
        return [name for name, case in self.cases.items() if LIMIT in case.text]


def run_scenario(name: str, directory: Path, *args: str, **env: str) -> Scenario:
    """Run scenarios/NAME.py on four nodes and `local`, unless args say otherwise."""
    for source, target in (
        (f"{name}.py", f"test_{name}.py"),
        ("conftest_of_all.py", "conftest.py"),
    ):
        (directory / target).write_text((SCENARIOS / source).read_text())
    notes = directory / "notes"
    notes.mkdir()
    run = run_pytest(
        directory,
        *("-v", "--mnode-nodes=4", "--mnode-launcher=local"),
        *(f"--mnode-log-dir={directory / 'logs'}", *args),
        env={"SCENARIO_NOTES": str(notes), **env},
    )
    shown = dict(_shown(run.output))
    cases, nexts, outcomes = {}, {}, run.outcomes()
    for test, element in run.cases().items():
        outcome = outcomes[test]
        if test.startswith("test_next["):
            nexts[test.removeprefix("test_next[").removesuffix("]")] = outcome
            continue
        child = next((c for c in element if c.tag in ("failure", "error", "skipped")), None)
        cases[test.removeprefix("test_")] = Case(
            outcome,
            str(child.get("message")) if child is not None else "",
            (child.text or "") if child is not None else "",
            shown.get(test, ""),
            float(element.get("time") or 0.0),
        )
    return Scenario(run, directory, cases, nexts)


def _shown(output: str) -> Iterator[tuple[str, str]]:
    """Terminal output of each failed test, by name."""
    parts = _HEADING.split(output)
    yield from zip(parts[1::2], parts[2::2], strict=True)
