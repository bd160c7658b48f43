"""The facts about a run that its certificate keeps, such as nodes, spec and versions."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator
from dataclasses import field
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

from pydantic import (
    AfterValidator,
    AwareDatetime,
    NonNegativeInt,
    PlainSerializer,
    PositiveInt,
    WithJsonSchema,
)
from pydantic.dataclasses import dataclass

from pytest_mnode.certificate.spec_facts import SpecFacts
from pytest_mnode.launchers.hosts import compress
from pytest_mnode.launchers.node import count
from pytest_mnode.measurement import listed

_MOST_NAMED = 4
_GIT_LIMIT_S = 10.0
DEFAULT_VALIDITY_S = 7 * 24 * 3600.0


@dataclass(frozen=True)
class Manifest:
    """The tests of criteria that pytest made while it collected, before anything left one out.

    collected: their number. deselected: ids that options, or plugins that announced it, left out.
    removed: ids that a plugin or a conftest.py took away without a word. not_run: ids of the others
    that have no result, or one without a run of the test. repeated: ids that ran more than once,
    without a plugin's report of a rerun, so that an earlier result may be lost.
    """

    collected: NonNegativeInt = 0
    deselected: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    not_run: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()

    def reasons(self, ended_early: bool) -> Iterator[str]:
        """Why it is no manifest of a whole run. ended_early: whether another reason, which is given
        elsewhere, explains tests that have no result."""
        for tests, text in (
            (self.deselected, "deselected"),
            (self.removed, "removed by a plugin or conftest.py, without announcing it"),
            (() if ended_early else self.not_run, "not run (a plugin?)"),
            (self.repeated, "run more than once, by no plugin that reports reruns"),
        ):
            if tests:
                named = listed([test.rpartition("/")[2] for test in tests], _MOST_NAMED, ", ")
                yield f"{count(len(tests), 'test')} {text}: {named}"


def _in_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(str(error)) from None


UtcTime = Annotated[
    AwareDatetime,
    AfterValidator(_in_utc),
    # Not datetime.isoformat itself: pydantic before 2.9 asks for its signature, which it lacks.
    PlainSerializer(lambda time: time.isoformat(), return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""A time in UTC, whatever zone it is given in; in JSON such as "2026-11-21T02:06:00+00:00"."""


@dataclass(frozen=True)
class Commit:
    """The git commit that the tests were run from; dirty if tracked files differ from it."""

    hash: str
    dirty: bool


@dataclass(frozen=True)
class Versions:
    """Versions of the software that judged; None if not installed."""

    python: str
    kernel: str
    pytest: str | None
    pytest_mnode: str | None
    torch: str | None


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """Everything about a run but its results.

    nodes: the tested nodes. cluster_nodes: number of nodes of the cluster; None if the spec
        names no number. not_covered: known names of the other nodes.
    start, end: with a time zone (a ValueError without).
    emulated: which hardware was emulated, in words; None if none was.
    doubts: doubtful values of the spec, one sentence each.
    cut_short: why not every test of the suite was run, such as "interrupted"; a run that was cut
        short never certifies.
    manifest: the tests of criteria that it collected; nor does a run that left some out.
    validity_s: how long after `end` a certificate holds.
    rehearsal: the virtual cluster that all values come from; None for a run on nodes. A rehearsal
        never certifies.
    """

    launcher: str
    launcher_reason: str
    nodes: tuple[str, ...]
    ranks: NonNegativeInt
    backend: str
    spec: SpecFacts
    versions: Versions
    start: UtcTime
    end: UtcTime
    commit: Commit | None = None
    emulated: str | None = None
    doubts: tuple[str, ...] = ()
    cut_short: tuple[str, ...] = ()
    manifest: Manifest = field(default_factory=Manifest)
    validity_s: float = DEFAULT_VALIDITY_S
    cluster_nodes: PositiveInt | None = None
    not_covered: tuple[str, ...] = ()
    rehearsal: str | None = None

    @property
    def incomplete(self) -> tuple[str, ...]:
        """Why its results are not those of one run of every test of the suite."""
        ended = [f"cut short by {why}" for why in self.cut_short]
        return (*ended, *self.manifest.reasons(ended_early=bool(ended)))

    def from_end(self, validities: int) -> datetime:
        """The end of the run and so many times `validity_s`, within the years 1 to 9999."""
        try:
            return self.end + validities * timedelta(seconds=self.validity_s)
        except OverflowError:
            return (datetime.max if validities > 0 else datetime.min).replace(tzinfo=UTC)

    @property
    def count(self) -> str:
        """How much of the cluster was tested, such as "2 of 16 nodes"."""
        covered, of = len(self.nodes), self.cluster_nodes
        if of is None:
            return f"{count(covered)} (the spec names no number)"
        return f"{covered} of {count(of)}"

    @property
    def coverage(self) -> str:
        """`count` with names: "2 of 16 nodes: n[0-1]; not covered: n[2-3] and 12 others"."""
        names = f": {compress(self.nodes)}" if self.nodes else ""
        unnamed = max(0, (self.cluster_nodes or 0) - len(self.nodes) - len(self.not_covered))
        others = [compress(self.not_covered)] if self.not_covered else []
        others += [f"{unnamed} other{'s' * (unnamed > 1)}"] if unnamed else []
        rest = f"; not covered: {' and '.join(others)}" if others else ""
        return f"{self.count}{names}{rest}"


def installed_versions() -> Versions:
    """Versions found without importing anything: torch in particular stays unloaded."""
    return Versions(
        python=platform.python_version(),
        kernel=f"{platform.system()} {platform.release()}",
        pytest=_installed("pytest"),
        pytest_mnode=_installed("pytest-mnode"),
        torch=_installed("torch"),
    )


def _installed(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def git_commit(rootdir: Path) -> Commit | None:
    """The commit checked out at `rootdir`; None without git, repository or commit."""
    head = _git(rootdir, "rev-parse", "--verify", "HEAD")
    changes = _git(rootdir, "status", "--porcelain", "--untracked-files=no")
    return None if head is None or changes is None else Commit(head.strip(), bool(changes.strip()))


def _git(rootdir: Path, *argv: str) -> str | None:
    # A git hook runs with variables that would override the directory.
    hooks = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
    env = {k: v for k, v in os.environ.items() if k not in hooks} | {"GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            ["git", "-C", str(rootdir), *argv],
            env=env,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_GIT_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
