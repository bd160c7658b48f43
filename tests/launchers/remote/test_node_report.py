"""Reports of nodes about themselves before use, and descriptions of problems."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from pytest_mnode.errors import ClusterError, UsageError
from pytest_mnode.launchers.node import CommandResult
from pytest_mnode.launchers.remote import node_report
from pytest_mnode.launchers.remote.node_report import Here, NodeReport
from pytest_mnode.launchers.remote.run_all import unusable_nodes, why_no_report
from pytest_mnode.launchers.remote.shared_dir import SharedDir

PYTHON = "--mnode-python"
OURS = Here("3.11.9", "0.1.0", "c0de")
WELL = NodeReport(
    hostname="n1",
    python="3.11.2",
    executable="/usr/bin/python3",
    directory=True,
    token="t",
    version="0.1.0",
    code="c0de",
    package_dir="/lib/pytest_mnode",
    missing=None,
    networks={"lo": ("127.0.0.1",), "fab0": ("10.0.0.1",), "fab1": ("10.0.1.1",), "fab2": ()},
    connection="10.7.0.9 40000 10.7.0.1 22",
    boot=None,
)


def test_a_healthy_node() -> None:
    assert node_report.problem(WELL, OURS, "/work") is None
    assert WELL.reached_at == "10.7.0.1"
    assert replace(WELL, connection="").reached_at is None


@pytest.mark.parametrize(
    ("connection", "address"),
    [
        ("fd00::9 5 fd00::1 22", "fd00::1"),
        ("fe80::9%eth0 5 fe80::1%eth0 22", "fe80::1"),
        ("UNKNOWN 65535 UNKNOWN 65535", None),
        ("10.0.0.9 5 0.0.0.0 22", None),
        ("10.0.0.9 5 :: 22", None),
        ("10.0.0.9 5 [::] 3022", None),
    ],
)
def test_the_address_that_ssh_connected_to(connection: str, address: str | None) -> None:
    assert replace(WELL, connection=connection).reached_at == address


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"missing": "No module named 'x'", "version": None},
            ("/python3", "No module named", PYTHON),
        ),
        ({"python": "3.12.1"}, ("3.12.1", "3.11.9", PYTHON)),
        ({"version": "0.0.9"}, ("0.0.9", "0.1.0 on the controller", "/lib/pytest_mnode")),
        ({"code": "beef"}, ("code differs", "/lib/pytest_mnode")),
        ({"directory": False}, ("no directory /work,",)),
    ],
)
def test_each_problem_is_one_line(change: dict[str, object], words: tuple[str, ...]) -> None:
    problem = node_report.problem(replace(WELL, **change), OURS, "/work")  # type: ignore[arg-type]
    assert problem is not None
    assert "\n" not in problem
    assert [word for word in words if word not in problem] == []


def test_the_report_of_this_machine(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    done = subprocess.run(
        node_report.argv(sys.executable, token, str(tmp_path)),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    look = node_report.read(f"Welcome!\n{done.stdout}Bye\n")
    assert look is not None
    assert node_report.problem(look, node_report.here(), str(tmp_path)) is None
    assert (look.token, look.directory) == ("secret", True)
    assert look.networks is not None
    assert "127.0.0.1" in look.networks["lo"]
    assert look.boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@pytest.mark.parametrize("text", ["", "hello", "mnode-report {", 'mnode-report {"hostname": "x"}'])
def test_an_unreadable_value_counts_as_absent(text: str) -> None:
    assert node_report.read(text) is None


@pytest.mark.parametrize(
    ("kind", "patterns", "found"),
    [
        ("ethernet", ["fab0"], "fab0"),
        ("ethernet", ["fab*"], "fab0,fab1"),
        ("ethernet", ["eth0"], None),
        ("infiniband", ["fab0"], None),
    ],
)
def test_the_interfaces_of_a_fabric(kind: str, patterns: list[str], found: str | None) -> None:
    assert node_report.fabric_interface(WELL, kind, patterns) == found


NO_PYTHON = "Python did not start on the node (status 127: not found)"
REMEDY = f"{NO_PYTHON}; name the Python of the nodes with {PYTHON}"


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        (CommandResult("n1", None, "", "", 0.1), "no answer within 60 s"),
        (CommandResult("n1", 255, "", "n1: Connection refused\n", 0.1), "Connection refused"),
        (CommandResult("n1", 1, "", "", 0.1), "it printed nothing"),
        (CommandResult("n1", 255, "", f"n1: {NO_PYTHON}\n", 0.1), REMEDY),
    ],
)
def test_reasons_of_silent_nodes(asked: CommandResult, line: str) -> None:
    assert why_no_report(asked, 60.0) == line


def test_every_node_has_a_line() -> None:
    error = unusable_nodes({"n1": "a", "n3": "b"}, 4, "ssh")
    assert str(error) == "ssh: 2 of 4 nodes cannot be used:\n  n1: a\n  n3: b"


def test_of_many_nodes_every_reason_has_its_line() -> None:
    problems = {f"n{n}": "down" if n % 2 else "no python" for n in range(512)}
    problems |= {f"p-{n * 7919}x": "0/9 nodes are available" for n in range(100)}
    text = str(unusable_nodes(problems, 900, "kubernetes"))
    assert text.startswith("kubernetes: 612 of 900 nodes cannot be used:\n  ")
    assert len(text) < 1000
    assert "\n  n0, n2, n4, n6, and 252 more: no python" in text
    even = str(unusable_nodes({f"n{n}": "down" for n in range(512)}, 512, "slurm"))
    assert even == "slurm: 512 of 512 nodes cannot be used:\n  n[0-511]: down"
    every = str(unusable_nodes({f"n{n}": f"why {n}" for n in range(100)}, 100, "ssh"))
    assert every.endswith("\n  n31: why 31\n  and 68 more reasons")


def test_a_directory_shared_by_all_nodes_is_kept(tmp_path: Path) -> None:
    shared = SharedDir(None, tmp_path)
    seen = replace(WELL, token=shared.token.read_text())
    assert shared.settle({"n1": seen, "n2": seen}) == shared.directory
    shared.remove()
    assert not list(tmp_path.iterdir())


def test_a_directory_named_by_the_user_must_be_shared(tmp_path: Path) -> None:
    shared = SharedDir(tmp_path / "new", tmp_path)
    stale = replace(WELL, token="another run's")
    with pytest.raises(ClusterError, match=r"--mnode-shared-dir=.*new: n2 does not see what this"):
        shared.settle({"n2": stale})
    assert not list((tmp_path / "new").iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"--mnode-shared-dir=.*file/below: Not a"):
        SharedDir(tmp_path / "file" / "below", tmp_path)


def test_an_unwritable_directory_is_not_used() -> None:
    shared = SharedDir(None, Path("/proc"))
    assert shared.directory is None
    assert shared.settle({"n1": WELL}) is None


def test_a_directory_of_the_user_on_a_full_disk_is_named_and_left_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(Path, "write_text", Mock(side_effect=full))
    with pytest.raises(UsageError, match=r"^--mnode-shared-dir=.*: No space left"):
        SharedDir(tmp_path, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_command_as_a_node_runs_it() -> None:
    ours = Path(node_report.__file__)
    argv = [sys.executable, "-S", str(ours), "x", f"{ours}-not"]
    theirs = "/opt/lib/pytest_mnode/launchers/remote/node_report.py"
    there = node_report.as_there(argv, "/opt/python", "/opt/lib/pytest_mnode")
    assert there == ["/opt/python", "-S", theirs, "x", f"{theirs}-not"]
    cat = ["cat", sys.executable]
    assert node_report.as_there(argv, sys.executable, "") == argv
    assert node_report.as_there(cat, "/opt/python", "") == cat
