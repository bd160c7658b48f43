"""A config is read, or refused with one line that names the remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.errors import UsageError
from pytest_mnode.reference_job import JobConfig


def test_a_written_config_is_read_back(tmp_path: Path) -> None:
    config = JobConfig(
        str(tmp_path / "a run"),
        seed=7,
        parallel="fsdp2",
        compute_s=0.25,
        hold_checkpoint=4,
        hold_after=(6, 14),
    )
    assert JobConfig.read(config.write(tmp_path / "config.json")) == config
    assert config.records == tmp_path / "a run" / "records"
    assert config.checkpoints == tmp_path / "a run" / "checkpoints"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seeds": 1}, r"unknown key 'seeds'; known keys are accumulation, .*seed,"),
        ({"steps": "ten"}, "steps='ten': give a whole number"),
        ({"steps": 2.5}, "steps=2.5: give a whole number"),
        ({"steps": True}, "steps=True: give a whole number"),
        ({"steps": None}, "steps=None: give a whole number"),
        ({"steps": 0}, "steps=0: give at least 1"),
        ({"seed": -1}, "seed=-1: give at least 0"),
        ({"seed": 1 << 32}, r"seed=4294967296: give a number below 2\*\*32"),
        ({"learning_rate": float("nan")}, "learning_rate=nan: give at least 0.0"),
        ({"compute_s": "fast"}, "compute_s='fast': give a number"),
        ({"compute_s": -1}, "compute_s=-1: give at least 0.0"),
        ({"meet_s": float("inf")}, "meet_s=inf: give at least 0.1"),
        ({"reshard": 1}, "reshard=1: give true or false"),
        ({"directory": ""}, "directory='': give the path of a directory"),
        ({"directory": 5}, "directory=5: give a string"),
        ({"parallel": "fsdp"}, 'parallel=\'fsdp\': give "ddp" or "fsdp2"'),
        ({"dtype": "float16"}, 'dtype=\'float16\': give "float32" or "bfloat16"'),
        ({"width": 65}, "width=65: give a multiple of heads=4"),
        ({"samples": 100}, "samples=100: give a multiple of global_batch=16"),
        ({"accumulation": 3}, "global_batch=16: give a multiple of accumulation=3"),
        ({"hold_checkpoint": 0}, "hold_checkpoint=0: give at least 1"),
        ({"hold_after": [6, 0]}, r"hold_after=\(6, 0\): give a list of whole numbers"),
        ({"hold_after": 6}, "hold_after=6: give a list of whole numbers"),
        ({"dropout": 1}, "dropout=1: give a number below 1"),
        ({"dropout": -0.1}, "dropout=-0.1: give at least 0.0"),
    ],
)
def test_errors_of_an_invalid_config(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"directory": "run", **change}))
    with pytest.raises(UsageError, match=f"config.json: {message}") as caught:
        JobConfig.read(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ('{"directory": ', "not JSON"),
        ("[1]", "the config of a run is a JSON object"),
        ("{}", "key 'directory' is missing"),
        ("\x00\xff", "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"directory": "/x", "steps": 1' + "0" * 400 + "}", "steps='a number of .* bits': give"),
        ('{"directory": "/x", "learning_rate": 1' + "0" * 400 + "}", "learning_rate=.* give at"),
        ('{"directory": "/x", "device": "gpu"}', 'device=.gpu.: give "auto" or "accelerator" or'),
    ],
)
def test_a_file_that_is_not_a_config(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=message):
        JobConfig.read(path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.json: cannot be read: No such file"):
        JobConfig.read(tmp_path / "nowhere.json")


def test_a_batch_is_divided_among_ranks() -> None:
    config = JobConfig("run", global_batch=24, samples=240, accumulation=2)
    assert config.local_batch(4) == 3
    with pytest.raises(UsageError, match="global_batch=24: give a multiple of 5 ranks × accumul"):
        config.local_batch(5)
