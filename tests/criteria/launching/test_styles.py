"""The commands that each launch style starts on each node."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.criteria.launching.styles import LaunchJob, Placement, Process, processes
from tests.programs import write_program

PLACE = Placement(("n3", "n2"), "10.0.0.4", 29512)
SCRIPT = Path(__file__).parents[3] / "fixtures" / "jobs" / "megatron.sh"


def started(style: str, by_deepspeed: bool = False, **fields: Any) -> dict[str, list[Process]]:
    page = {
        "name": "a",
        "nodes": "all",
        "accelerators_per_node": 0,
        "ranks_per_node": 2,
        "command": ["python", "train.py", "--x"],
        "style": style,
        "env": {"A": "1", "GLOO_SOCKET_IFNAME": "own0"},
    }
    job = LaunchJob.model_validate(page | fields).placed(2, 0)
    pins = {
        node: {"GLOO_SOCKET_IFNAME": "fab0", "NCCL_SOCKET_IFNAME": "=fab0"} for node in PLACE.nodes
    }
    return {node: list(made) for node, made in processes(job, PLACE, pins, by_deepspeed).items()}


def test_one_torchrun_per_node() -> None:
    made = started("torchrun")
    assert list(made) == ["n3", "n2"]
    [process] = made["n2"]
    assert " ".join(process.argv) == (
        "python -m torch.distributed.run --nnodes 2 --nproc-per-node 2 --node-rank 1 "
        "--master-addr 10.0.0.4 --master-port 29512 --log-dir {logs} train.py --x"
    )
    assert process.env == {"A": "1", "GLOO_SOCKET_IFNAME": "own0", "NCCL_SOCKET_IFNAME": "=fab0"}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("python train.py -u", "train.py -u"),
        ("python -m package.train -u", "-m package.train -u"),
        ("python -u train.py", "--no-python python -u train.py"),
        ("python -c pass", "--no-python python -c pass"),
        ("python -X dev train.py", "--no-python python -X dev train.py"),
        ("python -u -m package.train", "--no-python python -u -m package.train"),
        ("python", "--no-python python"),
        ("python3.12 train.py", "--no-python python3.12 train.py"),
        ("./train.sh", "--no-python ./train.sh"),
    ],
)
def test_torchrun_gets_no_option_of_the_interpreter(command: str, words: str) -> None:
    [process] = started("torchrun", command=command.split())["n3"]
    assert " ".join(process.argv).endswith(f" --log-dir {{logs}} {words}")


def test_deepspeed_variables_if_it_is_not_installed() -> None:
    made = started("deepspeed")
    assert [p.env["RANK"] for node in made.values() for p in node] == ["0", "1", "2", "3"]
    last = made["n2"][1]
    assert last.argv == ("python", "train.py", "--x")
    own = {"A": "1", "GLOO_SOCKET_IFNAME": "own0", "NCCL_SOCKET_IFNAME": "=fab0"}
    numbers = {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"}
    numbers |= {"CROSS_RANK": "1", "CROSS_SIZE": "2"}
    assert last.env == {"MASTER_ADDR": "10.0.0.4", "MASTER_PORT": "29512", **own, **numbers}


def test_deepspeed_launcher_if_it_is_installed() -> None:
    [process] = started("deepspeed", by_deepspeed=True)["n2"]
    argv = list(process.argv)
    assert argv[:3] == ["python", "-m", "deepspeed.launcher.launch"]
    world = base64.urlsafe_b64decode(argv[3].removeprefix("--world_info="))
    assert json.loads(world) == {"n3": [0, 1], "n2": [0, 1]}
    assert argv[4:] == [
        *("--node_rank=1", "--master_addr=10.0.0.4", "--master_port=29512"),
        *("--no_python", "--no_local_rank", "python", "train.py", "--x"),
    ]
    assert "RANK" not in process.env


def test_megatron_gets_slurm_variables_and_no_torch_variables() -> None:
    made = started("megatron")
    assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"} & set(made["n2"][0].env)
    env = made["n2"][1].env
    facts = {k.removeprefix("SLURM_"): v for k, v in env.items() if k.startswith("SLURM_")}
    nodes = {"NODEID": "1", "JOB_NUM_NODES": "2", "JOB_NODELIST": "10.0.0.4,n2"}
    assert facts == {"PROCID": "3", "LOCALID": "1", "NTASKS": "4", **nodes}


ANSWERS = '[ "$*" = "show hostnames n[3-4]" ] && printf "n3\\nn4\\n"'
NO_CLUSTER = "echo fatal: Could not establish a configuration source >&2; exit 1"


@pytest.mark.parametrize(
    ("scontrol", "nodes", "first"),
    [
        ("", "10.0.0.4,n2", "10.0.0.4"),
        (NO_CLUSTER, "10.0.0.4,n2", "10.0.0.4"),
        (ANSWERS, "n[3-4]", "n3"),
    ],
)
def test_the_users_script_derives_torch_variables(
    tmp_path: Path, scontrol: str, nodes: str, first: str
) -> None:
    env = started("megatron")["n2"][1].env
    for tool in ("sh", "env", "head"):
        (tmp_path / tool).symlink_to(str(shutil.which(tool)))
    if scontrol:
        write_program(tmp_path / "scontrol", f"#!/bin/sh\n{scontrol}\n")
    out = subprocess.check_output(
        [str(SCRIPT), "env"],
        env={**env, "SLURM_JOB_NODELIST": nodes, "PATH": str(tmp_path)},
        text=True,
        timeout=20,
    )
    found = dict(line.split("=", 1) for line in out.splitlines())
    assert found["MASTER_ADDR"] == first
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")
    assert [found[name] for name in names] == ["3", "4", "1", "29512"]


def test_plain_runs_once_per_node_without_variables() -> None:
    made = started("plain", env={})
    assert [len(one) for one in made.values()] == [1, 1]
    assert made["n2"][0].argv == ("python", "train.py", "--x")
    assert set(made["n2"][0].env) == {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"}
