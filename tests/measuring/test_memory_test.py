"""Patterns in memory: each kind of broken cell is found, and shown with its address."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch

from pytest_mnode.checks.devices.memory_test import judge_memory
from pytest_mnode.culprit import Culprit
from pytest_mnode.measurement import Verdict
from pytest_mnode.measuring.memory_test import PATTERNS, Memory, RankMemory, WrongWord, allocated
from pytest_mnode.spec.devices import MemoryPattern, MemoryTestPromise

TWO_BLOCKS = (5000, 3000)
Break = Callable[[torch.Tensor], None]


def memory() -> Memory:
    return Memory([torch.empty(words, dtype=torch.int64) for words in TWO_BLOCKS])


def high(block: torch.Tensor) -> None:
    block[700] |= torch.iinfo(torch.int64).min


def low(block: torch.Tensor) -> None:
    block[700] &= ~(1 << 5)


def aliased(block: torch.Tensor) -> None:
    block[700] = block[828]  # 128 words further, so that walking bits are the same


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[[Break], None]:
    """Breaks the second block after each write."""

    def breaks(how: Break) -> None:
        write: Any = torch.Tensor.copy_

        def copy_(into: torch.Tensor, values: torch.Tensor) -> None:
            write(into, values)
            if into.numel() == TWO_BLOCKS[1]:
                how(into)

        monkeypatch.setattr(torch.Tensor, "copy_", copy_)

    return breaks


@pytest.mark.parametrize("pattern", get_args(MemoryPattern))
def test_sound_memory_passes_each_pattern(pattern: str) -> None:
    sound = memory()
    sound.test(pattern, 1)
    assert (sound.wrong, sound.first, sound.size_bytes) == (0, [], 64_000)


@pytest.mark.parametrize(
    ("how", "finds"),
    [
        (low, {*PATTERNS}),
        (high, {*PATTERNS}),
        (aliased, {"address", "random"}),
    ],
)
def test_patterns_find_what_they_are_for(
    how: Break, finds: set[str], broken: Callable[[Break], None]
) -> None:
    broken(how)
    found = set()
    for pattern in PATTERNS:
        tested = memory()
        tested.test(pattern, 1)
        if tested.wrong:
            found.add(pattern)
            assert {word.offset for word in tested.first} == {8 * 5700}
    assert found == finds


def test_a_wrong_word_is_shown_with_what_was_expected(broken: Callable[[Break], None]) -> None:
    broken(low)
    tested = memory()
    tested.test("walking_ones", 0)
    [word] = tested.first  # only when the single bit is the broken one
    bit = (5 - 5700) % 64
    assert word == WrongWord(8 * 5700, f"walking_ones {bit}", 1 << 5, 0)
    assert str(word).endswith("expected 0x0000000000000020, found 0x0000000000000000")
    tested.test("address", 0)
    assert tested.wrong == 2


@pytest.mark.parametrize(
    ("change", "verdict", "words"),
    [
        ({}, Verdict.PASS, ""),
        ({"why": "600 s were over"}, Verdict.INCONCLUSIVE, "rank 1 on node1: 600 s were over"),
        (
            {"wrong": 9, "first": (WrongWord(64, "address", 64, 65),), "why": "over"},
            Verdict.FAIL,
            "rank 1 on node1, 0000:1b:00.0: byte 0x40, address: expected 0x0000000000000040",
        ),
    ],
)
def test_verdicts(change: dict[str, Any], verdict: Verdict, words: str) -> None:
    names = [Culprit.rank(f"rank {i} on node{i}", f"node{i}", i) for i in range(2)]
    rows = [RankMemory(name, "0000:1b:00.0", 72 << 30, 9.0, 0, ()) for name in names]
    given = {"name": names[1], "device": "0000:1b:00.0", "tested_bytes": 70 << 30, "seconds": 9.0}
    rows[1] = RankMemory(**{**given, "wrong": 0, "first": (), **change})
    wrong, tested = judge_memory(rows, MemoryTestPromise.model_validate({}))
    assert (wrong.verdict, tested.value) == (verdict, 70)
    assert words in str(wrong)
    if verdict is Verdict.FAIL:
        assert wrong.culprit is not None
        assert wrong.culprit.nodes == {"node1"}
        assert wrong.culprit.parts.devices == (("node1", "0000:1b:00.0"),)
        assert wrong.value == 9


def test_patterns_after_the_limit_are_left_out() -> None:
    tested = memory()
    promise = MemoryTestPromise.model_validate({"within": "1 us", "passes": 2})
    assert tested.test_all(promise, 0).startswith("1e-06 s were over after ")
    patient = MemoryTestPromise.model_validate({"patterns": ["address"], "passes": 2})
    assert not tested.test_all(patient, 0)


@pytest.mark.parametrize(("most", "got"), [(1 << 40, 3 << 30), (1 << 28, 3 << 30), (1 << 20, 0)])
def test_blocks_are_as_large_as_can_be(
    monkeypatch: pytest.MonkeyPatch, most: int, got: int
) -> None:
    def empty(words: int, **_: object) -> torch.Tensor:
        if 8 * words > most and words != 6 << 22:  # but the workspace
            raise RuntimeError("out of memory")
        return torch.zeros(1).expand(words)

    monkeypatch.setattr(torch, "empty", empty)
    blocks = allocated(3 << 30, torch.device("cpu"))
    assert 8 * sum(block.numel() for block in blocks) == got
