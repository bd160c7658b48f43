"""Nodes over a real ssh: refused hosts, named losses, and no leftovers."""

from __future__ import annotations

import os
import re
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.busy import Busy
from tests.engines.inside import COVERAGE, lines_run, run_pytest, spec_for
from tests.engines.ssh import SshOnRack
from tests.inner import InnerRun, released_plugins, write_files

ONE = "def test_it(world, process_group): assert world.size == 2"
DYING = """
    import time, psutil

    def test_agent_dies(world):
        if world.rank == 1:
            for process in psutil.Process().parents():
                if process.name() == "mnode-agent":
                    process.kill()
        time.sleep(20)

    def test_after_agent(world): assert world.size == 2
"""
APART = """
    import os, pathlib, sys

    if __name__ == "__main__":
        print("rank", os.environ["RANK"], flush=True)

    def test_ranks(world, process_group, tmp_path):
        tmp_path.joinpath("file").write_text("x")

    def test_no_directory(shared_tmp_path): pass

    def test_job(cluster):
        assert not cluster.share_files
        done = cluster.launch([__file__]).wait(100)
        assert done.ok, done
        # The torchrun that ends last may warn that the other one's store is gone.
        for rank, text in enumerate(done.output.values()):
            assert text.splitlines().count(f"rank {rank}") == 1, done.output

    def test_commands(cluster, tmp_path):
        # More at once than this sshd takes on one connection: others make their own.
        running = [cluster.start(["sleep", "2"], "node0", output=tmp_path / "o") for _ in range(5)]
        found = cluster.run(["hostname"])
        assert [r.stdout.strip() for r in found] == ["node0", "node1"]
        assert [p.wait(30) for p in running] == [0] * 5
        [late] = cluster.run(["sleep", "60"], "node1", timeout=0.5)
        assert late.returncode is None
"""
CONTROLLER = """
    import pathlib, subprocess
    from pytest_mnode.options import RUN

    def pytest_collection_finish(session):
        if RUN in session.config.stash and session.config.stash[RUN].pool is not None:
            path = pathlib.Path(session.config.rootpath, "secret")
            path.write_text(session.config.stash[RUN].pool.token)

    def pytest_runtest_logreport(report):
        if report.failed:
            pathlib.Path("failed").touch()
"""
WRAPPER = """\
#!/bin/sh
case $(cat /proc/sys/kernel/hostname) in
node2) unset PYTHONPATH; exec {python} -S "$@" ;;
node3) PYTHONPATH={old} exec {python} "$@" ;;
*) exec {python} "$@" ;;
esac
"""
ALIASES = """\
Host stranger
  HostName node0
  HostKeyAlias node0
Host closed
  HostName node0
  HostKeyAlias node0
  Port 23
Host nowhere
  HostName 10.77.0.99
Host imposter
  HostName node0
  HostKeyAlias unheard.of
"""
LOST_LIMIT_S = 45.0
GONE_LIMIT_S = 60.0


def test_every_unusable_host_has_a_line(ssh: SshOnRack, tmp_path: Path) -> None:
    write_files(tmp_path, test_it=ONE)
    programs, old = tmp_path / "bin", tmp_path / "old" / "pytest_mnode"
    programs.mkdir()
    old.mkdir(parents=True)
    (old / "__init__.py").write_text("__version__ = '0.0.1'\n")
    python = programs / "python"
    python.write_text(WRAPPER.format(python=sys.executable, old=old.parent))
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    assert ssh.run("mount", "-t", "tmpfs", "none", str(programs), on="node1").returncode == 0
    config = tmp_path / "client.conf"
    config.write_text(ALIASES + ssh.config.read_text())
    hosts = ["node0", "node1", "node2", "node3", "stranger", "closed", "nowhere", "imposter"]
    before = ssh.env
    ssh.env = dict.fromkeys(before, f"ssh -F {config}")
    try:
        spec = spec_for(ssh, tmp_path, "ssh", nodes=len(hosts))
        nodes = (f"--mnode-nodes={len(hosts)}", ssh.hostfile(tmp_path, "\n".join(hosts)))
        args = ("--mnode-launcher=ssh", f"--mnode-python={python}", *nodes, spec, "test_it.py")
        run = run_pytest(ssh, tmp_path, *args)
    finally:
        ssh.env = before
    assert run.returncode == pytest.ExitCode.USAGE_ERROR, run.output
    assert "Traceback" not in run.output
    reported = run.output.partition("ERROR: ")[2].strip().splitlines()
    assert reported[0] == "ssh: 7 of 8 nodes cannot be used:", run.output
    lines = {line.split(":")[0].strip(): line for line in reported[1:]}
    assert set(lines) == set(hosts[1:])
    for host, why in {
        "node1": r"Python did not start on the node \(status 127.*--mnode-python",
        "node2": r"pytest_mnode cannot be imported by .*No module named 'pytest_mnode'",
        "node3": rf"pytest-mnode 0\.0\.1 in {old}, but ",
        "stranger": r"Permission denied \(publickey\)",
        "closed": "Connection refused",
        "nowhere": "No route to host|timed out",
        "imposter": "Host key verification failed",
    }.items():
        assert re.search(why, lines[host]), lines[host]


