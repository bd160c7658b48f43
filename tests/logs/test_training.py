"""Logs of training programs: what each says of a step."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pytest_mnode.logs.training import Step, read_progress

TITAN = "[rank0]:[titan] 2026-11-20 12:00:0{n},123 - root - INFO - "
BAR = " {percent}%|█████     | {n}/100 [{minutes:02d}:{seconds:02d}<01:40,  1.02it/s{after}]"
LOGS: dict[str, tuple[str, Step]] = {
    "torchtitan": (
        TITAN + "\x1b[31mstep: {n}  \x1b[32mloss:  8.{n}5  \x1b[38;2;180;60;0mgrad_norm:  1.2  "
        "\x1b[36mmemory: 20.10GiB(25.38%)  \x1b[34mtps: 3,45{n}  \x1b[36mtflops: 150.2  "
        "\x1b[35mmfu: 15.2%\x1b[39m",
        Step(4, 8.45, None, 3454, None, 150.2, 0.152),
    ),
    "torchtitan, before": (
        TITAN + "step: {n}  loss:  8.{n}5  memory: 20.10GiB(25.38%)  wps: 3,45{n}  mfu: 43.5%",
        Step(4, 8.45, None, 3454, None, None, 0.435),
    ),
    "megatron": (
        " [2026-05-01 12:00:00] iteration        {n}/     100 | consumed samples:         2560 | "
        "elapsed time per iteration (ms): 500.0 | throughput per GPU (TFLOP/s/GPU): 412.3 | "
        "learning rate: 1.000000E-04 | global batch size:   256 | lm loss: 7.{n}23456E+00 | loss "
        "scale: 1.0 | grad norm: 1.234 | number of skipped iterations:   0 |",
        Step(4, 7.423456, 0.5, None, 512, 412.3, None),
    ),
    "nemo": (
        "Training epoch 0, iteration {n}/99 | lr: 5.997e-06 | global_batch_size: 512 | "
        "global_step: {n} | reduced_train_loss: 10.5{n} | train_step_timing in s: 6.5",
        Step(4, 10.54, 6.5),
    ),
    "nemo, before": (
        "Epoch 0: :  1%| | {n}/100 [00:06<09:00, v_num=0, reduced_train_loss=7.1{n}, "
        "global_step={n}.000, consumed_samples=5120.0, train_step_timing in s=6.12]",
        Step(4, 7.14, 6.12),
    ),
    "deepspeed": (
        "[2026-01-01 12:00:00,000] [INFO] [timer.py:260:stop] epoch=0/micro_step={n}/"
        "global_step={n}, RunningAvgSamplesPerSec=12.34, CurrSamplesPerSec=12.{n}, "
        "MemAllocated=1.2GB, MaxMemAllocated=3.4GB",
        Step(4, None, None, None, 12.4),
    ),
    "deepspeed of Megatron": (
        "steps: {n} loss: 9.{n}123 iter time (s): 0.512 samples/sec: 100.1",
        Step(4, 9.4123, 0.512, None, 100.1),
    ),
    "plain": ("step {n} | loss 3.{n} | dt 250.5 ms | tok/sec 1234", Step(4, 3.4, 0.2505)),
    "plain iterations": (
        "iter {n}: loss 3.{n}000, time 250.50ms, mfu 50%",
        Step(4, 3.4, 0.2505, mfu=0.5),
    ),
    "plain accumulation": (
        "[step 0000{n}/00030] train loss: 3.{n} | tok/s: 12.3K | step_time: 81.5ms | mfu: 50%",
        Step(4, 3.4, 0.0815, mfu=0.5),
    ),
    "plain JSON": (
        '12:00:00 INFO trainer: {{"loss": 1.{n}, "global_step": {n}, "step_time_s": 0.25}}',
        Step(4, 1.4, 0.25),
    ),
    "plain batches": ("Epoch 1/2 | Batch {n}/25 | Loss: 1.{n} | 0.25 s/it", Step(4, 1.4, 0.25)),
    "plain imagenet": ("Epoch: [0][ {n}/50]\tTime 0.51 (0.6)\tLoss 6.{n} (7.0)", Step(4, 6.4)),
    "plain tutorial": ("[1, {n}] loss: 6.{n}", Step(4, 6.4)),
    "plain thousands": ("Step 1,00{n}, Loss = 6.{n}", Step(4, 6.4)),
    "plain since the begin": (
        "step {n}, loss: 6.{n}, elapsed seconds: 1{n}.5, total seconds: 2{n}.5",
        Step(4, 6.4),
    ),
    "plain times": (
        "step {n} loss 6.{n} data time: 0.01 s batch time: 0.5 s eta time: 300 s",
        Step(4, 6.4, 0.5),
    ),
    "nemo, tokens of whom": (
        "global_step: {n} | reduced_train_loss: 1.{n} | train_step_timing in s: 0.5 | "
        "tokens_per_sec: 8000",
        Step(4, 1.4, 0.5),
    ),
    "plain maxtext": (
        "completed step: {n}, seconds: 1.5, TFLOP/s/device: 123.4, Tokens/s/device: 4567.8, "
        "total_weights: 65536, loss: 10.{n}",
        Step(4, 10.4, 1.5, 4567.8, None, 123.4),
    ),
    "plain nanotron": (
        "[INFO|DP=0|PP=0|TP=0]: iteration: {n} / 100 | elapsed_time_per_iteration_ms: 500 | "
        "tokens_per_sec: 12.3K | tokens_per_sec_per_gpu: 1.5K | global_batch_size: 1.02K | "
        "lm_loss: 10.{n} | model_tflops_per_gpu: 123 | hardware_tflops_per_gpu: 150",
        Step(4, 10.4, 0.5, 1500, None, 123),
    ),
    "huggingface, with a loss": (
        "1|{n}|Loss: 1.{n}: 5%|##   | {n}/100 [00:00<01:40,  2.00s/it, tok_s=12.3k]",
        Step(4, 1.4, 2.0),
    ),
    "lightning of epochs": (
        "Epoch 1/3:  40%|##   | {n}/40 [00:00<00:03,  2.00s/it, loss=1.{n}]",
        Step(4, 1.4, 2.0),
    ),
}


@pytest.mark.parametrize("name", LOGS)
def test_what_a_line_says(name: str) -> None:
    line, expected = LOGS[name]
    text = "\n".join(["starting", *(line.format(n=n) for n in range(1, 6)), "done"])
    found = read_progress([text])
    assert found.format == name.partition(",")[0].split()[0]
    first = 1000 if "thousands" in name else 0
    assert [one.number - first for one in found.steps] == [1, 2, 3, 4, 5]
    expected = replace(expected, number=first + 4)
    assert found.steps[3] == expected


def test_a_progress_bar_tells_time_by_whole_seconds() -> None:
    bars = [
        BAR.format(percent=n, n=n, minutes=2 * n // 60, seconds=2 * n % 60, after="")
        for n in range(41)
    ]
    bars.insert(30, "{'loss': 2.125, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 0.1}")
    found = read_progress(["\r".join(bars[:30]) + "\n" + "\n".join(bars[30:])])
    assert found.format == "huggingface"
    assert (found.steps[39].seconds, found.steps[1].seconds) == (2.0, 1 / 1.02)
    assert found.steps[29].loss == 2.125


TRAINER = """\
Tokenizing train dataset: 100%|##########| 2000/2000 [00:00<00:00, 9120.15 examples/s]
Loading weights:   0%|          | 0/21 [00:00<?, ?it/s]\rLoading weights: 100%|####| 21/21 \
[00:00<00:00, 36822.90it/s]

  0%|          | 0/30 [00:00<?, ?it/s][rank0]:[W1129 reducer.cpp:1529] Warning: find_unused
  7%|7         | 2/30 [00:00<00:01, 20.00it/s]
                                              \r{'loss': '6.225', 'grad_norm': '2.405', \
'epoch': '0.008'}

  7%|7         | 2/30 [00:00<00:01, 20.00it/s]
                                              \r{'loss': '6.223', 'grad_norm': '2.31', \
'epoch': '0.016'}
 13%|#3        | 4/30 [00:00<00:01, 20.00it/s]
  0%|          | 0/12 [00:00<?, ?it/s]\r 50%|#####     | 6/12 [00:00<00:00, 99.00it/s]
