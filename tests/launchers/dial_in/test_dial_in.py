"""The launcher of nodes that dial in."""

from __future__ import annotations

import json
import os
import queue
import resource
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pytest_mnode.errors import ClusterError, NodeLostError
from pytest_mnode.launchers.node_env import RunEnv
from pytest_mnode.protocol.launcher_requests import PowerOn
from tests.inner import need_program
from tests.launchers.dial_in.sites import ONHOST, SITES, Make, each, programs_of
from tests.programs import write_program

pytestmark = pytest.mark.usefixtures("site_programs")


@pytest.mark.parametrize("site", SITES)
def test_commands_run_on_the_nodes_that_a_sites_program_starts(
    site: str, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = tmp_path / "hosts"
    if site == "mpi":
        need_program("mpirun", "openmpi-bin")
        monkeypatch.setenv("OMPI_MCA_plm_rsh_agent", str(tmp_path / "bin/rshlike"))
    (tmp_path / "slots").write_text("n1\nn1\nn2\nn2\nn3\nn3\n")
    monkeypatch.setenv("PBS_NODEFILE", str(tmp_path / "slots"))
    monkeypatch.setenv("LSB_JOBID", "7")
    monkeypatch.setenv("LSB_MCPU_HOSTS", "n1 2 n2 2 n3 2")
    monkeypatch.setenv("FLUX_URI", "local:///nowhere")
    launcher = make(site, hostfile=hosts if site in ("exec", "mpi") else None, **SITES[site])
    launcher.start()
    assert [node.name for node in launcher.nodes] == ["n1", "n2"]
    assert list(launcher.unused) == ["n3"]
    assert launcher.shared_dir is not None
    shell = "hostname; cat; echo wrong >&2; env | grep -c ^OMPI_COMM; exit 3"
    assert each(launcher, shell, "in\n") == [
        (3, "n1\nin\n0\n", "wrong\n"),
        (3, "n2\nin\n0\n", "wrong\n"),
    ]
    [(status, output, _), _] = each(launcher, "head -c 3000000 /dev/zero; kill -9 $$")
    assert (status, len(output)) == (128 + signal.SIGKILL, 3_000_000)
    launcher.close()
    assert not programs_of(tmp_path / "run")
    assert not list(tmp_path.glob(".mnode-*"))


def test_without_a_directory_in_common_the_order_comes_by_standard_input(
    make: Make, tmp_path: Path
) -> None:
    launcher = make("exec", root=tmp_path / "no such", hostfile=tmp_path / "hosts", **SITES["exec"])
    launcher.start()
    assert launcher.shared_dir is None
    assert [output for _, output, _ in each(launcher, "hostname")] == ["n1\n", "n2\n"]


def test_a_prologue_is_read_before_each_command(make: Make, tmp_path: Path) -> None:
    prologue = tmp_path / "load modules"
    prologue.write_text("function of_bash() { MODULE=$1; export MODULE; }; of_bash cuda-12\n")
    settings = {"hostfile": tmp_path / "hosts", "prologue": prologue}
    launcher = make("exec", **settings, **SITES["exec"])
    launcher.start()
    assert each(launcher, "cat; echo $MODULE; exit 4", "in ")[0] == (4, "in cuda-12\n", "")
    prologue.write_text("no-such-module-command\n")
    status, _, errors = each(launcher, "true")[0]
    assert (status, "--mnode-prologue: " in errors, "ended with 127" in errors) == (126, True, True)


def test_only_this_user_may_read_the_order_and_no_key_stays(make: Make, tmp_path: Path) -> None:
    keep = f"for file; do :; done; cp -p $file {tmp_path}/kept-$1\n"
    write_program(tmp_path / "bin/onhost", ONHOST.replace("host=$1", f"{keep}host=$1"))
    launcher = make("exec", hostfile=tmp_path / "hosts", **SITES["exec"])
    launcher.start()
    kept = tmp_path / "kept-n1"
    assert kept.stat().st_mode & 0o777 == 0o600
    secret = json.loads(kept.read_text())["keys"]["client_secret"]
    [order] = tmp_path.glob(".mnode-*/dial-in")
    assert order.read_text() == ""
    node = [sys.executable, "-P", "-m", "pytest_mnode.launchers.dial_in.node", str(order)]
    assert subprocess.run(node, check=False, stdin=subprocess.DEVNULL, timeout=60).returncode == 0
    every = [" ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"])]
    assert not any(secret in words for words in every)


