"""What ranks print is read wherever it stands, and nothing that they print makes it raise."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mnode.criteria.launching.reports import Login, Met, read_output

PROGRAM = Path(__file__).parents[3] / "fixtures" / "jobs" / "contract.py"


def test_reads_what_the_program_prints() -> None:
    env = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    done = subprocess.run(
        [sys.executable, "-S", str(PROGRAM), "--limit=5", "--x=1"],
        env=env | {"LOCAL_RANK": "", "OTHER": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    [report], logins = read_output(f"noise\n[node0] 1: {done.stdout}\n{{}}\n")
    assert logins == []
    assert report.contract == env | {"LOCAL_RANK": ""}
    assert (report.rank, report.number("LOCAL_RANK"), report.number("GROUP_RANK")) == (
        0,
        None,
        None,
    )
    assert {"OTHER", "RANK"} <= report.names
    assert report.met == Met(1, 1, (0,))
    assert (report.master_is_here, report.error) == (True, "")
    assert report.arguments == ("--limit=5", "--x=1")
    assert report.missing == frozenset()
    assert "lo" in report.interfaces


def test_says_what_it_lacks_and_fails() -> None:
    done = subprocess.run(
        [sys.executable, "-S", str(PROGRAM)],
        env={"WORLD_SIZE": "2"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    [report], _ = read_output(done.stdout)
    assert report.met is None
    assert report.error == "KeyError: 'RANK'"


def test_reads_logins() -> None:
    line = json.dumps({"login": {"node": "node1", "uid": 0, "user": "root", "why": "no right"}})
    assert read_output(line) == ([], [Login("node1", 0, "root", "no right")])


@pytest.mark.parametrize(
    ("login", "read"),
    [
        ('{"node": "a", "uid": 1000}', [Login("a", 1000, "", "")]),
        ('{"node": "a", "uid": 1000, "user": {"x": []}, "why": null}', [Login("a", 1000, "", "")]),
        ('{"uid": 1000, "user": "b", "why": ""}', []),
        ('{"node": "a", "uid": true, "user": "b", "why": ""}', []),
    ],
)
def test_a_login_that_says_little(login: str, read: list[Login]) -> None:
    assert read_output(f'{{"login": {login}}}') == ([], read)


@pytest.mark.parametrize("seconds", ["9" * 400, "NaN", "Infinity", '"1"', "null"])
def test_a_time_that_is_none(seconds: str) -> None:
    [report], _ = read_output(f'{{"mnode_rank": 1, "node": "a", "seconds": {seconds}}}')
    assert report.seconds is None


def test_numbers_without_end() -> None:
    nines = "9" * 5000
    line = {"mnode_rank": 1, "node": "a", "contract": {"RANK": nines}}
    [report], _ = read_output(json.dumps(line))
    assert (report.rank, report.contract["RANK"]) == (None, nines)
    met = f'{{"mnode_rank": 1, "node": "a", "met": {{"size": {"9" * 400}, "sum": 1, "ranks": []}}}}'
    assert read_output(met)[0][0].met is None
    assert read_output(f'{{"mnode_rank": 1, "node": "a", "uid": {nines}}}') == ([], [])


def test_what_is_nested_without_end() -> None:
    assert read_output('{"a":' * 100_000) == ([], [])
    deep = "[" * 900 + "]" * 900
    line = f'{{"mnode_rank": 1, "node": "a", "error": {deep}, "names": [{deep}], "contract": 1}}'
    for report in read_output(line)[0]:
        assert (report.error, report.contract) == ("", {})


def test_what_was_not_reported_is_told_from_nothing() -> None:
    [little], _ = read_output('{"mnode_rank": 1, "node": "a", "names": "PATH", "arguments": []}')
    assert little.missing == {"contract", "names", "interfaces", "master_is_here"}
    assert (little.arguments, little.names) == ((), frozenset())
    [empty], _ = read_output('{"mnode_rank": 1, "node": "a", "names": [], "contract": {}}')
    assert empty.missing == {"arguments", "names", "interfaces", "master_is_here"}


@given(st.text() | st.recursive(st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.dictionaries(
        st.sampled_from(["mnode_rank", "node", "login", "uid", "contract", "met", "size", "sum",
                         "ranks", "names", "user", "why", "master_is_here"]), inner)
    | st.lists(inner)).map(json.dumps))  # fmt: skip
def test_never_raises(text: str) -> None:
    read_output(text)
