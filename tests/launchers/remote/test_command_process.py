"""The processes below a command, of which some end meanwhile."""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.launchers.remote import command_process

NO_PROCESS = 2**22 + 1
"""Above the largest pid."""


@pytest.fixture
def child() -> Iterator[int]:
    with subprocess.Popen(["sleep", "60"]) as started:
        yield started.pid
        started.kill()


def test_a_thread_that_ends_hides_no_child_of_another(
    child: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = str(os.getpid())
    tasks = {f"/proc/{own}/task": [str(NO_PROCESS), own], f"/proc/{child}/task": [str(child)]}
    monkeypatch.setattr(os, "listdir", lambda path: tasks.get(path, []))
    assert child in command_process.descendants(os.getpid())


def test_a_process_that_ends_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.getpid()
    ended = OSError("it has ended")
    tasks: dict[str, Any] = {"101": ended, "102": ["102"], "103": ended, str(own): [str(own)]}

    def listdir(path: str) -> list[str]:
        found: list[str] | OSError = tasks[path.split("/")[2]]
        if isinstance(found, OSError):
            raise found
        return found

    children = {str(own): "101 102 ", "102": "103 "}

    def read(path: str) -> io.StringIO:
        if path.endswith("/comm"):
            raise OSError("none is of a port")
        return io.StringIO(children[path.split("/")[2]])

    monkeypatch.setattr(os, "listdir", listdir)
    monkeypatch.setattr(command_process, "open", read, raising=False)
    assert command_process.descendants(own) == [101, 102, 103]


def test_what_is_below_others_is_left_out(child: int, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {os.getpid(): [NO_PROCESS, child], NO_PROCESS: [], child: [NO_PROCESS + 1]}
    monkeypatch.setattr(command_process, "CHILDREN", "/none")
    monkeypatch.setattr(command_process, "children_by_parent", lambda: known)
    found = command_process.descendants(os.getpid(), but=[NO_PROCESS])
    assert found == [child, NO_PROCESS + 1]


def test_all_children_of_a_process_are_listed_without_the_kernels_help(child: int) -> None:
    with subprocess.Popen(["sleep", "60"]) as second:
        found = command_process.children_by_parent()[os.getpid()]
        second.kill()
    assert {child, second.pid} <= set(found)


def test_what_restores_a_port_ends_by_itself() -> None:
    name = Path("/proc/self/comm")
    before = name.read_text()
    assert command_process.may_be_killed(os.getpid())
    name.write_text("mnode-port")
    try:
        assert not command_process.may_be_killed(os.getpid())
    finally:
        name.write_text(before)
    assert command_process.may_be_killed(NO_PROCESS), "it has ended"
