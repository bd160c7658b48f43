"""InfiniBand behind the port: subnet manager, LIDs, partitions, the cable to the switch, SHARP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from pytest_mnode.criteria.preflight.nic_rows import live_ports, names_of, of_fabric
from pytest_mnode.culprit import Culprit, Parts
from pytest_mnode.evidence.check import Check, check
from pytest_mnode.evidence.row import Row, row
from pytest_mnode.evidence.rules import Rows, Unread
from pytest_mnode.logs.subnet import PACKAGE, link_info, subnet_manager
from pytest_mnode.machine import sysfs
from pytest_mnode.machine.programs import LIMIT_S, NoOutput, output_of
from pytest_mnode.machine.rdma import Port, RdmaDevice
from pytest_mnode.measurement import Measurement, equals
from pytest_mnode.spec.fields import Section
from pytest_mnode.spec.inventory import Inventory
from pytest_mnode.spec.quantity import shown

_LID, _SM_LID = "LID of a port", "LID of a port's subnet manager"
_STATE, _GUID = "state of a port's subnet manager", "GUID of a port's subnet manager"
_KEYS, _LINK, _SHARP = "PKeys of a port", "link of a port", "SHARP over a port"
_LIDS, _SUBNET, _CARD = "LIDs of a port", "subnet of a port", "card of a port"
_DEFAULT_SUBNET = "fe80:0000:0000:0000"
_FULL, _PASSED = "full", "passed"
_MEMBER = 0x8000
"""Bit of a PKey that makes its port a full member. Source: InfiniBand specification, 10.9.1."""
_MOST_PORTS = 16
_SHARP_PACKAGE = "SHARP (MLNX_OFED, DOCA or HPC-X)"


def _key(written: Any) -> Any:
    """A number of 16 bits; a spec has hexadecimal ones in quotes."""
    value = sysfs.number_of(written) if isinstance(written, str) else written
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value & ~_MEMBER < _MEMBER:
        raise ValueError(f'{shown(written)}; accepted: a PKey in quotes, such as "0x8001"')
    return value


PKey = Annotated[int, BeforeValidator(_key)]


class InfinibandPromise(Section):
    """The subnet behind this node's InfiniBand ports. What is left out is not promised."""

    subnet_manager: Literal["known", "answers"] | None = None
    """known: each port has a LID, and the LID of a subnet manager; answers: and sminfo finds that
    it is the master, and the same one for the ports of this name on all nodes."""
    lids: Literal["unique"] | None = None
    """No two ports of a subnet have the same LID."""
    pkeys: tuple[PKey, ...] | None = Field(None, min_length=1)
    """Each port has these PKeys, such as ["0x8001"]: full membership of partition 1. Where limited
    membership is promised, "0x0001", full membership will do."""
    links: Literal["full"] | None = None
    """Each port has the width and speed that both ends of its cable have enabled, by iblinkinfo."""
    sharp: Literal["works"] | None = None
    """sharp_hello reduces in the switches over each port."""


class _OfPorts(Check):
    """Reads all InfiniBand ports that have a cable, and judges those of the fabric."""

    promise: InfinibandPromise

    def read(self, root: Path) -> Iterator[Row]:
        if self.promise is not None and getattr(self.promise, self.needs) is None:
            return
        there = [*live_ports(root, "InfiniBand")]
        if not there:
            raise OSError("no InfiniBand port that has a cable")
        for device, port in there:
            yield names_of(port.name, [device.name, *(port.netdevs or device.netdevs)])
            folder = root / f"sys/class/infiniband/{device.name}/ports/{port.number}"
            yield from self.of_port(device, port, folder)

    def of_port(self, device: RdmaDevice, port: Port, folder: Path) -> Iterator[Row]:
        raise NotImplementedError

    def rule(self, rows: Rows) -> Iterator[Measurement]:
        yield from self.of_rows(of_fabric(rows, self.spec.fabric.interfaces))

    def of_rows(self, rows: Rows) -> Iterator[Measurement]:
        raise NotImplementedError

    def doubts(self, cluster: Inventory) -> Iterator[str]:
        if cluster.fabric.kind != "infiniband" and getattr(self.promise, self.needs) is not None:
            yield f".{self.needs}: given, but fabric.kind is {cluster.fabric.kind}"


def _live(port: Port, metric: str, *argv: str, package: str = PACKAGE) -> str | Row:
    """Output of a program, or a row that says why there is none."""
    try:
        return output_of(*argv, package=package)
    except NoOutput as error:
        return row(metric, why=str(error), device=port.name)


