"""The user's page of the reference job is complete."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from pytest_mnode import reference_job
from pytest_mnode.reference_job import EXIT_PREEMPTED, JobConfig
from pytest_mnode.reference_job.records import PARTS

PAGE = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [field.name for field in fields(JobConfig)])
def test_every_key_is_documented(name: str) -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("|")]
    assert any(f"`{name}`" in row.split("|")[1] for row in rows)


@pytest.mark.parametrize("name", PARTS)
def test_every_part_is_documented(name: str) -> None:
    assert f"`{name}`" in PAGE


def test_the_time_for_which_a_checkpoint_is_held_is_documented() -> None:
    """Read as text: the module imports torch."""
    source = Path(reference_job.__file__).with_name("trainer.py").read_text(encoding="utf-8")
    [hold_s] = re.findall(r"^HOLD_S = (.+)$", source, re.MULTILINE)
    assert f"steps after which the job waits for {float(hold_s):g} s" in PAGE


def test_the_status_is_documented() -> None:
    assert f"| {EXIT_PREEMPTED} | stopped by SIGTERM" in PAGE
