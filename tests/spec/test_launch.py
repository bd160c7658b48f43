"""What can be promised of starting a job, and what is refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_mnode.errors import SpecError
from pytest_mnode.spec import Accelerators, Spec, default_spec_path, doubts, load_spec


def spec_with(directory: Path, launch: Any) -> Spec:
    page = yaml.safe_load(default_spec_path().read_text())
    page["criteria"]["launch"] = launch
    path = directory / "spec.yaml"
    path.write_text(yaml.safe_dump(page))
    return load_spec(path)


def test_what_is_left_out_is_not_promised(tmp_path: Path) -> None:
    promised = spec_with(tmp_path, {"deepspeed": {}}).criteria.launch
    assert promised is not None
    start = promised.start("deepspeed")
    assert start is not None
    assert (start.within_s, start.job) == (60.0, None)
    assert promised.start("torchrun") is None
    assert (promised.elsewhere, promised.image, promised.rendezvous) == (None, None, None)
    assert (promised.store, promised.absent) == (None, None)


def test_values_carry_their_units(tmp_path: Path) -> None:
    page = {
        "torchrun": {"within": "2 min", "job": "/site/job.yaml"},
        "elsewhere": True,
        "rendezvous": {"within": "500 ms"},
        "store": {"clients": [10], "within": "1 s"},
        "absent": {"said_within": "3 s"},
    }
    promised = spec_with(tmp_path, page).criteria.launch
    assert promised is not None
    assert promised.torchrun is not None
    assert promised.torchrun.within_s == 120
    assert promised.rendezvous is not None
    assert (promised.rendezvous.ranks, promised.rendezvous.within_s) == (16, 0.5)
    assert promised.absent is not None
    assert (promised.absent.limit_s, promised.absent.said_within_s) == (2, 3)


@pytest.mark.parametrize(
    ("page", "line"),
    [
        ({}, "launch: promises nothing; accepted: torchrun, deepspeed, megatron"),
        ({"elsewhere": True}, "launch: elsewhere promises nothing without a style"),
        ({"elsewhere": False, "torchrun": {}}, "launch.elsewhere: False; accepted: True"),
        ({"mpi": {}}, "launch.mpi: unknown key"),
        ({"torchrun": {"within": 5}}, "launch.torchrun.within: 5 has no unit; accepted: "),
        ({"torchrun": {"job": "job.yaml"}}, "launch.torchrun.job: 'job.yaml'; accepted: an abs"),
        ({"rendezvous": {"ranks": 16}}, "launch.rendezvous.within: missing"),
        ({"rendezvous": {"ranks": 0, "within": "1 s"}}, "launch.rendezvous.ranks: 0; accepted: "),
        (
            {"store": {"clients": [64, 64], "within": "1 s"}},
            "launch.store.clients: [64, 64] does not rise; accepted: each number larger",
        ),
        ({"store": {"clients": [], "within": "1 s"}}, "launch.store.clients: "),
        ({"absent": {}}, "launch.absent.said_within: missing"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(tmp_path: Path, page: Any, line: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec_with(tmp_path, page)
    text = str(caught.value)
    assert f"criteria.{line}" in text
    assert "\n" not in text


def test_doubts_more_ranks_than_there_are_accelerators(tmp_path: Path) -> None:
    spec = spec_with(tmp_path, {"rendezvous": {"ranks": 129, "within": "1 s"}})
    eight = Accelerators.model_validate({"per_node": 8})

    def found(**fields: Any) -> list[str]:
        lines = doubts(spec.model_copy(update=fields))
        return [line for line in lines if line.startswith("criteria.launch")]

    assert found(accelerators=eight, nodes=16) == [
        "criteria.launch.rendezvous.ranks: 129, but 16 nodes × 8 accelerators have no more than 128"
    ]
    assert found(accelerators=eight, nodes=17) == []
    assert found(accelerators=eight, nodes=None) == []
    assert found() == []  # as many ranks as one likes share processors