@check("preflight.infiniband")
class SubnetManagerIsThere(_OfPorts):
    """Does a subnet manager look after every InfiniBand port of this node?

    Without one a port stays INIT, or keeps an old LID until the switch forgets its route. Two
    masters split a subnet: their nodes do not reach each other. sminfo needs access to
    /dev/infiniband/umad*, which usually only root has.
    """

    needs = "subnet_manager"

    @classmethod
    def programs(cls, promise: InfinibandPromise) -> tuple[str, ...]:
        return ("sminfo",) if promise.subnet_manager == "answers" else ()

    def of_port(self, device: RdmaDevice, port: Port, folder: Path) -> Iterator[Row]:
        for metric, file in ((_LID, "lid"), (_SM_LID, "sm_lid")):
            lid, why = sysfs.integer(folder / file), f"{file} is unreadable"
            yield row(metric, lid, why=why, device=port.name)
        if self.promise is None or self.promise.subnet_manager == "answers":
            argv = ("sminfo", "-C", device.name, "-P", str(port.number))
            said = _live(port, _STATE, *argv)
            if isinstance(said, Row):
                yield said
            elif (found := subnet_manager(said)) is None:
                yield row(_STATE, why=f"sminfo answered {said[:60]!r}", device=port.name)
            else:
                yield row(_STATE, found.state, device=port.name)
                yield row(_GUID, found.guid, device=port.name)

    def of_rows(self, rows: Rows) -> Iterator[Measurement]:
        part = self.needs
        yield rows.none(_LID, "ports without a LID", lambda one: not one.value, part=part)
        name = "ports without a subnet manager"
        yield rows.none(_SM_LID, name, lambda one: not one.value, part=part)
        if self.promise.subnet_manager == "answers":
            name = "ports whose subnet manager is not the master"
            yield rows.none(_STATE, name, lambda one: one.value != "MASTER", part=part)
            if len(rows.by_node) > 1 and rows.of(_GUID):
                yield rows.same(_GUID, what="subnet manager of a port", absent=None)


@check("preflight.infiniband")
class LidsAreUnique(_OfPorts):
    """Has no other port of the subnet a LID of this node's InfiniBand ports?

    Packets for the one arrive at the other. Compared are ports of the same name, and those of the
    same subnet prefix, unless it is the default, which subnets of several rails may share. Ports of
    one card, such as virtual functions, share a LID.
    """

    needs = "lids"

    def of_port(self, device: RdmaDevice, port: Port, folder: Path) -> Iterator[Row]:
        lid, bits = sysfs.integer(folder / "lid"), sysfs.integer(folder / "lid_mask_count")
        last = f"-{lid + (1 << bits) - 1}" if lid and bits else ""
        yield row(
            _LIDS,
            None if lid is None else f"{lid}{last}",
            why="lid is unreadable",
            device=port.name,
        )
        prefix = (sysfs.text(folder / "gids/0") or _DEFAULT_SUBNET)[:19]
        yield row(_SUBNET, prefix, device=port.name)
        if device.image_guid:
            yield row(_CARD, device.image_guid, device=port.name)

    def of_rows(self, rows: Rows) -> Iterator[Measurement]:
        name, source, bound = "LIDs of other ports too", f"{rows.key}.lids unique", equals(0)
        mine = [one for one in rows.of(_LIDS) if one.value is not None and one.value != "0"]
        if not mine:
            found = rows.by_node[rows.node]
            why = found.why if isinstance(found, Unread) else "no port of the fabric has a LID"
            yield Measurement.unknown(name, f"{rows.node}: {why}", expected=bound, source=source)
            return
        facts = {
            (one.node, one.device, one.metric): one.value
            for read in rows.by_node.values()
            for one in read
        }
        others = [(key[0], key[1], value) for key, value in facts.items() if key[2] == _LIDS]
        culprits = []
        for one in mine:
            for node, device, lids in others:
                here, there = (one.node, one.device), (node, device)
                if here == there or lids is None or not _overlap(str(one.value), str(lids)):
                    continue
                card, subnet = (
                    [facts.get((*port, metric)) for port in (here, there)]
                    for metric in (_CARD, _SUBNET)
                )
                one_subnet = subnet[0] == subnet[1]
                known = one_subnet and subnet[0] != _DEFAULT_SUBNET
                if (card[0] is None or card[0] != card[1]) and (
                    known or (one_subnet and one.device == device and node != one.node)
                ):
                    words = f"{one.node} {one.device} and {node} {device} both have LID {lids}"
                    parts = Parts(devices=(here, there))
                    culprits.append(Culprit(words, either=[{one.node, node}], parts=parts))
        yield Measurement.none_allowed(name, culprits, source)


