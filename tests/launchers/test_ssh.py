"""The ssh launcher, without sshd."""

from __future__ import annotations

import queue
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote

import psutil
import pytest

from pytest_mnode.errors import ClusterError, NodeLostError, UsageError
from pytest_mnode.launchers.hosts import parse_hosts
from pytest_mnode.launchers.node import Node
from pytest_mnode.launchers.remote.launcher import RemoteOptions
from pytest_mnode.launchers.remote.node_report import NodeReport
from pytest_mnode.launchers.remote.openssh import SSH_COMMAND
from pytest_mnode.launchers.ssh import Ssh
from pytest_mnode.limits import Limits
from pytest_mnode.protocol.launcher_requests import PowerOn
from pytest_mnode.spec import profile_spec
from tests.inner import need_program
from tests.launchers.remote.test_node_report import WELL
from tests.programs import write_program
from tests.waiting import until

SPEC = profile_spec("rack")
# In place of ssh: notes its words, and refuses.
REFUSES = """\
#!/bin/sh
echo "$$ $*" >> {log}
echo "n1: not here" >&2
exit 255
"""
FAILS = """\
#!/bin/sh
while [ $# -gt 2 ]; do shift; done
echo "some debug line" >&2
echo "$1: Permission denied (publickey)." >&2
exit 255
"""


# In place of ssh to this machine itself; a file "closed" makes it refuse connections.
THIS = """\
#!/bin/sh
for last; do :; done
if [ -e {directory}/closed ]; then echo "n1: Connection refused" >&2; exit 255; fi
echo "$$ $*" >> {directory}/connections
exec sh -c "$last"
"""


def made(directory: Path, hosts: str = "n1\nn2") -> Ssh:
    run_dir = directory / "run"
    run_dir.mkdir()
    return Ssh(parse_hosts(hosts, "hosts"), SPEC, RemoteOptions(str(run_dir), directory))


@pytest.fixture
def _ssh() -> None:
    need_program("ssh", "openssh-client")


Use = Callable[[str], Path]


@pytest.fixture
def use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Use:
    """use(program): what stands in for ssh, and its log. It knows its `{directory}` and `{log}`."""

    def use(text: str) -> Path:
        path, log = tmp_path / "ssh with blank", tmp_path / "log"
        directory = quote(str(tmp_path))
        write_program(path, text.format(directory=directory, log=quote(str(log))))
        monkeypatch.setenv(SSH_COMMAND, f"{quote(str(path))} -F none")
        return log

    return use


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("no-such-ssh -v", "no program no-such-ssh here; install OpenSSH's client, or name it"),
        ("ssh '-F", f"{SSH_COMMAND}=ssh '-F: No closing quotation; accepted: a command"),
    ],
)
def test_a_missing_ssh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, message: str
) -> None:
    monkeypatch.setenv(SSH_COMMAND, setting)
    with pytest.raises(UsageError, match=message):
        made(tmp_path)


def test_each_host_that_refuses_has_a_line(tmp_path: Path, use: Use) -> None:
    use(FAILS)
    with pytest.raises(ClusterError) as raised:
        made(tmp_path, "n1\nme@n2").start()
    assert str(raised.value).splitlines() == [
        "ssh: 2 of 2 nodes cannot be used:",
        "  n1: n1: Permission denied (publickey).",
        "  me@n2: me@n2: Permission denied (publickey).",
    ]
    assert not list(tmp_path.glob(".mnode-*"))


def test_a_host_to_which_ssh_never_connects(tmp_path: Path, use: Use) -> None:
    use("#!/bin/sh\nexec sleep 60\n")
    launcher = made(tmp_path, "n1")
    launcher.limits = Limits(start_s=0.5)
    with pytest.raises(ClusterError, match=r"n1: no answer within 0\.5 s: "):
        launcher.start()


