"""Memory of each rank's accelerator, written whole with patterns and read back, word by word.

A pattern is written to all of the memory before any of it is read, so that a word that shares its
cell with another one shows. Ranks on CPUs test an amount of the host's memory that the spec states.
Sources: van de Goor, "Testing Semiconductor Memories", 1991 (walking bits, address faults); Chris
Brady, memtest86, "Memory Testing Philosophy" (moving inversions).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from pytest_mnode.culprit import Culprit
from pytest_mnode.measuring.naming import rank_name
from pytest_mnode.measuring.numa import address_of
from pytest_mnode.measuring.ranks import finish, free_bytes_by_rank, gathered, ranks_on_my_memory
from pytest_mnode.rank import binding
from pytest_mnode.rank.world import World
from pytest_mnode.spec.devices import MemoryTestPromise

Values = Callable[[torch.Tensor], torch.Tensor]
"""From positions of words (int64) to what these words hold (int64)."""
_WORD = 8
_BLOCK = 1 << 30
_LEAST_BLOCK = 1 << 24
_PIECE = 1 << 22
"""Words that are written or read at once: 32 MiB."""
_WORKSPACE = 6 * _WORD * _PIECE
_MOST_SHOWN = 3


@dataclass(frozen=True, slots=True)
class WrongWord:
    """A word that did not read as written. offset: in bytes, within the tested memory."""

    offset: int
    pattern: str
    expected: int
    found: int

    def __str__(self) -> str:
        expected, found = (f"0x{value % (1 << 64):016x}" for value in (self.expected, self.found))
        read = f"found {found}" if found != expected else "read right when read again"
        return f"byte 0x{self.offset:x}, {self.pattern}: expected {expected}, {read}"


@dataclass(frozen=True, slots=True)
class RankMemory:
    """What a rank tested.

    device: PCI address of its accelerator, "" if it tested the host's memory. wrong: number of
    words that were read wrong. first: the first of them. why: why not all was tested, else "".
    """

    name: Culprit
    device: str
    tested_bytes: int
    seconds: float
    wrong: int
    first: tuple[WrongWord, ...]
    why: str = ""


def check_memory(
    promise: MemoryTestPromise, world: World, device: torch.device, *, seed: int = 0
) -> tuple[RankMemory, ...]:
    """Test the memory of all ranks at once; by rank, the same on all. All ranks call this.

    seed: of random values.
    """
    wanted, why = _wanted(promise, device)
    blocks = [] if why else allocated(wanted, device)
    memory, started = Memory(blocks), time.perf_counter()
    if not why and memory.size_bytes < wanted:
        why = f"only {memory.size_bytes / 2**30:.4g} of {wanted / 2**30:.4g} GiB could be allocated"
    why = (memory.test_all(promise, seed) if blocks else "") or why
    finish(device)
    seconds, size = time.perf_counter() - started, memory.size_bytes
    blocks.clear()
    memory.blocks.clear()
    if device.type == "cuda":
        torch.cuda.empty_cache()  # for other ranks, and libraries, on this device
    address = address_of(world, device, binding.of_this_rank().shown)
    place = (address or str(device)) if device.type != "cpu" else ""
    name = rank_name(world, world.rank)
    first = tuple(memory.first)
    return gathered(RankMemory(name, place, size, seconds, memory.wrong, first, why))


def _wanted(promise: MemoryTestPromise, device: torch.device) -> tuple[int, str]:
    """Bytes for this rank to test, and why they cannot be, or ""."""
    sharing, rooms = ranks_on_my_memory(device), free_bytes_by_rank(device)
    if device.type == "cuda":
        _, total = torch.cuda.mem_get_info(device)
        return int(promise.fraction * total / sharing) // _WORD * _WORD, ""
    if min(rooms) < promise.host_bytes:
        free, asked = (size / 2**20 for size in (min(rooms), promise.host_bytes))
        return 0, f"{asked:.4g} MiB are to be tested, and a rank may take {free:.4g} MiB"
    return promise.host_bytes // _WORD * _WORD, ""


def allocated(wanted: int, device: torch.device) -> list[torch.Tensor]:
    """Blocks of `wanted` bytes together, or of as much as there is."""
    blocks: list[torch.Tensor] = []
    size, left = _BLOCK, wanted

    def empty(size_bytes: int) -> torch.Tensor:
        return torch.empty(size_bytes // _WORD, dtype=torch.int64, device=device)

    # What a check needs besides is kept free; torch's allocator hands it out again.
    spare = empty(min(_WORKSPACE, 6 * wanted))
    while left >= _WORD and size >= min(_LEAST_BLOCK, wanted):
        try:
            blocks.append(empty(min(size, left)))
            left -= blocks[-1].numel() * _WORD
        except (RuntimeError, MemoryError):
            size //= 2
    del spare
    return blocks


@dataclass(slots=True)
class Memory:
    """Blocks of words, numbered through; counts the wrong ones and keeps the first."""

    blocks: list[torch.Tensor]
    wrong: int = 0
    first: list[WrongWord] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        """Of all blocks."""
        return sum(block.numel() for block in self.blocks) * _WORD

    def test_all(self, promise: MemoryTestPromise, seed: int) -> str:
        """All patterns and passes; returns which were left out for want of time, or ""."""
        started, done = time.perf_counter(), 0
        for number in range(promise.passes):
            for pattern in promise.patterns:
                if time.perf_counter() - started > promise.within_s:
                    every = promise.passes * len(promise.patterns)
                    return f"{promise.within_s:g} s were over after {done} of {every} patterns"
                self.test(pattern, seed + number)
                done += 1
        return ""

    def test(self, pattern: str, seed: int) -> None:
        """Write and check one of `PATTERNS`."""
        for name, values in PATTERNS[pattern](seed):
            if pattern == "inversions":
                self._invert(name, values)
                continue
            for positions, piece in self._pieces():
                piece.copy_(values(positions))
            for positions, piece in self._pieces():
                self._check(name, positions, piece, values(positions))

    def _invert(self, name: str, values: Values) -> None:
        """Moving inversions: upwards each piece is checked and inverted, and downwards again."""
        for positions, piece in self._pieces():
            piece.copy_(values(positions))
        for positions, piece in self._pieces():
            right = values(positions)
            self._check(f"{name}, upwards", positions, piece, right)
            piece.copy_(~right)
        for positions, piece in reversed(list(self._pieces())):
            right = values(positions)
            self._check(f"{name}, downwards", positions, piece, ~right)
            piece.copy_(right)
        for positions, piece in self._pieces():
            self._check(name, positions, piece, values(positions))

    def _pieces(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        first = 0
        for block in self.blocks:
            for piece in torch.split(block, _PIECE):
                yield torch.arange(first, first + len(piece), device=piece.device), piece
                first += len(piece)

    def _check(
        self, pattern: str, positions: torch.Tensor, piece: torch.Tensor, right: torch.Tensor
    ) -> None:
        unlike = piece != right
        if not (count := int(unlike.sum())):
            return
        self.wrong += count
        where = unlike.nonzero().flatten()[: max(0, _MOST_SHOWN - len(self.first))]
        words: Any = zip(*(x[where].tolist() for x in (positions, right, piece)), strict=True)
        self.first += [WrongWord(p * _WORD, pattern, value, found) for p, value, found in words]


def _walking(*, ones: bool) -> Callable[[int], Iterator[tuple[str, Values]]]:
    def steps(_: int) -> Iterator[tuple[str, Values]]:
        for bit in range(64):

            def values(positions: torch.Tensor, bit: int = bit) -> torch.Tensor:
                walked = torch.ones_like(positions) << ((positions + bit) & 63)
                return walked if ones else ~walked

            yield f"walking_{'ones' if ones else 'zeros'} {bit}", values

    return steps


def _addresses(_: int) -> Iterator[tuple[str, Values]]:
    yield "address", lambda positions: positions * _WORD
    yield "address, inverted", lambda positions: ~(positions * _WORD)


def _random(seed: int) -> Iterator[tuple[str, Values]]:
    """Of each position, so that pieces can be checked in any order.

    Source of the constants: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
    Generators", OOPSLA 2014 (SplitMix64), as signed numbers.
    """

    def values(positions: torch.Tensor) -> torch.Tensor:
        mixed = (positions + seed * 0x632BE5AB + 1) * -0x61C8864680B583EB
        mixed = (mixed ^ (mixed >> 30)) * -0x40A7B892E31B1A47
        mixed = (mixed ^ (mixed >> 27)) * -0x6B2FB644ECCEEE15
        return mixed ^ (mixed >> 31)

    yield f"random, seed {seed}", values


def _inversions(_: int) -> Iterator[tuple[str, Values]]:
    for value in (0, 0x5555_5555_5555_5555):
        yield f"inversions of 0x{value:x}", partial(torch.full_like, fill_value=value)


PATTERNS: dict[str, Callable[[int], Iterator[tuple[str, Values]]]] = {
    "address": _addresses,
    "random": _random,
    "inversions": _inversions,
    "walking_ones": _walking(ones=True),
    "walking_zeros": _walking(ones=False),
}
"""By the spec's names: from a seed to the patterns that are written, each with its name."""
