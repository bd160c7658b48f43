"""The program that looks at a node from within: `python -m pytest_mnode.criteria.preflight.survey`.

Started once on every node at the same time. Orders come as JSON lines on standard input, one answer
each goes as a JSON line to standard output: look (facts of this node, and the ports it listens on),
probe (its way to all others), payload (bytes to some others), end (what was heard and received).
Ends when standard input ends, and leaves no file. Imports neither torch nor pytest. Whatever may
hang runs in a thread with a limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from pytest_mnode.criteria.preflight import machine, payloads, places
from pytest_mnode.criteria.preflight.connecting import (
    Listener,
    Way,
    address_of,
    connect_all,
    is_address,
    look_up_all,
)
from pytest_mnode.criteria.preflight.datagrams import Post, Prober, open_socket, usable
from pytest_mnode.criteria.preflight.facts import (
    Connection,
    Heard,
    Interface,
    LastFacts,
    LookOrder,
    NodeFacts,
    Path,
    PathFacts,
    PayloadFacts,
    PayloadOrder,
    Peer,
    Place,
    PlaceFacts,
    ProbeOrder,
    Rail,
    Sent,
    Token,
    encode,
    paired,
)
from pytest_mnode.logs import kernel_log
from pytest_mnode.machine.rdma import RdmaDevice

PART_LIMIT_S = 10.0
PLACE_LIMIT_S = 3.0
"""Of what hangs where a file server is gone."""
CONTROL = "control"
_SELF_DESTRUCT_S = 120.0
T = TypeVar("T")


async def in_thread(function: Callable[[], T], limit_s: float) -> T:
    """What `function` returns; raises TimeoutError after `limit_s`, and leaves it behind then."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        try:
            result, error = function(), None
        except Exception as caught:
            result, error = None, caught
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, daemon=True).start()
    return await asyncio.wait_for(future, limit_s)


class SurveyOfNode:
    """State between the orders."""

    def __init__(self) -> None:
        self.order: LookOrder
        self.posts: dict[tuple[str, str], Post] = {}
        self.own_rails: dict[str, tuple[Rail, ...]] = {}
        self.listeners: list[Listener] = []
        self.tried: list[tuple[Way, Connection]] = []
        self.receiver = payloads.Receiver()
        self.unread: dict[str, str] = {}
        self.tokens: list[Token] = []
        self.rdma: tuple[RdmaDevice, ...] | None = None

    async def part(
        self, name: str, function: Callable[[], T], limit_s: float = PART_LIMIT_S
    ) -> T | None:
        """A part of the facts; None where it cannot be read in time, with the reason kept."""
        try:
            return await in_thread(function, limit_s)
        except TimeoutError:
            self.unread[name] = f"no answer within {limit_s:g} s"
        except Exception as error:
            self.unread[name] = f"{type(error).__name__}: {error}"
        return None

    async def look(self, order: LookOrder) -> NodeFacts:
        self.order = order
        patterns = [one for of_network in order.networks.values() for one in of_network]
        parts = asyncio.gather(
            self.part("interfaces", machine.interfaces),
            self.part("software", lambda: machine.software(order.code, patterns)),
            self.part("rdma", machine.rdma_devices),
            self.part("accelerators", machine.accelerators) if order.accelerators else _nothing(),
            self.part("kernel_log", kernel_log.read) if order.kernel_log else _nothing(),
            self.part("pci", lambda: machine.pci_links(order.networks.get("fabric", ()))),
        )
        visits = await asyncio.gather(*(self.place(place) for place in order.places))
        interfaces, software_facts, rdma, accelerators, events, pci = await parts
        self.rdma = rdma
        control = self.post(CONTROL, "", "", None)
        listener = self.listen("", None)
        self.own_rails = {
            network: tuple(self.rails(network, interfaces or ())) for network in order.networks
        }
        return NodeFacts(
            hostname=socket.gethostname(),
            tcp_port=listener.port,
            udp_port=control.port,
            master_problem=self.listen_as_master(),
            rails=self.own_rails,
            software=software_facts,
            limits=machine.limits(),
            interfaces=interfaces,
            places=tuple(visits),
            rdma=None if rdma is None else machine.rdma_ports(rdma),
            accelerators=accelerators,
            pci=pci,
            kernel_log=events,
            unread=dict(self.unread),
        )

    async def place(self, place: Place) -> PlaceFacts:
        order = self.order
        found = await self.part(
            place.key,
            lambda: places.visit(place, order.run, order.index, self.tokens.append),
            PLACE_LIMIT_S,
        )
        return found or places.unanswered(place, self.unread[place.key])

    def rails(self, network: str, interfaces: tuple[Interface, ...]) -> list[Rail]:
        patterns = self.order.networks[network]
        found = []
        for interface in machine.belonging(interfaces, patterns):
            address = usable(interface.addresses)
            if address is None:
                continue
            with contextlib.suppress(OSError):
                post = self.post(network, interface.name, address, interface.name)
                listener = self.listen(address, interface.name)
                found.append(Rail(interface.name, address, listener.port, post.port))
        return found

    def post(self, network: str, rail: str, address: str, device: str | None) -> Post:
        run = bytes.fromhex(self.order.run)[:8]
        post = self.posts[network, rail] = Post(address, device, run, self.order.index)
        post.listen(asyncio.get_running_loop())
        return post

    def listen(self, address: str, device: str | None, port: int = 0) -> Listener:
        listener = Listener(open_socket(socket.SOCK_STREAM, address, device, port))
        listener.start(asyncio.get_running_loop())
        self.listeners.append(listener)
        return listener

    def listen_as_master(self) -> str:
        """Where the first node is to listen on a port of its own; why it cannot, else ""."""
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
        ways = [
            Way(peer, network, mine, theirs)
            for peer in others
            for network in order.networks
            for mine, theirs in paired(self.own_rails[network], peer.rails.get(network, ()))
        ]
        nowhere = Rail("", "", 0, 0)
        controls = [
            Way(peer, CONTROL, nowhere, Rail("", peer.address, peer.tcp_port, peer.udp_port))
            for peer in others
        ]
        others_too = asyncio.gather(
            connect_all(order, ways),
            look_up_all(order, in_thread),
            self.part("tokens", lambda: places.seen(order.tokens, self.order.index)),
        )
        paths = await asyncio.gather(*(self.try_path(way, order) for way in (*ways, *controls)))
        (connections, master), looked_up, seen = await others_too
        self.tried = list(zip(ways, connections, strict=True))
        for listener in self.listeners:  # payloads follow when all nodes are done
            listener.take = self.receiver.take
        return PathFacts(connections, master, tuple(paths), looked_up, seen or ())

    async def try_path(self, way: Way, order: ProbeOrder) -> Path:
        rail = way.mine.interface
        silent = Path(way.peer.index, way.network, rail, False, None, None, None, None)
        try:
            target = await _resolved(way.theirs.address, way.theirs.udp_port)
        except (OSError, TimeoutError):
            return silent
        prober = Prober(self.posts[way.network, rail], target)
        if not await prober.reaches():
            return silent
        clock = await prober.clock()
        largest = refused = None
        if (full := order.mtu.get(way.network)) is not None:
            largest, refused = await prober.largest(full)
        return Path(
            way.peer.index,
            way.network,
            rail,
            True,
            largest,
            refused,
            clock.offset_s if clock else None,
            clock.error_s if clock else None,
        )

    async def payload(self, order: PayloadOrder) -> PayloadFacts:
        tried = [(way, c) for way, c in self.tried if way.network in order.networks]
        everyone = sorted({self.order.index, *(way.peer.index for way, _ in tried)})
        targets = payloads.targets(self.order.index, everyone)
        chosen = [(way, c) for way, c in tried if way.peer.index in targets]
        unsent = [Sent(c.to, c.network, "", c.problem) for _, c in chosen if c.took_s is None]
        sends = (
            payloads.send(way, order.size_bytes, order.limit_s)
            for way, c in chosen
            if c.took_s is not None
        )
        return PayloadFacts((*unsent, *await asyncio.gather(*sends)))

    async def end(self) -> LastFacts:
        before, rises = self.rdma, None
        if before is not None and (after := await self.part("rdma", machine.rdma_devices)):
            rises = machine.rdma_rises(before, after)
        heard = (
            Heard(network, rail, tuple(sorted(post.heard)))
            for (network, rail), post in self.posts.items()
        )
        self.clean_up()
        return LastFacts(tuple(heard), rises, self.receiver.received)

    def clean_up(self) -> None:
        """Remove the files that were left for others to see."""
        while self.tokens:
            places.remove(self.tokens.pop())


