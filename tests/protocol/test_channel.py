"""The control channel: peers without the key get nothing and do no harm."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.protocol.channel import (
    Line,
    LocalLine,
    Switchboard,
    UnixLine,
    Uplink,
    new_token,
)
from tests.waiting import until

LONG_S = 20.0


class Bomb:
    """Unpickling this object is noticed."""

    exploded = False

    def __reduce__(self) -> tuple[object, tuple[()]]:
        return explode, ()


def explode() -> None:
    Bomb.exploded = True


@pytest.fixture
def switchboard(tmp_path: Path) -> Iterator[Switchboard]:
    board = Switchboard(f"{tmp_path}/hub", new_token())
    yield board
    board.close()


def local(board: Switchboard, name: str) -> UnixLine:
    return UnixLine(name, board.path, board.token)


class Machine:
    """Another machine with ranks, whose one connection a thread serves as an agent does."""

    def __init__(self, board: Switchboard, directory: Path) -> None:
        self.ranks = Switchboard(f"{directory}/ranks", new_token())
        (up, to_hub), (from_hub, down) = os.pipe(), os.pipe()
        os.write(to_hub, b"what Python prints as it starts\n")
        self.printed: list[bytes] = []
        board.take_machine("agent/0", up, down, self.printed.append)
        self.uplink = Uplink("agent/0", from_hub, to_hub, self.ranks)
        self.heard: list[bytes] = []
        self.over = threading.Event()
        self.closed = False
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(EOFError):
            while not self.over.is_set():
                if (payload := self.uplink.receive_bytes(0.02)) is not None:
                    self.heard.append(payload)

    def stop(self) -> None:
        self.over.set()
        self._thread.join()

    def close(self) -> None:
        self.stop()
        if not self.closed:
            self.closed = True
            self.uplink.close()
            self.ranks.close()


@pytest.fixture
def machine(switchboard: Switchboard, tmp_path: Path) -> Iterator[Machine]:
    made = Machine(switchboard, tmp_path)
    yield made
    made.close()


@pytest.fixture(params=["of this kernel", "of another machine"])
def line(request: pytest.FixtureRequest, switchboard: Switchboard) -> Iterator[Line]:
    """The connection of rank/1."""
    at = switchboard
    if request.param == "of another machine":
        at = request.getfixturevalue("machine").ranks
    made = local(at, "rank/1")
    yield made
    made.close()


def receive(board: Switchboard, timeout_s: float) -> tuple[str, str, bytes] | None:
    end = time.monotonic() + timeout_s
    while (message := next(board.arrived(), None)) is None and time.monotonic() < end:
        select.select([board.descriptor], [], [], 0.05)
    return message


def test_a_peer_with_the_key_is_answered(switchboard: Switchboard, line: Line) -> None:
    line.send("hub", {"value": 1})
    heard = receive(switchboard, LONG_S)
    assert heard is not None
    assert heard[:2] == ("rank/1", "hub")
    assert pickle.loads(heard[2]) == {"value": 1}
    switchboard.send(["rank/2", "rank/1"], "hub", pickle.dumps("answer"))
    assert select.select([line.descriptor], [], [], LONG_S)[0]
    assert line.receive(LONG_S) == "answer"
    assert line.receive(0.05) is None


def test_messages_larger_than_any_buffer_arrive_whole_and_in_order(
    switchboard: Switchboard, line: Line
) -> None:
    large, messages = b"x" * 3_000_000, 4

    def speak() -> None:
        for number in range(messages):
            line.send("hub", (number, large))

    speaking = threading.Thread(target=speak)
    speaking.start()
    for number in range(messages):
        heard = receive(switchboard, LONG_S)
        assert heard is not None
        assert pickle.loads(heard[2]) == (number, large)
    speaking.join()
    for number in range(messages):  # the peer reads none of them yet, and this does not wait
        switchboard.send(["rank/1"], "hub", pickle.dumps((number, large)))
    answers: list[Any] = []
    reading = threading.Thread(
        target=lambda: answers.extend(line.receive(LONG_S) for _ in range(messages))
    )
    reading.start()
    while reading.is_alive():
        assert receive(switchboard, 0.02) is None
    assert answers == [(number, large) for number in range(messages)]


def test_a_signal_that_raises_in_a_send_cuts_no_message(switchboard: Switchboard) -> None:
    line = local(switchboard, "rank/1")
    large = b"x" * 3_000_000

    def expire(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, expire)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(TimeoutError):  # nobody reads, so it waits for room
            line.send("hub", large)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    speaking = threading.Thread(target=line.send, args=("hub", "next"))
    speaking.start()
    for message in (large, "next"):
        heard = receive(switchboard, LONG_S)
        assert heard is not None
        assert pickle.loads(heard[2]) == message
    speaking.join()
    line.close()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_peer_that_left_gets_nothing_and_does_no_harm(
    switchboard: Switchboard, machine: Machine, elsewhere: bool
) -> None:
    switchboard.send(["rank/1"], "hub", b"not there yet")
    line = local(machine.ranks if elsewhere else switchboard, "rank/1")
    line.send("hub", "last words")
    line.close()
    heard = [receive(switchboard, LONG_S) for _ in range(2)]
    assert heard == [("rank/1", "hub", pickle.dumps("last words", 5)), ("rank/1", "", b"")]
    for _ in range(3):
        switchboard.send(["rank/1"], "hub", b"x")
        assert receive(switchboard, 0.02) is None


def test_ranks_of_a_machine_share_its_connection(
    switchboard: Switchboard, machine: Machine
) -> None:
    lines = [local(machine.ranks, f"rank/{number}") for number in range(3)]
    for number, line in enumerate(lines):
        line.send("hub", number)
    machine.uplink.send_bytes("hub", b"beat")
    heard = {receive(switchboard, LONG_S) for _ in range(4)}
    ranks = {(f"rank/{number}", "hub", pickle.dumps(number, 5)) for number in range(3)}
    assert heard == {*ranks, ("agent/0", "hub", b"beat")}
    switchboard.send(["rank/0", "rank/2"], "client/1", pickle.dumps("go"))
    switchboard.send(["agent/0"], "hub", b"order")
    assert [line.receive(LONG_S) for line in (lines[0], lines[2])] == ["go", "go"]
    assert lines[0].sender == "client/1"
    assert lines[1].receive(0.05) is None
    until(lambda: machine.heard, "the agent's own message")
    assert machine.heard == [b"order"]
    assert b"".join(machine.printed) == b"what Python prints as it starts\n"
    for line in lines:
        line.close()


@pytest.mark.parametrize("folder", ["hub", "d" * 120])
def test_a_peer_whose_hub_has_ended_is_told_so(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    board = Switchboard(f"{tmp_path}/{folder}/other", "token")
    line = local(board, "rank/1")
    board.close()
    line.send("hub", "nobody hears this")
    with pytest.raises(EOFError):
        line.receive(LONG_S)
    line.close()


def test_what_a_rank_sent_precedes_the_news_of_its_end(
    switchboard: Switchboard, tmp_path: Path
) -> None:
    """Which the agent may have before it reads the rank's last message."""
    ranks = Switchboard(f"{tmp_path}/ranks", new_token())
    (up, to_hub), (from_hub, down) = os.pipe(), os.pipe()
    switchboard.take_machine("agent/0", up, down, bytes)
    uplink, rank = Uplink("agent/0", from_hub, to_hub, ranks), local(ranks, "rank/1")
    for _ in range(2):  # takes the connection, and its token
        assert uplink.receive_bytes(0) is None
    assert not select.select([uplink.descriptor], [], [], 0)[0]
    rank.send("hub", "a report")
    assert select.select([uplink.descriptor], [], [], LONG_S)[0]
    uplink.send("hub", "a death")
    heard = [receive(switchboard, LONG_S) for _ in range(2)]
    assert [message and pickle.loads(message[2]) for message in heard] == ["a report", "a death"]
    rank.close()
    uplink.close()
    ranks.close()


