"""Variables of the controller that nodes get."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_mnode.launchers.node_env import DEFAULTS, SET, RunEnv, is_secret, node_env
from pytest_mnode.launchers.slurm.command_lines import is_submitted
from pytest_mnode.option_texts import Given, variables
from tests.inner import need_rack, run_pytest, write_files


def test_slurm_task_variables_of_the_controller_are_removed() -> None:
    kept = {"HOME": "/home/ada", "MASTER_ADDR": "n0", "SLURM_JOB_ID": "7", "SLURM_CONF": "/etc/s"}
    task = {"SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_NTASKS": "1", "SLURMD_NODENAME": "n0"}
    other = {"PMI_RANK": "0", "OMPI_COMM_WORLD_RANK": "0", "OMPI_UNIVERSE_SIZE": "1"}
    assert node_env(kept | task | other | {"HOSTNAME": "n0"}) == kept


def test_variables_chosen_by_the_user_are_kept() -> None:
    chosen = {"CUDA_VISIBLE_DEVICES": "0,1", "TMPDIR": "/scratch", "OMPI_MCA_btl": "tcp"}
    assert node_env(chosen) == chosen


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[(name, "s3") for name in ("CI_JOB_TOKEN", "AWS_SECRET_ACCESS_KEY", "CI_JOB_JWT_V2")],
        *[(name, "s3") for name in ("WANDB_API_KEY", "PGPASSWORD", "MYSQL_PWD", "sshpass")],
        ("DOCKER_AUTH_CONFIG", "s3"),
        ("CI_REPOSITORY_URL", "https://gitlab-ci-token:s3@git.example.org/a.git"),
        ("DATABASE_URL", "postgres://ada:s3@db/x"),
    ],
)
def test_secrets_reach_no_node(name: str, value: str) -> None:
    assert is_secret(name, value)
    assert node_env({name: value, "A": "1"}) == {"A": "1"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[(name, "1") for name in ("PWD", "OLDPWD", "TOKENIZERS_PARALLELISM", "NCCL_IB_PKEY")],
        *[(name, "1") for name in ("SSH_AUTH_SOCK", "KEYBOARD", "BYPASS_CHECKS", "GPG_KEY")],
        ("PIP_INDEX_URL", "https://pypi.example.org/simple"),
        ("REMOTE", "ssh://git@example.org/a.git"),
    ],
)
def test_other_variables_are_no_secrets(name: str, value: str) -> None:
    assert not is_secret(name, value)


@pytest.mark.parametrize(
    ("name", "submitted"),
    [
        *[(name, True) for name in ("HOME", "USER", "PATH", "SBATCH_ACCOUNT", "SLURM_CONF")],
        *[(name, False) for name in ("MAIL_PASSWORD", "HOMEBREW_GITHUB_API_TOKEN", "USER_KEY")],
        *[(name, False) for name in ("HOMEPAGE", "SHELL_SESSION", "PATH_OF_MINE")],
    ],
)
def test_slurm_jobs_get_no_variable_for_the_beginning_of_its_name(
    name: str, submitted: bool
) -> None:
    assert is_submitted(name, "x") == submitted


def test_nodes_of_this_machine_have_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    of_the_machine = ("GLOO_SOCKET_IFNAME", "DISPLAY", "XDG_RUNTIME_DIR")
    for name in ("MINE", "A_TOKEN", "OMP_NUM_THREADS", "XDG_CACHE_HOME", *of_the_machine):
        monkeypatch.setenv(name, "outer")
    for launcher, pins in (("rack", None), ("local", "outer")):
        made = RunEnv.of_launcher(launcher, {}).command(defaults={"OMP_NUM_THREADS": "1"})
        found = [made.get(n) for n in ("MINE", "OMP_NUM_THREADS", "XDG_CACHE_HOME", "A_TOKEN")]
        assert found == ["outer", "outer", "outer", None]
        assert [made.get(name) for name in of_the_machine] == [pins] * 3
    given = RunEnv.of_launcher("rack", {"A_TOKEN": "t", "GLOO_SOCKET_IFNAME": "fab0", "B": "run"})
    made = given.command({"B": "job"})
    assert [made[n] for n in ("A_TOKEN", "GLOO_SOCKET_IFNAME", "B")] == ["t", "fab0", "job"]


def test_a_remote_command_says_what_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/outer")
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    env = RunEnv.of_launcher("ssh", {"A": "1", "TMPDIR": "/t"})
    made = env.command({"B": "2"}, {"OMP_NUM_THREADS": "1", "C": "3", "TMPDIR": "/logs"})
    assert (made[SET], made[DEFAULTS]) == ("A,TMPDIR,B", "C")
    assert [made[n] for n in ("A", "B", "C", "OMP_NUM_THREADS", "TMPDIR")] == [*"123", "4", "/t"]
    assert RunEnv.of_launcher("ssh", {}).command({}, {"TMPDIR": "/logs"})["TMPDIR"] == "/logs"


def test_the_header_says_what_nodes_get(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_TOKEN", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "x")
    rack = RunEnv.of_launcher("rack", {"B": "1"}).header()
    assert rack.startswith("pytest's own; set for this run: B; without ")
    assert "GITHUB_TOKEN" in rack
    assert "NCCL_SOCKET_IFNAME" in rack
    assert "(devices and login of this machine)" in rack
    monkeypatch.delenv("GITHUB_TOKEN")
    local = RunEnv.of_launcher("local", {}).header()
    assert local.startswith("pytest's own")
    assert "NCCL_SOCKET_IFNAME" not in local, "nodes that are this machine have its devices"
    monkeypatch.setenv("GITHUB_TOKEN", "x")
    ssh = RunEnv.of_launcher("ssh", {}).header()
    assert ssh.startswith("each node's own; from pytest's where a node sets none: ")
    assert "NCCL_SOCKET_IFNAME" in ssh
    assert "GITHUB_TOKEN" not in ssh


OF_RANKS = """
    import os, pathlib

    def test_ranks(world, process_group):
        names = ("GLOO_SOCKET_IFNAME", "CI_JOB_TOKEN", "A_KEY", "MINE", "NCCL_DEBUG")
        assert [os.environ.get(name) for name in names] == ["fab0", None, "k", "1", "WARN"]

    def test_commands(cluster):
        for done in cluster.run(["env"], env={"MINE": "2"}):
            lines = done.stdout.splitlines()
            assert {"A_KEY=k", "MINE=2", "NCCL_DEBUG=WARN"} <= set(lines)
            assert not [line for line in lines if line.startswith(("GLOO_SOCK", "CI_JOB"))]
