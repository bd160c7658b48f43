"""Power of nodes: the spec's commands, and recovered nodes."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from pytest_mnode import processes
from pytest_mnode.errors import ClusterError, NodeLostError, SpecError
from pytest_mnode.launchers import power
from pytest_mnode.launchers.local import Local
from pytest_mnode.launchers.node import Node
from pytest_mnode.launchers.power import recover
from pytest_mnode.protocol.launcher_requests import LauncherRequest, PowerOn
from pytest_mnode.spec import Spec, default_spec_path, load_spec
from pytest_mnode.spec.inventory import Power
from tests.waiting import until

NODE = Node("n1", 0, "10.0.0.1")


def section_of(off: str, on: str, limit: str = "60 s") -> Power:
    page = {"switch_off": off, "switch_on": on, "command_within": limit}
    return Power.model_validate(page)


def spec_with(directory: Path, section: str) -> Spec:
    """The default spec with this power section."""
    page = directory / "spec.yaml"
    page.write_text(f"{default_spec_path().read_text()}\npower: {section}\n")
    return load_spec(page)


def test_the_node_is_named_in_the_command(tmp_path: Path) -> None:
    section = section_of(f"touch '{tmp_path}/off {{node}}'", "true {node}")
    assert power.switch(section, "off", NODE) is section
    assert (tmp_path / "off n1").exists()
    assert power.argv("bmc -H {node}-bmc 'a b'", "n1") == ["bmc", "-H", "n1-bmc", "a b"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("sh -c 'echo no such node {node} >&2; exit 3'",
         "power.switch_off: sh for n1 ended with 3: no such node n1"),
        ("false {node}", "power.switch_off: false for n1 ended with 1: it printed nothing"),
        ("no-such-command {node}", "power.switch_off: no-such-command: No such file or directory"),
        ("sh -c 'sleep 60' {node}", "power.switch_off: sh for n1 had not ended after 0.2 s"),
    ],
)  # fmt: skip
def test_a_failed_command_is_one_line(command: str, message: str) -> None:
    section = section_of(command, command, "0.2 s")
    with pytest.raises(ClusterError, match=f"^{re.escape(message)}$"):
        power.switch(section, "off", NODE)


def test_background_processes_of_a_command_are_not_waited_for(tmp_path: Path) -> None:
    """For example a virtual machine, or a program that retries in the background."""
    note = tmp_path / "pid"
    on = f"sh -c 'sleep 60 & echo $! > {note}; echo {{node}} started'"
    section = section_of("true {node}", on, "10 s")
    assert power.switch(section, "on", NODE) is section
    left = psutil.Process(int(note.read_text()))
    assert left.is_running()
    left.kill()


def test_a_command_that_exceeds_its_limit_is_ended_with_its_children(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    section = section_of(
        "true {node}", f"sh -c 'sleep 60 & echo $! > {note}; wait' {{node}}", "1 s"
    )
    before = processes.children(os.getpid())
    with pytest.raises(ClusterError, match="had not ended after 1 s"):
        power.switch(section, "on", NODE)
    assert processes.children(os.getpid()) == before, "a zombie is left"
    until(lambda: not psutil.pid_exists(int(note.read_text())))


def test_a_spec_without_a_command() -> None:
    message = "cannot switch n1 on: the spec names no command for it (power.switch_on)"
    with pytest.raises(ClusterError, match=f"^{re.escape(message)}$"):
        power.switch(None, "on", NODE)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            "{switch_off: reboot, switch_on: 'on {node}'}",
            "power.switch_off: 'reboot' does not say which",
        ),
        (
            "{switch_off: 'x {node}', switch_on: \"y '{node}\"}",
            'power.switch_on: "y \'{node}": No closing quotation',
        ),
        ("{switch_off: 'x {node}'}", "power.switch_on: missing"),
    ],
)
def test_an_invalid_power_section(tmp_path: Path, section: str, message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        spec_with(tmp_path, section)


def test_the_power_section_of_a_spec(tmp_path: Path) -> None:
    section = "{switch_off: 'bmc {node} off', switch_on: 'bmc {node} on', within: 15 min}"
    found = spec_with(tmp_path, section).power
    assert found is not None
    assert found.switch_off == "bmc {node} off"
    assert (found.within_s, found.command_within_s) == (900.0, 60.0)


class Switchless(Local):
    """A launcher that reaches its node by this command; empty: the node is gone."""

    def __init__(self, command: Sequence[str]) -> None:
        super().__init__(1)
        self.name, self.command = "made", list(command)
        self.switched: list[str] = []

    def commands(self, nodes: Sequence[Node], argv: Sequence[str]) -> list[list[str]]:
        if not self.command:
            raise NodeLostError("n1", "n1 is unavailable: powered off")
        return [self.command]


class Switched(Switchless):
    """A launcher that can boot the node."""

    def ask(self, request: LauncherRequest) -> None:
        assert isinstance(request, PowerOn)
        self.switched.append(request.node)


def test_a_node_that_runs_commands_is_on() -> None:
    launcher = Switched(["true"])
    recover(launcher, NODE)
    assert launcher.switched == []


@pytest.mark.parametrize(
    "command",
    [[], ["sleep", "60"], ["false"], ["/no/such/program"]],
    ids=["known to be gone", "silent", "refused", "no way there"],
)
def test_a_node_that_runs_no_commands_is_switched_on(command: list[str]) -> None:
    """Whatever the launcher reports: for minutes Slurm calls a lost node available."""
    launcher, before = Switched(command), processes.children(os.getpid())
    recover(launcher, NODE, 0.3)
    assert launcher.switched == ["n1"]
    assert processes.children(os.getpid()) == before


def test_a_launcher_without_a_power_switch() -> None:
    recover(Switchless(["true"]), NODE)
    with pytest.raises(ClusterError, match=r"^the made launcher cannot switch nodes on; use"):
        recover(Switchless(["false"]), NODE)
