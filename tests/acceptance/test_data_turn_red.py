"""Wrong shards, orders, batches, sums, seeds and files, each reported with its culprit.

What no fault of a cluster turns red is no question of it: tests/checks/data/test_in_ranks.py.
"""

from __future__ import annotations

from pathlib import Path

from tests.acceptance.certified import PORTS, Certified, certify, promised, spec_of
from tests.red import turns_red

DRAW = "4 ranks with seed 20: generators that draw"
FIRST = """
    import sys
    import pytest

    def pytest_collection_finish(session):
        if "torch" in sys.modules:  # where ranks are forked from: one of them seeds otherwise
            import os
            from pytest_mnode.reference_job import randomness
            right = randomness.seed_all
            randomness.seed_all = lambda seed, rank: right(seed + (os.environ["RANK"] == "3"), rank)

    @pytest.fixture(autouse=True)
    def one_thing_wrong(request, monkeypatch):
        if "process_group" not in request.fixturenames:
            return  # runs in the controller
        world = request.getfixturevalue("world")
        from torch.utils.data import DistributedSampler
        from pytest_mnode.checks.data import checks
        name = request.node.name

        def another_torch():
            "Shuffles as no other rank does."
            import torch
            usual = torch.randperm
            monkeypatch.setattr(
                torch, "randperm", lambda n, **options: usual(n, **options).roll(n // 2)
            )

        samples = DistributedSampler.__iter__
        if "padded" in name and world.rank == 2:
            init = DistributedSampler.__init__
            def of_rank_1(sampler, dataset, replicas, rank, **options):
                init(sampler, dataset, replicas, 1, **options)
            monkeypatch.setattr(DistributedSampler, "__init__", of_rank_1)
        elif "dropped" in name and world.rank == 3:
            monkeypatch.setattr(
                DistributedSampler, "__iter__", lambda sampler: iter(list(samples(sampler))[1:])
            )
        elif "workers" in name and world.rank == 1:
            from pytest_mnode.checks.data.in_ranks import Indices
            monkeypatch.setattr(Indices, "__getitem__", lambda data, i: i // 2 * 2)
        elif "order" in name and world.rank == 3:
            another_torch()
        elif "goes_on" in name and world.rank == 1:
            another_torch()
        elif "optimiser" in name:
            def steps_at_each(model, optimizer, loader, accumulation):
                for batch in loader:
                    (model(batch).mean() / accumulation).backward()
                    optimizer.step()
                    optimizer.zero_grad()
            monkeypatch.setattr(checks, "train", steps_at_each)
        elif "metrics" in name:
            import torch
            import torch.distributed as dist
            def in_float64(count, device):
                total = torch.tensor([float(count)], dtype=torch.float64)
                dist.all_reduce(total)
                return int(total)
            monkeypatch.setattr(checks, "sum_over_ranks", in_float64)
        elif "files" in name and world.rank == 3:
            right = checks.read_files
            monkeypatch.setattr(checks, "read_files", lambda at, path, *rest:
                right(at, path + "/../stale", *rest))
"""
SECOND = """
    import sys
    import pytest

    def pytest_collection_finish(session):
        if "torch" in sys.modules:  # where ranks are forked from
            import random
            from pytest_mnode.reference_job import randomness
            right = randomness.seed_all
            def all_but_python(*words):
                right(*words)
                random.seed()
            randomness.seed_all = all_but_python

    @pytest.fixture(autouse=True)
    def one_thing_wrong(request, monkeypatch):
        if "process_group" not in request.fixturenames:
            return  # runs in the controller
        world = request.getfixturevalue("world")
        from torch.utils.data import DistributedSampler
        from pytest_mnode.checks.data import checks
        name = request.node.name
        if "padded" in name and world.rank == 2:
            monkeypatch.setattr(DistributedSampler, "set_epoch", lambda sampler, epoch: None)
        elif "dropped" in name and world.rank == 3:  # another version of torch
            import torch
            usual = torch.randperm
            monkeypatch.setattr(
                torch, "randperm", lambda n, **options: usual(n, **options).roll(n // 2)
            )
        elif "optimiser" in name:
            import contextlib
            def not_divided(model, optimizer, loader, accumulation):
                for number, batch in enumerate(loader, 1):
                    last = number % accumulation == 0
                    with contextlib.nullcontext() if last else model.no_sync():
                        model(batch).mean().backward()
                    if last:
                        optimizer.step()
                        optimizer.zero_grad()
            monkeypatch.setattr(checks, "train", not_divided)
"""


