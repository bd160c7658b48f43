"""Readings with limits of their own: after all else, one after another, and ended with the run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from pytest_mnode.checks.node.dcgm import Dcgm, DcgmDiagnosticPasses
from pytest_mnode.checks.node.huge_pages import HugePagesAreAlike
from pytest_mnode.criteria.preflight import node_probe
from pytest_mnode.criteria.preflight.survey import look_order, reading_order, search_path
from pytest_mnode.processes import has_ended
from pytest_mnode.spec import profile_spec
from tests.logs.test_dcgm import four, gpu
from tests.programs import write_program
from tests.waiting import soon, until

NODES = (("a", "10.0.0.1"), ("b", "10.0.0.2"))
CHECKS = (DcgmDiagnosticPasses(Dcgm.model_validate({"level": 1})), HugePagesAreAlike("same"))


@pytest.fixture
def probe(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The program of a node, with what this folder has on its PATH."""
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    program = subprocess.Popen(
        [sys.executable, "-P", "-m", node_probe.__name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **search_path(sys.executable), "PATH": path},
    )
    try:
        yield program
    finally:
        program.kill()
        program.wait(60.0)
        for pipe in (program.stdin, program.stdout):
            assert pipe is not None
            pipe.close()


def ask(program: subprocess.Popen[bytes]) -> None:
    assert program.stdin is not None
    order = {"do": "read", **asdict(reading_order(CHECKS, NODES, 1))}
    program.stdin.write(json.dumps(order).encode() + b"\n")
    program.stdin.flush()


def test_only_long_readings_are_ordered_by_themselves() -> None:
    spec = profile_spec("rack")
    promise = spec.criteria.preflight
    assert promise is not None
    look = look_order(promise, spec, "ab", 0, (), checks=CHECKS)
    assert [one.case for one in look.reads] == [HugePagesAreAlike.case()]
    [long] = reading_order(CHECKS, NODES, 1).reads
    assert (long.case, long.nodes, long.index) == (DcgmDiagnosticPasses.case(), NODES, 1)
    assert reading_order(CHECKS, NODES, 1).limit_s == CHECKS[0].limit_s


def test_rows_come_when_the_program_has_ended(
    tmp_path: Path, probe: subprocess.Popen[bytes]
) -> None:
    (tmp_path / "text").write_text(json.dumps(four(gpu(0))))
    write_program(tmp_path / "dcgmi", f"#!/bin/sh\nsleep 1\ncat {tmp_path}/text\n")
    ask(probe)
    assert probe.stdout is not None
    [answer] = json.loads(probe.stdout.readline())["read"]
    assert answer["case"] == DcgmDiagnosticPasses.case()
    assert answer["rows"][0]["device"] == "accelerator 0"


def test_a_program_ends_with_the_run(tmp_path: Path, probe: subprocess.Popen[bytes]) -> None:
    script = f"#!/bin/sh\ntrap 'echo told >{tmp_path}/told; exit' TERM\necho $$ >{tmp_path}/pid\n"
    write_program(tmp_path / "dcgmi", f"{script}sleep 60 & wait\n")
    ask(probe)
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().endswith("\n"))
    pid = int((tmp_path / "pid").read_text())
    assert probe.stdin is not None
    with soon():
        probe.stdin.close()
        assert probe.wait(60.0) != 0
    assert has_ended(pid)
    assert (tmp_path / "told").exists()
