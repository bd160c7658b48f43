"""The job in real ranks on the rack: repeated, cut and resumed, and on other numbers of ranks."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from pytest_mnode.reference_job import StartRecord, StepRecord, read_records
from tests.inner import need_rack, run_pytest, write_files

SAMPLES, STEPS, CUT, EVERY, RANKS = 48, 6, 5, 2, 2
WAYS = ("ddp", "fsdp2")

TESTS = """
    import contextlib, json, pathlib, shutil, sys, time
    import pytest
    from pytest_mnode.reference_job import JobConfig
    from pytest_mnode.reference_job.checkpoint import Store

    # All that a trainer imports is imported once where ranks are forked, and not in every rank.
    if "torch" in sys.modules:
        import torch, torch._dynamo, torch.distributed as dist
        from pytest_mnode.reference_job import Trainer
        from pytest_mnode.reference_job.checkpoint import loading, saving
        from pytest_mnode.reference_job.data import IGNORED
        from pytest_mnode.reference_job.model import Transformer
        from pytest_mnode.reference_job.randomness import seed_all
        from pytest_mnode.reference_job.spans import Clock, Spans

    HERE = pathlib.Path.cwd()

    def config(name, way, **changes):
        return JobConfig(
            str(HERE / name), parallel=way, vocab=64, context=16, width=32, layers=1,
            samples=48, global_batch=16, steps=6, bucket_bytes=50_000,
            **{"accumulation": 2, "checkpoint_every": 2, **changes})

    def train(config, until=None, ranks=None, *, world):
        group = None if ranks is None else dist.new_group(ranks)
        if ranks is not None and world.rank not in ranks:
            return None
        trainer = Trainer(config, world, torch.device("cpu"), group=group)
        with contextlib.closing(trainer):
            trainer.resume()
            while trainer.finished_steps < (until or config.steps):
                trainer.step()
            end = trainer.end()
            return end.parameters, end.optimiser, end.lr

    def flip_a_bit(checkpoint):
        file = max(checkpoint.glob("*.distcp"), key=lambda file: file.stat().st_size)
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)

    def holds(config, *, world):
        from pytest_mnode.reference_job import trainer
        gathered, calls = trainer.gathered, []
        def counted(*args):
            calls.append(1)
            return gathered(*args)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trainer, "HOLD_S", 0.2)
            patch.setattr(trainer, "gathered", counted)
            train(config, 3, world=world)
        return len(calls)

    def check_held_open_once(world):
        held = config("held", "ddp", hold_after=(2,))
        assert world.run(holds, held, group=True) == [3, 3]
        assert held.held_after(2).exists()
        shutil.rmtree(held.checkpoints)  # as if the run had been killed there
        assert world.run(holds, held, group=True) == [1, 1]

    def waits(config, stops, *, world):
        from pytest_mnode.reference_job import trainer
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trainer, "HOLD_S", 20.0)
            job = Trainer(config, world, torch.device("cpu"), stop_requested=lambda: stops)
            with contextlib.closing(job):
                job.step()
                began = time.monotonic()
                job.wait_to_be_killed()
                return time.monotonic() - began

    def check_waits_after_a_step_until_it_is_asked_to_stop(world):
        waiting = config("waiting", "ddp", hold_after=(1,))
        assert max(world.run(waits, waiting, True, group=True)) < 10
        assert waiting.held_after(1).exists()
        assert max(world.run(waits, waiting, False, group=True)) < 10, "once in a run"

    def gradients(config, *, world):
        # Of the first step, over all ranks; and those of one process with all its samples.
        with contextlib.closing(Trainer(config, world, torch.device("cpu"))) as trainer:
            trainer.model.eval()  # no dropout, which differs by rank
            kept = []
            def keep(*_):
                for p in trainer.model.parameters():
                    kept.append(p.grad.full_tensor() if config.parallel == "fsdp2" else p.grad)
            trainer.optimiser.register_step_pre_hook(keep)
            trainer.optimiser.zero_grad = lambda: None
            record = trainer.step()
            mine = [None] * world.size
            dist.all_gather_object(mine, record.samples)
            seed_all(config.seed)
            alone = Transformer(config, Spans(Clock())).eval()
            per_rank = []
            for samples in mine:
                tokens, targets = (
                    torch.stack([trainer.feed.data[i][n] for i in samples]) for n in (1, 2))
                loss = alone(tokens, targets)
                (loss / (config.global_batch * config.context)).backward()
                per_rank.append((loss.item(), int((targets != IGNORED).sum())))
            for ours, whole in zip(kept, alone.parameters(), strict=True):
                torch.testing.assert_close(ours, whole.grad, rtol=1e-4, atol=1e-7)
            mean = sum(l for l, _ in per_rank) / sum(n for _, n in per_rank)
            of_means = sum(l / n for l, n in per_rank) / len(per_rank)
            return record.loss, mean, of_means, record.tokens == per_rank[world.rank][1]

    def check_sums_of_one_process(world, way):
        results = world.run(gradients, config(f"{way} exact", way), group=True)
        for loss, mean, of_means, tokens in results:
            assert loss == pytest.approx(mean, rel=1e-6) and tokens
            assert abs(of_means - mean) > 1e-5 * mean, "the test cannot tell"

    def one_step(config, *, world):
        with contextlib.closing(Trainer(config, world, torch.device("cpu"))) as trainer:
            record = trainer.step()
            kinds = {str(p.dtype) for p in trainer.model.parameters()}
            return record, kinds

    def check_declared_time_and_bfloat16(world, way):
        results = world.run(one_step, config(f"{way} paced", way, compute_s=0.6), group=True)
        for record, _ in results:
            parts = record.parts
            assert parts["forward"] > 0 and parts["backward"] > 0, parts
            assert 0.595 < parts["forward"] + parts["backward"] < 6, parts
        half = world.run(one_step, config(f"{way} half", way, dtype="bfloat16"), group=True)
        for (whole, _), (rounded, kinds) in zip(results, half, strict=True):
            assert whole.loss != rounded.loss == pytest.approx(whole.loss, rel=0.01)
            assert kinds == {"torch.float32"}

    @pytest.mark.parametrize("way", ["ddp", "fsdp2"])
    def test_runs(cluster, way):
        results = {}
        with cluster.world() as world:
            never = config(f"{way} again", way, checkpoint_every=0)
            results["whole"] = world.run(train, config(f"{way} whole", way), group=True)
            results["again"] = world.run(train, never, group=True)
            world.run(train, config(f"{way} cut", way), 5, group=True)
            for name in ("to 1", "to 4", "damaged"):
                shutil.copytree(HERE / f"{way} cut", HERE / f"{way} {name}")
            results["cut"] = world.run(train, config(f"{way} cut", way), group=True)
            damaged = config(f"{way} damaged", way)
            flip_a_bit(Store(damaged.checkpoints).newest().path)
            results["damaged"] = world.run(train, damaged, group=True)
            check_sums_of_one_process(world, way)
            check_declared_time_and_bfloat16(world, way)
            if way == "ddp":
                check_held_open_once(world)
                check_waits_after_a_step_until_it_is_asked_to_stop(world)
            two = world.run(train, config(f"{way} two", way), 1, group=True)
        with cluster.world(nodes=1) as world:
            world.run(train, config(f"{way} to 1", way, reshard=True), group=True)
        with cluster.world(procs_per_node=2) as world:
            world.run(train, config(f"{way} to 4", way, reshard=True), group=True)
            few = world.run(train, config(f"{way} few", way), 1, [1, 3], group=True)
        assert few == [None, tuple(two[0]), None, tuple(two[1])]
        pathlib.Path(f"{way}.json").write_text(json.dumps(results))
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_rack()
    directory = tmp_path_factory.mktemp("runs with a blank")
    write_files(directory, test_it=TESTS)
    run = run_pytest(directory, f"--mnode-nodes={RANKS}", limit_s=300)
    assert run.returncode == 0, run.output
    return directory