@pytest.mark.parametrize("cut", [1, 9, 13, 14, 15, 40])
def test_frames_begin_after_the_mark_however_the_bytes_come(
    switchboard: Switchboard, tmp_path: Path, cut: int
) -> None:
    ranks = Switchboard(f"{tmp_path}/ranks", new_token())
    (aside, to_aside), (up, to_hub), (from_hub, down) = os.pipe(), os.pipe(), os.pipe()
    uplink, printed = Uplink("agent/0", from_hub, to_aside, ranks), list[bytes]()
    uplink.send_bytes("hub", b"beat")
    sent = b"printed\n" + os.read(aside, 1000)
    switchboard.take_machine("agent/0", up, down, printed.append)
    os.write(to_hub, sent[:cut])
    assert receive(switchboard, 0.02) is None or cut == len(sent)
    os.write(to_hub, sent[cut:])
    assert receive(switchboard, LONG_S) == ("agent/0", "hub", b"beat")
    assert b"".join(printed) == b"printed\n"
    assert switchboard.received("agent/0") == len(sent)
    uplink.close()
    ranks.close()
    for fd in (aside, to_hub):
        os.close(fd)


def test_a_machine_that_left_gets_nothing_nor_do_its_ranks(
    switchboard: Switchboard, machine: Machine
) -> None:
    line = local(machine.ranks, "rank/1")
    line.send("hub", "hello")
    assert receive(switchboard, LONG_S) == ("rank/1", "hub", pickle.dumps("hello", 5))
    switchboard.drop("agent/0")
    switchboard.send(["agent/0", "rank/1"], "hub", b"x")
    assert {receive(switchboard, LONG_S) for _ in range(2)} == {
        ("agent/0", "", b""),
        ("rank/1", "", b""),
    }
    machine._thread.join(LONG_S)
    assert not machine._thread.is_alive(), "the end of its input tells the machine"
    line.close()


