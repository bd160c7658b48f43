"""A pool leaves nothing behind: when it is closed, and when a step of its start fails."""

from __future__ import annotations

import gc
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_mnode.controller import pool as pool_module
from pytest_mnode.controller.hub import Hub
from pytest_mnode.controller.pool import Pool
from pytest_mnode.errors import ClusterError
from pytest_mnode.launchers.local import Local
from pytest_mnode.machine import open_files
from pytest_mnode.options import Settings
from pytest_mnode.spec import Spec, profile_spec


@pytest.fixture(scope="module")
def spec() -> Spec:
    return profile_spec("rack")


class Watched(Local):
    """Says when it is closed."""

    closed = 0

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Watched:
    made = Watched(2)
    monkeypatch.setattr(pool_module, "choose", lambda *_: (made, "by the test"))
    return made


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files."""
    made = tmp_path / "t"
    made.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(made))
    return made


@pytest.fixture
def soft() -> Iterator[int]:
    """A soft limit of open files that is too low for a run, so that a pool raises it."""
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = open_files.SLACK
    if low >= hard:
        pytest.skip(f"this machine allows {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))
    yield low
    resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))


def descriptors() -> int:
    gc.collect()  # also those of earlier tests
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def soft_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_a_closed_pool_leaves_nothing(
    launcher: Watched, temporary: Path, soft: int, spec: Spec, tmp_path: Path
) -> None:
    before = descriptors()
    pool = Pool(Settings(), spec, 2, tmp_path)
    assert (temporary / pool.run_dir.name / "logs").is_dir()
    assert soft_limit() > soft
    pool.close()
    assert not pool.hub.thread.is_alive()
    assert launcher.closed == 1
    assert list(temporary.iterdir()) == []
    assert soft_limit() == soft
    assert descriptors() <= before  # earlier tests may close theirs meanwhile


class Broken(Exception):
    pass


@pytest.mark.parametrize(
    ("step", "closed"),
    [
        ("procs_per_node_of", 0),
        ("open_files.allow", 1),
        ("Switchboard", 1),
        ("PoolFacts", 1),
        ("Hub", 1),
        ("Client", 1),
    ],
)
def test_a_pool_whose_start_fails_leaves_nothing(  # noqa: PLR0917  fixtures
    launcher: Watched,
    temporary: Path,
    soft: int,
    spec: Spec,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    closed: int,
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise Broken

    before = descriptors()
    monkeypatch.setattr(f"{pool_module.__name__}.{step}", broken)
    with pytest.raises(Broken):
        Pool(Settings(), spec, 2, tmp_path)
    assert launcher.closed == closed
    assert list(temporary.iterdir()) == []
    assert soft_limit() == soft
    assert descriptors() <= before  # earlier tests may close theirs meanwhile


@pytest.mark.usefixtures("launcher")
def test_a_directory_whose_path_is_too_long_for_sockets_is_used_and_removed(
    spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("d" * 120)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    pool = Pool(Settings(), spec, 2, tmp_path)
    assert pool.run_dir.parent == long
    pool.close()
    assert list(long.iterdir()) == []


@pytest.mark.usefixtures("launcher")
def test_a_hub_that_never_ends_does_not_keep_a_pool_open(
    temporary: Path,
    spec: Spec,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    over = threading.Event()
    monkeypatch.setattr(pool_module, "_STOP_LIMIT_S", 0.2)
    monkeypatch.setattr(Hub, "close", lambda _: over.wait(60))
    pool = Pool(Settings(), spec, 2, tmp_path)
    pool.close()
    assert pool.hub.thread.is_alive()
    assert list(temporary.iterdir()) == []
    said = "mnode: its nodes were not given back within 0.2 s; its clean-up process goes on\n"
    assert capsys.readouterr().err == said
    over.set()
    pool.hub.thread.join(20)


def test_what_a_launcher_cannot_take_down_is_said(
    launcher: Watched,
    spec: Spec,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def close() -> None:
        raise ClusterError("cleanup process (pid 7) still runs")

    monkeypatch.setattr(launcher, "close", close)
    Pool(Settings(), spec, 2, tmp_path).close()
    assert capsys.readouterr().err == "mnode: cleanup process (pid 7) still runs\n"
