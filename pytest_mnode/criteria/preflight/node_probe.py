"""Program that probes from a node: `python -m pytest_mnode.criteria.preflight.node_probe`.

It is started once on every node at the same time. It reads orders as JSON lines from standard input
and answers each with a JSON line on standard output: look (this machine, and the ports the program
listens on), probe (its paths to all other nodes), payload (bytes to some other nodes), end (the
datagrams and payloads that arrived). It ends when standard input ends, and leaves no file. It
imports neither torch nor pytest. Calls that may hang run in a thread with a limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pytest_mnode.criteria.preflight import answers, directories, tcp
from pytest_mnode.criteria.preflight.answers import (
    Connection,
    Directory,
    DirectoryFacts,
    Heard,
    LastFacts,
    LookOrder,
    NodeFacts,
    PathFacts,
    PayloadFacts,
    PayloadOrder,
    Peer,
    ProbeOrder,
    Rail,
    ReadingFacts,
    ReadingOrder,
    Sent,
    Token,
)
from pytest_mnode.criteria.preflight.datagrams import PathProber, UdpProbe, open_socket
from pytest_mnode.criteria.preflight.tcp import (
    Listener,
    RailPair,
    connect_all,
    in_thread,
    look_up_all,
    or_none,
    paired,
    resolved,
)
from pytest_mnode.evidence.reading import READ_LIMIT_S, CheckRows, ReadOrder, read_all
from pytest_mnode.machine import programs
from pytest_mnode.machine.encoding import encode
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.software import code_digests

T = TypeVar("T")
_READ_LIMIT_S = 30.0
"""Half of the survey's limit; a file server may be slow for its first client."""
_SEEN_LIMIT_S = 10.0
_DIRECTORY_LIMIT_S = 3.0
"""Access to a directory hangs if its file server is gone."""
CONTROL = "control"
_PACKAGE = Path(__file__).parents[2]
_HEARD_EVERY_S = 0.5
_SELF_DESTRUCT_S = 120.0
"""Time without an order until the program ends; the next order waits for the slowest node."""


