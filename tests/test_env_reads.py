"""Reads of torchrun's variables while pytest collects, and the files they are attributed to."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_mnode.env_reads import READS, EnvReads
from tests.inner import run_here


@pytest.fixture
def reads() -> Iterator[EnvReads]:
    READS.clear()
    READS.start()
    yield READS
    READS.stop()
    READS.clear()


@pytest.mark.parametrize(
    "read",
    [
        lambda: os.environ.get("RANK"),
        lambda: os.getenv("RANK", "-1"),
        lambda: "RANK" in os.environ,
        lambda: os.environb.get(b"RANK"),
        lambda: os.environ.setdefault("RANK", "0"),
        lambda: os.environ.pop("RANK", None),
    ],
)
def test_every_way_to_read_is_seen(reads: EnvReads, read: object) -> None:
    file = Path(__file__)
    with pytest.MonkeyPatch.context() as patch, reads.collecting(file):
        patch.setenv("RANK", "3")
        read()  # type: ignore[operator]
    assert "RANK" in reads.of(file)
    assert not reads.of(file.with_name("test_other.py"))


def test_copies_of_the_environment(reads: EnvReads) -> None:
    with reads.collecting(Path(__file__)):
        subprocess.run([sys.executable, "-c", ""], env=os.environ.copy(), check=True)
    assert reads.of(Path(__file__)) == ["os.environ"]


def test_other_reads_are_none(reads: EnvReads) -> None:
    with reads.collecting(Path(__file__)):
        os.environ.get("PATH")
        subprocess.run([sys.executable, "-c", ""], check=True)
    assert not reads.of(Path(__file__))


def test_a_read_by_a_shared_module_is_of_all_files(
    reads: EnvReads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "of_all_files.py").write_text("import os\nRANK = os.getenv('RANK')")
    monkeypatch.syspath_prepend(tmp_path)
    importer, other = tmp_path / "test_importer.py", tmp_path / "test_other.py"
    with reads.collecting(importer):
        __import__("of_all_files")
    assert reads.alone(importer) == reads.of(importer) == reads.of(other) == ["RANK"]
    assert reads.alone(other) == []
    assert reads.modules == {"of_all_files"}


def test_the_environment_is_not_watched_after_collection(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import os\ndef test_it(): assert type(os.environ) is os._Environ")
    assert run_here(pytester).outcomes() == {"test_it": "passed"}
