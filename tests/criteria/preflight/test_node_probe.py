"""The survey program on a node: directories, rails, connections and payloads."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from pytest_mnode.criteria.preflight import datagrams, directories, node_probe, tcp
from pytest_mnode.criteria.preflight.answers import (
    Connection,
    Directory,
    DirectoryFacts,
    LookOrder,
    Peer,
    ProbeOrder,
    Rail,
    Received,
    Token,
)
from pytest_mnode.criteria.preflight.datagrams import PathProber, UdpProbe, open_socket
from pytest_mnode.criteria.preflight.node_probe import NodeProbe
from pytest_mnode.criteria.preflight.tcp import (
    PATTERN_BYTES,
    Listener,
    RailPair,
    Receiver,
    connect_all,
    differing,
    look_up_all,
    paired,
    targets,
)
from pytest_mnode.machine import model
from pytest_mnode.machine.mounts import Mount
from tests.inner import OWN_ADDRESSES
from tests.waiting import soon


def _rails(*names: str) -> tuple[Rail, ...]:
    return tuple(Rail(name, "10.0.0.1", 1, 2) for name in names)


def test_rails_are_paired_by_name_else_by_place() -> None:
    def names(mine: tuple[Rail, ...], theirs: tuple[Rail, ...]) -> list[tuple[str, str]]:
        return [(a.interface, b.interface) for a, b in paired(mine, theirs)]

    assert names(_rails("a", "b", "c"), _rails("a", "c")) == [("a", "a"), ("c", "c")]
    by_place = [("ens1", "eth4"), ("ens2", "eth5")]
    assert names(_rails("ens1", "ens2"), _rails("eth4", "eth5")) == by_place
    assert names(_rails(), _rails("a")) == []


@pytest.mark.parametrize("address", OWN_ADDRESSES)
def test_a_listener_on_all_addresses_is_reached_over_ipv4_and_ipv6(address: str) -> None:
    async def tried() -> tuple[bool, float | None]:
        loop = asyncio.get_running_loop()
        post, other = (UdpProbe("", None, b"a run 00", index) for index in (0, 1))
        listener = Listener(open_socket(socket.SOCK_STREAM, "", None))
        for one in (other, post):
            one.listen(loop)
        listener.start(loop)
        answered = await PathProber(post, (address, other.port)).reaches()
        rail = Rail("", address, listener.port, other.port)
        peer = Peer(1, "other", address, listener.port, other.port, {})
        order = ProbeOrder((peer,), (), {}, None, 2.0, None)
        [met], _ = await connect_all(order, [RailPair(peer, "control", Rail("", "", 0, 0), rail)])
        return answered, met.took_s

    answered, took_s = asyncio.run(tried())
    assert answered
    assert took_s is not None


def test_lost_datagrams_are_counted_apart_for_each_direction() -> None:
    async def counted() -> tuple[int, int]:
        loop = asyncio.get_running_loop()
        one, other = (UdpProbe("127.0.0.1", None, b"a run 00", index) for index in (0, 1))
        send, number = other._socket.sendto, itertools.count()
        lossy = Mock(wraps=other._socket)
        lossy.sendto = lambda *args: next(number) % 5 and send(*args)  # loses answers only
        other._socket = lossy
        for probe in (one, other):
            probe.listen(loop)
        await PathProber(one, ("127.0.0.1", other.port)).count(100)
        return one.sent["127.0.0.1", other.port], other.heard[0]

    assert asyncio.run(counted()) == (100, 100)


def test_a_size_that_our_own_interface_rejects_is_no_loss() -> None:
    async def sent(number: int) -> tuple[int, int]:
        """Pings that are waited for, and that are left when they are over."""
        probe: Any = UdpProbe("127.0.0.1", None, b"a run 00", 0)
        probe._socket = Mock(wraps=probe._socket)
        probe._socket.sendto.side_effect = OSError(number, os.strerror(number))
        with probe.pings(("127.0.0.1", 9), [100, 1500]) as pings:
            waiting = len(pings)
            assert len(probe._waiting) == waiting
        return waiting, len(probe._waiting)

    assert asyncio.run(sent(errno.EMSGSIZE)) == (0, 0)
    assert asyncio.run(sent(errno.ENOBUFS)) == (2, 0)


def test_packets_leave_by_the_interface_of_their_rail() -> None:
    with open_socket(socket.SOCK_DGRAM, "127.0.0.1", "lo") as sock:
        assert sock.getsockopt(socket.SOL_SOCKET, datagrams._SO_BINDTODEVICE, 16) == b"lo\0"


def test_a_loopback_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "_LOOPBACK_LIMIT_S", 0.05)
    with contextlib.ExitStack() as stack:
        full, *clients = (stack.enter_context(socket.socket()) for _ in range(4))
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for client in clients:  # the kernel answers no more than fit
            client.setblocking(False)
            client.connect_ex(full.getsockname())
        problem = asyncio.run(tcp.loopback_problem(full.getsockname()[1]))
    assert problem.startswith(tcp.NO_ANSWER)


@pytest.mark.parametrize(
    ("level", "option", "size", "probing", "sent"),
    [
        (socket.IPPROTO_TCP, socket.TCP_MAXSEG, 600, "1", range(600, 653)),
        # Segments that Linux makes small at first, or for a small window, are no fault of a route.
        (socket.IPPROTO_TCP, socket.TCP_MAXSEG, 600, "2", range(1500, 1 << 17)),
        (socket.SOL_SOCKET, socket.SO_RCVBUF, 1, "0", range(1500, 1 << 17)),
    ],
)
def test_segments_for_which_the_other_end_asks_are_what_tcp_sends(  # noqa: PLR0917  one table
    level: int,
    option: int,
    size: int,
    probing: str,
    sent: range,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tcp, "_PROBING", tmp_path / "tcp_mtu_probing")
    tcp._PROBING.write_text(f"{probing}\n")
    with socket.socket() as server, socket.socket() as client:
        server.setsockopt(level, option, size)
        server.bind(("127.0.0.1", 0))
        server.listen()
        client.connect(server.getsockname())
        assert tcp._largest_packet(client) in sent


def test_packets_of_a_socket_without_facts_are_unknown() -> None:
    with socket.socket(socket.AF_UNIX) as no_tcp:
        assert tcp._largest_packet(no_tcp) is None


def test_a_connection_on_loopback_has_no_problem_or_says_it() -> None:
    async def problems() -> tuple[str, str]:
        loop = asyncio.get_running_loop()
        listener = Listener(open_socket(socket.SOCK_STREAM, "", None))
        listener.start(loop)
        opened = await tcp.loopback_problem(listener.port)
        loop.remove_reader(listener._socket)
        listener._socket.close()
        return opened, await tcp.loopback_problem(listener.port)

    opened, closed = asyncio.run(problems())
    assert not opened
    assert closed == tcp.REFUSED


@pytest.mark.parametrize(
    "name", ["no-such-host.invalid", "node1..example", f"{'n' * 64}.example", "."]
)
def test_an_invalid_or_unknown_name_is_not_found(name: str) -> None:
    order = ProbeOrder((Peer(0, name, "127.0.0.1", 1, 1, {}),), (), {}, (name, 1), 20.0, 20.0)
    _, met = asyncio.run(connect_all(order, []))
    assert met is not None
    assert met.took_s is None
    assert f"its name {name} is not found" in met.problem
    first, *_ = asyncio.run(look_up_all(order))
    assert (first.what, first.found) == (name, ())
    assert first.problem


def test_a_path_that_opens_one_connection_only_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([0.01, None])

    async def limited(attempt: Connection, *_: object) -> Connection:
        took_s = next(answers)
        return replace(attempt, took_s=took_s, problem="" if took_s else "no answer within 1 s")

    monkeypatch.setattr(tcp, "_connect", limited)
    rail = Rail("", "127.0.0.1", 1, 1)
    pair = RailPair(Peer(1, "other", "", 1, 1, {}), "fabric", rail, rail)
    [met], _ = asyncio.run(connect_all(ProbeOrder((), (), {}, None, 1.0, None), [pair]))
    assert met.took_s is None
    assert met.problem == "no answer within 1 s (connection 2 of 3)"


@pytest.mark.parametrize("connected", [True, False])  # asyncio may notice late that it is
def test_a_connection_that_is_not_made_in_time(
    connected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object) -> None:
        await asyncio.sleep(60.0)

    monkeypatch.setattr(asyncio.SelectorEventLoop, "sock_connect", never)
    monkeypatch.setattr(tcp, "_is_connected", lambda _: connected)
    attempt = Connection(1, "fabric", "fab0", None, "")
    found = asyncio.run(tcp._connect(attempt, "127.0.0.1", 9, "", 0.05))
    expected = (0.05, "") if connected else (None, "no answer within 0.05 s")
    assert (found.took_s, found.problem) == expected


def test_a_lookup_that_hangs_delays_no_other_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, ended = threading.Event(), []

    def hangs(*_args: object, **_kwargs: object) -> object:
        ended.append(answers.wait(60))
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    async def tried() -> tuple[Connection, Connection | None]:
        listener = Listener(open_socket(socket.SOCK_STREAM, "127.0.0.1", None))
        listener.start(asyncio.get_running_loop())
        rail = Rail("", "127.0.0.1", listener.port, 1)
        pair = RailPair(Peer(1, "other", "", 1, 1, {}), "fabric", rail, rail)
        order = ProbeOrder((), (), {}, ("gpu0.example", 1), 1.0, None)
        [other], master = await connect_all(order, [pair])
        return other, master

    monkeypatch.setattr(socket, "getaddrinfo", hangs)
    try:
        other, master = asyncio.run(tried())
        assert ended == [], "neither the answers nor the program's end wait for the lookup"
    finally:
        answers.set()
    assert other.took_s is not None
    assert master is not None
    assert master.problem == "look-up of gpu0.example did not end within 1 s"


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7, 8, 16, 39])
def test_each_node_sends_to_and_receives_from_equally_many(count: int) -> None:
    nodes = range(10, 10 + count)
    edges = [(node, to) for node in nodes for to in targets(node, nodes)]
    assert len(set(edges)) == len(edges)
    assert all(one != other for one, other in edges)
    most = min(count - 1, 4) if count <= 5 else 3
    for node in nodes:
        assert sum(one == node for one, _ in edges) == most
        assert sum(other == node for _, other in edges) == most


def test_bytes_that_differ_are_counted() -> None:
    pattern = tcp._pattern()
    size = PATTERN_BYTES + 1000
    changed = bytearray(pattern + pattern[:1000])
    for place in (0, 70_000, PATTERN_BYTES - 1, PATTERN_BYTES, size - 1):
        changed[place] ^= 1
    assert differing(memoryview(b"abc"), memoryview(b"xbz")) == 2

    async def receive() -> tuple[Received, ...]:
        receiver = Receiver()
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname()) as sock,
        ):
            receiver.take(server.accept()[0])
            await asyncio.to_thread(sock.sendall, changed)
            sock.shutdown(socket.SHUT_WR)
            await asyncio.to_thread(sock.recv, 1)
        return receiver.received

    [received] = asyncio.run(receive())
    assert (received.size_bytes, received.wrong_bytes) == (size, 5)


def _visit(path: Path, **changes: Any) -> tuple[list[Token], DirectoryFacts]:
    noted: list[Token] = []
    directory = Directory("checkpoints", str(path), **changes)
    return noted, directories.visit(directory, "ab" * 8, 3, noted.append)


def test_a_directory_is_read_and_written_and_left_unchanged(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("b", "a", "sub/c"):
        (tmp_path / name).write_text(name)
    noted, facts = _visit(tmp_path, writable=True, sample_files=2, sample_bytes=10)
    assert facts.problem == facts.write_problem == ""
    assert [s.name for s in facts.samples] == ["a", "b"]
    [token] = noted
    assert [s.problem for s in directories.seen([token], 0)] == [""]
    directories.remove(token)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b", "sub"]


def test_problems_of_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _visit(tmp_path / "missing")[1].problem == "not there"
    (tmp_path / "file").touch()
    assert _visit(tmp_path / "file")[1].problem == "not a directory"
    monkeypatch.setattr(Path, "is_dir", lambda _: False)  # as of Python 3.14, for any error
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", Mock(side_effect=PermissionError(13, "Permission denied")))
        _, refused = _visit(tmp_path)
    assert refused.problem == "permission denied"
    late = Token("checkpoints", 1, str(tmp_path / "late"), "x")
    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", lambda _: (tmp_path / "late").write_text("x"))
        assert directories.seen([late], 0)[0].problem == ""
    monkeypatch.setattr(directories, "_SEEN_LIMIT_S", 0.0)
    token = Token("checkpoints", 1, str(tmp_path / "gone"), "x")
    assert directories.seen([token], 0)[0].problem == "no such file or directory"
    (tmp_path / "gone").write_text("y")
    assert directories.seen([token], 0)[0].problem == "has different content"
    assert directories.seen([token], 1) == ()


@pytest.mark.parametrize(
    ("error", "user", "mount", "refuses"),
    [
        (errno.EACCES, 0, "nfs4 filer:/ckpt", True),
        (errno.EPERM, 0, "lustre mds@tcp:/fs", True),
        (errno.EACCES, 1000, "nfs4 filer:/ckpt", False),
        (errno.EACCES, 0, "ext4 /dev/sda1", False),
        (errno.EROFS, 0, "nfs4 filer:/ckpt", False),
        (errno.EACCES, 0, None, False),
    ],
)
def test_a_refusal_of_root_alone_is_recognised(  # noqa: PLR0917  a row of the table
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: int,
    user: int,
    mount: str | None,
    refuses: bool,
) -> None:
    kind, _, source = (mount or "").partition(" ")
    of_path = Mount("/", kind, source) if mount else None
    for what in ("scandir", "open"):
        with monkeypatch.context() as patch:
            patch.setattr(os, what, Mock(side_effect=OSError(error, os.strerror(error))))
            patch.setattr(os, "geteuid", lambda: user)
            patch.setattr(directories, "mount_here", lambda _: of_path)
            facts = _visit(tmp_path, writable=True)[1]
        assert (facts.problem or facts.write_problem) == os.strerror(error).lower()
        assert facts.refuses_root is refuses, what


def test_files_of_a_killed_survey_are_removed_later(tmp_path: Path) -> None:
    old, new = tmp_path / ".mnode-preflight-1-1", tmp_path / ".mnode-preflight-2-2"
    old.touch()
    new.touch()
    os.utime(old, (1, 1))
    noted, _ = _visit(tmp_path, writable=True)
    directories.remove(noted[0])
    assert [p.name for p in tmp_path.iterdir()] == [new.name]


@pytest.fixture
def hangs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., object]]:
    """What replaces a function that never returns; nothing waits for it."""
    over = threading.Event()
    for module, limit in (
        (node_probe, "_DIRECTORY_LIMIT_S"),
        (node_probe, "_READ_LIMIT_S"),
        (node_probe, "_SEEN_LIMIT_S"),
        (tcp, "_RESOLVE_LIMIT_S"),
    ):
        monkeypatch.setattr(module, limit, 0.2)
    with soon():
        yield lambda *_args, **_kwargs: over.wait(60)
        over.set()


LOOK = LookOrder("ab" * 8, 0, ("hostname",), {}, directories=(Directory("c", "/c"),))


def test_parts_of_a_node_that_never_answer_are_named(
    hangs: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a directory whose file server is away."""
    monkeypatch.setattr(directories, "visit", hangs)
    monkeypatch.setattr(node_probe, "_digests", hangs)
    monkeypatch.setenv("TMPDIR", "/its/tmp")
    facts = asyncio.run(
        NodeProbe().look(replace(LOOK, directories=(*LOOK.directories, Directory("t", ""))))
    )
    [directory, temporary] = facts.directories
    assert (directory.timed_out, directory.problem) == (True, "no answer within 0.2 s")
    assert temporary.path == "/its/tmp"
    assert facts.code is None


def test_a_part_of_the_machine_that_never_answers_is_unread(
    hangs: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(model._READERS, "hostname", hangs)
    facts = asyncio.run(NodeProbe().look(replace(LOOK, directories=())))
    assert facts.machine.unread == {"hostname": "no answer within 0.2 s"}


def test_files_that_are_never_looked_up_are_not_seen(
    hangs: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directories, "seen", hangs)
    node = NodeProbe()
    node.order = LOOK
    facts = asyncio.run(node.probe(ProbeOrder((), (), {}, None, 1.0, None)))
    assert facts.seen == ()


def test_a_name_that_is_never_resolved(
    hangs: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp, "address_of", hangs)
    with pytest.raises(TimeoutError):
        asyncio.run(tcp.resolved("gpu0.example", 1))


def test_packets_to_a_node_that_answers_none_are_lost(
    hangs: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datagrams, "_LAST_LIMIT_S", 0.2)

    async def passed(port: int) -> tuple[list[int], bool]:
        probe = UdpProbe("", None, b"a run 00", 0)
        probe.listen(asyncio.get_running_loop())
        return await PathProber(probe, ("127.0.0.1", port))._passed([100])

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        assert asyncio.run(passed(silent.getsockname()[1])) == ([], False)