def _with(directory: Path, fault: str) -> Certified:
    for folder, content in (("datasets", "of today"), ("stale", "of last week")):
        (directory / folder).mkdir()
        (directory / folder / "shard-0.bin").write_text(content)
    spec = spec_of(
        directory,
        criteria={"data": promised("data")},
        storage={"datasets": str(directory / "datasets")},
        not_promised=[],
    )
    return certify(
        directory, spec, "--mnode-nodes=2", fault=fault, files=["test_data.py"], cold=False
    )


@turns_red(
    "data",
    "test_every_sample_reaches_one_rank",
    "test_each_epoch_has_an_order_of_its_own",
    "test_an_epoch_goes_on_where_it_was_cut",
    "test_optimiser_sees_the_global_batch",
    "test_metrics_are_reduced_exactly",
    "test_seeds_differ_by_rank_and_come_again",
    "test_all_ranks_read_the_same_files",
)
def test_each_fault_is_named(tmp_path: Path) -> None:
    done = _with(tmp_path, FIRST)
    outcomes = done.run.outcomes()
    assert outcomes.pop(PORTS) == "passed"
    assert set(outcomes.values()) == {"failure"}, done.run.output
    failed = done.failed("data")
    overlap = failed["padded, 0 workers, epoch 1: samples read more than once"]
    assert overlap.startswith("rank 2 on node1 has the sampler of rank 1; ")
    assert "; rank 1 on node0 and rank 2 on node1 both read samples " in overlap
    assert overlap.count("both") == 1
    [files] = [name for name in failed if "/datasets: files" in name]
    steps = "optimiser: samples in a step of the optimiser"
    for name, start in {
        "drop_last, 0 workers, epoch 0: samples that reached no rank": "rank 3 on node1 read 63, ",
        "padded, 2 workers, epoch 0: samples that reached no rank": "rank 1 on node0 lacks ",
        "3 epochs: orders unlike those of most ranks": "rank 3 on node1 shuffles epoch 0 as ",
        "tokens: ranks with a wrong sum": "all 4 ranks: as float64 has it",
        f"{DRAW} other numbers than on most ranks": "rank 3 on node1 draws dropout as ",
        steps: "all 4 ranks: 32 samples in a step, expected 64; ",
        files: "rank 3 on node1 reads shard-0.bin as ",
    }.items():
        assert failed[name].startswith(start), failed
    cut = failed["cut at sample 128, 2 ranks go on: samples lost or read again"]
    assert cut.endswith(" read again by rank 1 on node0")


def test_a_deviation_of_one_rank_or_part_is_found(tmp_path: Path) -> None:
    done = _with(tmp_path, SECOND)
    failed = done.failed("data")
    weights = "optimiser: gradients that are not the mean over the batch"
    for name, start in {
        "padded, 0 workers, epoch 1: samples that reached no rank": "rank 2 on node1 shuffles by ",
        weights: "all 4 ranks: weights add up to 2, as if the loss were not divided",
        f"{DRAW} different numbers in a second run": "all 4 ranks: others from python",
    }.items():
        assert failed[name].startswith(start), failed
    assert "padded, 0 workers, epoch 0: samples that reached no rank" not in failed
    assert "optimiser: samples in a step of the optimiser" not in failed
    found = done.measurements("data")
    # Its own view of the others accuses nobody for sure.
    lost = found["drop_last, 0 workers, epoch 0: samples that reached no rank"]
    assert (lost["verdict"], lost["culprit_nodes"]) == ("fail", ["node1"])
    assert lost["culprit"].startswith("rank 3 on node1 lacks "), lost
    for name in ("tokens: ranks with a wrong sum", "3 epochs: orders unlike those of most ranks"):
        assert found[name]["verdict"] == "pass"
