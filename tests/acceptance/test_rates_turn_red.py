"""The line rate of every collective, on a rack with a node at half rate and with wrong data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema

from pytest_mnode.certificate.certificate import certificate_schema
from tests.acceptance.certified import Certified, certify, promised, spec_of
from tests.red import turns_red

RATE = "test_collective_reaches_the_line_rate"
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
SWAPPED = """
    import pytest

    @pytest.fixture(autouse=True)
    def halves_swapped_on_rank_1(world, monkeypatch):
        import torch.distributed as dist

        def swap(name):
            right = getattr(dist, name)
            def call(into, *args, **kwargs):
                done = right(into, *args, **kwargs)
                if world.rank == 1 and len(into) in (64, 256):
                    into.copy_(into.roll(len(into) // 2))
                return done
            monkeypatch.setattr(dist, name, call)

        for name in ("all_gather_single", "all_gather_into_tensor", "reduce_scatter_single",
                     "reduce_scatter_tensor", "all_to_all_single", "broadcast", "all_reduce"):
            if hasattr(dist, name):
                swap(name)

        both = dist.batch_isend_irecv
        def batch_isend_irecv(ops):
            for work in both(ops):
                work.wait()
            if world.rank == 1:
                ops[0].tensor.copy_(ops[0].tensor.roll(1))
            return []
        monkeypatch.setattr(dist, "batch_isend_irecv", batch_isend_irecv)
"""


def _spec(directory: Path, **changes: object) -> str:
    """--mnode-spec of the rack's page with these keys of every promise of a collective."""
    all_of_it = promised("fabric")
    fabric = {f"{name}_busbw": all_of_it[f"{name}_busbw"] for name in COLLECTIVES}
    for promise in fabric.values():
        promise.update({"sizes": [promise["plateau_from"]], "repeats": 2} | changes)
    return spec_of(directory, criteria={"fabric": fabric})


def _cases(done: Certified) -> dict[str, Mapping[str, Any]]:
    return {name: done.cases("fabric")[f"{RATE}[{name}]"] for name in COLLECTIVES}


def test_a_node_at_half_rate_fails_all_and_is_searched_once(tmp_path: Path) -> None:
    fault = "--mnode-fault=slow_link:node2:100"
    done = certify(tmp_path, _spec(tmp_path), fault, "-k", RATE, files=["test_fabric.py"])
    jsonschema.validate(done.certificate, certificate_schema())
    cases = _cases(done)
    red = {name for name, case in cases.items() if case["verdict"] == "fail"}
    # A broadcast's root sends two copies meanwhile, so node2 has nearly enough time.
    assert red | {"broadcast"} == set(COLLECTIVES), done.run.output
    for name, case in cases.items():
        culprits = {m["culprit"] for m in case["measurements"] if m["verdict"] == "fail"}
        assert len(culprits) == (name in red)
        assert all(culprit.startswith("node2 fab0") for culprit in culprits)
        [curve] = case["charts"]
        assert (curve["collective"], curve["backend"], curve["ranks"]) == (name, "gloo", 4)
        [point] = curve["points"]
        assert point["wrong"] == 0
        assert point["time_min_us"] <= point["time_median_us"] <= point["time_p99_us"]
    assert (
        done.run.output.count("culprit found earlier, when all_reduce was measured") == len(red) - 1
    )


@turns_red("fabric", RATE)
def test_wrong_data_fails_at_any_rate(tmp_path: Path) -> None:
    sizes = {"sizes": ["1 KiB", "16 KiB"], "plateau_from": "16 KiB", "at_least_fraction": 0.001}
    stale = "--mnode-fault=stale_results:node2:7:2KiB"
    args = (_spec(tmp_path, **sizes), stale, "-k", RATE)
    done = certify(tmp_path, *args, files=["test_fabric.py"], fault=SWAPPED)
    failed = done.failed("fabric")
    for name, case in _cases(done).items():
        if name != "send_recv":  # wrong at all sizes
            named = "rank 2 on node2: wrong results there, right results on 3 other ranks"
            assert failed[f"{name} 16 KiB #wrong"] == named  # once in seven
        found = {m["name"]: m for m in case["measurements"]}
        wrong = found[f"{name} 1 KiB #wrong"]
        assert (case["verdict"], wrong["verdict"]) == ("fail", "fail")
        assert wrong["value"] >= 64
        assert case["charts"][0]["points"][0]["wrong"] == wrong["value"]