Writing model shards:   0%|          | 0/1 [00:00<?, ?it/s]
Writing model shards: 100%|##########| 1/1 [00:00<00:00, 781.94it/s]

 97%|#########7| 29/30 [00:00<00:00, 25.00it/s]
{'loss': '6.168', 'grad_norm': '2.566', 'epoch': '0.12'}

{'train_runtime': '0.8229', 'train_samples_per_second': '291.6', 'train_steps_per_second': \
'36.45', 'train_loss': '6.189', 'epoch': '0.12'}
100%|##########| 30/30 [00:00<00:00, 36.42it/s]
"""
"""As transformers 5.24 and trl 1.16 print it, shortened: bars of other work, one of an evaluation,
and losses of steps that the bar before them does not show."""


def test_bars_with_words_of_training() -> None:
    texts = (
        " 50%|##| 5/10 [00:05<00:05, 1.00s/it]",
        "Steps:  50%|##| 5/10 [00:05<00:05, 1.00s/it]",
    )
    assert [read_progress([one]).steps for one in texts] == [(Step(5, None, 1.0),)] * 2


def test_a_bar_of_an_evaluation_with_a_loss_counts_no_steps() -> None:
    bars = [f"Eval: 5%|##   | {n}/9 [00:00<00:01, 9.00it/s, loss=2.5]" for n in range(1, 10)]
    text = "\n".join(["step 5 loss 3.5", "step 10 loss 3.25", *bars])
    assert read_progress([text]).steps == (Step(5, 3.5), Step(10, 3.25))


def test_a_trainer_prints_the_loss_before_the_bar_of_its_step() -> None:
    found = read_progress([TRAINER])
    assert [(one.number, one.loss) for one in found.steps] == [
        (2, 6.225),
        (4, 6.223),
        (29, None),
        (30, 6.168),
    ]
    assert [one.samples_per_s for one in found.steps[:3]] == [160, 160, 200]


def test_lightning() -> None:
    after = ", v_num=0, train_loss=1.230"
    bars = [
        "Epoch 0: " + BAR.format(percent=n, n=n, minutes=0, seconds=n, after=after)
        for n in range(30)
    ]
    found = read_progress(["\r".join(bars)])
    assert (found.format, found.steps[19]) == ("lightning", Step(20, 1.23, 1.0))


def test_a_step_that_all_ranks_print_is_one() -> None:
    lines = [f"step {n} | loss {loss}" for n in (1, 2) for loss in (3.0, 4.0, 8.0)]
    assert [one.loss for one in read_progress(["\n".join(lines)]).steps] == [4.0, 4.0]


def test_a_loss_that_is_no_number() -> None:
    [one] = read_progress(["step: 3  loss:  nan  tps: 1"]).steps
    assert one.loss is not None
    assert math.isnan(one.loss)


@pytest.mark.parametrize("loss", ["nan", "NaN", "inf", "-inf", "Infinity"])
def test_a_loss_of_one_rank_that_is_no_number_is_that_of_all(loss: str) -> None:
    [one] = read_progress([f"step 1 loss {loss}\nstep 1 loss 3.0\nstep 1 loss 3.1"]).steps
    assert one.loss is not None
    assert math.isnan(one.loss)


OWN = r"^S(?P<step>\S+) L(?P<loss>\S+)(?: T(?P<seconds>\S+))?(?: J(?P<job_tokens_per_s>\S+))?"


@pytest.mark.parametrize(
    ("line", "steps"),
    [
        ("S7 L1.5 T0.25\nnoise", (Step(7, 1.5, 0.25),)),
        ("S7 L1.5; J4,000", (Step(7, 1.5, None, 1000),)),
        ("S7 L1.5 J4K", (Step(7, 1.5, None, 1000),)),
        ("S7 Ln/a T0.25", (Step(7, None, 0.25),)),
        ("S7 L1.5k", (Step(7),)),
        ("S7 L1.2.3", (Step(7),)),
        ("Snan L1.5\nSx L1", ()),
    ],
)
def test_patterns_of_ones_own(line: str, steps: tuple[Step, ...]) -> None:
    assert read_progress([line], {"own": OWN}, ranks=4).steps == steps


def test_a_pattern_whose_step_may_be_missing() -> None:
    own = {"own": r"^(?:S(?P<step>\d+) )?L(?P<loss>\S+)"}
    assert read_progress(["L2.5\nS3 L1.5"], own).steps == (Step(3, 1.5),)


@pytest.mark.parametrize(
    ("printed", "restarts", "numbers", "epochs"),
    [
        ([*range(1, 6)] * 3, 0, [*range(1, 16)], 3),
        ([*range(5)] * 3, 0, [*range(15)], 3),
        ([*range(0, 50, 10)] * 2, 0, [*range(0, 100, 10)], 2),
        ([*range(10, 51, 10)] * 2, 0, [*range(10, 101, 10)], 2),
        ([*range(1, 6), *range(1, 9)], 1, [*range(1, 9)], 1),
        ([*range(1, 6), *range(3, 9)], 1, [*range(1, 9)], 1),
        ([*range(1, 6), *range(1, 6), *range(3, 6)], 1, [*range(1, 6)], 2),
        ([1, 1, 2, 1, 2, 2, 3, 2, 3, 3], 0, [1, 2, 3], 1),
    ],
)
def test_epochs_and_restarts(
    printed: list[int], restarts: int, numbers: list[int], epochs: int
) -> None:
    text = "\n".join(f"step {one} loss 1" for one in printed)
    found = read_progress([text], restarts=restarts)
    assert ([one.number for one in found.steps], found.epochs) == (numbers, epochs)


def test_bars_of_epochs_go_on() -> None:
    bars = [
        f"Epoch {epoch}: " + BAR.format(percent=n, n=n, minutes=0, seconds=n, after="")
        for epoch in range(2)
        for n in range(31)
    ]
    found = read_progress(["\r".join(bars)]).steps
    assert [one.number for one in found] == [*range(1, 61)]
    assert {one.seconds for one in found[9:]} == {1.0}


def test_an_evaluation_before_the_training_is_not_the_training() -> None:
    early = "  0%|          | 0/12 [00:00<?, ?it/s]\r 50%|#####     | 6/12 [00:00<00:00, 9.00it/s]"
    found, usual = read_progress([f"{early}\n{TRAINER}"]), read_progress([TRAINER])
    assert found.steps == usual.steps


def test_a_time_that_only_rises_is_not_that_of_a_step() -> None:
    lines = [f"step {n} loss 3 time {100 + 1.3 * n:.1f}s" for n in range(1, 9)]
    assert {one.seconds for one in read_progress(["\n".join(lines)]).steps} == {None}
    lines = [f"step {n} loss 3 time {1 + n % 3 / 9:.2f}s" for n in range(1, 9)]
    assert {one.seconds for one in read_progress(["\n".join(lines)]).steps} == {1, 1.11, 1.22}


@pytest.mark.parametrize(
    ("text", "loss"),
    [
        ("step 250: train loss 2.5, val loss 9.9\niter 250: loss 2.0", 2.0),
        ("step 250: train loss 2.5, val loss 9.9", 2.5),
        ("step 250: val loss 9.9, train loss 2.5", 2.5),
        ("step 250: val loss 9.9", None),
        ("step 250 train_loss=.5 val_loss=9.9", 0.5),
        ("step 250: validation loss: 9.9\nstep 250: loss: 2", 2.0),
    ],
)
def test_a_loss_of_validation(text: str, loss: float | None) -> None:
    assert [one.loss for one in read_progress([text]).steps] == [loss]


@pytest.mark.parametrize("text", ["", "hello\nworld", "epoch 3 done", "loss: 3"])
def test_other_texts_say_nothing(text: str) -> None:
    assert read_progress([text]).steps == ()
