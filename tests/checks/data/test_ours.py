"""The sampler, the metrics and the seeds of this package, right and wrong, in ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.certified import Certified, certify, spec_of

SAME = "4 ranks with seed 20: generators that draw the same numbers as another"
OURS = Path(__file__).with_name("ours.py")
# A plugin. Where ranks are forked from, all have the same seed.
FIRST = """
    import sys
    import pytest

    def pytest_collection_finish(session):
        if "torch" in sys.modules:
            from pytest_mnode.reference_job import randomness
            right = randomness.seed_all
            randomness.seed_all = lambda *words: right(words[0])

    @pytest.fixture(autouse=True)
    def one_thing_wrong(request, monkeypatch):
        if "process_group" not in request.fixturenames:
            return  # runs in the controller
        world = request.getfixturevalue("world")
        from torch.utils.data import DistributedSampler
        from pytest_mnode.checks.data import in_ranks
        from pytest_mnode.reference_job.data import ResumableSampler
        name = request.node.name
        if "inside" in name and world.rank == 3:
            samples = DistributedSampler.__iter__
            monkeypatch.setattr(
                DistributedSampler, "__iter__", lambda sampler: iter([999, *samples(sampler)])
            )
        elif "order" in name:
            monkeypatch.setattr(DistributedSampler, "set_epoch", lambda sampler, epoch: None)
        elif "goes_on" in name and world.rank == 1:
            monkeypatch.setattr(ResumableSampler, "go_to", lambda sampler, epoch, position:
                sampler.set_epoch(epoch))
        elif "together" in name and world.rank == 1:
            step = in_ranks.Ledger._note
            def twice(ledger, *words):
                step(ledger, *words)
                step(ledger, *words)
            monkeypatch.setattr(in_ranks.Ledger, "_note", twice)
        elif "means" in name:
            import torch
            import torch.distributed as dist
            from pytest_mnode.checks import data
            def of_averages(values, device):
                average = torch.tensor([sum(values) / len(values)], dtype=torch.float64)
                dist.all_reduce(average)
                return float(average) / world.size
            monkeypatch.setattr(in_ranks, "mean_over_ranks", of_averages)
"""
SECOND = """
    import pytest

    @pytest.fixture(autouse=True)
    def one_thing_wrong(request, monkeypatch):
        if "process_group" not in request.fixturenames:
            return  # runs in the controller
        world = request.getfixturevalue("world")
        from torch.utils.data import DistributedSampler
        if "order" in request.node.name and world.rank == 2:
            monkeypatch.setattr(DistributedSampler, "set_epoch", lambda sampler, epoch: None)
"""


def _with(directory: Path, fault: str) -> Certified:
    spec = spec_of(directory, criteria={"mesh": {}}, not_promised=[])
    return certify(directory, spec, "--mnode-nodes=2", fault=fault, files=[str(OURS)], cold=False)


@pytest.mark.parametrize(
    ("fault", "culprits"),
    [
        (
            FIRST,
            {
                "epoch 1: ranks with more or fewer samples": "rank 3 on node1 read 66, most ranks",
                "epoch 1: indices outside the data set": "rank 3 on node1 read 999",
                "3 epochs: epochs read in the order of an earlier epoch": "all 4 ranks: epoch 1 in",
                "cut at sample 128, 2 ranks go on: samples lost or read again": "samples ",
                "optimiser: ranks with more or fewer steps": "rank 1 on node0: 8 steps, most",
                "loss: ranks with a wrong mean": "all 4 ranks: the average of the ranks' averages",
                SAME: "all 4 ranks: the same from python, numpy, torch, dropout; ",
            },
        ),
        (
            SECOND,
            {"3 epochs: epochs read in the order of an earlier epoch": "rank 2 on node1: epoch 1"},
        ),
    ],
)
def test_what_is_ours_is_right_or_named(
    tmp_path: Path, fault: str, culprits: dict[str, str]
) -> None:
    failed = _with(tmp_path, fault).failed("ours")
    for name, start in culprits.items():
        assert failed.pop(name).startswith(start)
    if fault == SECOND:  # which leaves all others right
        assert not failed