def _steps(directory: Path, way: str, name: str) -> list[StepRecord]:
    records = read_records(directory / f"{way} {name}")
    assert not [one for one in records if one.kind == "unreadable"]
    return [one for one in records if isinstance(one, StepRecord)]


def _exact_values(steps: list[StepRecord]) -> dict[tuple[int, int], tuple[object, ...]]:
    """Values that two runs must share bit by bit; the last record of a step counts."""
    return {
        (one.rank, one.step): (one.loss.hex(), one.lr.hex(), one.rng, one.samples, one.tokens)
        for one in steps
    }


@pytest.mark.parametrize("way", WAYS)
def test_two_runs_are_the_same_bit_by_bit(directory: Path, way: str) -> None:
    whole, again = (_exact_values(_steps(directory, way, name)) for name in ("whole", "again"))
    assert len(whole) == RANKS * STEPS
    assert whole == again
    ends = json.loads((directory / f"{way}.json").read_text())
    assert ends["whole"] == ends["again"]
    assert len({loss for _, (loss, *_) in whole.items()}) == STEPS, "all ranks record the same loss"


@pytest.mark.parametrize("way", WAYS)
def test_a_resumed_run_ends_like_an_uninterrupted_one(directory: Path, way: str) -> None:
    steps = _steps(directory, way, "cut")
    assert _exact_values(steps) == _exact_values(_steps(directory, way, "whole"))
    ends = json.loads((directory / f"{way}.json").read_text())
    assert ends["cut"] == ends["whole"], "parameters, optimiser and learning rate"
    resumed = CUT - CUT % EVERY
    # The step after the checkpoint was done, lost, and repeated with the same result.
    done = Counter((one.rank, one.step) for one in steps)
    assert {step for (_, step), times in done.items() if times == 2} == {resumed + 1}
    starts = [r for r in read_records(directory / f"{way} cut") if isinstance(r, StartRecord)]
    assert [one.loaded for one in starts] == [None, resumed] * RANKS
    twice = [_exact_values([one for one in steps if one.step == resumed + 1][i::2]) for i in (0, 1)]
    assert twice[0] == twice[1]


