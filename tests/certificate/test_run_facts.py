"""Commit and versions, with and without git, without importing torch."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from pytest_mnode.certificate import Commit, git_commit, installed_versions


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
        "import sys, pytest_mnode.controller.certificate_plugin; "
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
