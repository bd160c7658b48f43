"""Faults of a virtual cluster: each changes rates, errors or machines, never a verdict."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pytest_mnode.errors import UsageError
from pytest_mnode.logs.kernel_log import Event, Log, Severity
from pytest_mnode.machine.limits import Limits
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.netdev import Interface
from pytest_mnode.machine.nvml import Accelerator
from pytest_mnode.machine.rdma import Gid
from pytest_mnode.virtual.cluster import LEAF_NODES, VirtualCluster
from pytest_mnode.virtual.machines import OTHER_DRIVER, OTHER_FIRMWARE, links_of, with_port

Place = Literal["node", "nic", "gpu", "path", "leaf", "rail", "cluster"]
_FORM: Mapping[Place, str] = {
    "node": "{}:NODE",
    "nic": "{}:NODE:NIC",
    "gpu": "{}:NODE:NUMBER",
    "path": "{}:NODE+NODE",
    "leaf": "{}:NODE",
    "rail": "{}:NIC",
    "cluster": "{}",
}
"""How a fault names where it is."""
_STRENGTH = re.compile(r"(?P<fault>.+?)(?:=(?P<strength>[0-9.eE+-]+))?")


@dataclass(frozen=True, slots=True)
class At:
    """Where a fault is, by numbers; None where its place has none. strength: as in `Fault`."""

    strength: float
    node: int = 0
    other: int = 0
    nic: int = 0
    gpu: int = 0

    def rank(self, cluster: VirtualCluster) -> int:
        return self.node * cluster.per_node + self.gpu


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault.

    place: what it is in. text: what it does. strength: how much, by default the limit at which a
    night finds it with 99 %: the share of a rate that is left, or a number in the unit of `text`;
    None for what is there or is not. healthy: the strength without a fault. shows: criteria that
    can show it.
    """

    place: Place
    text: str
    apply: Callable[[VirtualCluster, At], None]
    strength: float | None = None
    healthy: float = 1.0
    shows: tuple[str, ...] = ("preflight",)

    @property
    def half(self) -> float | None:
        """The strength half way to healthy."""
        return None if self.strength is None else (self.strength + self.healthy) / 2


def form_of(name: str) -> str:
    """How to give a fault, with the strength that it has by default."""
    fault = FAULTS[name]
    strength = "" if fault.strength is None else f"[={fault.strength:g}]"
    return _FORM[fault.place].format(name) + strength


def inject(cluster: VirtualCluster, text: str) -> None:
    """Inject a fault such as slow_nic:node3:mlx5_2 or slow_gpu:node1:0=0.8.

    Raises UsageError, one line, that names the accepted form.
    """
    match = _STRENGTH.fullmatch(text)
    assert match is not None  # it matches any text of one line
    name, *where = match["fault"].split(":")
    if (fault := FAULTS.get(name)) is None:
        raise UsageError(f"--fault={text}: no fault {name!r}; accepted: {', '.join(FAULTS)}")
    form = _FORM[fault.place].format(name)
    strength = match["strength"]
    if strength is not None and fault.strength is None:
        raise UsageError(f"--fault={text}: {name} has no strength; accepted: {form}")
    try:
        at = _at(cluster, fault, where)
        at = replace(at, strength=float(strength) if strength else fault.strength or 0.0)
        fault.apply(cluster, at)
    except (ValueError, IndexError):
        accepted = form + ("" if fault.strength is None else f" or {form}={fault.strength:g}")
        nodes = f"{len(cluster.nodes)} nodes {cluster.nodes[0]} to {cluster.nodes[-1]}"
        if fault.place in ("leaf", "cluster"):
            nodes = f"more than the {LEAF_NODES} nodes of a leaf; it has {nodes}"
        nics = f"NICs {', '.join(links_of(cluster.spec.fabric))}"
        raise UsageError(f"--fault={text}: accepted: {accepted}, with {nodes}, {nics}") from None


