"""`python -m pytest_mnode expect`: a table, its sources and reasons, and one line for bad input."""

from __future__ import annotations

import io
import sys

import pytest

from pytest_mnode.commands import main
from tests.spec.test_schema import CLUSTERS

SPEC = f"--spec={CLUSTERS / 'h100-ib.yaml'}"


def test_a_table_with_sources_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["expect", SPEC, "--nodes=4", "--measured=all_reduce:8GiB:3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("H100 8×400G InfiniBand (profile): 4 nodes of 8 ranks")
    [row] = [line for line in lines if line.startswith("all_reduce      8 GiB ")]
    assert row.split()[3:] == ["400", "287.8", "to", "397.3", "341.5", "353.6"]
    assert "all_reduce: the wire allows fabric.line_rate 400 Gbit/s × 8 NICs" in lines
    assert any(line.startswith("sources: published all-reduces by RDMA") for line in lines)
    assert lines[-2] == "all_reduce 8 GiB, measured 3 GB/s:"
    assert lines[-1].startswith("- silent TCP")


def test_a_terminal_without_these_characters_shows_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with LC_ALL=en_US.ISO-8859-1 on a login node."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii"))
    assert main(["expect", SPEC, "--nodes=4"]) == 0
    assert b"all_reduce: the wire allows fabric.line_rate 400 Gbit/s ? 8 NICs" in written.getvalue()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--nodes: missing"),
        (["--nodes=4", "--collective=all_reduce"], "--collective: only with --of"),
        (["--nodes=4", "--algorithm=ring"], "--algorithm: only with --of"),
        (["--measured=all_reduce:1GiB:3", "--of=-"], "--measured: not with --of"),
        (["--nodes=4", "--collective=sum"], "--collective=sum: accepted: all_reduce"),
        (["--nodes=0"], "--nodes=0: accepted: 1 or more"),
        (["--nodes=1"], "one rank on one node sends nothing; accepted: 2 ranks or more"),
        (["--nodes=1", "--procs-per-node=2"], "the NVLink of its accelerators is not known"),
        (["--nodes=2", "--procs-per-node=0"], "--procs-per-node=0: accepted: 1 or more"),
        (["--nodes=4", "--measured=all_reduce:1GiB"], "--measured=all_reduce:1GiB: accepted: "),
        (["--nodes=4", "--measured=sum:1GiB:3"], "--measured=sum:1GiB:3: accepted: "),
        (["--nodes=4", "--measured=all_reduce:1GiB:-3"], "accepted: COLLECTIVE:SIZE:GB_S"),
        (["--nodes=4", "--spec=/nowhere.yaml"], "/nowhere.yaml"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["expect", *arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message in line