def test_nodes_have_the_limits_and_modules_of_a_users_job(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A uuid.py of the tests is no module of ours; the bridge's own limit of files stays here."""
    (tmp_path / "uuid.py").write_text("raise SystemExit('wrong module')\n")
    monkeypatch.chdir(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1000, before[1]))
    try:
        launcher = make("exec", hostfile=tmp_path / "hosts", **SITES["exec"])
        launcher.start()
        assert [output for _, output, _ in each(launcher, "ulimit -Sn")] == ["1000\n"] * 2
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_commands_have_the_nodes_environment_and_what_was_set_for_the_run(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler's daemon starts the node's program with variables of its own, and of a task."""
    own = "HOME=/home/ada TMPDIR=/scratch NCCL_IB_HCA=mlx5_3 PMI_RANK=0 OMPI_COMM_WORLD_RANK=0"
    daemon = ONHOST.replace("exec ", f'exec env -i PATH="$PATH" {own} ', 1)
    write_program(tmp_path / "bin/onhost", daemon)
    of_pytest = {"NCCL_IB_HCA": "mlx5_0", "NCCL_DEBUG": "INFO", "A_TOKEN": "s", "MY_DATA": "/d"}
    for name, value in of_pytest.items():
        monkeypatch.setenv(name, value)
    launcher = make("exec", hostfile=tmp_path / "hosts", **SITES["exec"])
    launcher.env = RunEnv.of_launcher("exec", {"FI_PROVIDER": "tcp"})
    launcher.start()
    for _, output, _ in each(launcher, "env"):
        found = dict(line.split("=", 1) for line in output.splitlines())
        names = (*of_pytest, "HOME", "TMPDIR", "FI_PROVIDER", "PMI_RANK", "OMPI_COMM_WORLD_RANK")
        assert {name: found[name] for name in names if name in found} == {
            **{"HOME": "/home/ada", "TMPDIR": "/scratch", "NCCL_IB_HCA": "mlx5_3"},
            **{"NCCL_DEBUG": "INFO", "FI_PROVIDER": "tcp"},
        }


MPIRUN = """\
#!/bin/sh
[ "$1" = --version ] && { echo 'mpirun (Open MPI) 4.1.4'; exit; }
env | grep ^SLURM_ | sort >"$(dirname "$0")/../variables"
hosts=$2; shift 8
for host in $(echo $hosts | tr , ' '); do onhost $host "$@" & done
wait
"""


def test_mpirun_sees_the_slurm_job_that_gave_the_nodes_and_ranks_do_not(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_program(tmp_path / "bin/mpirun", MPIRUN)
    given = {"JOB_ID": "4", "JOB_NODELIST": "n[1-3]", "JOBID": "4", "NODELIST": "n[1-3]"}
    for name, value in {**given, "TASKS_PER_NODE": "8(x3)", "PROCID": "0"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    launcher = make("mpi")
    launcher.start()
    seen = [f"SLURM_{name}={value}" for name, value in given.items()]
    variables = (tmp_path / "variables").read_text().split()
    assert sorted(variables) == sorted([*seen, "SLURM_TASKS_PER_NODE=8(x3)"])
    left = each(launcher, "env | grep ^SLURM_")
    assert [output for _, output, _ in left] == ["SLURM_JOB_ID=4\n"] * 2


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("case $1 in n2) sleep 60 ;; esac\n", "n2 did not dial in: within 3 s.*start-limit"),
        ("case $1 in n2) echo refused >&2; exit 5 ;; esac\n", "n2 did .*onhost ended with 5: refu"),
        ("case $1 in n2) exit 5 ;; esac\n", "n2 did .* with 5, printed nothing: .*mnode-python"),
    ],
)
def test_a_host_that_does_not_dial_in_is_named(
    make: Make, tmp_path: Path, program: str, message: str
) -> None:
    write_program(tmp_path / "bin/onhost", ONHOST.replace("host=$1", f"{program}host=$1"))
    launcher = make("exec", hostfile=tmp_path / "hosts", start_limit_s=3.0, **SITES["exec"])
    with pytest.raises(ClusterError, match=f"^exec: {message}"):
        launcher.start()
    assert not programs_of(tmp_path / "run")


@pytest.mark.parametrize("mode", [None, 0o644], ids=["missing", "not executable"])
def test_a_program_that_cannot_be_run_is_named(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int | None
) -> None:
    monkeypatch.setenv("PBS_NODEFILE", str(tmp_path / "hosts"))
    program = tmp_path / "bin/pbsdsh"
    program.unlink() if mode is None else program.chmod(mode)
    with pytest.raises(
        ClusterError, match=r"^pbs: pbsdsh: no such program on this machine; .*PATH"
    ):
        make("pbs").start()


def test_a_lost_node_is_named_and_does_not_come_back(make: Make, tmp_path: Path) -> None:
    launcher = make("exec", hostfile=tmp_path / "hosts", silence_limit_s=2.0, **SITES["exec"])
    launcher.start()
    number = each(launcher, "cut -d' ' -f4 /proc/$PPID/stat")[1][1]  # above the command's keeper
    pid = int(number)
    assert psutil.Process(pid).name() == "mnode-node"
    losses: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    launcher.watch(lambda name, why: losses.put((name, why)))
    os.kill(pid, signal.SIGKILL)
    lost = "the connection was lost: no data for 2 s; onhost ended with -9"
    assert losses.get(timeout=30) == ("n2", lost)
    with pytest.raises(NodeLostError, match=f"^n2 is unavailable: {lost}"):
        launcher.commands(launcher.nodes, ["true"])
    assert each(launcher, "hostname", nodes=launcher.nodes[:1])[0][:2] == (0, "n1\n")
    with pytest.raises(ClusterError, match="cannot switch n2 on"):
        launcher.ask(PowerOn("n2"))
    launcher.close()
    with pytest.raises(NodeLostError, match="the run is over"):
        launcher.commands(launcher.nodes, ["true"])
