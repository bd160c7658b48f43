"""What a node's links allow inside it, by the platform."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_mnode.measuring.inside_node import floor_gbytes_s
from pytest_mnode.spec import load_spec
from pytest_mnode.spec.devices import InsideNodePromise
from pytest_mnode.spec.profiles import find_profile


@pytest.mark.parametrize(
    ("profile", "ranks", "keys", "floor"),
    [
        ("hgx-h100", 8, {"model_at_least_fraction": 0.9}, 330),  # 0.9 × 0.82 × 450, less latency
        ("hgx-h100", 8, {}, None),
        ("hgx-a100", 8, {"model_at_least_fraction": 1.0}, 233),
        ("mi300x", 2, {"model_at_least_fraction": 1.0}, 44.7),  # one of seven links
    ],
)
def test_the_floor_follows_from_the_links(
    profile: str, ranks: int, keys: dict[str, Any], floor: float | None
) -> None:
    found_at = find_profile(profile)
    assert found_at is not None
    spec = load_spec(found_at)
    promise = InsideNodePromise.model_validate({"at_least_fraction": 0.9, **keys})
    found = floor_gbytes_s(promise, spec, ranks, "nccl")
    assert found == (None if floor is None else pytest.approx(floor, rel=0.01))