"""


def test_ranks_and_commands_of_the_rack(tmp_path: Path) -> None:
    """The shell's interface is this machine's, and its tokens are for nobody."""
    need_rack()
    write_files(tmp_path, test_it=OF_RANKS)
    outer = {"GLOO_SOCKET_IFNAME": "eth0", "CI_JOB_TOKEN": "s3", "A_KEY": "k", "MINE": "1"}
    given = "--mnode-env=A_KEY NCCL_DEBUG=WARN"
    run = run_pytest(tmp_path, "--mnode-launcher=rack", "--mnode-nodes=2", given, env=outer)
    assert run.outcomes() == {"test_ranks": "passed", "test_commands": "passed"}, run.output
    assert "mnode: environment of nodes: pytest's own; set for this run: A_KEY, NCCL_DEBUG" in (
        run.output
    )
    assert "s3" not in run.output


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("NO_SUCH_NAME", "NO_SUCH_NAME: accepted: NAME=VALUE, or NAME or PATTERN*"),
        ("A-B=1", "A-B=1: accepted: NAME=VALUE"),
        ("A='1", "A='1: accepted: arguments as for a shell"),
    ],
)
def test_a_wrong_variable_is_named(given: str, message: str) -> None:
    with pytest.raises(pytest.UsageError, match=f"^--mnode-env={re.escape(message)}"):
        variables(Given("--mnode-env", given, Path.cwd()))