def test_nodes_without_shared_files_keep_no_files(ssh: SshOnRack, tmp_path: Path) -> None:
    """Temporary files are on each node's own file systems, and no directory is shared.

    The controller's coverage data still include lines that ran in ranks.
    """
    write_files(tmp_path, test_it=APART)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    for node in ssh.names[:2]:
        mounted = ssh.run("mount", "-t", "tmpfs", "none", str(temporary), on=node)
        assert mounted.returncode == 0, mounted.stderr
    unwritable = ("--rootdir=/sys", "-p", "no:cacheprovider")
    nodes = ("--mnode-nodes=2", ssh.hostfile(tmp_path, "node[0-1] slots=1"))
    run = run_pytest(
        ssh,
        tmp_path,
        *(*nodes, spec_for(ssh, tmp_path, "ssh"), "--mnode-env=TMPDIR", *unwritable),
        *(*COVERAGE, str(tmp_path / "test_it.py")),
        env={"TMPDIR": str(temporary), "PYTHONPATH": str(released_plugins())},
    )
    outcomes = run.outcomes()
    assert outcomes.pop("test_no_directory") == "error"
    assert set(outcomes.values()) == {"passed"}, run.output
    assert "no directory is seen by all nodes; give --mnode-shared-dir=DIR" in run.output
    assert 'tmp_path.joinpath("file").write_text("x")' in lines_run(tmp_path), run.output
    assert f"launcher ssh (hostfile {tmp_path}/hosts), 2 nodes" in run.output
    assert not list(temporary.glob("mnode-*"))
    for node in ssh.names[:2]:
        left = ssh.run("ls", "-A", str(temporary), on=node).stdout.split()
        assert [one for one in left if not one.startswith("torchinductor_")] == []  # torch's own


@pytest.fixture
def busy(request: pytest.FixtureRequest, ssh: SshOnRack, tmp_path: Path) -> Iterator[Busy]:
    """The optional parameter: text of tests that run first."""
    before = getattr(request, "param", "")
    hosts = ssh.hostfile(tmp_path, "node[0-1]")
    run = Busy(ssh, "ssh", tmp_path, hosts, before=before, conftest=CONTROLLER)
    try:
        yield run
    finally:
        run.end()


def test_a_cut_cable_is_named_within_seconds_and_leaves_nothing(ssh: SshOnRack, busy: Busy) -> None:
    ssh.set_links("node1", False)
    busy.until((busy.directory / "failed").exists, LOST_LIMIT_S, "the loss is reported")
    output, _ = busy.program.communicate(timeout=60)
    assert busy.program.returncode == pytest.ExitCode.INTERRUPTED, output
    assert "node node1 is lost: the connection was lost" in output
    assert "node0 is lost" not in output
    assert (
        "it could not be booted again: cannot switch node1 on: the spec names no command" in output
    )
    # Processes beyond the cut end by themselves, because no message can reach them.
    busy.until(lambda: not busy.left(), GONE_LIMIT_S, "nothing is left")


def test_a_killed_controller_leaves_nothing_on_nodes(busy: Busy) -> None:
    lines = [" ".join(process.command) for process in busy.processes()]
    assert len(lines) > 10
    for secret in (busy.secret, (busy.directory / "secret").read_text()):
        assert not [line for line in lines if secret in line]
    os.kill(busy.controller().pid, signal.SIGKILL)
    busy.program.communicate(timeout=30)
    busy.until(lambda: not busy.left(), GONE_LIMIT_S, "nothing is left")


@pytest.mark.parametrize("busy", [DYING], indirect=True)
def test_a_dead_agent_is_replaced_and_a_closed_connection_reopened(
    ssh: SshOnRack, busy: Busy
) -> None:
    """The node is used by the next test after its agent died or its connection was cut."""
    assert ssh.hang_up("node1") >= 1
    output, _ = busy.program.communicate(timeout=90)
    assert busy.program.returncode == pytest.ExitCode.TESTS_FAILED, output
    assert "node node1 is lost: the connection was lost" in output
    assert "node node1 is lost: its agent " in output
    assert InnerRun(0, output, busy.directory / "junit.xml").outcomes() == {
        **dict.fromkeys(("test_agent_dies", "test_long"), "failure"),
        **dict.fromkeys(("test_after_agent", "test_after"), "passed"),
    }, output
    busy.until(lambda: not busy.left(), GONE_LIMIT_S, "nothing is left")


def test_the_connections_fixture_reads_no_files_of_the_user(ssh: SshOnRack) -> None:
    done = ssh.run("sh", "-c", f"ssh -F {ssh.config} -v node0 hostname 2>&1")
    assert "node0" in done.stdout
    assert str(Path.home() / ".ssh") not in done.stdout
