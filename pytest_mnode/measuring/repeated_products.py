"""Thousands of small matrix products from the same seeds on every rank, whose digests vote.

A product costs microseconds, so that a device that computes one in thousands wrongly, or only when
it is hot, shows itself. A rank votes with all ranks on devices of its kind: of three and more the
majority names the odd one out. Where there is no majority, a rank is named if it contradicts
itself when all compute the products again; else all that disagree are suspected. An error that all
devices make alike is not seen.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pytest_mnode.culprit import Culprit
from pytest_mnode.measuring.naming import rank_name
from pytest_mnode.measuring.ranks import by_rank, gathered
from pytest_mnode.measuring.results_of_ranks import kind_of
from pytest_mnode.rank.world import World
from pytest_mnode.reference_job.randomness import repeatable
from pytest_mnode.spec.devices import RepeatedProductsPromise

Digests = NDArray[np.int64]
_BATCH = 64
"""Products of a call. A round has its square: each left factor meets as many right ones."""


@dataclass(frozen=True, slots=True)
class RepeatedProducts:
    """What ranks computed; the same on every rank.

    products: number that each rank computed. wrong: by rank, its wrong ones. unresolved: ranks that
    disagree where nothing shows which is wrong, and `disputed`, the number of such products.
    alone: ranks that no other has a device like; each computed everything twice. failed: ranks that
    could not compute, with the reason.
    """

    dtype: str
    size: int
    products: int
    seconds: float
    wrong: dict[Culprit, int]
    unresolved: tuple[Culprit, ...] = ()
    disputed: int = 0
    alone: tuple[Culprit, ...] = ()
    failed: tuple[Culprit, ...] = ()


def compare_products(
    promise: RepeatedProductsPromise,
    dtype: str,
    world: World,
    device: torch.device,
    *,
    seed: int = 0,
) -> RepeatedProducts:
    """Multiply and compare in rounds, until number and duration are reached. All ranks call this.

    seed: of the first round; each round adds one.
    """
    kinds = gathered(kind_of(device))
    alike = [[rank for rank, kind in enumerate(kinds) if kind == one] for one in sorted({*kinds})]
    lonely = kinds.count(kinds[world.rank]) == 1
    wrong: Counter[int] = Counter()
    unresolved: dict[tuple[int, ...], int] = {}
    number, why, started = 0, "", time.perf_counter()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # digests of CPUs may depend on their number
    try:
        while True:
            mine, why = _tried(promise.size, dtype, device, seed + number)
            again = _tried(promise.size, dtype, device, seed + number)[0] if lonely else mine
            seconds = time.perf_counter() - started
            every = by_rank([_short(mine), _short(again), seconds], device)
            if all(first >= 0 for first, _, _ in every):
                number += 1
            if any(len({end for rank in ranks for end in every[rank][:2]}) > 1 for ranks in alike):
                if not lonely:
                    again, _ = _tried(promise.size, dtype, device, seed + number - 1)
                both = gathered((mine, again))
                for ranks in alike:
                    of_kind = {rank: both[rank] for rank in ranks}
                    named, disputed = outvoted(of_kind)
                    wrong.update(named)
                    for group, count in disputed.items():
                        unresolved[group] = unresolved.get(group, 0) + count
            seconds = max(taken for _, _, taken in every)
            enough = number * _BATCH**2 >= promise.products
            if any(first < 0 for first, _, _ in every) or (
                enough and seconds >= (promise.duration_s or 0.0)
            ):
                break
    finally:
        torch.set_num_threads(threads)
    names = [rank_name(world, rank) for rank in range(world.size)]
    reasons = gathered(why)
    return RepeatedProducts(
        dtype,
        promise.size,
        number * _BATCH**2,
        seconds,
        {names[rank]: count for rank, count in sorted(wrong.items())},
        tuple(
            Culprit.one_of(" or ".join(names[rank] for rank in group), [names[r] for r in group])
            for group in sorted(unresolved)
        ),
        sum(unresolved.values()),
        tuple(names[ranks[0]] for ranks in alike if len(ranks) == 1),
        tuple(
            Culprit.merged(f"{name}: {reason}", [name])
            for name, reason in zip(names, reasons, strict=True)
            if reason
        ),
    )


def outvoted(
    ranks: dict[int, tuple[Digests | None, Digests | None]],
) -> tuple[dict[int, int], dict[tuple[int, ...], int]]:
    """Wrong products by rank, and disputed ones by the ranks that disagree.

    ranks: digests of each product of a round, and those of the same computed again, of ranks that
    should agree; None of a rank that could not compute.
    """
    votes = {rank: both for rank, both in ranks.items() if both[0] is not None}
    if not votes:
        return {}, {}
    first = np.array([own for own, _ in votes.values()])
    again = np.array([own if other is None else other for own, other in votes.values()])
    names = np.array(list(votes))
    wrong: Counter[int] = Counter()
    disputed: Counter[tuple[int, ...]] = Counter()
    unlike = (first != first[0]).any(axis=0) | (len(votes) == 1) & (first != again).any(axis=0)
    for column in np.flatnonzero(unlike):
        usual, count = Counter(first[:, column].tolist()).most_common(1)[0]
        if len(votes) > 1 and 2 * count > len(votes):
            odd = first[:, column] != usual
        else:
            odd = first[:, column] != again[:, column]
        wrong.update(names[odd].tolist())
        if not odd.any():
            disputed[tuple(names.tolist())] += 1
    return dict(wrong), dict(disputed)


def _tried(size: int, dtype: str, device: torch.device, seed: int) -> tuple[Digests | None, str]:
    """Digests of a round, or why this rank cannot compute it."""
    try:
        with repeatable():
            return digests_of(size, dtype, device, seed), ""
    except (RuntimeError, MemoryError, AttributeError, NotImplementedError, ValueError) as error:
        return None, str(error).partition("\n")[0] or type(error).__name__


def digests_of(size: int, dtype: str, device: torch.device, seed: int) -> Digests:
    """A digest of each product of a round of random matrices; raises RuntimeError.

    A digest is the sum of the product's bits, as whole numbers, times odd random numbers, modulo
    2^64: one wrong value always changes it.
    """
    generator = torch.Generator(device).manual_seed(seed)
    random: dict[str, Any] = {"generator": generator, "device": device}
    kind: torch.dtype = getattr(torch, dtype)
    left, right = (
        torch.randn(count, size, size, **random).to(kind) for count in (_BATCH, 2 * _BATCH)
    )
    odd = torch.randint(1 << 62, (size, size), **random) | 1
    found = []
    for shift in range(_BATCH):
        product = _multiplied(left, right[shift : shift + _BATCH])
        bits = product.view(getattr(torch, f"int{8 * product.element_size()}"))
        found.append((bits * odd).sum(dim=(1, 2)))
    return np.asarray(torch.cat(found).cpu().numpy())


def _multiplied(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    if left.element_size() > 1:
        return torch.bmm(left, right)
    # 8-bit factors have a scale each, and the right one is stored by columns.
    one = torch.ones((), device=left.device)
    multiply: Any = torch._scaled_mm
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]] = list(zip(left, right, strict=True))
    return torch.stack([multiply(a, b.t(), one, one, out_dtype=torch.bfloat16) for a, b in pairs])


def _short(digests: Digests | None) -> float:
    """A 52-bit hash, which a float holds exactly; -1 without digests."""
    if digests is None:
        return -1.0
    return float(int.from_bytes(hashlib.sha256(digests.tobytes()).digest()[:8]) >> 12)