@pytest.mark.parametrize("way", WAYS)
def test_a_damaged_checkpoint_is_refused_and_the_one_before_is_used(
    directory: Path, way: str
) -> None:
    starts = [r for r in read_records(directory / f"{way} damaged") if isinstance(r, StartRecord)]
    assert [one.loaded for one in starts] == [None, 2] * RANKS
    for one in starts[1::2]:
        [reason] = one.refused
        assert reason.startswith("step-00000004.1-")
        assert reason.endswith("is not what was written: its SHA-256 differs")
    assert _exact_values(_steps(directory, way, "damaged")) == _exact_values(
        _steps(directory, way, "whole")
    )
    ends = json.loads((directory / f"{way}.json").read_text())
    assert ends["damaged"] == ends["whole"], "parameters, optimiser and learning rate"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ranks", [1, 4])
def test_a_run_resumes_on_other_numbers_of_ranks(directory: Path, way: str, ranks: int) -> None:
    steps = _steps(directory, way, f"to {ranks}")
    resumed = CUT - CUT % EVERY
    kept = [one for one in steps if one.world_size == RANKS and one.step <= resumed]
    kept += [one for one in steps if one.world_size == ranks]
    assert {one.step for one in kept if one.world_size == ranks} == {*range(resumed + 1, STEPS + 1)}
    assert {one.rank for one in kept if one.world_size == ranks} == {*range(ranks)}
    a_step = 16
    for epoch in (0, 1):
        seen = [i for one in kept if one.epoch == epoch for i in one.samples]
        assert sorted(seen) == list(range(SAMPLES)), f"epoch {epoch}"
    assert all(len(one.samples) == a_step // one.world_size for one in kept)
    whole = {one.step: one for one in _steps(directory, way, "whole")}
    for one in kept:  # dropout and the last bits of sums differ by rank; the model does not
        assert one.loss == pytest.approx(whole[one.step].loss, rel=0.05)
        assert one.lr == whole[one.step].lr


def test_ddp_and_fsdp_learn_the_same(directory: Path) -> None:
    ddp, fsdp2 = ({s.step: s.loss for s in _steps(directory, way, "whole")} for way in WAYS)
    assert ddp[STEPS] < ddp[1] - 0.1, "the loss decreases"
    for step, loss in ddp.items():
        assert fsdp2[step] == pytest.approx(loss, rel=1e-4)


@pytest.mark.parametrize("way", WAYS)
def test_parts_add_up_to_the_step(directory: Path, way: str) -> None:
    steps = _steps(directory, way, "whole")
    missing = sorted(abs(1 - sum(one.parts.values()) / one.wall_s) for one in steps)
    # Another process may use the core between the step's last part and its end.
    assert missing[len(steps) * 9 // 10] < 0.02
    for one in steps:
        assert all(seconds >= 0 for seconds in one.parts.values())
    saved = [one.parts["checkpoint"] for one in steps if one.step == EVERY + 1]
    assert all(seconds > 0 for seconds in saved), "in the step that follows the checkpoint"


@pytest.mark.parametrize("way", WAYS)
def test_ranks_draw_different_numbers(directory: Path, way: str) -> None:
    first = [one.rng for one in _steps(directory, way, "whole") if one.step == 1]
    assert len(set(first)) == RANKS
