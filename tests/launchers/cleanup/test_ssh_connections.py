"""Connections that are held for a run, with programs in place of ssh."""

from __future__ import annotations

import os
import queue
import resource
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from pytest_mnode.launchers.cleanup import ssh_connections
from pytest_mnode.launchers.cleanup.client import Connections
from tests.waiting import until

Losses = queue.SimpleQueue[tuple[str, str]]
Way = Callable[..., tuple[list[str], str]]
DROPPED = "echo 'kex_exchange_identification: Connection closed by remote host' >&2; exit 255"


@pytest.fixture
def losses() -> Losses:
    return queue.SimpleQueue()


@pytest.fixture
def held(losses: Losses) -> Iterator[Connections]:
    made = Connections(lambda name, why: losses.put((name, why)))
    made.start([])
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def way(tmp_path: Path) -> Way:
    """way(name, script): the program in place of ssh; "$up" is the socket that it must create.
    It runs in tmp_path."""

    def way(name: str, script: str = ': > "$up"; exec sleep 300') -> tuple[list[str], str]:
        socket = str(tmp_path / f"s-{name}")
        return ["sh", "-c", f"cd {shlex.quote(str(tmp_path))}; up=s-{name}; {script}"], socket

    return way


def test_failed_and_lost_connections_are_named(held: Connections, losses: Losses, way: Way) -> None:
    ways = {"n1": way("n1"), "n2": way("n2", "echo 'n2: no' >&2; exit 255")}
    ways["n3"] = way("n3", ': > "$up"; sleep 0.5; echo broken >&2; exit 255')
    assert held.connect(ways, 10) == {"n2": "n2: no"}
    assert losses.get(timeout=10) == ("n3", "broken")
    assert losses.empty()


# A connection that is up, and notes its pid and that of its own child.
NOTED = 'sleep 300 & echo $$ $! > pids; : > "$up";'


def await_ends(directory: Path) -> None:
    """Of the noted processes."""
    pids = [int(word) for word in (directory / "pids").read_text().split()]
    until(lambda: not any(map(psutil.pid_exists, pids)), f"one of {pids} has not ended")


def test_a_connection_that_times_out_ends_with_its_children(
    held: Connections, way: Way, tmp_path: Path
) -> None:
    """Like ssh's own ssh to a jump host that accepts the connection and stays silent."""
    silent = way("n1", "sleep 300 & echo $! > pids; wait")
    assert held.connect({"n1": silent}, 2.0) == {"n1": "no connection in time"}
    await_ends(tmp_path)


def test_an_ended_connection_ends_its_children(held: Connections, way: Way, tmp_path: Path) -> None:
    assert held.connect({"n1": way("n1", f"trap '' TERM; {NOTED} wait")}, 10) == {}
    held.end("n1")
    await_ends(tmp_path)


def test_an_ended_connection_is_asked_to_end_first(
    held: Connections, way: Way, tmp_path: Path
) -> None:
    """ssh removes its socket, and tells the other end."""
    script = f"trap 'touch asked; exit' TERM; {NOTED} wait"
    assert held.connect({"n1": way("n1", script)}, 10) == {}
    held.end("n1")
    await_ends(tmp_path)
    assert (tmp_path / "asked").exists()


def test_what_a_lost_connection_leaves_is_ended(
    held: Connections, losses: Losses, way: Way, tmp_path: Path
) -> None:
    assert held.connect({"n1": way("n1", f"{NOTED} sleep 0.5; exit 3")}, 10) == {}
    assert losses.get(timeout=10) == ("n1", "ssh ended with status 3")
    await_ends(tmp_path)


def test_a_new_connection_replaces_the_old_one(held: Connections, way: Way, tmp_path: Path) -> None:
    assert held.connect({"n1": way("n1", f"{NOTED} wait")}, 10) == {}
    assert held.connect({"n1": way("n1")}, 10) == {}
    await_ends(tmp_path)


def test_connections_end_with_the_run(held: Connections, way: Way, tmp_path: Path) -> None:
    assert held.connect({"n1": way("n1", f"trap '' TERM; {NOTED} wait")}, 10) == {}
    held.close()
    await_ends(tmp_path)


def test_connections_end_with_the_daemon(held: Connections, way: Way, tmp_path: Path) -> None:
    assert held.connect({"n1": way("n1", f"{NOTED} wait")}, 10) == {}
    master = int((tmp_path / "pids").read_text().split()[0])
    parents = psutil.Process(master).parents()
    [daemon] = [parent for parent in parents if parent.name() == "mnode-cleanup"]
    daemon.kill()
    until(lambda: not psutil.pid_exists(master), "ssh has ended")