class NodeProbe:
    """The program's state between orders."""

    def __init__(self) -> None:
        self.order: LookOrder
        self.machine: Machine
        self.read_at_s: float
        self.sockets: dict[tuple[str, str], UdpProbe] = {}
        self.rails: dict[str, tuple[Rail, ...]] = {}
        self.listeners: list[Listener] = []
        self.tried: list[tuple[RailPair, Connection]] = []
        self.receiver = tcp.Receiver()
        self.tokens: list[Token] = []

    async def look(self, order: LookOrder) -> NodeFacts:
        self.order = order
        others = asyncio.gather(
            asyncio.to_thread(Machine.read, parts=order.parts, limit_s=_READ_LIMIT_S),
            or_none(lambda: _digests(order.code), _READ_LIMIT_S),
        )
        read = asyncio.create_task(asyncio.to_thread(read_all, order.reads))
        visits = await asyncio.gather(*(self.visit(one) for one in order.directories))
        self.machine, code = await others
        self.read_at_s = time.monotonic()
        control = self.open_probe(CONTROL, "", "", None)
        listener = self.listen("", None)
        self.rails = {network: tuple(self.rails_of(network)) for network in order.networks}
        return NodeFacts(
            machine=self.machine,
            tcp_port=listener.port,
            udp_port=control.port,
            master_problem=self.listen_as_master(),
            rails=self.rails,
            code=code,
            directories=tuple(visits),
            read=tuple(await read),
            loopback_problem=await tcp.loopback_problem(listener.port),
        )

    async def visit(self, directory: Directory) -> DirectoryFacts:
        order = self.order
        try:
            return await in_thread(
                lambda: directories.visit(directory, order.run, order.index, self.tokens.append),
                _DIRECTORY_LIMIT_S,
            )
        except TimeoutError:
            why = f"no answer within {_DIRECTORY_LIMIT_S:g} s"
            path = directory.path or directories.temporary()
            return DirectoryFacts(key=directory.key, path=path, problem=why, timed_out=True)

    def rails_of(self, network: str) -> list[Rail]:
        found = []
        for interface in self.machine.matching(self.order.networks[network]):
            address = interface.usable_address
            if address is None:
                continue
            with contextlib.suppress(OSError):
                probe = self.open_probe(network, interface.name, address, interface.name)
                listener = self.listen(address, interface.name)
                found.append(Rail(interface.name, address, listener.port, probe.port))
        return found

    def open_probe(self, network: str, rail: str, address: str, device: str | None) -> UdpProbe:
        run = bytes.fromhex(self.order.run)[:8]
        probe = UdpProbe(address, device, run, self.order.index)
        self.sockets[network, rail] = probe
        probe.listen(asyncio.get_running_loop())
        return probe

    def listen(self, address: str, device: str | None, port: int = 0) -> Listener:
        listener = Listener(open_socket(socket.SOCK_STREAM, address, device, port))
        listener.start(asyncio.get_running_loop())
        self.listeners.append(listener)
        return listener

    def listen_as_master(self) -> str:
        """Listen on the master port if this is the first node; why that failed, else ""."""
        port = self.order.master_port
        if self.order.index or port is None:
            return ""
        try:
            self.listen("", None, port)
        except OSError as error:
            return f"cannot listen on port {port}: {(error.strerror or str(error)).lower()}"
        return ""

    async def probe(self, order: ProbeOrder) -> PathFacts:
        others = [peer for peer in order.peers if peer.index != self.order.index]
        pairs = [
            RailPair(peer, network, mine, theirs)
            for peer in others
            for network in order.networks
            for mine, theirs in paired(self.rails[network], peer.rails.get(network, ()))
        ]
        nowhere = Rail("", "", 0, 0)
        controls = [
            RailPair(peer, CONTROL, nowhere, Rail("", peer.address, peer.tcp_port, peer.udp_port))
            for peer in others
        ]
        other_probes = asyncio.gather(
            connect_all(order, pairs),
            look_up_all(order, self.order.index),
            or_none(lambda: directories.seen(order.tokens, self.order.index), _SEEN_LIMIT_S),
        )
        paths = await asyncio.gather(*(self.try_path(pair, order) for pair in (*pairs, *controls)))
        (connections, master), looked_up, seen = await other_probes
        self.tried = list(zip(pairs, connections, strict=True))
        for listener in self.listeners:  # payloads follow when all nodes are done
            listener.take = self.receiver.take
        return PathFacts(connections, master, tuple(paths), looked_up, seen or ())

    async def try_path(self, pair: RailPair, order: ProbeOrder) -> answers.Path:
        to, rail = pair.peer.index, pair.mine.interface
        silent = answers.Path(to, pair.network, rail, answered=False)
        try:
            target = await resolved(pair.theirs.address, pair.theirs.udp_port)
        except (OSError, TimeoutError):
            return silent
        prober = PathProber(self.sockets[pair.network, rail], target)
        everyone = sorted({self.order.index, *(peer.index for peer in order.peers)})
        if not await prober.reaches():
            return silent
        clock = await prober.clock()
        largest = refused = None
        if (full := order.mtu.get(pair.network)) is not None:
            largest, refused = await prober.largest(full)
        if pair.network != CONTROL and to in tcp.targets(self.order.index, everyone):
            await prober.count(order.counted)
        return answers.Path(
            to,
            pair.network,
            rail,
            answered=True,
            largest_bytes=largest,
            refused_bytes=refused,
            offset_s=clock.offset_s if clock else None,
            error_s=clock.error_s if clock else None,
            sent=prober.socket.sent[target],
        )

    async def payload(self, order: PayloadOrder) -> PayloadFacts:
        tried = [(pair, c) for pair, c in self.tried if pair.network in order.networks]
        everyone = sorted({self.order.index, *(pair.peer.index for pair, _ in tried)})
        targets = tcp.targets(self.order.index, everyone)
        chosen = [(pair, c) for pair, c in tried if pair.peer.index in targets]
        unsent = [Sent(c.to, c.network, "", c.problem) for _, c in chosen if c.took_s is None]
        sends = (
            tcp.send(pair, order.size_bytes, order.limit_s, order.rate_bytes_s / len(chosen))
            for pair, c in chosen
            if c.took_s is not None
        )
        return PayloadFacts((*unsent, *await asyncio.gather(*sends)))

    async def read(self, order: ReadingOrder) -> ReadingFacts:
        """One reading after another: each may load what the next one measures."""
        found: list[CheckRows] = []
        for one in order.reads:
            limit_s = one.limit_s or READ_LIMIT_S
            found += await asyncio.to_thread(read_all, [one], limit_s)
        return ReadingFacts(tuple(found))

    async def end(self) -> LastFacts:
        after = await asyncio.to_thread(Machine.read, parts=("rdma",))
        heard = (
            Heard(network, rail, tuple(probe.heard), tuple(probe.heard.values()))
            for (network, rail), probe in self.sockets.items()
        )
        after_s = time.monotonic() - self.read_at_s
        return LastFacts(tuple(heard), after.rdma, self.receiver.received, after_s)

    def clean_up(self) -> None:
        """Remove the files that this node left for other nodes, and end what readings started."""
        programs.end_all()
        while self.tokens:
            directories.remove(self.tokens.pop())


