"""Commit and versions, with and without git, without importing torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_mnode.certificate import (
    CaseResult,
    Certificate,
    Commit,
    SpecFacts,
    git_commit,
    installed_versions,
)
from pytest_mnode.certificate.difference import environment_changes
from pytest_mnode.certificate.kept import earlier_runs, keep, read_with_history, with_history
from pytest_mnode.certificate.run_facts import changes, digest_of_version_4, facts_of
from pytest_mnode.measurement import Measurement, at_most, equals
from pytest_mnode.path_rates import State
from pytest_mnode.spec import Spec, default_spec_path, load_spec
from tests.certificate.conftest import certify


def git(where: Path, *argv: str) -> str:
    name = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    done = subprocess.run(
        ["git", *name, *argv], cwd=where, env=env, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "a 'quoted' place"
    path.mkdir()
    git(path, "init", "-q")
    (path / "spec.yaml").write_text("nodes: 4\n")
    git(path, "add", ".")
    git(path, "commit", "-qm", "first")
    return path


def test_the_commit_is_dirty_once_a_tracked_file_changes(repository: Path) -> None:
    head = git(repository, "rev-parse", "HEAD")
    (repository / "mnode-report").mkdir()
    (repository / "mnode-report" / "certificate.json").write_text("{}")
    assert git_commit(repository) == Commit(head, dirty=False)
    (repository / "spec.yaml").write_text("nodes: 5\n")
    assert git_commit(repository) == Commit(head, dirty=True)


def test_the_commit_is_that_of_the_folder_even_inside_a_hook(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index.lock"))
    assert git_commit(repository) == Commit(git(repository, "rev-parse", "HEAD"), dirty=False)


def test_without_repository_commit_or_git_there_is_no_commit(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_commit(tmp_path) is None
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "-q")
    assert git_commit(empty) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_commit(repository) is None


def test_versions_are_found_and_nothing_is_imported_before_a_page_is_written() -> None:
    program = (
        "import sys, pytest_mnode.certifying.certificate_plugin; "
        "from pytest_mnode.certificate import installed_versions; "
        "print(installed_versions().torch, "
        "[m for m in ('matplotlib', 'jinja2', 'torch') if m in sys.modules])"
    )
    argv = [sys.executable, "-c", program]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == (f"{version('torch')} []\n", "")


def test_missing_packages_have_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [])
    assert installed_versions().torch is None
    assert installed_versions().pytest is None


LOST = "fabric.lost_at_most_fraction"
"""A key with a default, of which the bound below is the product."""
DEFAULT = 0.01


def edited(facts: SpecFacts, changed: dict[str, Any]) -> SpecFacts:
    """The facts with other values of dotted keys; "gone" removes a key."""
    page = json.loads(json.dumps(facts.page))
    for dotted, value in changed.items():
        inner = page
        *sections, key = dotted.split(".")
        for one in sections:
            inner = inner[one]
        if value == "gone":
            del inner[key]
        else:
            inner[key] = value
    return replace(facts, page=page)


FACTS = SpecFacts("it", "it.yaml", "d", {"a": {"x": 1, "y": 2, "z": None}, "b": {}}, ("a.x", "b"))


@pytest.mark.parametrize(
    ("earlier", "given", "defaults", "added"),
    [
        ({}, [], [], []),
        ({"a.x": 0}, ["a.x"], [], []),
        ({"a.y": 3}, [], ["a.y"], []),  # a default was another
        ({"a.y": "gone"}, [], [], ["a.y"]),  # the older version has no such key
        ({"a.old": 5}, [], ["a.old"], []),  # nor the later one this
        ({"a.old": None}, [], [], []),
        ({"a": None}, ["a.x"], ["a.y", "a.z"], []),  # a section that was not promised
        ({"b": None}, ["b"], [], []),
        ({"b": "gone"}, ["b"], [], []),
    ],
)
def test_a_difference_is_of_keys_that_were_set_or_of_defaults(
    earlier: dict[str, Any], given: list[str], defaults: list[str], added: list[str]
) -> None:
    found = changes(edited(FACTS, earlier), FACTS)
    assert [list(one) for one in (found.given, found.defaults, found.added)] == [
        given,
        defaults,
        added,
    ]


def test_a_key_that_only_one_of_two_specs_sets_is_a_difference() -> None:
    other = replace(edited(FACTS, {"a.y": 3}), given=("a.x", "a.y", "b"))
    assert changes(other, FACTS).given == {"a.y": (3, 2)}
    assert changes(FACTS, other).given == {"a.y": (2, 3)}
    assert changes(replace(other, page=FACTS.page), FACTS).given == {}


def test_the_version_of_the_defaults_is_that_of_the_values_that_were_not_set() -> None:
    assert edited(FACTS, {"a.x": 0}).defaults == FACTS.defaults
    assert edited(FACTS, {"a.y": 3}).defaults != FACTS.defaults
    assert replace(FACTS, given=None).defaults is None


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    """A spec that promises mesh alone, for a week."""
    page = yaml.safe_load(default_spec_path().read_text())
    page |= {"criteria": {"mesh": {}}, "not_promised": [], "certificate": {"valid_for": "7 days"}}
    return written(tmp_path / "spec.yaml", page)


def written(path: Path, page: Any) -> Spec:
    path.write_text(yaml.safe_dump(page))
    return load_spec(path)


def test_the_digest_covers_the_keys_that_were_set(spec: Spec, tmp_path: Path) -> None:
    page = yaml.safe_load((tmp_path / "spec.yaml").read_text())
    assert LOST not in (facts_of(spec, tmp_path).given or ())
    page["fabric"]["lost_at_most_fraction"] = DEFAULT
    same = written(tmp_path / "same.yaml", page)
    assert same.digest() != spec.digest()  # it stays the same spec when the default changes
    assert digest_of_version_4(same) == digest_of_version_4(spec)
    assert changes(facts_of(spec, tmp_path), facts_of(same, tmp_path)).given == {}


def run_of(spec: SpecFacts, day: int, measured: Measurement, *nodes: str) -> Certificate:
    from tests.certificate.test_kept import NOW

    end = NOW - timedelta(days=day)
    case = CaseResult("t/test_mesh.py::test_it", "?", "passed", measurements=(measured,))
    facts: dict[str, Any] = {"nodes": nodes, "cluster_nodes": 2, "start": end, "end": end}
    return certify(case, promised=["mesh"], spec=spec, validity_s=7 * 86400.0, **facts)


def lost(percent: float, limit: float) -> Measurement:
    bound = at_most(100 * limit).of(LOST, limit)
    return Measurement("packets lost", percent, "%", bound, f"{LOST} {limit:g}")


EXACT = Measurement("wrong sums", 0, "", equals(0), "a sum of whole numbers is exact")


@pytest.mark.parametrize(
    ("earlier", "measured", "passed"),
    [
        ({}, lost(0.9, DEFAULT), "ab"),
        ({LOST: 0.03}, lost(0.9, 0.03), "ab"),  # keeps the default of now too
        ({LOST: 0.03}, lost(2, 0.03), "b"),  # passed by the older default alone
        ({LOST: 0.03}, EXACT, "ab"),
        ({LOST: "gone"}, lost(0.9, DEFAULT), "ab"),
        ({LOST: "gone"}, EXACT, "ab"),
    ],
)
@pytest.mark.parametrize("version", [4, 5])
def test_no_default_ends_a_history_and_passes_are_judged_by_that_of_now(  # noqa: PLR0917  a table
    tmp_path: Path, spec: Spec, version: int, earlier: Any, measured: Measurement, passed: str
) -> None:
    now = facts_of(spec, tmp_path)
    before = edited(now, earlier)
    if version == 4:
        before = replace(before, given=None, digest=digest_of_version_4(spec))
    kept = tmp_path / "kept"
    path = keep(kept, run_of(before, 1, measured, "a"))
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | {"schema_version": version}))
    found = earlier_runs(kept, now, spec=spec)
    assert (len(found.certificates), found.left_out) == (1, ())
    tonight = replace(run_of(now, 0, EXACT, "b"))
    again = certify(
        *tonight.criteria[0].cases,
        promised=["mesh"],
        earlier=found.coverage,
        **{key: getattr(tonight.run, key) for key in ("nodes", "cluster_nodes", "start", "end")},
    )
    assert sorted(again.coverage.names(State.PASSED)) == list(passed)
    history = with_history(tonight, found).history
    assert history is not None
    assert len(history.runs) == 2
    noted = [note for note in history.notes if "judged by other defaults" in note]
    changed = earlier.get(LOST, "gone") != "gone"
    assert bool(noted) is changed
    word = "default of" if version == 5 else "spec:"  # 4 does not say whether the key was set
    assert list(history.since)[2:] == [f"{word} {LOST} 0.03 → 0.01"] * changed
    last = read_with_history(keep(kept, tonight)).history
    assert last is not None
    assert len(last.runs) == (2 if version == 5 or not changed else 1)


def test_a_spec_with_another_value_is_another_history(tmp_path: Path, spec: Spec) -> None:
    page = yaml.safe_load((tmp_path / "spec.yaml").read_text())
    page["fabric"]["lost_at_most_fraction"] = 0.03
    before = facts_of(written(tmp_path / "other.yaml", page), tmp_path)
    keep(tmp_path / "kept", run_of(before, 1, EXACT, "a"))
    found = earlier_runs(tmp_path / "kept", facts_of(spec, tmp_path), spec=spec)
    assert found.certificates == ()
    assert found.left_out == (f"1 run, as spec {spec.name} was another: {LOST} 0.03 → 0.01",)


def test_a_diff_names_other_defaults(tmp_path: Path, spec: Spec) -> None:
    now = facts_of(spec, tmp_path)
    runs = [run_of(one, 1, EXACT, "a") for one in (edited(now, {LOST: 0.03}), now)]
    assert list(environment_changes(*runs)) == [f"default of {LOST} 0.03 → 0.01"]
