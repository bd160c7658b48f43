"""The program of our job files, `contract.py`, and the reader of its lines."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mnode.criteria.launching.reports import Login, Met, read_output
from tests.inner import IPV6

PROGRAM = Path(__file__).parents[3] / "fixtures" / "jobs" / "contract.py"
LIMIT_S = 5.0


@pytest.fixture(scope="module")
def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("job_contract", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Rank0:
    """Rank 0 of a job, in a thread."""

    def __init__(self, program: ModuleType, size: int, limit_s: float) -> None:
        # Bound as long as this object lives, so that no other process gets the port.
        self._kept = socket.socket()
        self._kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._kept.bind(("127.0.0.1", 0))
        self.port = self._kept.getsockname()[1]
        until = time.monotonic() + limit_s
        gather = partial(program.gather, ("127.0.0.1", self.port), size, until, limit_s)
        self._met = ThreadPoolExecutor(1).submit(gather)

    def ended(self) -> Any:
        try:
            return self._met.result(4 * LIMIT_S)
        except TimeoutError as error:
            return str(error)
        finally:
            self._kept.close()

    def dial(self) -> socket.socket:
        until = time.monotonic() + LIMIT_S
        while True:
            try:
                return socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT_S)
            except ConnectionRefusedError:
                assert time.monotonic() < until
                time.sleep(0.02)


@contextlib.contextmanager
def foreign_connections(rank0: Rank0) -> Iterator[None]:
    """Connections that are no rank: closed at once, silent, or sending text that is no number."""
    rank0.dial().close()
    with rank0.dial(), rank0.dial() as web, rank0.dial() as cut, rank0.dial() as long:
        web.sendall(b"GET / HTTP/1.1\r\n")
        cut.sendall(b"1")
        cut.shutdown(socket.SHUT_WR)
        long.sendall(b"1" * 100)
        for line in (web, cut, long):
            with contextlib.suppress(ConnectionResetError):
                assert line.recv(1) == b"", "rank 0 closes it"
        yield


def test_a_port_probe_is_ignored(program: ModuleType) -> None:
    rank0 = Rank0(program, 3, LIMIT_S)
    with foreign_connections(rank0), rank0.dial() as one, rank0.dial() as two:
        two.sendall(b"2\n")
        one.sendall(b"1")
        one.sendall(b"\n")
        met = {"size": 3, "sum": 6, "ranks": [0, 1, 2]}
        assert [json.loads(line.makefile().readline()) for line in (one, two)] == [met, met]
    assert rank0.ended() == met


def test_at_the_limit_all_ranks_name_the_missing_one(program: ModuleType) -> None:
    rank0 = Rank0(program, 3, 2.0)
    with foreign_connections(rank0), rank0.dial() as one:
        one.sendall(b"1\n")
        answer = json.loads(one.makefile().readline())
    line = "ranks [2] of 3 never came within 2 s"
    assert (rank0.ended(), answer) == (line, {"error": line})


def test_a_rank_number_sent_twice_is_reported(program: ModuleType) -> None:
    rank0 = Rank0(program, 3, LIMIT_S)
    with rank0.dial() as one, rank0.dial() as two:
        one.sendall(b"1\n")
        two.sendall(b"1\n")
        assert rank0.ended() == {"size": 3, "sum": 5, "ranks": [0, 1, 1]}


@pytest.mark.parametrize(
    ("address", "here"),
    [
        ("127.0.0.1", True),
        pytest.param("::1", True, marks=IPV6),
        ("localhost", True),
        ("192.0.2.1", False),  # an address for documentation, which no machine has
        ("2001:db8::1", False),
        ("no.such.host.invalid", None),
        (None, None),
    ],
)
def test_own_addresses_are_recognised(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, address: str | None, here: bool | None
) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    if address is not None:
        monkeypatch.setenv("MASTER_ADDR", address)
    assert program.master_is_here(LIMIT_S) is here


@IPV6
def test_rank_0_listens_at_an_ipv6_address(program: ModuleType) -> None:
    until = time.monotonic() + LIMIT_S
    assert program.gather(("::1", 0), 1, until, LIMIT_S) == {"size": 1, "sum": 1, "ranks": [0]}


def run(*arguments: str, **env: str) -> str:
    """The output of the program in this environment."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == (json.loads(done.stdout)["met"] is None), done.stderr
    return done.stdout


