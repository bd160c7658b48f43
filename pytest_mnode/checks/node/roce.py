"""RoCE: whether NICs mark, pause and slow down traffic as the switches expect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from pytest_mnode.criteria.preflight.nic_rows import live_ports, names_of, of_fabric
from pytest_mnode.evidence.check import Check, check
from pytest_mnode.evidence.row import Row, row, seen
from pytest_mnode.evidence.rules import Rows
from pytest_mnode.logs import nic_qos
from pytest_mnode.logs.nic_qos import Qos
from pytest_mnode.machine import sysfs
from pytest_mnode.machine.netdev import physical_below, read_interfaces
from pytest_mnode.machine.programs import NoOutput, json_in, output_of
from pytest_mnode.machine.rdma import Port
from pytest_mnode.measurement import Measurement
from pytest_mnode.spec.fields import OnOff, Section
from pytest_mnode.spec.inventory import Inventory

_PFC, _TRUST = "priorities with flow control", "what gives a packet its priority"
_PRIORITY, _ECN = "priority of the traffic class", "priorities with ECN"
_CLASS, _TOS = "traffic class of RDMA", "type of service of RDMA CM"
_ROUTING = "adaptive routing of RoCE"
_SAME = (_PFC, _TRUST, _ECN, _CLASS, _TOS, _ROUTING)
_NONE = "none"
_FORCED = "adaptive_routing_forced_en"
Octet = Annotated[int, Field(strict=True, ge=0, le=255)]
Priority = Annotated[int, Field(strict=True, ge=0, le=7)]


class RocePromise(Section):
    """How NICs treat RoCE traffic. What is left out is not promised."""

    same: Literal[True] | None = None
    """All of it that can be read is the same on all nodes."""
    pfc: tuple[Priority, ...] | None = None
    """Priorities with flow control, and no other; [] for none."""
    trust: Literal["dscp", "pcp"] | None = None
    """What gives a packet its priority: the DSCP of its IP header, or the PCP of its VLAN tag."""
    ecn: OnOff | None = None
    """NICs slow down by ECN (DCQCN) as sender and as receiver: on each priority of `pfc`, or on
    some if that is left out; off: on none."""
    traffic_class: Octet | None = None
    """Traffic class that the driver sets on all RDMA traffic, such as 106: DSCP 26 and ECT. With
    `pfc`, the NIC's priority for its DSCP has flow control."""
    tos: Octet | None = None
    """Default type of service of connections by RDMA CM, as of cma_roce_tos."""
    adaptive_routing: OnOff | None = None
    """The NIC lets switches spread its packets over paths (Spectrum-X), by mlxreg."""


@check("preflight.roce")
class RoceIsAsPromised(Check):
    """Do this node's NICs mark, pause and slow down RoCE traffic as promised?

    PFC, trust and the map of DSCPs are read by mlnx_qos, or by dcb of iproute2; ECN from
    /sys/class/net/*/ecn of MLNX_OFED and DOCA, or Broadcom's configfs; the traffic class from
    /sys/class/infiniband/*/tc. A NIC that differs from the switches loses packets, or stops its
    neighbours by pauses, only under load.
    """

    promise: RocePromise

    def read(self, root: Path) -> Iterator[Row]:
        there = [*live_ports(root, "RoCE")]
        if not there:
            raise OSError("no RoCE port that has a cable")
        known = {one.name: one for one in read_interfaces(root) or ()}
        for device, port in there:
            names = port.netdevs or device.netdevs
            wires = dict.fromkeys(
                n for i in names if i in known for n in physical_below(known[i], known)
            )
            yield names_of(port.name, [device.name, *names, *wires])
            for name in wires or names:
                label = port.name if len(wires) < 2 else f"{port.name} {name}"
                if label != port.name:
                    yield names_of(label, [device.name, *names, *wires])
                yield from self._of_interface(name, label)
                if self._wants("ecn"):
                    yield _ecn(root, name, port, label)
            yield from self._of_port(root, port, device.pci_address)

    def _wants(self, *keys: str) -> bool:
        promise = self.promise
        if promise is None:  # what changes nothing on the machine, and asks no register
            return keys[0] not in {"tos", "adaptive_routing"}
        return any(getattr(promise, one) is not None for one in ("same", *keys))

    def _of_interface(self, name: str, label: str) -> Iterator[Row]:
        if not self._wants("pfc", "trust"):
            return
        try:
            found = _qos(name)
        except NoOutput as error:
            yield from (row(metric, why=str(error), device=label) for metric in (_PFC, _TRUST))
            return
        why = "mlnx_qos and dcb do not show it"
        pfc = None if found.pfc is None else _text(found.pfc)
        yield row(_PFC, pfc, why=why, device=label)
        yield row(_TRUST, found.trust, why=why, device=label)
        traffic_class = None if self.promise is None else self.promise.traffic_class
        if traffic_class is not None and self.promise.pfc is not None:
            dscp = traffic_class >> 2
            why = f"the NIC shows no priority of DSCP {dscp}"
            yield row(_PRIORITY, found.priorities.get(dscp), why=why, device=label)

    def _of_port(self, root: Path, port: Port, address: str | None) -> Iterator[Row]:
        if self._wants("traffic_class"):
            file = f"sys/class/infiniband/{port.device}/tc/{port.number}/traffic_class"
            yield row(_CLASS, _class(sysfs.text(root / file)), why=f"no /{file}", device=port.name)
        if self._wants("tos"):
            yield _tos(root, port)
        if self._wants("adaptive_routing"):
            yield _routing(port, address)

    def rule(self, rows: Rows) -> Iterator[Measurement]:
        rows, promise = of_fabric(rows, self.spec.fabric.interfaces), self.promise
        if promise.pfc is not None:
            yield rows.equals(_PFC, _text(promise.pfc), part="pfc")
            if promise.traffic_class is not None:
                name = f"NICs without flow control for traffic class {promise.traffic_class}"
                pfc = promise.pfc
                yield rows.none(_PRIORITY, name, lambda one: one.value not in pfc, part="pfc")
        if promise.trust is not None:
            yield rows.equals(_TRUST, promise.trust, part="trust")
        if promise.ecn is not None:
            name = f"NICs with ECN other than {promise.ecn}"
            yield rows.none(_ECN, name, self._breaks_ecn, part="ecn")
        for key, metric in (
            ("traffic_class", _CLASS),
            ("tos", _TOS),
            ("adaptive_routing", _ROUTING),
        ):
            if (wanted := getattr(promise, key)) is not None:
                yield rows.equals(metric, wanted, part=key)
        if promise.same and len(rows.by_node) > 1:
            every = [one for read in rows.by_node.values() for one in read]
            readable = {one.metric for one in every if one.value is not None}
            yield rows.same(*(one for one in _SAME if one in readable), what="RoCE")

    def _breaks_ecn(self, one: Row) -> bool:
        on = set(str(one.value).split()) - {_NONE}
        if self.promise.ecn == "off":
            return bool(on)
        return not on or not {str(number) for number in self.promise.pfc or ()} <= on

    def doubts(self, cluster: Inventory) -> Iterator[str]:
        if cluster.fabric.kind != "roce":
            yield f": given, but fabric.kind is {cluster.fabric.kind}"
        if self.promise.traffic_class is not None and self.promise.trust == "pcp":
            yield ".traffic_class: given, but trust pcp gives packets without a VLAN no priority"

    @classmethod
    def draft(cls, rows: Mapping[str, Sequence[Row]]) -> dict[str, Any] | None:
        found: dict[str, Any] = {}
        pfc, trust = seen(rows, _PFC), seen(rows, _TRUST)
        if len(pfc) == 1:
            found["pfc"] = [int(number) for number in str(pfc[0]).split() if number != _NONE]
        if len(trust) == 1:
            found["trust"] = trust[0]
        if len(classes := seen(rows, _CLASS)) == 1 and classes[0] != _NONE:
            found["traffic_class"] = classes[0]
        return found or None


