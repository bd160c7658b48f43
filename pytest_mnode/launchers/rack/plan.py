"""The parts of a rack, as values: names, addresses and links of every node."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.node import Node
from pytest_mnode.launchers.rack.sockets import Board, Layout, board, why_not
from pytest_mnode.launchers.rack.sysfs_tree import accelerator_addresses
from pytest_mnode.machine.numa import NumaCores
from pytest_mnode.machine.sysfs import SysfsView

MAX_NODES = 254
MAX_RATE_MBIT_S = 34_000  # the kernel's tbf counts bytes/s in 32 bits
MAX_LINK_NAME = 15 - len("-node253")


@dataclass(frozen=True, slots=True)
class Link:
    """One link of every node: a cable from its interface `name` to a switch of that name.

    rate_mbit_s: line rate in each direction, Ethernet headers included, preamble and gap not.
    mtu: largest IP packet in bytes, on the node and at the switch.
    """

    name: str
    rate_mbit_s: float
    mtu: int = 1500

    def __post_init__(self) -> None:
        if not 1 <= len(self.name) <= MAX_LINK_NAME or not self.name.isalnum():
            raise UsageError(
                f"link name {self.name!r}: needs 1 to {MAX_LINK_NAME} letters and digits"
            )
        if self.name == "lo":
            raise UsageError("link name 'lo': reserved for the loopback interface")
        check_rate(self.name, self.rate_mbit_s)
        if not 576 <= self.mtu <= 9216:
            raise UsageError(f"link {self.name}: mtu {self.mtu}: needs 576 to 9216 bytes")


def check_rate(link_name: str, rate_mbit_s: float) -> None:
    """Raise UsageError for a rate that no queue can have."""
    if not 0.1 <= rate_mbit_s <= MAX_RATE_MBIT_S:
        raise UsageError(
            f"link {link_name}: rate {rate_mbit_s} Mbit/s: needs 0.1 to {MAX_RATE_MBIT_S}"
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """A rack before it is built. Its subnets exist only inside its namespaces.

    spare: a second port of each node at the fabric's switch; the two are joined by `joined`, an
        interface that has the fabric's address, and uses the second while the first is down.
    layout, machine: the sockets that nodes show, made of this machine's CPUs; None if nodes show
    this machine as it is. shown_at: an empty directory, over which each node mounts its files.
    """

    nodes: int
    fabric: Link
    management: Link
    shm_bytes: int
    layout: Layout | None = None
    machine: tuple[NumaCores, ...] = ()
    shown_at: str = ""
    spare: Link | None = None
    joined: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= MAX_NODES:
            raise UsageError(f"rack: {self.nodes} nodes: needs 1 to {MAX_NODES} (one /24 per link)")
        if self.fabric.name == self.management.name:
            raise UsageError(f"rack: both links are named {self.fabric.name!r}")
        # tmpfs takes 0 as no limit, and a size beyond 63 bits would wrap around.
        if not 1 <= self.shm_bytes < 1 << 63:
            raise UsageError(f"rack: shm_bytes {self.shm_bytes}: needs 1 to 2**63 - 1")

    @property
    def links(self) -> tuple[Link, ...]:
        """All links; management first, because a node's name resolves to its address there."""
        return (self.management, self.fabric, *([self.spare] if self.spare else []))

    def link(self, name: str) -> Link:
        """The link of this name; raises UsageError that lists the existing links."""
        for link in self.links:
            if link.name == name:
                return link
        names = ", ".join(link.name for link in self.links)
        raise UsageError(f"rack: no link {name!r} (there are: {names})")

    def node_name(self, index: int) -> str:
        return f"node{index}"

    def index_of(self, name: str) -> int:
        return int(name.removeprefix("node"))

    def address(self, index: int, link_name: str) -> str:
        """IPv4 address of a node on a link, in a /24."""
        network = 77 if link_name == self.management.name else 78
        return f"10.{network}.0.{index + 1}"

    def mac(self, index: int, link_name: str) -> str:
        """Fixed MAC address, so that other nodes' ARP tables stay right when a node reboots."""
        spare = self.spare is not None and link_name == self.spare.name
        network = 77 if link_name == self.management.name else 79 if spare else 78
        return f"02:6d:6e:{network:02x}:00:{index + 1:02x}"

    def port(self, index: int, link_name: str) -> str:
        return f"{link_name}-{self.node_name(index)}"

    def members(self) -> tuple[Node, ...]:
        return tuple(
            Node(
                name=self.node_name(index),
                index=index,
                address=self.address(index, self.management.name),
                fabric_address=self.address(index, self.fabric.name),
                fabric_interface=self.joined or self.fabric.name,
                shown=self._shown(index),
            )
            for index in range(self.nodes)
        )

    def board(self, index: int) -> Board | None:
        """The sockets that a node shows; None if it shows this machine as it is."""
        if self.layout is None or why_not(self.machine, self.layout) is not None:
            return None
        return board(self.machine, self.layout, index, self.nodes)

    def _shown(self, index: int) -> SysfsView:
        board = self.board(index)
        if board is not None:
            return SysfsView(self.shown_at, tuple(accelerator_addresses(board)))
        return SysfsView(missing=(self.layout and why_not(self.machine, self.layout)) or "")

    def hosts(self) -> str:
        lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
        for index in range(self.nodes):
            for link, suffix in ((self.management, ""), (self.fabric, "-fab")):
                address, name = self.address(index, link.name), self.node_name(index) + suffix
                # Dual-stack sockets look peers up as ::ffff:ADDRESS; a miss costs torchrun 10 s.
                lines += [f"{address} {name}", f"::ffff:{address} {name}"]
        return "\n".join(lines) + "\n"
