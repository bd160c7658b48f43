"""Digests of products: what a wrong bit does to them, and who is named for it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pytest_mnode.checks.devices.repeated_products import judge_repeated
from pytest_mnode.culprit import Culprit
from pytest_mnode.faults import spoiled
from pytest_mnode.measurement import Verdict
from pytest_mnode.measuring.repeated_products import RepeatedProducts, digests_of, outvoted

CPU = torch.device("cpu")
SAME = (5, 6, 7)
ODD = (5, 60, 7)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16", "float8_e4m3fn"])
def test_digests_of_a_seed_are_equal_and_one_bit_changes_one(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = digests_of(16, dtype, CPU, 1)
    assert len(set(first.tolist())) == len(first) == 4096
    assert np.array_equal(first, digests_of(16, dtype, CPU, 1))
    assert not (first == digests_of(16, dtype, CPU, 2)).any()
    if dtype.startswith("float8"):
        return
    for name in ("mm", "bmm"):
        monkeypatch.setattr(torch, name, getattr(torch, name))
    spoiled.product("1000", "2000")
    wrong = digests_of(16, dtype, CPU, 1)
    assert np.flatnonzero(wrong != first).tolist() == [2999, 3999]


@pytest.mark.parametrize(
    ("ranks", "wrong", "disputed"),
    [
        ({0: (SAME, SAME), 1: (SAME, SAME), 2: (SAME, SAME)}, {}, {}),
        ({0: (SAME, SAME), 1: (ODD, ODD), 2: (SAME, SAME)}, {1: 1}, {}),
        ({0: (ODD, SAME), 4: (SAME, SAME)}, {0: 1}, {}),  # contradicts itself
        ({0: (ODD, ODD), 4: (SAME, SAME)}, {}, {(0, 4): 1}),
        ({7: (SAME, ODD)}, {7: 1}, {}),
        ({7: (SAME, SAME)}, {}, {}),
        ({0: (None, None), 1: (SAME, SAME), 2: (SAME, None)}, {}, {}),
        ({0: (None, None)}, {}, {}),
    ],
)
def test_who_is_named(
    ranks: dict[int, tuple[tuple[int, ...] | None, ...]],
    wrong: dict[int, int],
    disputed: dict[tuple[int, ...], int],
) -> None:
    def digests(values: tuple[int, ...] | None) -> np.ndarray | None:
        return None if values is None else np.array(values)

    found = outvoted({rank: (digests(a), digests(b)) for rank, (a, b) in ranks.items()})
    assert found == (wrong, disputed)


RANKS = [Culprit.rank(f"rank {i} on node{i}", f"node{i}", i) for i in range(3)]


@pytest.mark.parametrize(
    ("change", "verdict", "value", "nodes", "words"),
    [
        ({}, Verdict.PASS, 0, set(), "excludes more than 1 wrong in 3413 with 95 %"),
        ({"wrong": {RANKS[1]: 2}}, Verdict.FAIL, 2, {"node1"}, "rank 1 on node1 (2 of 10240)"),
        (
            {"unresolved": (Culprit.one_of("0 or 1", RANKS[:2]),), "disputed": 1},
            Verdict.FAIL,
            1,
            set(),
            "0 or 1",
        ),
        ({"failed": (RANKS[2],)}, Verdict.INCONCLUSIVE, None, set(), "could not be computed by"),
        ({"alone": (RANKS[2],)}, Verdict.PASS, 0, set(), "compared with itself"),
    ],
)
def test_verdicts(
    change: dict[str, object],
    verdict: Verdict,
    value: int | None,
    nodes: set[str],
    words: str,
) -> None:
    given = {"dtype": "float32", "size": 64, "products": 10240, "seconds": 1.0, "wrong": {}}
    [found] = judge_repeated(RepeatedProducts(**{**given, **change}))  # type: ignore[arg-type]
    assert (found.verdict, found.value) == (verdict, value)
    assert (found.culprit.nodes if found.culprit else set()) == nodes
    assert words in str(found)
    assert found.detection is not None
    assert found.detection.text == "1 wrong call in 2224"
