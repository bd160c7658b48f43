"""What InfiniBand's tools say of the switches, by stand-ins, and how it is judged."""
# ruff: noqa: E501

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from pytest_mnode.criteria.failover import judge_switches
from pytest_mnode.logs.subnet import PortLink, SubnetManager
from pytest_mnode.measuring.switches import (
    Diagnosis,
    Errors,
    Switches,
    diagnosis_of_subnet,
    links_of_subnet,
)
from pytest_mnode.spec.traffic import SwitchesPromise
from tests.programs import write_program

SUMMARY = "-I- Stage   Warnings   Errors     Comment\n-I- Discovery   3          0\n"


@pytest.mark.parametrize(
    ("text", "status", "expected"),
    [
        (SUMMARY, 0, Diagnosis({"Discovery": 0}, (), None)),
        (f"-E- Bad LID\n{SUMMARY}", 1, Diagnosis({"Discovery": 0}, ("Bad LID",), None)),
        ("-E- Failed to open port", 1, "ibdiagnet wrote no summary"),
        ("", 4, "ibdiagnet: status 4"),
    ],
)
def test_ibdiagnet_leaves_no_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    status: int,
    expected: Diagnosis | str,
) -> None:
    says = f'printf \'%s\' "{text}"; : >"$2"/ibdiagnet2.log; exit {status}\n'
    write_program(tmp_path / "ibdiagnet", f"#!/bin/sh\n{says}")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    assert diagnosis_of_subnet() == expected
    assert [*(tmp_path / "tmp").iterdir()] == []


def test_a_missing_program_names_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert links_of_subnet() == "iblinkinfo is not installed: install infiniband-diags"


LINK = PortLink("leaf1", 12, "4X", "106.25 Gbps", "Active", "LinkUp", "a mlx5_0", 1)
MASTER = SubnetManager(1, "0x1", 14, "MASTER")
STANDBY = SubnetManager(1, "0x1", 14, "STANDBY")
MOVED = SubnetManager(2, "0x1", 14, "MASTER")
NONE: Errors = {}


@pytest.mark.parametrize(
    ("promise", "found", "verdict", "words"),
    [
        ({"links": "full"}, Switches("a", (LINK,), (None, None), (None, None), None), "pass", ""),
        ({"links": "full"}, Switches("a", "no umad", (None, None), (None, None), None), "inconclusive", "a: no umad"),
        ({"errors_at_most": 2}, Switches("a", None, (NONE, {("leaf1", 3, "PortRcvErrors"): 2}), (None, None), None), "pass", ""),
        ({"errors_at_most": 2}, Switches("a", None, (NONE, {("leaf1", 3, "PortXmitWait"): 9}), (None, None), None), "pass", ""),
        ({"errors_at_most": 0}, Switches("a", None, (NONE, "cut short"), (None, None), None), "inconclusive", "cut short"),
        ({"subnet_manager": "stable"}, Switches("a", None, (None, None), (MASTER, MASTER), None), "pass", ""),
        ({"subnet_manager": "stable"}, Switches("a", None, (None, None), (MASTER, STANDBY), None), "fail", "STANDBY"),
        ({"subnet_manager": "stable"}, Switches("a", None, (None, None), (MASTER, MOVED), None), "fail", "LID 2"),
        ({"ibdiagnet": "clean"}, Switches("a", None, (None, None), (None, None), Diagnosis({"PM": 0}, (), None)), "pass", ""),
        ({"adaptive_routing": "on"}, Switches("a", None, (None, None), (None, None), Diagnosis({"PM": 0}, (), None)), "inconclusive", "says nothing"),
        ({"adaptive_routing": "on"}, Switches("a", None, (None, None), (None, None), Diagnosis({"PM": 0}, (), 3)), "pass", ""),
        ({"adaptive_routing": "off"}, Switches("a", None, (None, None), (None, None), Diagnosis({"PM": 0}, (), 3)), "fail", "routing engine"),
    ],
)  # fmt: skip
def test_each_promise_is_judged(
    promise: dict[str, object], found: Switches, verdict: str, words: str
) -> None:
    [one] = judge_switches(found, SwitchesPromise.model_validate(promise), ["a", "b"])
    assert one.verdict == verdict
    assert words in str(one)


def test_ports_without_new_errors_are_not_named() -> None:
    before: Errors = {("leaf1", 3, "PortRcvErrors"): 1, ("leaf1", 4, "PortRcvErrors"): 5}
    after: Errors = {**before, ("leaf1", 3, "PortRcvErrors"): 3}
    found = Switches("a", None, (before, after), (None, None), None)
    [one] = judge_switches(found, SwitchesPromise.model_validate({"errors_at_most": 0}), ["a"])
    assert (one.value, one.culprit) == (2, "leaf1 port 3 (PortRcvErrors +2)")