def _at(cluster: VirtualCluster, fault: Fault, where: Sequence[str]) -> At:
    """Raises ValueError or IndexError for what is not there."""
    nodes, nics = list(cluster.nodes), list(links_of(cluster.spec.fabric))
    match fault.place, list(where):
        case "cluster", []:
            return At(0.0)
        case "rail", [nic]:
            return At(0.0, nic=nics.index(nic))
        case "path", [ends]:
            one, other = ends.split("+")
            found = At(0.0, nodes.index(one), nodes.index(other))
            if found.node == found.other:
                raise ValueError(ends)
            return found
        case (("node" | "leaf"), [node]):
            return At(0.0, nodes.index(node))
        case "nic", [node, nic]:
            return At(0.0, nodes.index(node), nic=nics.index(nic))
        case "gpu", [node, number] if 0 <= int(number) < cluster.per_node:
            return At(0.0, nodes.index(node), gpu=int(number))
        case _:
            raise ValueError(where)


def _machine(cluster: VirtualCluster, at: At) -> Machine:
    return cluster.machines[at.node].machine


def _nic(*ways: str) -> Callable[[VirtualCluster, At], None]:
    def apply(cluster: VirtualCluster, at: At) -> None:
        for way in ways:
            getattr(cluster, way)[at.node, at.nic] *= at.strength

    return apply


def _gpu(*parts: str) -> Callable[[VirtualCluster, At], None]:
    def apply(cluster: VirtualCluster, at: At) -> None:
        for part in parts:
            getattr(cluster, part)[at.node, at.gpu] *= at.strength

    return apply


def _port(**changes: Any) -> Callable[[VirtualCluster, At], None]:
    """Other values of a port, and of the interface of a fabric without RDMA."""

    def apply(cluster: VirtualCluster, at: At) -> None:
        machine = _machine(cluster, at)
        if (devices := with_port(machine, at.nic, **changes)) is not None:
            cluster.change(at.node, rdma=devices)

    return apply


def _interface(cluster: VirtualCluster, at: At, **changes: Any) -> None:
    name = links_of(cluster.spec.fabric)[at.nic]
    there: Sequence[Interface] = _machine(cluster, at).interfaces or ()
    changed = (
        replace(one, **changes) if one.name in (name, f"net_{name}") else one for one in there
    )
    cluster.change(at.node, interfaces=tuple(changed))


def _half_rate(cluster: VirtualCluster, at: At) -> None:
    _nic("tx", "rx")(cluster, replace(at, strength=0.5))
    fabric = cluster.spec.fabric
    _port(rate_gbits_s=fabric.line_rate_gbits_s / 2)(cluster, at)
    _interface(cluster, at, speed_mbits_s=round(fabric.line_rate_mbits_s / 2))


def _down(cluster: VirtualCluster, at: At) -> None:
    """NCCL moves the traffic of a dead port to the next one, which then carries twice as much."""
    _port(state="DOWN", phys_state="Polling")(cluster, at)
    _interface(cluster, at, carrier=False, operstate="down")
    shares = 0.5 if cluster.spec.fabric.nics_per_node > 1 else 1e-3
    for way in (cluster.tx, cluster.rx):
        way[at.node, at.nic] *= shares
    if cluster.spec.fabric.protocol is not None:
        cluster.errors[at.node, links_of(cluster.spec.fabric)[at.nic], "link_downed"] += 1


def _error(counter: str, of_ethernet: str) -> Callable[[VirtualCluster, At], None]:
    def apply(cluster: VirtualCluster, at: At) -> None:
        fabric = cluster.spec.fabric
        rdma = fabric.protocol is not None
        name, count = links_of(fabric)[at.nic], round(at.strength)
        cluster.errors[at.node, name, counter if rdma else of_ethernet] += count

    return apply


def _software(**changes: Any) -> Callable[[VirtualCluster, At], None]:
    def apply(cluster: VirtualCluster, at: At) -> None:
        software = _machine(cluster, at).software
        assert software is not None
        cluster.change(at.node, software=replace(software, **changes))

    return apply