async def _nothing() -> None:
    return None


async def _resolved(address: str, port: int) -> tuple[str, int]:
    if is_address(address):
        return address, port
    return await in_thread(lambda: address_of(address), 2.0), port


async def serve() -> None:
    """Answer orders until standard input ends."""
    loop = asyncio.get_running_loop()
    survey = SurveyOfNode()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
        loop.add_signal_handler(number, _stop, survey)
    signal.setitimer(signal.ITIMER_REAL, _SELF_DESTRUCT_S)
    reader = asyncio.StreamReader(limit=1 << 26)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    try:
        while line := await reader.readline():
            fields = json.loads(line)
            match fields.pop("do"):
                case "look":
                    answer: Any = await survey.look(_look_order(fields))
                case "probe":
                    answer = await survey.probe(_probe_order(fields))
                case "payload":
                    networks = tuple(fields.pop("networks"))
                    answer = await survey.payload(PayloadOrder(networks, **fields))
                case "end":
                    answer = await survey.end()
            sys.stdout.write(encode(answer) + "\n")
            sys.stdout.flush()
    finally:
        survey.clean_up()


def _stop(survey: SurveyOfNode) -> None:
    survey.clean_up()
    os._exit(1)


def _look_order(fields: dict[str, Any]) -> LookOrder:
    networks = {name: tuple(patterns) for name, patterns in fields.pop("networks").items()}
    visited = tuple(Place(**place) for place in fields.pop("places"))
    return LookOrder(networks=networks, places=visited, **fields)


def _probe_order(fields: dict[str, Any]) -> ProbeOrder:
    def rails(named: dict[str, list[dict[str, Any]]]) -> dict[str, tuple[Rail, ...]]:
        return {name: tuple(Rail(**rail) for rail in found) for name, found in named.items()}

    peers = tuple(Peer(rails=rails(peer.pop("rails")), **peer) for peer in fields.pop("peers"))
    tokens = tuple(Token(**token) for token in fields.pop("tokens"))
    master = fields.pop("master")
    return ProbeOrder(
        peers=peers, tokens=tokens, master=tuple(master) if master else None, **fields
    )


def main() -> None:
    """Leaves without waiting for threads that hang in the file system or in a look-up."""
    status = 0
    try:
        asyncio.run(serve())
    except BaseException as error:
        sys.stderr.write(f"survey: {type(error).__name__}: {error}\n")
        status = 1
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
