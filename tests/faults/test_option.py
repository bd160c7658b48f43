"""`--mnode-fault`: injected before the first test, reported, and never certified."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.inner import need_rack, run_pytest, write_files

TESTS = """
import pytest

pytestmark = pytest.mark.criterion


def test_rate(cluster):
    '''Is the link as fast as promised?'''
    [done] = cluster.run(["cat", "/sys/class/net/fab0/carrier"], "node1")
    assert done.stdout == "0\\n"


@pytest.mark.mnode(nodes=2)
def test_limit(world):
    '''May a rank open files?'''
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert (soft == 200) == (world.node == "node1")
"""


def test_a_fault_is_present_from_the_first_test_on(tmp_path: Path) -> None:
    """With xdist, whose controller injects it; red runs have faults without xdist."""
    need_rack()
    write_files(tmp_path, test_link=TESTS)
    fault = "--mnode-fault=link_down:node1,low_nofile:node1:200"
    xdist = ("-n1", "-pxdist")
    run = run_pytest(tmp_path, "--mnode-nodes=2", fault, "--mnode-report=report", *xdist)
    assert run.outcomes() == {"test_rate": "passed", "test_limit": "passed"}, run.output
    assert "fault injected: link_down:node1,low_nofile:node1:200\n" in run.output
    assert "cut short by fault injected: link_down" in run.output
    assert run.returncode == 1
    certificate = json.loads((tmp_path / "report" / "certificate.json").read_text())
    assert certificate["verdict"] != "certified"
    assert "fault injected: link_down:node1,low_nofile:node1:200" in certificate["run"]["cut_short"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--mnode-fault=fire:node1"], "--mnode-fault: fault 'fire:node1': no fault 'fire'; acc*"),
        (["--mnode-fault=slow_tx:node7"], "*: fault 'slow_tx:node7': no node 'node7'; accepted: *"),
        (
            ["--mnode-fault=slow_tx:node1", "--mnode-launcher=local"],
            "--mnode-fault: faults need the rack, but the launcher is local (requested)",
        ),
    ],
)
def test_a_bad_fault_is_a_usage_error(
    pytester: pytest.Pytester, args: list[str], message: str
) -> None:
    need_rack()
    pytester.makepyfile("def test_one(world): pass")
    result = pytester.runpytest_inprocess("--mnode-nodes=2", *args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {message}"])
    assert len([line for line in result.errlines if line.strip()]) == 1
