"""The launch criterion on jobs, logins and networks with one fault each: each is named."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from pytest_mnode.criteria.launching import login
from tests.acceptance.certified import Certified, certify, spec_of
from tests.red import turns_red

PROGRAM = Path(__file__).parents[2] / "fixtures" / "jobs" / "contract.py"
SCRIPT = PROGRAM.with_name("megatron.sh")


def job(directory: Path, style: str, *on_the_way: str) -> str:
    """Path of a job file whose ranks run these shell lines before their program starts."""
    first = [str(SCRIPT)] if style == "megatron" else []
    wrapper = f'{"; ".join(on_the_way)}; exec "$@"'
    page = {
        "name": f"wrong {style}",
        "style": style,
        "nodes": "all",
        "accelerators_per_node": "all",
        "ranks_per_node": 2,
        "command": [*first, "sh", "-c", wrapper, "sh", "python", str(PROGRAM), "--limit=2"],
    }
    path = directory / f"{style}.yaml"
    path.write_text(yaml.safe_dump(page))
    return str(path)


def launch(directory: Path, promised: Mapping[str, Any], *args: str, **more: Any) -> Certified:
    """acceptance/test_launch.py with a spec that promises only this launch section."""
    spec = spec_of(directory, criteria={"launch": dict(promised)})
    return certify(directory, spec, *args, files=["test_launch.py"], **more)


@turns_red(
    "launch",
    "test_job_gets_the_right_environment",
    "test_ranks_meet_in_time",
    "test_store_serves_many_clients",
)
def test_wrong_variables_and_a_slow_rendezvous_are_named_with_their_nodes(tmp_path: Path) -> None:
    ways = {
        "deepspeed": (
            'case "$(hostname)/$LOCAL_RANK" in node2/0) export RANK=0 ;; '
            "node3/1) export MASTER_ADDR=localhost ;; "
            "node1/0) export GLOO_SOCKET_IFNAME=mgmt0 NCCL_ALGO=Tree; ulimit -n 500 ;; esac"
        ),
        "megatron": (
            'case "$(hostname)/$LOCAL_RANK" in node1/1) export WORLD_SIZE=6 ;; '
            "node2/1) unset LOCAL_RANK ;; node3/0) export MASTER_PORT=1 ;; esac"
        ),
    }
    promised = {
        style: {"within": "30 s", "job": job(tmp_path, style, way)} for style, way in ways.items()
    }
    meeting = {
        "rendezvous": {"ranks": 8, "within": "1 s"},
        "store": {"clients": [16], "within": "1 s"},
        "environment": "same",
    }
    done = launch(tmp_path, promised | meeting, "--mnode-fault=slow_names:node2:2")
    found = {
        style: done.measurements("launch")[f"{style}: variables wrong"]["note"].split("; ")
        for style in ways
    }
    culprits = done.failed("launch")
    for style, starts in {
        "deepspeed": (
            "node2 rank 0: RANK=0 is also set in a rank on node0",
            "node2: no rank has RANK=4",
            "node3 rank 7: MASTER_ADDR=localhost, others have ",
            "node1 rank 2: GLOO_SOCKET_IFNAME is mgmt0, must be fab0",
        ),
        "megatron": (
            "node2 rank 5: LOCAL_RANK is not set",
            "node1 rank 3: WORLD_SIZE=6, must be 8",
            "node3 rank 6: MASTER_PORT=1, others have ",
            "node1 rank 3: WORLD_SIZE=6, but SLURM_NTASKS=8",
        ),
    }.items():
        assert culprits[f"{style}: variables wrong"] == found[style][0]
        for one, start in zip(found[style], starts, strict=True):
            assert one.startswith(start)
    # Not all of them met either.
    assert {f"{style}: ranks that met all others" for style in ways} <= set(culprits)
    unlike = culprits["deepspeed: settings unlike the run's ranks"]
    algorithm, files = unlike.split("; ")
    assert algorithm == "node1: NCCL_ALGO: not set in the run, Tree in a job"
    assert files.startswith("node1: ulimit nofile: ")
    assert files.endswith(" in the run, 500 in a job")
    same = done.measurements("launch")["megatron: settings unlike the run's ranks"]
    assert (same["value"], same["verdict"]) == (0, "pass")
    assert culprits["init_process_group over 8 ranks"].startswith("node2 (rank ")
    [store] = [name for name in culprits if name.startswith("store: 16 clients")]
    assert culprits[store].startswith("node2 (looking up the store's address took ")


def test_jobs_of_one_rank_a_leaking_login_and_a_dropped_port_are_named(tmp_path: Path) -> None:
    text = Path(login.__file__).read_text()
    leaking = text.replace('base = {"HOME"', 'base = dict(os.environ) | {"HOME"')
    assert leaking != text
    (tmp_path / "leaking_login.py").write_text(leaking)
    plugin = f"""
        from pytest_mnode.criteria.launching import login
        login.__file__ = {str(tmp_path / "leaking_login.py")!r}
    """
    alone = "export WORLD_SIZE=1 RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((29500 + LOCAL_RANK))"
    promised = {
        "deepspeed": {"within": "30 s", "job": job(tmp_path, "deepspeed", "true")},
        "megatron": {"within": "20 s", "job": job(tmp_path, "megatron", alone)},
    }
    port = "--mnode-fault=port_dropped:node0"  # a variable that a single rank does not need
    done = launch(tmp_path, promised, port, fault=plugin, env={"SITE_SECRET": "x"})
    found = done.measurements("launch")
    met = found["megatron: ranks in the smallest group that met"]
    assert (met["value"], met["verdict"], met["note"]) == (1, "fail", "8 jobs of one rank")
    assert "only itself" in done.failed("launch")["megatron: ranks that met all others"]
    # The program itself succeeded: only the count of ranks shows the fault.
    assert found["megatron: nodes on which the job failed"]["verdict"] == "pass"
    leak = found["megatron: variables leaked"]
    seen = "node0 rank 0: MNODE_CANARY of the submitting environment is visible"
    assert (leak["verdict"], leak["culprit"]) == ("fail", seen)
    assert leak["value"] >= 16  # the canary and the secret, on each of 8 ranks
    met = found["deepspeed: ranks that met all others"]  # who lacks the port
    assert (met["value"], met["verdict"]) == (0, "fail")
    lines = met["note"].split("; ")
    missing = "ranks [2, 3, 4, 5, 6, 7] of 8 never came within 2 s"
    assert lines[0] == f"node0 rank 0: TimeoutError: {missing}"
    assert lines[1] == f"node0 rank 1: RuntimeError: rank 0 says: {missing}"
    late = "node1 rank 2: TimeoutError: rank 2 did not meet the others at "
    assert lines[2].startswith(late), lines
    assert lines[2].endswith(" within 2 s: timed out"), lines
    assert found["deepspeed: variables wrong"]["verdict"] == "pass"


@turns_red("launch", "test_job_is_as_right_elsewhere", "test_job_runs_in_its_image")
def test_a_wrong_other_node_an_image_and_few_open_files_are_named(tmp_path: Path) -> None:
    plugin = """
        from pytest_mnode.criteria.launching.direct import Direct
        submit = Direct.submit

        def stay(self, job, nodes):
            stays = job.style == "megatron"
            there = self._cluster.nodes[:len(nodes)] if stays else nodes
            return submit(self, job.model_copy(update={"image": None}), there)

        Direct.submit = stay
        Direct.runs_images = True  # in its own words
    """
    stale = "export MASTER_ADDR=node0"
    promised = {
        "deepspeed": {"within": "30 s", "job": job(tmp_path, "deepspeed", stale)},
        "megatron": {"within": "30 s"},
        "elsewhere": True,
        "image": "registry.example/torch",
        "store": {"clients": [600], "within": "30 s"},
    }
    args = ("-k", "elsewhere or image or store", "--mnode-fault=low_nofile:node0:128")
    done = launch(tmp_path, promised, *args, fault=plugin)
    found = done.failed("launch")
    outside = found.pop("ranks in the image")
    assert outside.startswith("rank 0 on node0"), outside
    assert all(" elsewhere: " in name for name in found)
    address = "ranks whose MASTER_ADDR is the first node's"
    assert {name for name in found if name.startswith("megatron")} == {
        "megatron elsewhere: requested nodes that it ran on",
        f"megatron elsewhere: {address}",
    }
    assert found["megatron elsewhere: requested nodes that it ran on"] == "node0, node1"
    assert found[f"megatron elsewhere: {address}"].endswith("(node0)")
    assert found[f"deepspeed elsewhere: {address}"] == "MASTER_ADDR=node0 (node0)"
    assert "is not an address of this node" in found["deepspeed elsewhere: variables wrong"]
    assert "rank 0: OSError: " in found["deepspeed elsewhere: ranks that met all others"]
    # The hard limit is higher than the initial limit.
    [store] = [m for n, m in done.measurements("launch").items() if n.startswith("store: 600")]
    assert store["verdict"] == "pass"
