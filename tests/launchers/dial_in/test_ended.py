"""What ends with a run whose nodes dial in, however the run ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_mnode.errors import ClusterError
from pytest_mnode.launchers.dial_in import bridge, node
from pytest_mnode.launchers.dial_in.bridge import DialBridge, DialSettings
from pytest_mnode.launchers.dial_in.connections import Keys
from pytest_mnode.launchers.dial_in.node import DialOrder
from tests.launchers.dial_in.sites import ONHOST, SITES, Make, each, programs_of
from tests.programs import write_program
from tests.waiting import until

CONTROLLER = """
import json, subprocess, sys
from pathlib import Path
from pytest_mnode.backends import NodeRequest
from pytest_mnode.backends.registry import named
from pytest_mnode.launchers.remote.launcher import RemoteOptions
from pytest_mnode.options import Settings
from pytest_mnode.spec import default_spec_path, load_spec

at = Path(sys.argv[1])
given = Settings(launcher="exec", exec=("onhost", "{host}"), hostfile=at / "hosts")
spec = load_spec(default_spec_path())
launcher = named("exec").launcher(NodeRequest(given, 2, spec, RemoteOptions(str(at / "run"), at)))
launcher.start()
# Below a child that has left its session, as a careless job's does.
command = ["sh", "-c", f"setsid sleep 300.5 & echo started; wait"]
started = [
    subprocess.Popen(c, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=launcher.env.command())
    for c in launcher.commands(launcher.nodes, command)
]
assert all(p.stdout.readline() == b"started\\n" for p in started)
print("ready", flush=True)
sys.stdin.read()
"""


def sleeping() -> list[int]:
    every = psutil.process_iter(["cmdline"])
    return [p.pid for p in every if p.info["cmdline"] == ["sleep", "300.5"]]


@pytest.mark.usefixtures("site_programs")
def test_nothing_is_left_of_a_controller_that_was_killed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    controller = subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with controller:
        assert controller.stdout is not None
        assert controller.stdout.readline() == "ready\n"
        until(lambda: len(sleeping()) == 2)
        assert programs_of(tmp_path / "run")
        controller.kill()
    until(lambda: not sleeping() and not programs_of(tmp_path / "run"))
    until(lambda: not (tmp_path / "run").exists() and not list(tmp_path.glob(".mnode-*")))


APART = ONHOST.replace("exec unshare", "exec setsid unshare")
"""The program of a node is of no process group or session of the site's command, as elsewhere."""


@pytest.mark.usefixtures("site_programs")
def test_nodes_are_told_to_end(make: Make, tmp_path: Path) -> None:
    write_program(tmp_path / "bin/onhost", APART + "\n")
    write_program(tmp_path / "bin/site", '#!/bin/sh\nonhost "$@" & exit 0\n')
    options = {"exec": ("site", "{host}"), "hostfile": tmp_path / "hosts"}
    launcher = make("exec", silence_limit_s=500.0, **options)
    launcher.start()
    assert [output for _, output, _ in each(launcher, "hostname")] == ["n1\n", "n2\n"]
    launcher.close()
    until(lambda: not programs_of(tmp_path))


@pytest.mark.usefixtures("site_programs")
def test_a_node_that_hears_nothing_ends(make: Make, tmp_path: Path) -> None:
    """As after a loss of this machine."""
    write_program(tmp_path / "bin/onhost", APART)
    launcher = make("exec", hostfile=tmp_path / "hosts", silence_limit_s=2.0, **SITES["exec"])
    launcher.start()
    [pid] = programs_of(tmp_path / "run/bridge.json")
    os.kill(pid, signal.SIGKILL)
    until(lambda: not programs_of(tmp_path / ".mnode-"))


@pytest.mark.usefixtures("site_programs")
def test_what_a_killed_command_leaves_ends_with_its_node(make: Make, tmp_path: Path) -> None:
    launcher = make("exec", hostfile=tmp_path / "hosts", **SITES["exec"])
    launcher.start()
    each(launcher, f"setsid sleep 300.5 & touch {tmp_path}/$$.left; kill -9 $PPID; wait")
    until(lambda: len(list(tmp_path.glob("*.left"))) == 2)
    until(lambda: not sleeping())
    launcher.close()


def test_a_sites_command_that_stays_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge, "ENDS_S", 0.2)
    monkeypatch.setattr(bridge, "TERM_S", 0.2)
    commands = [["sleep", "300"], ["sh", "-c", "trap '' TERM; sleep 300; sleep 300"]]
    made = DialBridge(DialSettings((), 1, commands, "", 5.0, 5.0, 5.0, {}), tmp_path)
    for command in commands:
        made.launch(command)
    until(lambda: all(psutil.Process(p.pid).name() in ("sleep", "sh") for p in made.programs))
    made.nodes.take("n1", lambda _: None)
    made.end()
    assert [p.poll() for p in made.programs] == [-signal.SIGTERM, -signal.SIGKILL]


