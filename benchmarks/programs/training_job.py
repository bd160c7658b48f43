"""A training job that loses time on purpose, and says by its own clock how much of what.

    training_job.py FOLDER FAULT RANK

Faults: none, input, network (made outside), checkpoint, slow, restart, hang, crash; of RANK. Rank 0
writes FOLDER/truth.json: by kind, the seconds of each step and rank; a rank that breaks writes the
time of that into FOLDER/broke, and each rank that of its first step after it into FOLDER/resumedN.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

STEPS, BREAKS_AT, SAVES_EVERY = 40, 25, 10


class Slow(io.BytesIO):
    """A file on slow storage."""

    def write(self, content: Any) -> int:
        time.sleep(0.05)
        return super().write(content)


class Lines(Dataset[torch.Tensor]):
    """Samples, each of which takes `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, number: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.full((256,), float(number % 5))


def main(folder: Path, fault: str, rank_of_fault: int) -> None:
    dist.init_process_group("gloo")
    rank, again = dist.get_rank(), (folder / "broke").exists()
    mine = rank == rank_of_fault
    model = torch.nn.Sequential(torch.nn.Linear(256, 1000), torch.nn.Linear(1000, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    begun, saved = 0, folder / "checkpoint"
    if saved.exists():
        begun, state = torch.load(saved)
        model.load_state_dict(state)
    batches = iter(DataLoader(Lines(0.12 if mine and fault == "input" else 0.0), 2))
    took: list[list[float]] = []
    for step in range(begun + 1, STEPS + 1):
        clock = [time.perf_counter()]
        batch = next(batches)
        clock.append(time.perf_counter())
        if step == BREAKS_AT and mine and not again and fault in ("restart", "hang", "crash"):
            (folder / "broke").write_text(str(time.time()))
            if fault == "hang":
                time.sleep(1000)
            raise RuntimeError("CUDA error: device-side assert triggered")
        if again and not took:
            (folder / f"resumed{rank}").write_text(str(time.time()))
        loss = model(batch).square().mean()
        loss.backward()
        time.sleep(0.3 if mine and fault == "slow" else 0.05)
        clock.append(time.perf_counter())
        for one in model.parameters():
            dist.all_reduce(one.grad)
        clock.append(time.perf_counter())
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
            if step % SAVES_EVERY == 0:
                state = (step, model.state_dict())
                torch.save(state, Slow() if fault == "checkpoint" else io.BytesIO())
                torch.save(state, folder / "part")
                (folder / "part").rename(saved)
        clock.append(time.perf_counter())
        took.append([after - before for before, after in itertools.pairwise(clock)])
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, took)
    if rank == 0:
        (folder / "truth.json").write_text(json.dumps(every))
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # at the end of Python, gloo's threads abort a rank now and then: no injected loss


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