def _accelerator(**changes: Any) -> Callable[[VirtualCluster, At], None]:
    def apply(cluster: VirtualCluster, at: At) -> None:
        found = list(_machine(cluster, at).accelerators or ())
        if at.gpu < len(found):
            found[at.gpu] = replace(found[at.gpu], **changes)
        cluster.change(at.node, accelerators=tuple(found))

    return apply


def _lost_gpu(cluster: VirtualCluster, at: At) -> None:
    found = list(_machine(cluster, at).accelerators or ())
    found[at.gpu] = Accelerator(index=at.gpu)
    cluster.change(at.node, accelerators=tuple(found))


def _missing_gpu(cluster: VirtualCluster, at: At) -> None:
    found = [one for one in _machine(cluster, at).accelerators or () if one.index != at.gpu]
    cluster.change(at.node, accelerators=tuple(found))


def _missing_nic(cluster: VirtualCluster, at: At) -> None:
    machine, name = _machine(cluster, at), links_of(cluster.spec.fabric)[at.nic]
    cluster.change(
        at.node,
        rdma=tuple(one for one in machine.rdma or () if one.name != name),
        interfaces=tuple(
            i for i in machine.interfaces or () if i.name not in (name, f"net_{name}")
        ),
    )
    _nic("tx", "rx")(cluster, replace(at, strength=0.5))


def _narrow_slot(kind: str) -> Callable[[VirtualCluster, At], None]:
    def apply(cluster: VirtualCluster, at: At) -> None:
        machine = _machine(cluster, at)
        nics, cards = machine.pci.networks, machine.pci.accelerators
        wanted = (nics if kind == "nic" else cards)[at.nic if kind == "nic" else at.gpu]
        changed = (
            replace(one, link_width=8) if one is wanted else one for one in machine.pci.functions
        )
        cluster.change(at.node, pci=replace(machine.pci, functions=tuple(changed)))
        if kind == "nic":
            _nic("tx", "rx")(cluster, replace(at, strength=0.55))
        else:
            _gpu("to_device", "from_device")(cluster, replace(at, strength=0.5))

    return apply


def _of_node(**changes: Any) -> Callable[[VirtualCluster, At], None]:
    return lambda cluster, at: cluster.change(at.node, **changes)


def _firmware(cluster: VirtualCluster, at: At) -> None:
    devices = _machine(cluster, at).rdma or ()
    changed = (replace(one, firmware=OTHER_FIRMWARE) for one in devices)
    cluster.change(at.node, rdma=tuple(changed))


def _all_nics(share: float) -> Callable[[VirtualCluster, At], None]:
    def apply(cluster: VirtualCluster, at: At) -> None:
        cluster.tx[at.node] *= share
        cluster.rx[at.node] *= share

    return apply


def _no_gpudirect(cluster: VirtualCluster, at: At) -> None:
    _software(driver_is_open=False)(cluster, at)
    _all_nics(0.5)(cluster, at)  # bytes are staged through the host's memory


def _same_address(cluster: VirtualCluster, at: At) -> None:
    other = _machine(cluster, At(0.0, at.other))
    addresses = {one.name: one.addresses for one in other.interfaces or ()}
    there = _machine(cluster, at).interfaces or ()
    cluster.change(
        at.node,
        interfaces=tuple(replace(i, addresses=addresses[i.name]) for i in there),
        rdma=other.rdma,  # GIDs follow addresses
    )


def _paths(cluster: VirtualCluster, node: int, **changes: Any) -> None:
    survey = cluster.machines[node]
    assert survey.paths is not None
    cluster.machines[node] = replace(survey, paths=replace(survey.paths, **changes))


def _skew(cluster: VirtualCluster, at: At) -> None:
    for node, survey in enumerate(cluster.machines):
        assert survey.paths is not None
        _paths(
            cluster,
            node,
            paths=tuple(
                one
                if one.offset_s is None or at.node not in (node, one.to)
                else replace(
                    one, offset_s=one.offset_s + (1 if one.to == at.node else -1) * at.strength
                )
                for one in survey.paths.paths
            ),
        )


