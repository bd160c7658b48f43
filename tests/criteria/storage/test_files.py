"""The suite's own writer: what it wrote is read back, and other content is told."""

from __future__ import annotations

import contextlib
import shutil
import sys
import textwrap
from pathlib import Path

import pytest

from pytest_mnode.criteria.storage import files, tools
from pytest_mnode.criteria.storage.files import BLOCK, PAGE
from tests.programs import write_program

SIZE = BLOCK + 3 * PAGE


@pytest.fixture
def written(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "one", tmp_path / "two"]
    moved = files.write_all(paths, SIZE, [5, 6])
    assert (moved.size_bytes, moved.error) == (2 * SIZE, "")
    return paths


def test_what_was_written_is_read(written: list[Path]) -> None:
    found = files.read_all(written, SIZE, [5, 6])
    assert (found.size_bytes, found.wrong, found.error) == (2 * SIZE, 0, "")
    some = files.read_at_random(written, SIZE - 3 * PAGE, [5, 6], 4 * PAGE, 0.05)
    assert some.size_bytes > 0
    assert (some.wrong, some.error) == (0, "")


def test_pages_of_another_run_misplaced_missing_or_zero_are_counted(written: list[Path]) -> None:
    pages = SIZE // PAGE
    assert files.read_all(written, SIZE, [5, 7]).wrong == pages
    with written[0].open("r+b") as file:
        first = file.read(PAGE)
        file.seek(2 * PAGE)
        file.write(first)  # of another place
        file.write(bytes(PAGE))
    assert files.read_all(written, SIZE, [5, 6]).wrong == 2
    with written[1].open("r+b") as file:
        file.truncate(SIZE - 5 * PAGE)
    assert files.read_all(written, SIZE, [5, 6]).wrong == 7


def test_equal_content_is_never_written_twice(written: list[Path]) -> None:
    every = [path.read_bytes() for path in written]
    pages = {data[at : at + PAGE] for data in every for at in range(0, SIZE, PAGE)}
    assert len(pages) == 2 * SIZE // PAGE


@pytest.mark.parametrize("tool", ["own", "fio", "elbencho"])
def test_errors_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = tools.move(tool, "write", [tmp_path / "no" / "file"], PAGE, [1], 5.0)
    assert found.error.startswith("ENOENT")


FIO = """
    import json, sys
    kind = next(word[5:] for word in sys.argv if word.startswith("--rw="))
    assert "--name=global" in sys.argv and "--direct=1" in sys.argv
    part = {"io_bytes": 4096, "io_kbytes": 4, "bw_bytes": 2048, "runtime": 2000, "total_ios": 1}
    job = {"jobname": "file0", "error": 0, "write" if kind == "write" else "read": part}
    print("fio: note: a warning")
    print(json.dumps({"fio version": "fio-3.33", "jobs": [job]}))
"""
ELBENCHO = """
    import sys
    where = next(word.partition("=")[2] for word in sys.argv if word.startswith("--csvfile="))
    name = "WRITE" if "--write" in sys.argv else "READ"
    labels = "operation,time ms [last],MiB/s [last],MiB [last]"
    open(where, "w").write(f"{labels}\\n{name},2000,3,6\\n")
"""
HANGS = "import time; time.sleep(60)"
FULL = "No space left on device"
FIO_FULL = """
    import json
    job = {"jobname": "file0", "error": 28, "write": {"io_bytes": 4096}}
    print(json.dumps({"fio version": "fio-3.33", "jobs": [job]}))
"""


@pytest.mark.parametrize(
    ("tool", "program", "expected"),
    [
        ("fio", FIO, (4096, 2.0, "")),
        ("elbencho", ELBENCHO, (6 * 2**20, 2.0, "")),
        ("fio", "raise SystemExit(3)", (0, 0.0, "fio: it printed no JSON")),
        ("elbencho", "raise SystemExit('ERROR: no')", (0, 0.0, "elbencho: ERROR: no")),
        ("fio", FIO_FULL, (0, 0.0, f"ENOSPC fio: {FULL}")),
        (
            "elbencho",
            f"raise SystemExit('ERROR: {FULL}')",
            (0, 0.0, f"ENOSPC elbencho: ERROR: {FULL}"),
        ),
        (
            "elbencho",
            "raise SystemExit('ERROR: No such device or address')",
            (0, 0.0, "ENXIO elbencho: ERROR: No such device or address"),
        ),
        ("fio", HANGS, (0, 0.0, "fio did not end within 1 s")),
    ],
)
@pytest.mark.parametrize("kind", ["write", "read"])
def test_programs_on_the_path(  # noqa: PLR0917  a table
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tool: str,
    program: str,
    expected: tuple[int, float, str],
    kind: str,
) -> None:
    write_program(tmp_path / tool, f"#!{sys.executable}\n{textwrap.dedent(program)}")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tools.installed() == [tool]
    limit_s = 1.0 if program == HANGS else 30.0
    found = tools.move(tool, kind, [tmp_path / "file"], 4096, [1], limit_s)
    assert (found.size_bytes, found.time_s, found.error) == expected
    assert found.how == f"O_DIRECT by {tool}"


def test_programs_leave_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_program(tmp_path / "fio", "#!/bin/sh\ntouch left-by-fio\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    tools.move("fio", "write", [tmp_path / "file"], PAGE, [1], 30.0)
    assert [path.name for path in tmp_path.iterdir()] == ["fio"]


@pytest.fixture
def fio(tmp_path: Path) -> None:
    """Skips without fio, and where it may not open files past the page cache."""
    if shutil.which("fio") is None:
        pytest.skip("fio is not installed")
    if "Invalid argument" in tools.move("fio", "write", [tmp_path / "any"], PAGE, [1], 30.0).error:
        pytest.skip("O_DIRECT is refused here")


@pytest.mark.usefixtures("fio")
def test_fio_moves_what_it_is_asked_to(tmp_path: Path) -> None:
    paths = [tmp_path / "a, b:c d", tmp_path / "other"]
    for kind in ("write", "read"):
        found = tools.move("fio", kind, paths, 2 * BLOCK, [1, 2], 30.0)
        assert (found.size_bytes, found.error) == (2 * 2 * BLOCK, "")
        assert found.time_s > 0
    some = tools.read_at_random("fio", paths, 2 * BLOCK, [1, 2], PAGE, 1.0, 30.0)
    assert (some.error, some.size_bytes > 0) == ("", True)


@pytest.mark.usefixtures("fio")
def test_fio_that_is_given_up_leaves_no_process(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert not tools.move("fio", "write", [path, tmp_path / "two"], BLOCK, [1, 2], 30.0).error
    found = tools.read_at_random("fio", [path, tmp_path / "two"], BLOCK, [1, 2], PAGE, 60.0, 1.0)
    assert "did not end within 1 s" in found.error
    commands = (one.joinpath("cmdline") for one in Path("/proc").glob("[0-9]*"))
    left = []
    for one in commands:
        with contextlib.suppress(OSError):
            left += [one] * (f"--filename={path}".encode() in one.read_bytes())
    assert not left
