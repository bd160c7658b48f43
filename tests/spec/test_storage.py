"""Promises about storage: sizes of checkpoints, and what cannot be promised."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from pytest_mnode.errors import SpecError
from pytest_mnode.spec import default_spec_path, load_spec
from pytest_mnode.spec.storage import CheckpointPromise, StorageCriterion

GIB = 2**30


@pytest.mark.parametrize(
    ("keys", "ranks", "size"),
    [
        ({"model": "8b"}, 8, 105 * GIB),
        ({"model": "70b"}, 8, 114 * GIB),
        ({"model": "405b"}, 8, 84.6 * GIB),
        ({"model": "1t"}, 8, 144 * GIB),
        ({"model": "70b"}, 0, 14.25 * GIB),
        ({"model": "70b", "at_most": "1 GiB"}, 8, GIB),
        ({"size": "1 MiB", "threads": 2}, 4, 2**20),
        ({"size": "10 kB", "threads": 8}, 4, 8 * 4096),
    ],
)
def test_bytes_of_a_node(keys: dict[str, Any], ranks: int, size: float) -> None:
    promise = CheckpointPromise.model_validate(keys)
    found = promise.node_bytes(ranks)
    assert found == pytest.approx(size, rel=1e-3)
    assert found % (promise.threads * 4096) == 0


@pytest.fixture
def load(tmp_path: Path) -> Callable[[dict[str, Any]], StorageCriterion]:
    def loaded(promise: dict[str, Any]) -> StorageCriterion:
        page = yaml.safe_load(default_spec_path().read_text())
        page["criteria"]["storage"] = {"paths": {"/p": promise}}
        path = tmp_path / "spec.yaml"
        path.write_text(yaml.safe_dump(page))
        found = load_spec(path).criteria.storage
        assert found is not None
        return found

    return loaded


@pytest.mark.parametrize(
    ("promise", "why"),
    [
        ({}, "promises nothing"),
        ({"local": True}, "promises nothing"),
        ({"checkpoint": {}}, "has a model or a size"),
        ({"checkpoint": {"model": "70b", "size": "1 GiB"}}, "has a model or a size"),
        ({"checkpoint": {"model": "13b"}}, "model"),
        ({"beside_collectives": {}}, "without checkpoint"),
        ({"local": True, "locks": ["flock"]}, "locks of a local path"),
        ({"local": True, "renamed_within": "1 s"}, "renamed_within of a local path"),
        ({"locks": ["flock", "flock"]}, "lists one twice"),
        ({"random_reads": {"size": "1 MiB", "block": "1 kB"}}, "a multiple of 4 KiB"),
        ({"random_reads": {"size": "8 KiB", "block": "4 KiB"}}, "of 8 blocks or more"),
    ],
)
def test_what_cannot_be_promised(
    load: Callable[[dict[str, Any]], StorageCriterion], promise: dict[str, Any], why: str
) -> None:
    with pytest.raises(SpecError, match=why) as error:
        load(promise)
    assert "criteria.storage.paths" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_small_part_of_a_model_is_doubtful(
    load: Callable[[dict[str, Any]], StorageCriterion],
) -> None:
    cluster: Any = SimpleNamespace(nodes=4, accelerators=SimpleNamespace(per_node=8))
    [doubt] = load({"checkpoint": {"model": "70b", "at_most": "1 GiB"}}).doubts(cluster)
    assert "(114 GiB)" in doubt
    assert not [*load({"checkpoint": {"model": "70b", "at_most": "64 GiB"}}).doubts(cluster)]


def test_the_expected_time_follows_from_the_promise(
    load: Callable[[dict[str, Any]], StorageCriterion],
) -> None:
    point = {"model": "70b", "write_at_least": "40 GB/s", "read_at_least": "80 GB/s", "repeats": 5}
    found = load({"checkpoint": point}).expected_s(16, 8)
    whole = 16 * 114 * GIB
    assert found == pytest.approx(2 + 5 * (whole / 40e9 + whole / 80e9), rel=1e-3)
    local = {"model": "8b", "at_most": "32 GiB", "node_write_at_least": "5 GB/s", "repeats": 5}
    own = load({"checkpoint": local}).expected_s(16, 8)
    assert own == pytest.approx(2 + 5 * 2 * 32 * GIB / 5e9, rel=1e-3)