def _overlap(one: str, other: str) -> bool:
    (first, *more), (begin, *others) = ([*map(int, lids.split("-"))] for lids in (one, other))
    return begin > 0 and first <= [begin, *others][-1] and begin <= [first, *more][-1]


@check("preflight.infiniband")
class PartitionsAreAsPromised(_OfPorts):
    """Has every InfiniBand port of this node the PKeys promised?

    Two limited members of a partition do not reach each other.
    """

    needs = "pkeys"

    def of_port(self, device: RdmaDevice, port: Port, folder: Path) -> Iterator[Row]:  # noqa: ARG002
        keys = [sysfs.integer(path) for path in sysfs.entries(folder / "pkeys")]
        text = " ".join(f"0x{key:04x}" for key in keys if key) or "none"
        why = "pkeys is unreadable"
        yield row(
            _KEYS, text if any(k is not None for k in keys) else None, why=why, device=port.name
        )

    def of_rows(self, rows: Rows) -> Iterator[Measurement]:
        for key in self.promise.pkeys or ():
            wanted = {f"0x{key:04x}", f"0x{key | _MEMBER:04x}"}

            def lacks(one: Row, wanted: set[str] = wanted) -> bool:
                return wanted.isdisjoint(str(one.value).split())

            yield rows.none(_KEYS, f"ports without PKey 0x{key:04x}", lacks, part="pkeys")


@check("preflight.infiniband")
class CablesAreFull(_OfPorts):
    """Has every cable of this node's InfiniBand ports the width and speed that both ends allow?

    By iblinkinfo from the port itself, one hop far: the culprit may be the port, the cable, or the
    port of the switch, which is named.
    """

    needs = "links"

    @classmethod
    def programs(cls, promise: InfinibandPromise) -> tuple[str, ...]:
        return ("iblinkinfo",) if promise.links is not None else ()

    def of_port(self, device: RdmaDevice, port: Port, folder: Path) -> Iterator[Row]:  # noqa: ARG002
        where = ("-C", device.name, "-P", str(port.number), "-D", "0")
        said = _live(port, _LINK, "iblinkinfo", *where, "--line")
        if isinstance(said, Row):
            yield said
            return
        links = [one for one in link_info(said) if one.peer]
        mine = next((one for one in links if one.port == port.number), links[0] if links else None)
        text = None if mine is None else mine.fault or _FULL
        if mine is not None and mine.fault:
            text = f"{mine.fault}, at {mine.peer} port {mine.peer_port}"
        yield row(_LINK, text, why="iblinkinfo lists no link of it", device=port.name)

    def of_rows(self, rows: Rows) -> Iterator[Measurement]:
        yield rows.none(
            _LINK, "links below their speed", lambda one: one.value != _FULL, part="links"
        )


@check("preflight.infiniband")
class SharpWorks(_OfPorts):
    """Do the switches reduce (SHARP) for every InfiniBand port of this node?

    sharp_hello joins an aggregation tree over the port, which uses a place of it for a moment.
    """

    needs = "sharp"

    @property
    def limit_s(self) -> float | None:
        """Trees are joined one after the other, by each of up to 16 ports."""
        asked = self.promise is not None and self.promise.sharp is not None
        return _MOST_PORTS * LIMIT_S if asked else None

    def of_port(self, device: RdmaDevice, port: Port, folder: Path) -> Iterator[Row]:  # noqa: ARG002
        argv = ("sharp_hello", "-d", port.name)
        said = _live(port, _SHARP, *argv, package=_SHARP_PACKAGE)
        if isinstance(said, Row) and not said.why.startswith("sharp_hello: "):
            yield said  # it did not run
            return
        passed = isinstance(said, str) and "test passed" in said.lower()
        last = said.why if isinstance(said, Row) else (said.strip().splitlines() or ["nothing"])[-1]
        yield row(_SHARP, _PASSED if passed else last, device=port.name)

    def of_rows(self, rows: Rows) -> Iterator[Measurement]:
        yield rows.none(
            _SHARP, "ports without SHARP", lambda one: one.value != _PASSED, part="sharp"
        )
