"""Experiments on a real directory, by ranks that are threads: their rows, and what they leave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.criteria.storage import in_ranks, meeting
from pytest_mnode.criteria.storage.files import PAGE
from pytest_mnode.criteria.storage.in_ranks import UNUSABLE
from pytest_mnode.criteria.storage.meeting import PREFIX, Directory, guarded
from pytest_mnode.evidence.row import Row
from pytest_mnode.rank.world import World
from tests.waiting import until

NAMES = ("n0", "n1", "n2")


class Store:
    """What torch's store does for ranks, for threads."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.lock = threading.Lock()

    def add(self, key: str, number: int) -> int:
        with self.lock:
            self.values[key] = self.values.get(key, 0) + number
            return int(self.values[key])

    def set(self, key: str, text: str) -> None:
        self.values[key] = text.encode()

    def get(self, key: str) -> bytes:
        return bytes(self.values[key])

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[Row]]]:
    """Runs an experiment in three ranks; the rows of all."""
    seeds = iter(range(1, 100))

    def run(work: Any, *, repeat: int = 0, **changes: Any) -> list[Row]:
        store = Store()
        monkeypatch.setattr("torch._C._distributed_c10d.TCPStore", lambda *_: store)
        monkeypatch.setenv("MASTER_ADDR", "here")
        monkeypatch.setenv("MASTER_PORT", "1")
        about: dict[str, Any] = {
            **{
                "path": str(tmp_path),
                "name": f"{PREFIX}x",
                "shared": True,
                "need_bytes": 8 * PAGE,
                "seen_s": 1.0,
            },
            **{"free_fraction": 0.5, "limit_s": 20.0, "seed": next(seeds)},
        }
        place = Directory(**(about | changes))

        def of(rank: int) -> list[Row]:
            world = World(rank, len(NAMES), 0, 1, NAMES[rank], NAMES)
            return in_ranks.run(work, place, repeat, world=world)

        with ThreadPoolExecutor(len(NAMES)) as pool:
            return [row for rows in pool.map(of, range(len(NAMES))) for row in rows]

    yield run
    assert not [*tmp_path.glob(f"{PREFIX}*")]


def values(rows: list[Row], metric: str) -> dict[str, Any]:
    return {one.node: one.value for one in rows if one.metric == metric}


@pytest.mark.parametrize("shared", [True, False])
def test_a_checkpoint_is_written_and_read(ranks: Callable[..., list[Row]], shared: bool) -> None:
    work = partial(in_ranks.checkpoint, tool="own", threads=2)
    rows = ranks(work, shared=shared)
    for metric in ("write", "read"):
        found = values(rows, metric)
        assert set(found) == set(NAMES)
        assert min(found.values()) > 0
    assert values(rows, "wrong pages") == dict.fromkeys(NAMES, 0)
    [alone] = values(ranks(partial(work, alone=True), repeat=4), "write alone")
    assert alone == "n1"


def test_small_files_and_random_reads(ranks: Callable[..., list[Row]]) -> None:
    rows = ranks(partial(in_ranks.small_files, files=20, threads=3))
    assert all(len(values(rows, step)) == 3 for step in ("create", "stat", "delete"))
    work = partial(in_ranks.random_reads, tool="own", threads=2, block_bytes=PAGE, duration_s=0.05)
    rows = ranks(work)
    assert values(rows, "wrong pages") == dict.fromkeys(NAMES, 0)
    assert min(values(rows, "random read").values()) > 0


def test_renames_and_replaced_files(ranks: Callable[..., list[Row]]) -> None:
    rows = ranks(partial(in_ranks.renames, rounds=3))
    seen = [(one.peer, one.node) for one in rows if one.metric == "renamed file seen"]
    assert sorted(seen) == [(a, b) for a in NAMES for b in NAMES if a != b]
    assert set(values(rows, "renamed file with other content").values()) == {0}
    rows = ranks(in_ranks.replaced)
    assert values(rows, "replaced file read on") == {"n1": "whole", "n2": "whole"}
    assert values(rows, "replaced file opened anew") == {"n1": "new", "n2": "new"}


def test_a_limit_that_nobody_keeps(ranks: Callable[..., list[Row]]) -> None:
    rows = ranks(partial(in_ranks.exceeded, limit_bytes=64 * PAGE))
    assert values(rows, "error of a checkpoint that exceeds the limit") == {"n0": "none"}
    assert values(rows, "checkpoint before it") == {"n0": "whole"}


EXCEEDED = """
import json
from pathlib import Path
from types import SimpleNamespace as Of
from pytest_mnode.criteria.storage import in_ranks
from pytest_mnode.criteria.storage.meeting import Directory
place = Directory("/mnt", "x", True, 0, 0.1, 1.0, 1.0, 7)
rows = in_ranks.exceeded(Path("/mnt"), Of(world=Of(rank=0)), place, LIMIT, repeat=0)
print(json.dumps({one.metric: one.value or one.why for one in rows}))
"""