def _digests(code: Sequence[str]) -> dict[str, str]:
    """Digests of this package's programs, and of those in further directories."""
    found = code_digests(_PACKAGE, _PACKAGE.name)
    for path in map(Path, code):
        found |= code_digests(path, path.name)
    return found


async def serve() -> None:
    """Answer orders until standard input ends."""
    loop = asyncio.get_running_loop()
    node = NodeProbe()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
        loop.add_signal_handler(number, _stop, node)
    reader = asyncio.StreamReader(limit=1 << 26)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    signal.setitimer(signal.ITIMER_REAL, _SELF_DESTRUCT_S)
    try:
        while line := await reader.readline():
            signal.setitimer(signal.ITIMER_REAL, _SELF_DESTRUCT_S)
            fields = json.loads(line)
            match fields.pop("do"):
                case "look":
                    visited = tuple(Directory(**one) for one in fields.pop("directories", ()))
                    reads = tuple(ReadOrder(**one) for one in fields.pop("reads", ()))
                    look = LookOrder(directories=visited, reads=reads, **fields)
                    answer: Any = await node.look(look)
                case "probe":
                    answer = await node.probe(_probe_order(fields))
                case "payload":
                    answer = await node.payload(PayloadOrder(**fields))
                case "end":
                    answer = await node.end()
                case "read":
                    reads = tuple(ReadOrder(**one) for one in fields["reads"])
                    order = ReadingOrder(reads)
                    # The others may take as long, before the next order comes.
                    signal.setitimer(signal.ITIMER_REAL, order.limit_s + _SELF_DESTRUCT_S)
                    answer = await _while_heard(reader, node.read(order))
            sys.stdout.write(encode(answer) + "\n")
            sys.stdout.flush()
    finally:
        node.clean_up()


async def _while_heard(reader: asyncio.StreamReader, work: Coroutine[Any, Any, T]) -> T:
    """The outcome of work, which may take hours. Ends the program once standard input has ended."""
    task = asyncio.ensure_future(work)
    while not (await asyncio.wait([task], timeout=_HEARD_EVERY_S))[0]:
        if reader.at_eof():
            raise EOFError("the run has ended")
    return await task


def _stop(node: NodeProbe) -> None:
    node.clean_up()
    os._exit(1)


def _probe_order(fields: dict[str, Any]) -> ProbeOrder:
    """Decoded by hand, because pydantic would double the start-up time of this program."""
    for peer in fields["peers"]:
        named = peer["rails"].items()
        peer["rails"] = {name: tuple(Rail(**rail) for rail in found) for name, found in named}
    fields["peers"] = tuple(Peer(**peer) for peer in fields["peers"])
    fields["tokens"] = tuple(Token(**token) for token in fields["tokens"])
    return ProbeOrder(**fields)


def main() -> None:
    """Serve, and exit without waiting for threads that hang in the file system or a look-up."""
    status = 0
    try:
        asyncio.run(serve())
    except BaseException as error:
        sys.stderr.write(f"probe: {type(error).__name__}: {error}\n")
        status = 1
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
