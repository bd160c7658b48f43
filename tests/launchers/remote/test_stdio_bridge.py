"""Streams that a bridge holds, with programs in place of ssh."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from pytest_mnode.errors import ClusterError
from pytest_mnode.launchers.remote import stdio_bridge
from pytest_mnode.launchers.remote.wire import HELLO
from tests.launchers.remote.proxies import LIMIT_S, Streams
from tests.waiting import until

Ways = Callable[..., list[str]]
DROPPED = "echo 'kex_exchange_identification: Connection closed by remote host' >&2; exit 255"
UP = f"printf '\\0{HELLO[1:-1].decode()}\\n';"
# A stream that is up, and notes the pids of its command and of that one's child.
NOTED = f"sleep 300 > /dev/null & echo $$ $! > pids; {UP}"


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Streams]:
    folder = tmp_path / "held"
    folder.mkdir()
    made = Streams(folder, silence_s=600.0)
    try:
        yield made
    finally:
        with contextlib.suppress(psutil.Error, ValueError):  # else it would wait END_S for each
            for one in made.bridge().children():
                one.kill()
        made.client.close()


@pytest.fixture
def way(tmp_path: Path) -> Ways:
    """way(script): the program in place of ssh. It runs in tmp_path."""

    def way(script: str = f"{UP} exec sleep 300") -> list[str]:
        return ["sh", "-c", f"cd {shlex.quote(str(tmp_path))}; {script}"]

    return way


def await_ends(directory: Path) -> None:
    """Of the noted processes."""
    pids = [int(word) for word in (directory / "pids").read_text().split()]
    until(lambda: not any(map(psutil.pid_exists, pids)), f"one of {pids} has not ended")


def test_failed_and_lost_streams_are_named(held: Streams, way: Ways) -> None:
    ways = {"n1": way(), "n2": way("echo 'n2: no' >&2; exit 255"), "n4": ["/no/such/ssh"]}
    ways["n3"] = way(f"{UP} sleep 0.5; echo broken >&2; exit 255")
    assert held.open(ways) == {
        "n2": "n2: no",
        "n4": "cannot start /no/such/ssh on this machine: No such file or directory",
    }
    lost = {"lost": "n3", "why": "the connection was lost: broken"}
    assert held.events.get(timeout=LIMIT_S) == lost
    assert held.events.empty()


def test_a_stream_that_times_out_ends_with_its_children(
    held: Streams, way: Ways, tmp_path: Path
) -> None:
    """Like ssh's own ssh to a jump host that accepts the connection and stays silent."""
    why = held.open({"n1": way("sleep 300 & echo $! > pids; wait")}, 2.0)["n1"]
    assert why.startswith("no answer within 2 s: late")
    await_ends(tmp_path)


def test_a_closed_stream_ends_with_its_children(held: Streams, way: Ways, tmp_path: Path) -> None:
    assert held.open({"n1": way(f"trap '' TERM; {NOTED} wait")}) == {}
    held.client.end("n1", "powered off")
    await_ends(tmp_path)


def test_what_a_lost_stream_leaves_is_ended(held: Streams, way: Ways, tmp_path: Path) -> None:
    assert held.open({"n1": way(f"{NOTED} exec >&-; sleep 0.5; exit 3")}) == {}
    assert held.events.get(timeout=LIMIT_S) == {"lost": "n1", "why": "the connection was lost"}
    await_ends(tmp_path)


def test_streams_end_with_the_run(held: Streams, way: Ways, tmp_path: Path) -> None:
    assert held.open({"n1": way(f"{NOTED} wait")}) == {}
    held.client.close()
    await_ends(tmp_path)


def test_streams_end_with_the_daemon(held: Streams, way: Ways, tmp_path: Path) -> None:
    assert held.open({"n1": way(f"{UP} echo $$ > pids; exec sleep 300")}) == {}
    os.kill(held.daemon, signal.SIGKILL)
    await_ends(tmp_path)
    why = "the cleanup process of the run has ended"
    assert held.events.get(timeout=LIMIT_S) == {"ended": why}
    with pytest.raises(ClusterError, match=f"the bridge has ended: {why}"):
        held.open({"n2": way()})


def test_no_password_prompt(held: Streams, way: Ways) -> None:
    assert held.open({"n1": way('echo "$SSH_ASKPASS_REQUIRE" >&2; exit 255')}) == {"n1": "never"}


def noting(count: int, way: Ways, script: str) -> dict[str, Sequence[str]]:
    """Streams whose `$name` is their own, in a directory for those that are opened at once."""
    names = [f"n{number}" for number in range(count)]
    start = "mkdir -p at-once; cd at-once; name="
    return {name: way(f"{start}{name}; {script} {UP} exec sleep 300") for name in names}


def counts(directory: Path) -> list[int]:
    """How many were opened at once, as each of them saw it."""
    return [int(word) for word in (directory / "counts").read_text().split()]


def test_dropped_connections_are_retried_a_few_at_a_time(
    held: Streams, way: Ways, tmp_path: Path
) -> None:
    """A jump host accepts only some connections at once; here the first of each node is dropped."""
    script = (
        f"if mkdir ../$name.first 2> /dev/null; then {DROPPED}; fi;"
        "touch $name; ls | wc -l >> ../counts; sleep 0.2; rm $name;"
    )
    assert held.open(noting(20, way, script)) == {}
    assert len(counts(tmp_path)) == 20
    assert max(counts(tmp_path)) <= stdio_bridge.AGAIN_AT_ONCE


def test_a_connection_that_is_always_dropped_is_reported(
    held: Streams, way: Ways, tmp_path: Path
) -> None:
    problems = held.open({"n1": way(f"echo x >> tries; {DROPPED}")})
    assert problems == {"n1": "kex_exchange_identification: Connection closed by remote host"}
    assert (tmp_path / "tries").read_text().count("x") == stdio_bridge.TRIES


def test_many_are_opened_some_at_a_time_and_each_has_the_whole_limit(
    held: Streams, way: Ways, tmp_path: Path
) -> None:
    """All together take longer than the limit of one; that they wait for a turn is no failure."""
    script = "touch $name; ls | wc -l >> ../counts; sleep 1.5; rm $name;"
    count = 2 * stdio_bridge.AT_ONCE + 10
    assert held.open(noting(count, way, script), 4.0) == {}
    assert len(counts(tmp_path)) == count
    assert max(counts(tmp_path)) <= stdio_bridge.AT_ONCE
