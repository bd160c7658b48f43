"""After a kill everything that is left is seen, and only a report that names the victim is one."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from benchmarks.apart import NAMESPACES
from benchmarks.kills import Row, is_named, table_of
from tests.inner import need_rack

ROOT = Path(__file__).resolve().parents[2]
LEAVES = """
    import os, socket, subprocess, sys, time
    from pathlib import Path
    from types import SimpleNamespace
    from pyroute2 import IPRoute
    from benchmarks import apart, kills

    apart.loopback_up()
    run = SimpleNamespace(tmp=Path(sys.argv[1]), daemons={4194999})
    before = kills.mounts()
    assert kills.left(run, before) == [], kills.left(run, before)
    sleeping = subprocess.Popen(["sleep", "60"])
    (run.tmp / "mnode-1").touch()
    listening = socket.create_server(("127.0.0.1", 4321))
    with IPRoute() as network:
        network.link("add", ifname="fab0", kind="veth", peer="fab1")
    subprocess.run(["mount", "-t", "tmpfs", "here", sys.argv[1]], check=True)
    (run.tmp / "mnode-2").touch()
    Path("/dev/shm/mnode-3").touch()
    print(*kills.left(run, before), sep="\\n")
"""


def test_everything_that_is_left_is_seen(tmp_path: Path) -> None:
    need_rack()
    inside = ["sh", "-c", 'mount -t tmpfs tmpfs /dev/shm; "$@"; exit $?', "sh"]
    done = subprocess.run(
        [*NAMESPACES, *inside, sys.executable, "-c", textwrap.dedent(LEAVES), str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert any(line.startswith("process ") and line.endswith(" sleep") for line in lines)
    assert f"file {tmp_path}/mnode-2" in lines
    assert "file /dev/shm/mnode-3" in lines
    assert "interface fab0" in lines
    assert "port 4321" in lines
    assert any(line.startswith("mount ") and str(tmp_path) in line for line in lines)


@pytest.mark.parametrize(
    ("kind", "name", "code", "output", "named"),
    [
        ("rank", "rank 1", 1, "= FAILURES\nrank 1 of 2 on node1: killed by SIGKILL", True),
        ("rank", "rank 1", 1, "rank 1 of 2\n= FAILURES\nsomething failed", False),
        ("elastic", "node1", 1, "= FAILURES\nlost node0", False),
        ("controller", "", -9, "", True),
        ("controller", "", 0, "", False),
        ("agent", "", 1, "= FAILURES\nnode0 … node1: its agent killed by SIGKILL", True),
        ("rack", "", 1, "mnode: launcher rack\n= ERRORS\nnode0: its agent was killed", False),
        ("rack", "", 1, "= ERRORS\nnode0: lost: the rack's first process ended", True),
    ],
)
def test_what_names_a_victim(kind: str, name: str, code: int, output: str, named: bool) -> None:
    assert is_named(kind, name, signal.SIGKILL, code, output) == named


def test_the_table_counts_outcomes_by_kind() -> None:
    rows = [
        Row(0, "rank 1", "SIGKILL", 1.0, "named", 9.0, ""),
        Row(1, "rank 0", "SIGTERM", 1.0, "hung", 99.0, "hung"),
        Row(2, "job node1", "SIGKILL", 1.0, "unharmed", 5.0, ""),
    ]
    cells = {line.split()[0]: line.split()[1:] for line in table_of(rows, 1).splitlines() if line}
    assert cells["rank"] == ["2", "1", "0", "0", "1", "99"]
    assert cells["job"] == ["1", "0", "1", "0", "0", "5"]
    assert cells["all"] == ["3", "1", "1", "0", "1", "99"]