def test_what_a_dead_machine_does_not_read_is_dropped(
    switchboard: Switchboard, machine: Machine
) -> None:
    machine.uplink.send_bytes("hub", b"beat")
    assert receive(switchboard, LONG_S) == ("agent/0", "hub", b"beat")
    machine.stop()
    switchboard.send(["agent/0"], "hub", b"x" * 3_000_000)  # more than the pipe holds
    machine.close()
    assert receive(switchboard, LONG_S) == ("agent/0", "", b"")


def test_a_peer_without_the_token_is_ignored_and_gets_nothing(switchboard: Switchboard) -> None:
    unknown = UnixLine("client/1", switchboard.path, new_token())
    unknown.send("hub", Bomb())
    assert receive(switchboard, 0.5) is None
    switchboard.send(["client/1"], "hub", b"secret")
    with pytest.raises(EOFError):
        unknown.receive(LONG_S)
    assert not Bomb.exploded
    line = local(switchboard, "rank/1")  # the switchboard still serves peers with the token
    line.send("hub", "here")
    assert receive(switchboard, LONG_S) == ("rank/1", "hub", pickle.dumps("here", 5))
    line.close()


def test_a_malformed_message_is_skipped(switchboard: Switchboard, line: Line) -> None:
    line.send_bytes("", b"to nobody")
    line.send_bytes("hub", b"the next")
    heard = receive(switchboard, LONG_S)
    while heard is not None and not heard[1]:  # a machine delivers what has three parts
        heard = receive(switchboard, LONG_S)
    assert heard == ("rank/1", "hub", b"the next")


def test_tokens_are_new_in_each_run() -> None:
    assert new_token() != new_token()


def test_a_message_to_a_line_of_this_process_ends_its_wait() -> None:
    line = LocalLine(lambda _, __: None)
    began = time.monotonic()
    later = threading.Timer(0.1, line.put, [pickle.dumps("late")])
    later.start()
    assert line.receive(LONG_S) == "late"
    line.put(pickle.dumps("at once"))
    assert line.receive(LONG_S) == "at once"
    assert time.monotonic() - began < LONG_S / 2
    later.join()
    line.close()


def test_a_line_of_this_process_waits_no_longer_than_it_may() -> None:
    line = LocalLine(lambda _, __: None)
    began = time.monotonic()
    assert line.receive(0.1) is None
    assert 0.1 <= time.monotonic() - began < LONG_S / 2
    line.close()
