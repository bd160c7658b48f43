"""The buyer's own job turns red where it is slower than promised, and where it breaks."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from pytest_mnode.logs.aftermath import answer, read
from tests.acceptance.certified import PORTS, certify, spec_of
from tests.acceptance.test_ports_turn_red import UNPLUGGED
from tests.red import turns_red

JOB = """
    import os, sys, time
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, node = dist.get_rank(), os.uname().nodename
    gradients = torch.ones(500_000)
    for step in range(1, 9):
        began = time.monotonic()
        time.sleep(0.05)
        dist.all_reduce(gradients)
        if sys.argv[1:] == [f"breaks:{node}"] and step == 6:
            raise RuntimeError("CUDA error: device-side assert triggered")
        if rank == 0:
            took = time.monotonic() - began
            print(f"step {step} loss {8 - step / 10:.2f} time {took:.4f} s", flush=True)
    dist.barrier()
    dist.destroy_process_group()
"""
TRAINING = """
    import os, sys, time
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader

    dist.init_process_group("gloo")
    fault, node = sys.argv[1], os.uname().nodename

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, number):
            time.sleep(0.3 if fault == f"reads slowly:{node}" else 0)
            return torch.full((8,), float(number % 3))

    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    for step, batch in enumerate(DataLoader(Data(), 2), 1):
        if fault == f"hangs:{node}" and step == 12:
            time.sleep(1000)
        loss = model(batch).square().mean()
        time.sleep(0.1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
"""
ENDS, FAST, LEARNS, PROGRESSES, RESUMES = (
    "test_the_workload_ends_well",
    "test_the_workload_is_as_fast_as_promised",
    "test_the_workload_learns",
    "test_the_workload_spends_its_time_on_steps",
    "test_the_workload_resumes",
)


def promised(tmp_path: Path, *arguments: str, job: str = JOB, **keys: Any) -> str:
    script = tmp_path / "train.py"
    script.write_text(dedent(job))
    workload = {"command": [str(script), *arguments], "warmup": 2, "within": "60 s", **keys}
    return spec_of(tmp_path, criteria={"workload": workload})


@turns_red("workload", FAST, LEARNS)
def test_a_job_on_a_slow_network_misses_its_efficiency(tmp_path: Path) -> None:
    loss = {"curve": [[5, 7.5], [8, 6.5]], "within": 0.1}
    page = promised(tmp_path, nodes=[1, 4], efficiency_at_least=0.5, loss=loss)
    done = certify(tmp_path, page, "--mnode-fault=slow_tx:node2:40", files=["test_workload.py"])
    failed = set(done.failed("workload")) - {"packets lost, worst fabric port"}
    assert failed == {"efficiency on 4 nodes", "loss of step 8"}, done.run.output
    assert done.case("workload", ENDS)[0] == "pass"
    found = done.measurements("workload")
    assert found["efficiency on 4 nodes"]["value"] < 0.4, done.run.output
    assert found["loss of step 5"]["verdict"] == "pass"


@turns_red("workload", ENDS, PORTS)
def test_a_job_that_breaks_names_the_node(tmp_path: Path) -> None:
    page = promised(tmp_path, "breaks:node2")
    files = [f"test_workload.py::{name}" for name in (ENDS, PORTS)]
    done = certify(tmp_path, page, fault=UNPLUGGED, files=files)
    assert any(one.startswith("node1 fab0 ") for one in done.culprits("workload"))
    verdict, found = done.case("workload", ENDS)
    assert verdict == "fail", done.run.output
    [failed] = found.values()
    assert failed["culprit_nodes"] == ["node2"]


@turns_red("workload", PROGRESSES)
def test_a_job_with_slow_input_names_the_rank(tmp_path: Path) -> None:
    limits = {"input": 0.05, "checkpointing": 0.05}
    page = promised(tmp_path, "reads slowly:node2", job=TRAINING, at_most=limits)
    done = certify(tmp_path, page, files=[f"test_workload.py::{PROGRESSES}"])
    verdict, found = done.case("workload", PROGRESSES)
    assert verdict == "fail", done.run.output
    slow = found["input, of the wall time"]
    assert slow["culprit_nodes"] == ["node2"]
    assert sum(one["value"] or 0 for name, one in found.items() if "wall" in name) == pytest.approx(
        1
    )
    assert [name for name, one in found.items() if one["verdict"] == "fail"] == [
        "input, of the wall time"
    ]


@turns_red("workload", ENDS)
def test_a_job_that_hangs_names_who_did_not_come(tmp_path: Path) -> None:
    page = promised(tmp_path, "hangs:node1", job=TRAINING, stalled_after="4 s")
    done = certify(tmp_path, page, files=[f"test_workload.py::{ENDS}"])
    verdict, found = done.case("workload", ENDS)
    assert verdict == "fail", done.run.output
    [failed] = found.values()
    assert failed["culprit_nodes"] == ["node1"]
    assert failed["culprit_parts"]["ranks"] == [1]
    assert "is at train.py:22" in failed["note"]
    kept = tmp_path / "report/workload-4"
    assert f"kept in {kept}" in failed["note"]
    cause = answer(read([kept])).cause
    assert cause is not None
    assert (cause.cause.name, cause.cause.ranks) == ("rank did not join", (1,))


@turns_red("workload", RESUMES)
def test_a_job_without_checkpoints_loses_its_steps(tmp_path: Path) -> None:
    asked = {"after_step": 6, "within": "150 s", "lost_steps_at_most": 2}
    page = promised(tmp_path, "none", job=TRAINING, restarts=1, resume=asked, within="200 s")
    done = certify(tmp_path, page, files=[f"test_workload.py::{RESUMES}"])
    verdict, found = done.case("workload", RESUMES)
    assert verdict == "fail", done.run.output
    assert found["time from the kill to a new step"]["verdict"] == "pass"
    assert found["steps lost"]["verdict"] == "fail"
    assert 6 <= found["steps lost"]["value"] <= 18
