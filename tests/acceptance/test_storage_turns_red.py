"""The storage criterion on nodes with one fault each: the case fails, and names the node."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.certified import Certified, certify, spec_of
from tests.red import turns_red

SLOW = """
    import threading
    import time
    from socket import gethostname

    from pytest_mnode.criteria.storage import files, in_ranks

    def late(what, each_s):
        def call(*args, **named):
            if gethostname() == "node2":
                time.sleep(each_s)
            return what(*args, **named)
        return call

    files.write_block = late(files.write_block, 0.4)
    files.read_block = late(files.read_block, 0.4)
    in_ranks._each = late(in_ranks._each, 0.4)
    calls = in_ranks._all_reduces

    def disturbed(size_bytes, is_over):
        def after_a_while():
            if any(one.name == "mnode-writer" for one in threading.enumerate()):
                time.sleep(0.05)
            return is_over()
        return calls(size_bytes, after_a_while)

    in_ranks._all_reduces = disturbed
"""
"""A node each of whose transfers takes long, and all-reduces that take long beside them."""


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that all nodes see, on a disk: not in /dev/shm, of which each has its own."""
    with tempfile.TemporaryDirectory(prefix="shared-", dir="/tmp") as made:
        yield Path(made)


def storage(
    directory: Path, path: Path, promise: dict[str, Any], *args: str, fault: str | None = None
) -> Certified:
    """acceptance/test_storage.py with these promises of one path."""
    criteria = {"storage": {"tool": "own", "paths": {str(path): promise}}}
    spec = spec_of(directory, criteria=criteria)
    return certify(directory, spec, *args, fault=fault, files=["test_storage.py"])


@turns_red(
    "storage",
    "test_checkpoints_are_written_and_read_in_time",
    "test_all_nodes_at_once_are_as_fast_as_each_alone",
    "test_small_files_are_handled_in_time",
    "test_random_reads_are_fast",
    "test_storage_and_collectives_leave_each_other_their_rates",
)
def test_a_slow_node_is_named(tmp_path: Path, shared: Path) -> None:
    point = {
        **{"size": "1 MiB", "threads": 1, "write_at_least": "1 GB/s", "read_at_least": "1 GB/s"},
        **{"peers_at_least_fraction": 0.3, "together_at_least_fraction": 0.9, "repeats": 5},
    }
    promise = {
        "checkpoint": point,
        "small_files": {"files": 20, "threads": 1, "create_at_least": 1000},
        "random_reads": {"size": "1 MiB", "threads": 1, "for": "0.1 s", "at_least": "100 GB/s"},
        "beside_collectives": {"size": "4 KiB", "collective_loss_at_most": 0.5},
    }
    done = storage(tmp_path, shared, promise, fault=SLOW)
    failed = done.failed("storage")
    slow = {name: who for name, who in failed.items() if not who.startswith(f"{shared} (")}
    assert {who.partition(" (")[0] for who in slow.values()} == {f"node2 {shared}"}
    assert len(slow) == 8
    assert set(failed) - set(slow) == {
        f"{shared}: loss of the all-reduces' rate beside a checkpoint"
    }


@turns_red(
    "storage",
    "test_renamed_files_are_seen_in_time",
    "test_locks_exclude_other_nodes",
    "test_a_replaced_file_stays_readable",
)
def test_a_node_that_keeps_its_own_view_is_named(tmp_path: Path, shared: Path) -> None:
    promise = {"renamed_within": "0.5 s", "locks": ["flock", "fcntl"], "replaced_files": "readable"}
    fault = f"--mnode-fault=own_view:node2:{shared}"
    done = storage(tmp_path, shared, promise, fault)
    failed = done.failed("storage")
    assert {who.partition(" (")[0] for who in failed.values()} == {f"node2 {shared}"}
    assert len(failed) == 4


@turns_red("storage", "test_a_full_file_system_is_an_error_and_no_loss")
def test_a_path_of_its_own_and_a_limit_that_nobody_keeps_are_named(
    tmp_path: Path, shared: Path
) -> None:
    promise = {"renamed_within": "0.5 s", "limit": "1 MiB"}
    done = storage(tmp_path, shared, promise)
    unlimited = {f"{shared}: checkpoints beyond the limit without an error"}
    assert set(done.failed("storage")) == unlimited
    done = storage(tmp_path, shared, promise, f"--mnode-fault=full_disk:node2:{shared}")
    [who] = done.failed("storage").values()
    assert who.startswith(f"node2 {shared} (does not see")


FULL = """
    import errno
    from socket import gethostname

    from pytest_mnode.criteria.storage import files

    write, blocks = files.write_block, [0]

    def filled(*args, **named):
        blocks[0] += 1
        if gethostname() == "node2" and blocks[0] > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(*args, **named)

    files.write_block = filled
"""
"""A node whose file system is full in the middle of a checkpoint."""


@turns_red("storage", "test_checkpoints_are_written_and_read_in_time")
def test_a_file_system_that_is_full_in_the_middle_is_named(tmp_path: Path, shared: Path) -> None:
    point = {"size": "16 MiB", "threads": 1, "write_at_least": "1 MB/s", "repeats": 3}
    done = storage(tmp_path, shared, {"checkpoint": point}, "-k", "written_and_read", fault=FULL)
    [(name, who)] = done.failed("storage").items()
    assert "transfers that ended in an error" in name
    assert who.startswith(f"node2 {shared} (write: ENOSPC"), "nobody else is to blame"
    found = done.measurements("storage")
    for what in ("checkpoint, write by all nodes together", "pages with other content than was"):
        [one] = [one for name, one in found.items() if what in name]
        assert one["verdict"] == "inconclusive", done.run.output
        assert "ENOSPC (no space left on device)" in one["note"]
