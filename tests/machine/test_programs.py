"""Programs of other packages end at their limit, and with the reading that runs them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from pytest_mnode.machine import programs
from pytest_mnode.processes import has_ended
from tests.programs import write_program
from tests.waiting import soon, until

LATE = "no answer within 0.2 s"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def pid(folder: Path, name: str) -> int:
    until(lambda: (folder / name).exists() and (folder / name).read_text().endswith("\n"))
    return int((folder / name).read_text())


def test_what_it_prints(folder: Path) -> None:
    write_program(folder / "tool", "#!/bin/sh\necho one $1; echo two >&2; exit 3\n")
    assert programs.output_of("tool", "x", package="tools", may_fail=True) == "one x\n"
    with pytest.raises(OSError, match="tool: one x"):
        programs.output_of("tool", "x", package="tools")
    with pytest.raises(OSError, match="other is not installed: install tools"):
        programs.output_of("other", package="tools")


@pytest.mark.parametrize("polite", [True, False])
def test_one_that_is_late_ends_with_its_children(
    folder: Path, monkeypatch: pytest.MonkeyPatch, polite: bool
) -> None:
    monkeypatch.setattr(programs, "GRACE_S", 60.0 if polite else 0.2)
    trap = f"trap 'echo told >{folder}/told; exit' TERM" if polite else "trap '' TERM"
    text = f"#!/bin/sh\n{trap}\nsleep 60 & echo $! >{folder}/child\nwait\nwait\nsleep 60\n"
    write_program(folder / "tool", text)
    with soon(), pytest.raises(OSError, match=LATE):
        programs.output_of("tool", package="tools", limit_s=0.2)
    assert (folder / "told").exists() == polite
    until(lambda: has_ended(pid(folder, "child")))


def test_one_that_runs_ends_when_all_do(folder: Path) -> None:
    write_program(folder / "tool", f"#!/bin/sh\necho $$ >{folder}/pid\nexec sleep 60\n")
    thread = threading.Thread(target=lambda: ended.append(_why()))
    ended = list[str]()
    thread.start()
    running = pid(folder, "pid")
    programs.end_all()
    thread.join(9.0)
    assert has_ended(running)
    assert ended == ["tool: status -15"]


def _why() -> str:
    try:
        return programs.output_of("tool", package="tools", limit_s=60.0)
    except OSError as error:
        return str(error)