@pytest.mark.parametrize(
    ("commands", "strangers", "message"),
    [
        (["true"], [], "n[1-3] did not dial in: true ended with 0"),
        (["true", "sleep 300", "sleep 300"], [], "n1 did not dial in: true ended with 0"),
        (["sleep 300", "ls --bad"], [], "n[1-3] did not dial in: ls ended with 2: ls: unrec"),
        (["sleep 300", "sleep 300"], [], "n[1-3] did not dial in: within 0.8 s; raise"),
        (["sleep 300"], ["c17", "c18"], "slow; dialed in, but not in the list: c[17-18]"),
    ],
    ids=lambda value: value[0].partition(" ")[0] if isinstance(value, list) and value else "",
)
def test_why_nodes_are_missing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    commands: list[str],
    strangers: list[str],
    message: str,
) -> None:
    """A command may end well without having started anything, as pbsdsh does."""
    monkeypatch.setattr(bridge, "ENDED_S", 0.2)
    start_s = 0.8 if all(one.startswith("sleep") for one in commands) else 60.0
    split = [one.split() for one in commands]
    made = DialBridge(
        DialSettings(("n1", "n2", "n3"), 3, split, "", start_s, 5.0, 5.0, {}), tmp_path
    )
    made.strangers += strangers
    for command in split:
        made.launch(command)
    here = ("n2", "n3") if len(commands) == 3 else ()
    for name in here:
        made.nodes.take(name, lambda _: None)
    try:
        with pytest.raises(ClusterError) as caught:
            asyncio.run(made.await_nodes())
    finally:
        made.at.clear()
        made.end()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("command", "comes", "within_s", "why"),
    [
        ("sleep 300", True, 60.0, ""),
        ("sleep 300", False, 0.2, "n1 did not dial in: within 0.2 s"),
        ("ls --bad", False, 60.0, "n1 did not dial in: ls ended with 2"),
    ],
)
def test_a_node_whose_program_is_started_again_is_awaited(
    tmp_path: Path, command: str, comes: bool, within_s: float, why: str
) -> None:
    made: Any = DialBridge(DialSettings(("n1",), 1, [["true"]], "", 5.0, 5.0, 5.0, {}), tmp_path)
    made.nodes.take("n1", lambda _: None)
    reads = iter(range(10**6))

    def read() -> None:
        if next(reads) == 2 and comes:
            made.nodes.take("n1", lambda _: None)

    made._read = read
    try:
        found = asyncio.run(made.open("n1", command.split(), within_s))
        [program] = made.programs
        assert (found.startswith(why), bool(found), "n1" in made.at) == (True, bool(why), comes)
        if why:
            program.wait(60)
        else:
            assert program.poll() is None
    finally:
        made.at.clear()
        made.end()


def test_a_bridge_whose_task_fails_ends(tmp_path: Path) -> None:
    made = DialBridge(
        DialSettings(("n1",), 1, [["sleep", "300"]], "", 60.0, 5.0, 5.0, {}), tmp_path
    )
    failed = OSError("no beat")

    def beat() -> None:
        raise failed

    made.nodes.look = beat  # type: ignore[method-assign]
    with pytest.raises(OSError, match="no beat"):
        asyncio.run(made.serve(tmp_path / "socket"))
    made.end()


def test_the_reason_comes_before_an_end_that_no_signal_cuts_short(tmp_path: Path) -> None:
    stays = ["sh", "-c", "trap '' TERM; sleep 300.5; sleep 300.5"]
    settings = DialSettings(("n1", "n2"), 2, [stays, ["ls", "--bad"]], "", 60.0, 5.0, 5.0, {})
    (tmp_path / "settings").write_text(json.dumps(asdict(settings)))
    argv = [sys.executable, "-m", bridge.__name__, f"{tmp_path}/settings", f"{tmp_path}/socket"]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as program:
        assert program.stderr is not None
        assert program.stderr.readline().startswith(
            "n2 did not dial in: ls ended with 2: ls: unrec"
        )
        assert program.poll() is None
        program.send_signal(signal.SIGTERM)
        assert program.stderr.read() == ""
    assert program.returncode == 1
    assert not sleeping()


def test_an_address_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        address = server.getsockname()
        full = [socket.socket() for _ in range(4)]
        for one in full:
            one.setblocking(False)
            one.connect_ex(address)
        with pytest.raises(SystemExit, match=r"cannot connect to port .*: 127\.0\.0\.1: timed out"):
            node.way_to(DialOrder((address[0],), address[1], Keys("a", "b", "c"), 5.0, 0.2))
        for one in full:
            one.close()