def test_a_host_may_have_a_python_of_its_own(
    tmp_path: Path, use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node's program and all commands of the run run by it, and by no other."""
    use(THIS)
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    own, log = tmp_path / "python-of-n1", tmp_path / "log of own"
    started = f"echo x >> {quote(str(log))}"
    write_program(own, f'#!/bin/sh\n{started}\nexec {quote(sys.executable)} "$@"\n')
    launcher = made(tmp_path, f"n1 python={quote(str(own))}")
    try:
        launcher.start()
        assert len(log.read_text().splitlines()) == 2, "its program, and its report"
        [node] = launcher.nodes
        for python in (sys.executable, launcher.python, str(own)):
            [command] = launcher.commands([node], [python, "-c", "print(1)"])
            subprocess.run(command, env=launcher.env.command(), check=True, timeout=60)
        assert len(log.read_text().splitlines()) == 5
        assert launcher.python_of(node) == str(own)
    finally:
        launcher.close()


def test_a_python_of_a_host_that_is_not_there(tmp_path: Path, use: Use) -> None:
    use(THIS)
    wrong = tmp_path / "none"
    launcher = made(tmp_path, f"n1\nn3 python={quote(str(wrong))}")
    with pytest.raises(ClusterError) as raised:
        launcher.start()
    [_, line] = str(raised.value).splitlines()
    assert line.startswith("  n3: Python did not start on the node (status 127: ")
    assert f"{wrong}: " in line
    assert line.endswith(f"; correct python={wrong} in the hostfile")


def test_connections_end_with_the_launcher(
    tmp_path: Path, use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both hosts are this one; a run's directory may have any path."""
    use(THIS)
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    folder = tmp_path / ("x" * 90) / "my run"
    folder.mkdir(parents=True)
    launcher = made(folder)
    with pytest.raises(ClusterError, match="n2: it is the same machine as n1"):
        launcher.start()
    started = [line.split() for line in (tmp_path / "connections").read_text().splitlines()]
    assert len(started) == 2
    until(lambda: not any(psutil.pid_exists(int(words[0])) for words in started))
    for words in started:
        assert words[1:3] == ["-F", "none"]
        assert {"BatchMode=yes", "ControlMaster=no"} <= set(words)


def test_ssh_uses_the_port_of_the_hostfile(tmp_path: Path, use: Use) -> None:
    log = use(REFUSES)
    launcher = made(tmp_path, "me@n1:2222\nn2 port=222")
    with pytest.raises(ClusterError, match="2 of 2 nodes cannot be used") as raised:
        launcher.start()
    assert "  me@n1:2222: " in str(raised.value)
    ports = {line.partition(" -p ")[2].split()[0] for line in log.read_text().splitlines()}
    assert ports == {"2222", "222"}


@pytest.mark.usefixtures("_ssh")
def test_a_launcher_has_no_nodes_before_its_start(tmp_path: Path) -> None:
    launcher = made(tmp_path)
    with pytest.raises(UsageError, match="ssh: no node 'n1'"):
        launcher.commands([Node("n1", 0, "10.0.0.1")], ["true"])
    launcher.close()
    launcher.close()


@pytest.mark.usefixtures("_ssh")
def test_nodes_that_cannot_reach_each_other_are_refused(tmp_path: Path) -> None:
    """The controller is on one of its hosts, which ssh reaches over loopback."""
    launcher = made(tmp_path)
    here = replace(WELL, connection="127.0.0.1 5 127.0.1.1 22")
    looks = {"n1": here, "n2": replace(WELL, hostname="n2")}

    def nodes_from(reports: dict[str, NodeReport]) -> Sequence[Node]:
        addresses = {t: launcher._address(t, report) for t, report in reports.items()}
        launcher._prepare()
        launcher._take(reports, addresses, "ssh")
        return launcher.nodes

    with pytest.raises(ClusterError) as raised:
        nodes_from(looks)
    [_, line] = str(raised.value).splitlines()
    assert line.startswith("  n1: its address 127.0.1.1 is a loopback address; name it by")
    [first, second] = nodes_from(looks | {"n1": replace(WELL, connection="")})
    assert (first.address, second.address) == ("n1", "10.7.0.1")


def test_a_lost_connection_is_reopened_without_power_switching(
    tmp_path: Path, use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(THIS)
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    launcher = made(tmp_path, "n1")
    losses: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    launcher.watch(lambda name, why: losses.put((name, why)))

    def lose() -> None:
        psutil.Process(
            int((tmp_path / "connections").read_text().splitlines()[-1].split()[0])
        ).kill()
        assert losses.get(timeout=60)[1].startswith("the connection was lost")
        with pytest.raises(NodeLostError, match="is unavailable: the connection was lost"):
            launcher.commands(launcher.nodes, ["true"])

    try:
        launcher.start()
        [node] = launcher.nodes
        lose()
        launcher.ask(PowerOn(node.name))  # the spec has no power command
        [command] = launcher.commands([node], ["echo", "on"])
        assert subprocess.check_output(command, timeout=30) == b"on\n"
        lose()
        (tmp_path / "closed").touch()
        with pytest.raises(ClusterError, match="the spec names no command for it"):
            launcher.ask(PowerOn(node.name))
        with pytest.raises(NodeLostError, match="is unavailable: n1: Connection refused"):
            launcher.commands([node], ["true"])
    finally:
        launcher.close()


def test_a_node_that_cannot_be_connected_again_in_time(
    tmp_path: Path, use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ssh connects, and nothing follows."""
    use(THIS.replace("exec sh", "[ -e {directory}/silent ] && exec sleep 60; exec sh"))
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    launcher = made(tmp_path, "n1")
    launcher.limits = Limits(connect_s=1.0)
    try:
        launcher.start()
        (tmp_path / "silent").touch()
        [node] = launcher.nodes
        pid = int((tmp_path / "connections").read_text().split()[0])
        psutil.Process(pid).kill()
        until(lambda: launcher._why_gone(node) is not None)
        with pytest.raises(ClusterError, match="the spec names no command for it"):
            launcher.ask(PowerOn(node.name))
        with pytest.raises(NodeLostError, match="is unavailable: no answer within 1 s"):
            launcher.commands([node], ["true"])
    finally:
        launcher.close()