def _text(priorities: Sequence[int]) -> str:
    return " ".join(map(str, sorted(set(priorities)))) or _NONE


def _qos(name: str) -> Qos:
    """By mlnx_qos, else by dcb. Raises NoOutput if neither runs."""
    first: NoOutput | str = "mlnx_qos shows nothing"
    try:
        found = nic_qos.mlnx_qos(output_of("mlnx_qos", "-i", name, package="mlnx-tools"))
        if found != Qos():
            return found
    except NoOutput as error:
        first = error
    try:
        pfc = output_of("dcb", "-j", "pfc", "show", "dev", name, package="iproute2")
        app = output_of("dcb", "-Nj", "app", "show", "dev", name, package="iproute2")
    except NoOutput as error:
        raise NoOutput(f"{first}; {error}") from None
    try:
        dscps = nic_qos.dcb_app(json_in(app)) if app.strip() else {}
        trust = "dscp" if dscps else "pcp"
        return Qos(nic_qos.dcb_pfc(json_in(pfc)), trust, dscps)
    except ValueError:
        return Qos(nic_qos.dcb_pfc(pfc))


def _ecn(root: Path, name: str, port: Port, label: str) -> Row:
    """Priorities on which the NIC slows down as sender (rp) and answers as receiver (np)."""
    folder = root / f"sys/class/net/{name}/ecn"
    states = {
        number: [sysfs.integer(folder / f"roce_{end}/enable/{number}") for end in ("np", "rp")]
        for number in range(8)
    }
    if any(None not in both for both in states.values()):
        return row(_ECN, _text([n for n, both in states.items() if both == [1, 1]]), device=label)
    broadcom = f"sys/kernel/config/bnxt_re/{port.device}/ports/{port.number}/cc/ecn_enable"
    value = sysfs.integer(root / broadcom)
    text = None if value is None else _text(range(8)) if value else _NONE
    why = f"no /sys/class/net/{name}/ecn (MLNX_OFED, DOCA), no /{broadcom}"
    return row(_ECN, text, why=why, device=label)


def _class(text: str | None) -> int | str | None:
    """The traffic class of the file's first line; none if the driver sets none."""
    if text is None:
        return None
    head, _, value = text.partition("\n")[0].partition("=")
    number = sysfs.number_of(value.strip()) if head.strip().lower() == "global tclass" else None
    return _NONE if number is None else number


def _tos(root: Path, port: Port) -> Row:
    place = f"sys/kernel/config/rdma_cm/{port.device}/ports/{port.number}/default_roce_tos"
    value, why = sysfs.integer(root / place), ""
    if value is None:
        argv = ("cma_roce_tos", "-d", port.device, "-p", str(port.number))
        try:
            said = output_of(*argv, package="mlnx-tools").split()
            value = next(
                (n for word in reversed(said) if (n := sysfs.number_of(word)) is not None), None
            )
            why = "cma_roce_tos shows no number"
        except NoOutput as error:
            why = f"no /{place}; {error}"
    return row(_TOS, value, why=why, device=port.name)


def _routing(port: Port, address: str | None) -> Row:
    argv = ("mlxreg", "-d", address or port.device, "--reg_name", "ROCE_ACCL", "--get")
    try:
        value = nic_qos.register_field(output_of(*argv, package="MFT (mstflint)"), _FORCED)
    except NoOutput as error:
        return row(_ROUTING, why=str(error), device=port.name)
    text = None if value is None else "on" if value else "off"
    return row(_ROUTING, text, why=f"mlxreg shows no {_FORCED}", device=port.name)