@pytest.mark.parametrize(("size", "limit"), [("4m", 4 << 20), ("64m", 60 << 20)])
def test_a_full_file_system_is_an_error_and_no_loss(size: str, limit: int) -> None:
    """On a file system of this size, in namespaces of its own."""
    mount = f'mount -t tmpfs -o size={size} none /mnt && exec "$@"'
    words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    words += [sys.executable, "-c", EXCEEDED.replace("LIMIT", str(limit))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip("no user namespaces")
    found = json.loads(done.stdout)
    assert found.pop("error of a checkpoint that exceeds the limit").startswith("ENOSPC")
    assert found == {"checkpoint before it": "whole", "error of the next checkpoint": "none"}


def test_a_large_file_system_that_is_nearly_full_is_not_filled(
    ranks: Callable[..., list[Row]], monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = SimpleNamespace(f_blocks=1 << 20, f_bavail=64, f_frsize=PAGE)
    monkeypatch.setattr("os.statvfs", lambda _: volume)
    [found] = ranks(partial(in_ranks.exceeded, limit_bytes=64 * PAGE))
    assert (found.value, "would fill" in found.why) == (None, True)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"need_bytes": 1 << 60}, "of the"),
        ({"path": "/no/such"}, "ENOENT"),
    ],
)
def test_what_cannot_be_tried(
    ranks: Callable[..., list[Row]], changes: dict[str, Any], why: str
) -> None:
    """Also a path with too little room: nothing is written."""
    rows = ranks(in_ranks.replaced, **changes)
    found = [(one.node, one.why) for one in rows if one.metric == UNUSABLE]
    assert [node for node, _ in found] == ["n0"]
    assert why in found[0][1]


def test_an_error_of_one_rank_ends_the_wait_of_the_others(
    ranks: Callable[..., list[Row]],
) -> None:
    def work(made: Path, meeting: Any, place: Directory, *, repeat: int) -> Iterator[Row]:
        del made, place, repeat
        if meeting.world.rank == 1:
            raise OSError(5, "Input/output error")
        meeting.barrier()
        yield from ()

    [found] = ranks(work)
    assert (found.node, found.why) == ("n1", "EIO (input/output error)")


def test_ranks_that_never_come_are_not_awaited_for_ever(ranks: Callable[..., list[Row]]) -> None:
    def work(made: Path, meeting: Any, place: Directory, *, repeat: int) -> Iterator[Row]:
        del made, place, repeat
        if meeting.world.rank:
            meeting.barrier()
        yield from ()

    with pytest.raises(RuntimeError, match=r"did not come within 0\.2 s"):
        ranks(work, limit_s=0.2)


def test_many_ranks_ask_the_store_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    made: Any = meeting.Meeting.__new__(meeting.Meeting)
    made.world, made._name, made._limit_s = World(0, 64, 0, 8, "n0", ("n0",)), "m", 9.0
    made._store, paused = Store(), list[float]()

    def pause(seconds: float) -> None:
        paused.append(seconds)
        made._store.set("m/key", "text")

    monkeypatch.setattr("time.sleep", pause)
    assert made.hear("key") == "text"
    assert paused == [pytest.approx(64 * meeting._POLL_OF_A_RANK_S)]


def test_what_is_seen_late_is_awaited() -> None:
    looks = iter((False, True))
    assert meeting.until(lambda: next(looks), 60.0) is not None
    assert meeting.until(lambda: False, 0.0) is None


KEEPS = """
import sys, time
from pathlib import Path
from pytest_mnode.criteria.storage.meeting import guarded
with guarded(Path(sys.argv[1]), 60.0):
    open(sys.argv[1] + "/file", "w").write("x")
    print(flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_directory_goes_with_a_killed_rank(tmp_path: Path, number: int) -> None:
    made = tmp_path / "it's here"
    made.mkdir()
    with subprocess.Popen([sys.executable, "-c", KEEPS, str(made)], stdout=subprocess.PIPE) as rank:
        assert rank.stdout is not None
        rank.stdout.readline()
        assert made.exists()
        os.kill(rank.pid, number)
    until(lambda: not made.exists(), "it is removed")


def test_a_directory_that_a_lost_machine_left_is_removed(
    ranks: Callable[..., list[Row]], tmp_path: Path
) -> None:
    old, new = tmp_path / f"{PREFIX}old", tmp_path / f"{PREFIX}new"
    for one in (old, new):
        one.mkdir()
        (one / "file").touch()
    os.utime(old, (1, 1))
    ranks(in_ranks.replaced)
    assert (old.exists(), new.exists()) == (False, True)
    (new / "file").unlink()
    new.rmdir()


def test_a_removal_that_takes_long_is_left_to_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "GUARD", f"sleep 1; {meeting.GUARD}")
    made = tmp_path / "made"
    made.mkdir()
    with guarded(made, 0.1):
        pass
    assert made.exists()
    until(lambda: not made.exists(), "it is removed")
