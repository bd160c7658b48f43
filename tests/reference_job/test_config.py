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
        hold_after=(6, 14),
    )
    assert JobConfig.read(config.write(tmp_path / "config.json")) == config
    assert config.records == tmp_path / "a run" / "records"
    assert config.checkpoints == tmp_path / "a run" / "checkpoints"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seeds": 1}, r"unknown key 'seeds'; known keys are accumulation, .*seed,"),
        ({"steps": "ten"}, "steps='ten': .* valid integer"),
        ({"steps": 2.5}, "steps=2.5: .* valid integer"),
        ({"steps": True}, "steps=True: .* valid integer"),
        ({"steps": None}, "steps=None: .* valid integer"),
        ({"steps": 0}, "steps=0: .* greater than or equal to 1"),
        ({"seed": -1}, "seed=-1: .* greater than or equal to 0"),
        ({"seed": 1 << 32}, "seed=4294967296: .* less than 4294967296"),
        ({"learning_rate": float("nan")}, "learning_rate=nan: .* finite number"),
        ({"compute_s": "fast"}, "compute_s='fast': .* valid number"),
        ({"compute_s": -1}, "compute_s=-1.*: .* greater than or equal to 0"),
        ({"meet_s": float("inf")}, "meet_s=inf: .* finite number"),
        ({"reshard": 1}, "reshard=1: .* valid boolean"),
        ({"directory": ""}, "directory='': .* at least 1 character"),
        ({"directory": 5}, "directory=5: .* valid string"),
        ({"parallel": "fsdp"}, "parallel='fsdp': .* 'ddp' or 'fsdp2'"),
        ({"dtype": "float16"}, "dtype='float16': .* 'float32' or 'bfloat16'"),
        ({"width": 65}, "width=65: give a multiple of heads=4"),
        ({"samples": 100}, "samples=100: give a multiple of global_batch=16"),
        ({"accumulation": 3}, "global_batch=16: give a multiple of accumulation=3"),
        ({"hold_after": [6, 0]}, r"hold_after\.1=0: .* greater than or equal to 1"),
        ({"hold_after": 6}, "hold_after=6: .* valid array"),
        ({"dropout": 1}, "dropout=1.*: .* less than 1"),
        ({"dropout": -0.1}, "dropout=-0.1: .* greater than or equal to 0"),
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
        ("", "no config of a run: Invalid JSON"),
        ('{"directory": ', "Invalid JSON"),
        ("[1]", "no config of a run: .*should be an object"),
        ("{}", "key 'directory' is missing"),
        ("\x00\xff", "Invalid JSON"),
        ("[" * 100_000, "recursion limit"),
        ('{"directory": "/x", "steps": 1' + "0" * 400 + "}", "steps=1.*: "),
        ('{"directory": "/x", "learning_rate": 1' + "0" * 400 + "}", "learning_rate=.*: "),
        ('{"directory": "/x", "device": "gpu"}', "device='gpu': .* 'auto', 'accelerator' or 'cpu'"),
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