def test_the_output_of_the_program_is_read() -> None:
    env = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    env |= {"LOCAL_RANK": ""}
    text = run("-S", str(PROGRAM), "--limit=5", "--x=1", OTHER="1", **env)
    [report], logins = read_output(f"noise\n[node0] 1: {text}\n{{}}\n")
    assert logins == []
    assert report.contract == env
    numbers = [report.number(name) for name in ("RANK", "LOCAL_RANK", "GROUP_RANK")]
    assert numbers == [0, None, None]
    assert {"OTHER", "RANK"} <= report.names
    assert report.met == Met(1, 1, (0,))
    assert (report.master_is_here, report.error) == (True, "")
    assert report.arguments == ("--limit=5", "--x=1")
    assert report.missing == frozenset()
    assert "lo" in report.interfaces


def test_the_program_fails_without_rank() -> None:
    [report], _ = read_output(run("-S", str(PROGRAM), WORLD_SIZE="2"))
    assert (report.met, report.error) == (None, "KeyError: 'RANK'")


def test_a_name_lookup_that_hangs_is_reported(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import socket, time\nsocket.getaddrinfo = lambda *a, **k: time.sleep(60)\n"
    )
    env = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "gpu0.example", "MASTER_PORT": "1"}
    [report], _ = read_output(run(str(PROGRAM), "--limit=0.5", PYTHONPATH=str(tmp_path), **env))
    assert report.error == "TimeoutError: look-up of gpu0.example did not end within 0.5 s"
    assert (report.met, report.master_is_here) == (None, None)
    assert report.missing == frozenset()


@pytest.mark.parametrize(
    ("login", "read"),
    [
        ('{"node": "a", "uid": 0, "user": "root", "why": "no"}', [Login("a", 0, "root", "no")]),
        ('{"node": "a", "uid": 1000}', [Login("a", 1000, "", "")]),
        ('{"node": "a", "uid": 1000, "user": {"x": []}, "why": null}', [Login("a", 1000, "", "")]),
        ('{"uid": 1000, "user": "b", "why": ""}', []),
        ('{"node": "a", "uid": true, "user": "b", "why": ""}', []),
    ],
)
def test_lines_of_logins_are_read(login: str, read: list[Login]) -> None:
    assert read_output(f'{{"login": {login}}}') == ([], read)


def test_too_long_numbers() -> None:
    nines = "9" * 5000
    line = {"mnode_rank": 1, "node": "a", "contract": {"RANK": nines}}
    [report], _ = read_output(json.dumps(line))
    assert (report.rank, report.contract["RANK"]) == (None, nines)
    met = f'{{"mnode_rank": 1, "node": "a", "met": {{"size": {"9" * 400}, "sum": 1, "ranks": []}}}}'
    assert read_output(met)[0][0].met is None
    assert read_output(f'{{"mnode_rank": 1, "node": "a", "uid": {nines}}}') == ([], [])


def test_deeply_nested_json() -> None:
    assert read_output('{"a":' * 100_000) == ([], [])
    deep = "[" * 900 + "]" * 900
    line = f'{{"mnode_rank": 1, "node": "a", "error": {deep}, "names": [{deep}], "contract": 1}}'
    for report in read_output(line)[0]:
        assert (report.error, report.contract) == ("", {})


def test_missing_facts_differ_from_empty_ones() -> None:
    [little], _ = read_output('{"mnode_rank": 1, "node": "a", "names": "PATH", "arguments": []}')
    assert little.missing == {"contract", "names", "interfaces", "master_is_here", "settings"}
    assert (little.arguments, little.names) == ((), frozenset())
    [empty], _ = read_output('{"mnode_rank": 1, "node": "a", "names": [], "contract": {}}')
    assert empty.missing == {"arguments", "names", "interfaces", "master_is_here", "settings"}


@settings(max_examples=50)
@given(st.text() | st.recursive(st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.dictionaries(
        st.sampled_from(["mnode_rank", "node", "login", "uid", "contract", "met", "size", "sum",
                         "ranks", "names", "user", "why", "master_is_here"]), inner)
    | st.lists(inner), max_leaves=8).map(json.dumps))  # fmt: skip
def test_any_text_is_read_without_an_exception(text: str) -> None:
    read_output(text)
