"""The facts about a run that its certificate keeps, such as nodes, spec and versions.

Of a spec these are the keys that were set. A key that was not set has the default of the version
that judged: a later version may have another, and its specs are still the same, so that no upgrade
ends a history. What was judged by the other default is known, because every certificate has all
values.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass as plain_dataclass
from dataclasses import field
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    AfterValidator,
    AwareDatetime,
    NonNegativeInt,
    PlainSerializer,
    PositiveInt,
    WithJsonSchema,
    computed_field,
)
from pydantic.dataclasses import dataclass

from pytest_mnode.launchers.hosts import compress
from pytest_mnode.launchers.node import count
from pytest_mnode.measurement import listed

if TYPE_CHECKING:
    from pytest_mnode.spec import Spec


_ABSENT = object()
_DIGITS = 16


@dataclass(frozen=True)
class SpecFacts:
    """The spec that was certified against; the digest, of the keys that were set, tells two specs
    of one name apart.

    page: all of its values by key, so that the same measurements can be judged by another spec.
    given: keys that were set; None if the certificate's version did not note them. The values of
    the other keys are defaults.
    """

    name: str
    path: str
    digest: str
    page: dict[str, Any] = field(default_factory=dict)
    given: tuple[str, ...] | None = None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def defaults(self) -> str | None:
        """Version of the defaults: equal for two certificates of one digest that were judged by
        the same values; None if it is not known which values are defaults."""
        if self.given is None:
            return None
        given = set(self.given)
        values = sorted((key, value) for key, value in leaves(self.page) if key not in given)
        return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:_DIGITS]


def unconfirmed(spec: SpecFacts) -> tuple[str, ...]:
    """Why a run with this spec certifies nothing; () if its values were confirmed."""
    confirmed = spec.page.get("confirmed", True)
    return () if confirmed else (f"confirmed: false in {Path(spec.path).name}",)


def facts_of(spec: Spec, path: Path) -> SpecFacts:
    """The facts about its spec that a certificate keeps."""
    given = leaves(spec.model_dump(mode="json", by_alias=True, exclude_unset=True))
    return SpecFacts(
        spec.name, str(path), spec.digest(), page_of(spec), tuple(key for key, _ in given)
    )


def page_of(spec: Spec) -> dict[str, object]:
    """All values of a spec by key, including defaults; sizes in bytes, times in seconds."""
    page: dict[str, object] = spec.model_dump(mode="json", by_alias=True)
    return page


def leaves(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys of plain values, each with its value."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{at}.{key}" if at else str(key))
    else:
        yield at, value


@plain_dataclass(frozen=True, slots=True)
class Changes:
    """Keys with another value in a later spec, each with both values.

    given: keys that one of the two sets: the specs differ. defaults: keys that neither sets, whose
    default is another. added: keys that neither sets, in sections that both have, which only the
    later version knows.
    """

    given: Mapping[str, tuple[Any, Any]]
    defaults: Mapping[str, tuple[Any, Any]]
    added: Mapping[str, Any]


def changes(before: SpecFacts, after: SpecFacts, spec: Spec | None = None) -> Changes:
    """What differs between the specs of two certificates. spec: the later one itself, if known.

    A certificate of version 4 does not say which keys were set. It is known if its digest is that
    of the later spec by the rule of version 4; else each key that has another value counts as set.
    """
    one, other = dict(leaves(before.page)), dict(leaves(after.page))
    absent = tuple(f"{key}." for key, value in one.items() if value is None)
    # A key that only an older version has counts if it has a value.
    one = {key: value for key, value in one.items() if value or key in other}
    given = set(after.given or ())
    if before.given is not None:
        given |= set(before.given)
    elif spec is None or before.digest != digest_of_version_4(spec):
        given |= one.keys()
    different = {
        key: (one.get(key, _ABSENT), other.get(key, _ABSENT))
        for key in sorted(one.keys() | other.keys() | given)
        if one.get(key, _ABSENT) != other.get(key, _ABSENT)
    }
    unset = {key: values for key, values in different.items() if key not in given}
    added = {k: v[1] for k, v in unset.items() if v[0] is _ABSENT and not k.startswith(absent)}
    return Changes(
        {key: values for key, values in different.items() if key in given},
        {key: values for key, values in unset.items() if key not in added},
        added,
    )


def in_words(changed: Mapping[str, tuple[Any, Any]]) -> list[str]:
    """Changed keys as "key old → new"."""
    return [f"{key} {_shown(old)} → {_shown(new)}" for key, (old, new) in changed.items()]


def _shown(value: Any) -> str:
    return "nothing" if value is _ABSENT else json.dumps(value, ensure_ascii=False)


def digest_of_version_4(spec: Spec) -> str:
    """The digest of a spec by the rule of version 4: of all values but defaults."""
    page = spec.model_dump(mode="json", exclude_defaults=True)
    content = json.dumps(page, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()


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