def _slow_names(cluster: VirtualCluster, at: At) -> None:
    paths = cluster.machines[at.node].paths
    assert paths is not None
    changed = (replace(one, took_s=at.strength) for one in paths.look_ups)
    _paths(cluster, at.node, look_ups=tuple(changed))


def _small_shm(cluster: VirtualCluster, at: At) -> None:
    survey = cluster.machines[at.node]
    assert survey.facts is not None
    small = tuple(
        replace(one, size_bytes=64 << 20, free_bytes=64 << 20) if one.key == "/dev/shm" else one
        for one in survey.facts.directories
    )
    facts = replace(survey.facts, directories=small)
    cluster.machines[at.node] = replace(survey, facts=facts)


def _other_code(cluster: VirtualCluster, at: At) -> None:
    survey = cluster.machines[at.node]
    assert survey.facts is not None
    facts = replace(survey.facts, code={"train.py": "ffffffffffff"})
    cluster.machines[at.node] = replace(survey, facts=facts)


def _path(cluster: VirtualCluster, at: At) -> None:
    ends = min(at.node, at.other), max(at.node, at.other)
    cluster.pairs[ends] = at.strength


def _leaf(cluster: VirtualCluster, at: At) -> None:
    if len(cluster.uplinks) < 2:
        raise ValueError("one leaf has no uplink")
    cluster.uplinks[at.node // LEAF_NODES] *= at.strength


def _spine(cluster: VirtualCluster, at: At) -> None:
    if len(cluster.uplinks) < 2:
        raise ValueError("one leaf has no uplink")
    cluster.uplinks *= at.strength


def _rail(cluster: VirtualCluster, at: At) -> None:
    cluster.tx[:, at.nic] *= at.strength
    cluster.rx[:, at.nic] *= at.strength


def _throttled(cluster: VirtualCluster, at: At) -> None:
    cluster.slowed[at.rank(cluster)] = 0.6
    _gpu("matmul")(cluster, at)


def _late(cluster: VirtualCluster, at: At) -> None:
    cluster.late_s[at.node] += at.strength


def _input(cluster: VirtualCluster, at: At) -> None:
    cluster.input_s[at.node] += at.strength


def _inside(cluster: VirtualCluster, at: At) -> None:
    cluster.inside[at.node] *= at.strength


def _tcp(cluster: VirtualCluster, at: At) -> None:
    cluster.tcp.add(at.node)


def _far_nic(cluster: VirtualCluster, at: At) -> None:
    _nic("tx", "rx")(cluster, at)


def _corrupts(cluster: VirtualCluster, at: At) -> None:
    cluster.corrupts[at.rank(cluster)] = at.strength


def _stale(cluster: VirtualCluster, at: At) -> None:
    cluster.stale[at.rank(cluster)] = at.strength


def _miscomputes(cluster: VirtualCluster, at: At) -> None:
    cluster.miscomputes.add(at.rank(cluster))


def _step_clock(cluster: VirtualCluster, at: At) -> None:
    cluster.clock_steps_s[at.node] = at.strength


def _hostname(cluster: VirtualCluster, at: At) -> None:
    cluster.change(at.node, hostname=_machine(cluster, At(0.0, at.other)).hostname)


def _verbs(cluster: VirtualCluster, at: At) -> None:
    verbs = list(_machine(cluster, at).verbs or ())
    if verbs:
        verbs[at.nic] = replace(verbs[at.nic], problem="permission denied")
    cluster.change(at.node, verbs=tuple(verbs))


def _xid(number: int) -> Callable[[VirtualCluster, At], None]:
    def apply(cluster: VirtualCluster, at: At) -> None:
        card = _machine(cluster, at).pci.accelerators[at.gpu].address
        event = Event(Severity.FAULT, "2026-01-01T00:00:00", card, f"Xid {number}")
        cluster.change(at.node, kernel_log=Log((event,)))

    return apply


_FABRIC, _DEVICES, _SCALING = ("fabric",), ("devices",), ("scaling",)
FAULTS: Mapping[str, Fault] = {
    "slow_nic": Fault("nic", "a NIC at a share of its rate", _nic("tx", "rx"), 0.75, shows=_FABRIC),
    "slow_tx": Fault("nic", "a NIC that sends at a share", _nic("tx"), 0.75, shows=_FABRIC),
    "slow_rx": Fault("nic", "a NIC that receives at a share", _nic("rx"), 0.75, shows=_FABRIC),
    "half_rate": Fault(
        "nic", "a link that came up at half its rate", _half_rate, shows=("preflight", "fabric")
    ),
    "dead_port": Fault("nic", "a port that is down; its traffic moves to another", _down),
    "port_init": Fault("nic", "a port that waits for a subnet manager", _port(state="INIT")),
    "missing_nic": Fault("nic", "a NIC that is not on the bus", _missing_nic),
    "nic_slot": Fault("nic", "a NIC in a slot of half its lanes", _narrow_slot("nic")),
    "far_nic": Fault("nic", "a NIC reached through the other socket", _far_nic, 0.7, shows=_FABRIC),
    "closed_nic": Fault("nic", "an RDMA device that a process may not open", _verbs),
    "other_layer": Fault(
        "nic", "a port with another link layer", _port(link_layer="Ethernet", node_type="RNIC")
    ),
    "no_gid": Fault(
        "nic",
        "a port without a GID of the right type",
        _port(gids=(Gid(index=0, gid="fe80::1", type="RoCE v1"),)),
    ),
    "bad_cable": Fault(
        "nic", "a cable with symbol errors", _error("symbol_error", "rx_errors"), 5000, 0, _FABRIC
    ),
    "flapping_link": Fault(
        "nic",
        "a link that goes down and up",
        _error("link_downed", "carrier_changes"),
        2,
        0,
        _FABRIC,
    ),
    "bad_packets": Fault(
        "nic",
        "packets with errors received",
        _error("port_rcv_errors", "rx_errors"),
        500,
        0,
        _FABRIC,
    ),
    "rail": Fault("rail", "one NIC of each node at a share", _rail, 0.75, shows=_FABRIC),
    "slow_path": Fault("path", "a path between two nodes at a share", _path, 0.6, shows=_FABRIC),
    "leaf": Fault("leaf", "uplinks of a node's leaf at a share", _leaf, 0.04, shows=_FABRIC),
    "spine": Fault("cluster", "uplinks of all leaves at a share", _spine, 0.04, shows=_FABRIC),
    "tcp_fallback": Fault("node", "ranks that use TCP", _tcp, shows=_FABRIC),
    "no_gpudirect": Fault("node", "NICs that cannot reach GPU memory", _no_gpudirect),
    "acs": Fault(
        "node", "PCIe traffic that is sent through the root", _all_nics(0.54), shows=_FABRIC
    ),
    "cross_rail": Fault(
        "node", "ranks that send over another rail's NIC", _all_nics(0.7), shows=_FABRIC
    ),
    "narrow_nvlink": Fault("node", "NVLink at a share of its rate", _inside, 0.6, shows=_FABRIC),
    "nvlink_down": Fault(
        "node",
        "accelerators that reach each other by PCIe",
        lambda c, at: _inside(c, replace(at, strength=0.1)),
        shows=_FABRIC,
    ),
    "late_host": Fault("node", "a host that is late in each step, s", _late, 0.004, 0, _SCALING),
    "slow_storage": Fault(
        "node", "storage that is late in each step, s", _input, 0.012, 0, _SCALING
    ),
    "slow_gpu": Fault("gpu", "a GPU at a share of its rate", _gpu("matmul"), 0.88, shows=_DEVICES),
    "throttled_gpu": Fault(
        "gpu", "a GPU whose clock is held back by heat", _throttled, 0.85, shows=_DEVICES
    ),
    "slow_hbm": Fault("gpu", "memory of a GPU at a share", _gpu("hbm"), 0.9, shows=_DEVICES),
    "slow_to_device": Fault(
        "gpu", "copies to a GPU at a share", _gpu("to_device"), 0.85, shows=_DEVICES
    ),
    "slow_from_device": Fault(
        "gpu", "copies from a GPU at a share", _gpu("from_device"), 0.85, shows=_DEVICES
    ),
    "gpu_slot": Fault("gpu", "a GPU in a slot of half its lanes", _narrow_slot("gpu")),
    "miscomputing_gpu": Fault(
        "gpu", "a GPU that computes wrong values", _miscomputes, shows=_DEVICES
    ),
    "corrupting_gpu": Fault(
        "gpu", "a rank that sends wrong values, share of calls", _corrupts, 0.2, 0, _FABRIC
    ),
    "stale_results": Fault(
        "gpu", "a rank that keeps earlier results, share of calls", _stale, 0.2, 0, _FABRIC
    ),
    "missing_gpu": Fault("gpu", "a GPU that is not there", _missing_gpu),
    "lost_gpu": Fault("gpu", "a GPU that answers no more", _lost_gpu),
    "other_gpu": Fault("gpu", "a GPU of another model", _accelerator(name="another model")),
    "small_gpu": Fault("gpu", "a GPU with half of its memory", _accelerator(memory_bytes=1 << 34)),
    "ecc_off": Fault("gpu", "a GPU without error correction", _accelerator(ecc_enabled=False)),
    "ecc_errors": Fault("gpu", "uncorrected errors of memory", _accelerator(ecc_uncorrected=3)),
    "row_remap": Fault(
        "gpu", "a row that could not be remapped", _accelerator(remapped_rows_failed=True)
    ),
    "remap_pending": Fault(
        "gpu", "a row remap that waits for a reset", _accelerator(remapped_rows_pending=True)
    ),
    "no_spare_rows": Fault(
        "gpu", "a bank of memory without spare rows", _accelerator(banks_without_spare=1)
    ),
    "mig": Fault("gpu", "a GPU that is divided", _accelerator(mig_enabled=True)),
    "no_persistence": Fault("gpu", "a driver that unloads", _accelerator(persistence=False)),
    "hot_gpu": Fault(
        "gpu", "a GPU that is throttled while idle", _accelerator(throttled=("HwThermalSlowdown",))
    ),
    "xid": Fault("gpu", "an Xid in the kernel log", _xid(79)),
    "nvlink_xid": Fault("gpu", "an NVLink error in the kernel log", _xid(74)),
    "driver": Fault("node", "another driver", _software(driver=OTHER_DRIVER)),
    "firmware": Fault("node", "another firmware of the NICs", _firmware),
    "kernel": Fault("node", "another kernel", _software(kernel="6.8.1")),
    "nccl": Fault("node", "another NCCL", _software(nccl="2.27.3")),
    "torch": Fault("node", "another torch", _software(torch="2.8.0")),
    "package": Fault(
        "node", "another version of a package", _software(packages={"numpy": "1.26.4"})
    ),
    "code": Fault("node", "another version of the code", _other_code),
    "sysctl": Fault(
        "node", "another kernel setting", _of_node(settings={"net.core.rmem_max": "4194304"})
    ),
    "memlock": Fault(
        "node", "a small limit of locked memory", _of_node(limits=Limits(1 << 26, 1 << 20))
    ),
    "open_files": Fault("node", "a small limit of open files", _of_node(limits=Limits(None, 256))),
    "small_shm": Fault("node", "a small /dev/shm", _small_shm),
    "clock_skew": Fault("node", "a clock that is off, s", _skew, 0.06, 0),
    "clock_step": Fault(
        "node", "a clock that is set during a criterion, s", _step_clock, 0.1, 0, _FABRIC
    ),
    "slow_names": Fault("node", "look-ups that take long, s", _slow_names, 2.0, 0),
    "same_address": Fault("path", "two nodes with one address", _same_address),
    "same_hostname": Fault("path", "two nodes with one host name", _hostname),
}
"""All kinds of faults by name."""