def test_a_program_that_cannot_be_started_affects_one_host(held: Connections, way: Way) -> None:
    ways = {"n1": way("n1"), "n2": (["/no/such/ssh"], way("n2")[1]), "n3": way("n3")}
    assert held.connect(ways, 10) == {
        "n2": "cannot start /no/such/ssh on this machine: No such file or directory"
    }


def test_no_password_prompt(held: Connections, way: Way) -> None:
    failures = held.connect({"n1": way("n1", 'echo "$SSH_ASKPASS_REQUIRE" >&2; exit 255')}, 10)
    assert failures == {"n1": "never"}


@pytest.fixture
def _few_files() -> Iterator[None]:
    """Limits child processes of this process to 64 open files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(os.dup(0) + 64, 64), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("_few_files")
def test_many_connections_need_few_files(way: Way) -> None:
    lost: list[str] = []
    held = Connections(lambda name, _: lost.append(name))
    held.start([])
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        names = [f"n{number}" for number in range(soft + 6)]
        assert held.connect({name: way(name) for name in names}, 60) == {}
        assert lost == []
    finally:
        held.close()


def test_the_end_of_the_daemon_is_reported_as_the_reason(
    held: Connections, losses: Losses, way: Way
) -> None:
    held.connect({"n1": way("n1")}, 10)
    silent = way("n2", f"sleep 0.3; kill -9 {held._daemon.pid}; sleep 300")
    why = "the cleanup process of the run has ended"
    assert held.connect({"n2": silent}, 10) == {"n2": why}
    assert losses.get(timeout=10) == ("n1", why)
    assert losses.empty()


def noting(names: Sequence[str], way: Way, script: str) -> dict[str, tuple[list[str], str]]:
    """Connections whose `$name` is their own, in a directory for those that are made at once."""
    up = ': > "../$up"; exec sleep 300'
    start = "mkdir -p at-once; cd at-once; name="
    return {name: way(name, f"{start}{name}; {script} {up}") for name in names}


def counts(directory: Path) -> list[int]:
    """How many were made at once, as each connection saw it."""
    return [int(word) for word in (directory / "counts").read_text().split()]


def test_dropped_connections_are_retried_a_few_at_a_time(
    held: Connections, way: Way, tmp_path: Path
) -> None:
    """A jump host accepts only some connections at once; here the first of each node is dropped."""
    script = (
        f"if mkdir ../$name.first 2> /dev/null; then {DROPPED}; fi;"
        "touch $name; ls | wc -l >> ../counts; sleep 0.2; rm $name;"
    )
    assert held.connect(noting([f"n{number}" for number in range(20)], way, script), 30) == {}
    assert len(counts(tmp_path)) == 20
    assert max(counts(tmp_path)) <= ssh_connections.AGAIN_AT_ONCE


def test_a_connection_that_is_always_dropped_is_reported(
    held: Connections, way: Way, tmp_path: Path
) -> None:
    problems = held.connect({"n1": way("n1", f"echo x >> tries; {DROPPED}")}, 60)
    assert problems == {"n1": "kex_exchange_identification: Connection closed by remote host"}
    assert (tmp_path / "tries").read_text().count("x") == ssh_connections.TRIES


def test_many_connections_are_made_some_at_a_time_and_each_has_the_whole_limit(
    held: Connections, way: Way, tmp_path: Path
) -> None:
    """All together take longer than the limit of one; that they wait for a turn is no failure."""
    script = "touch $name; ls | wc -l >> ../counts; sleep 1.5; rm $name;"
    names = [f"n{number}" for number in range(2 * ssh_connections.AT_ONCE + 10)]
    began = time.monotonic()
    assert held.connect(noting(names, way, script), 4.0) == {}
    assert time.monotonic() - began > 4.0
    assert len(counts(tmp_path)) == len(names)
    assert max(counts(tmp_path)) <= ssh_connections.AT_ONCE


def test_after_a_drop_all_connections_are_made_a_few_at_a_time(held: Connections, way: Way) -> None:
    """A jump host that lets a few authenticate at once, and drops the others."""
    script = (
        f"touch $name; if [ $(ls | wc -l) -gt 9 ]; then rm $name; {DROPPED}; fi;"
        " sleep 0.4; rm $name;"
    )
    assert held.connect(noting([f"n{number}" for number in range(48)], way, script), 10.0) == {}
