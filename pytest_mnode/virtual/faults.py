"""Faults of a virtual cluster: each changes rates, errors or machines, never a verdict."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pytest_mnode.criteria.preflight.survey_check import promised_checks
from pytest_mnode.errors import UsageError
from pytest_mnode.evidence.check import catalogue
from pytest_mnode.logs.kernel_log import Event, Log, Severity
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.nvml import Accelerator
from pytest_mnode.machine.process import Limits
from pytest_mnode.machine.rdma import Gid
from pytest_mnode.spec import Spec
from pytest_mnode.virtual.cluster import LEAF_NODES, VirtualCluster
from pytest_mnode.virtual.machines import OTHER_DRIVER, OTHER_FIRMWARE, links_of, with_port
from pytest_mnode.virtual.readings import judged

Place = Literal["node", "nic", "gpu", "check", "path", "leaf", "rail", "cluster"]
_FORM: Mapping[Place, str] = {
    "node": "{}:NODE",
    "nic": "{}:NODE:NIC",
    "gpu": "{}:NODE:NUMBER",
    "check": "{}:NODE:CHECK",
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
    check: str = ""

    def rank(self, cluster: VirtualCluster) -> int:
        return self.node * cluster.per_node + self.gpu


Apply = Callable[[VirtualCluster, At], None]


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
    apply: Apply
    strength: float | None = None
    healthy: float = 1.0
    shows: tuple[str, ...] = ("preflight",)


def form_of(name: str, strength: float | None = None) -> str:
    """How to give a fault, with a strength, else the one that it has by default."""
    fault = FAULTS[name]
    strength = fault.strength if strength is None else strength
    return _FORM[fault.place].format(name) + ("" if strength is None else f"[={strength:g}]")


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
        if fault.place == "check":
            nics = f"checks {', '.join(odd_readings(cluster.spec)) or 'none that are promised'}"
        raise UsageError(f"--fault={text}: accepted: {accepted}, with {nodes}, {nics}") from None


def _at(cluster: VirtualCluster, fault: Fault, where: Sequence[str]) -> At:  # noqa: PLR0911
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
        case "check", [node, key] if key in odd_readings(cluster.spec):
            return At(0.0, nodes.index(node), check=key)
        case "gpu", [node, number] if 0 <= int(number) < cluster.per_node:
            return At(0.0, nodes.index(node), gpu=int(number))
        case _:
            raise ValueError(where)


def odd_readings(spec: Spec) -> list[str]:
    """Checks that read by themselves, that the spec promises, and whose breach can be rehearsed."""
    asked = (one for one in catalogue() if one.reads() and one.on == "node")
    checks = promised_checks(spec, asked)
    return sorted({one.key.partition(".")[2] for one in checks if judged(one, ("node0", "node1"))})


def _machine(cluster: VirtualCluster, at: At) -> Machine:
    return cluster.machines[at.node].machine


def _shares(*parts: str) -> Apply:
    """A share of the rate of a NIC or an accelerator, of a whole node, or of a NIC on all nodes."""

    def apply(cluster: VirtualCluster, at: At) -> None:
        for part in parts:
            getattr(cluster, part)[at.node, at.nic if part in _NICS else at.gpu] *= at.strength

    return apply


_NICS = ("tx", "rx")


def _all_nics(share: float) -> Apply:
    def apply(cluster: VirtualCluster, at: At) -> None:
        for part in _NICS:
            getattr(cluster, part)[at.node] *= share

    return apply


def _rail(cluster: VirtualCluster, at: At) -> None:
    for part in _NICS:
        getattr(cluster, part)[:, at.nic] *= at.strength


def _at_node(part: str) -> Apply:
    """A number of a node, such as a delay: added to what it is."""

    def apply(cluster: VirtualCluster, at: At) -> None:
        getattr(cluster, part)[at.node] += at.strength

    return apply


def _at_rank(part: str) -> Apply:
    return lambda cluster, at: getattr(cluster, part).__setitem__(at.rank(cluster), at.strength)


def _adds(part: str) -> Apply:
    """A node to a set of the cluster's."""
    return lambda cluster, at: getattr(cluster, part).add(at.node)


def _all_of(*faults: Apply, strength: float | None = None) -> Apply:
    """Several at once. strength: what they have, instead of one that is given."""

    def apply(cluster: VirtualCluster, at: At) -> None:
        for one in faults:
            one(cluster, at if strength is None else replace(at, strength=strength))

    return apply


def _inside(cluster: VirtualCluster, at: At) -> None:
    cluster.inside[at.node] *= at.strength


def _path(cluster: VirtualCluster, at: At) -> None:
    cluster.pairs[min(at.node, at.other), max(at.node, at.other)] = at.strength


def _uplinks(cluster: VirtualCluster, at: At, which: Any) -> None:
    if len(cluster.uplinks) < 2:
        raise ValueError("one leaf has no uplink")
    cluster.uplinks[which] *= at.strength


def _counts(counter: str, of_ethernet: str) -> Apply:
    def apply(cluster: VirtualCluster, at: At) -> None:
        rdma = cluster.spec.fabric.protocol is not None
        name = links_of(cluster.spec.fabric)[at.nic], counter if rdma else of_ethernet
        cluster.errors[at.node, *name] += round(at.strength)

    return apply


def _of_node(change: Callable[[Machine, At], Mapping[str, Any]]) -> Apply:
    """Other parts of a node's machine."""

    def apply(cluster: VirtualCluster, at: At) -> None:
        cluster.change(at.node, **change(cluster.machines[at.node].machine, at))

    return apply


def _software(**changes: Any) -> Apply:
    return _of_node(lambda machine, _: {"software": replace(machine.software, **changes)})  # type: ignore[type-var]


def _accelerator(**changes: Any) -> Apply:
    return _of_node(
        lambda machine, at: {
            "accelerators": tuple(
                replace(one, **changes) if one.index == at.gpu else one
                for one in machine.accelerators or ()
            )
        }
    )


def _xid(number: int) -> Apply:
    def change(machine: Machine, at: At) -> Mapping[str, Any]:
        card = machine.pci.accelerators[at.gpu].address
        event = Event(Severity.FAULT, "2026-01-01T00:00:00", card, f"Xid {number}")
        return {"kernel_log": Log((event,))}

    return _of_node(change)


def _port(**changes: Any) -> Apply:
    return _of_node(lambda machine, at: {"rdma": with_port(machine, at.nic, **changes)})


def _link(**changes: Any) -> Apply:
    """Other values of the network interface of a NIC."""

    def apply(cluster: VirtualCluster, at: At) -> None:
        name = links_of(cluster.spec.fabric)[at.nic]
        there = cluster.machines[at.node].machine.interfaces or ()
        names = (name, f"net_{name}")
        changed = (replace(one, **changes) if one.name in names else one for one in there)
        cluster.change(at.node, interfaces=tuple(changed))

    return apply


def _half_rate(cluster: VirtualCluster, at: At) -> None:
    fabric = cluster.spec.fabric
    _shares(*_NICS)(cluster, replace(at, strength=0.5))
    _port(rate_gbits_s=fabric.line_rate_gbits_s / 2)(cluster, at)
    _link(speed_mbits_s=round(fabric.line_rate_mbits_s / 2))(cluster, at)


def _failover(cluster: VirtualCluster, at: At) -> None:
    """NCCL moves the traffic of a dead port to the next one, which then carries twice as much."""
    share = 0.5 if cluster.spec.fabric.nics_per_node > 1 else 1e-3
    _shares(*_NICS)(cluster, replace(at, strength=share))
    cluster.dead.add((at.node, at.nic))
    if cluster.spec.fabric.protocol is not None:
        _counts("link_downed", "")(cluster, replace(at, strength=1))


def _dead_port(cluster: VirtualCluster, at: At) -> None:
    _port(state="DOWN", phys_state="Polling")(cluster, at)
    _link(carrier=False, operstate="down")(cluster, at)
    _failover(cluster, at)


def _missing_nic(cluster: VirtualCluster, at: At) -> None:
    machine, name = cluster.machines[at.node].machine, links_of(cluster.spec.fabric)[at.nic]
    left = (one for one in machine.interfaces or () if one.name not in (name, f"net_{name}"))
    rdma = tuple(one for one in machine.rdma or () if one.name != name)
    cluster.change(at.node, rdma=rdma, interfaces=tuple(left))
    cluster.dead.add((at.node, at.nic))
    _shares(*_NICS)(cluster, replace(at, strength=0.5))


def _narrow(kind: Literal["networks", "accelerators"]) -> Apply:
    """A card in a slot of half its lanes."""

    def change(machine: Machine, at: At) -> Mapping[str, Any]:
        card = getattr(machine.pci, kind)[at.nic if kind == "networks" else at.gpu]
        functions = (
            replace(one, link_width=8) if one is card else one for one in machine.pci.functions
        )
        return {"pci": replace(machine.pci, functions=tuple(functions))}

    return _of_node(change)


def _closed(machine: Machine, at: At) -> Mapping[str, Any]:
    verbs = [
        replace(one, problem="permission denied") if i == at.nic else one
        for i, one in enumerate(machine.verbs or ())
    ]
    return {"verbs": tuple(verbs)}


def _same_address(cluster: VirtualCluster, at: At) -> None:
    other = cluster.machines[at.other].machine
    addresses = {one.name: one.addresses for one in other.interfaces or ()}
    there = cluster.machines[at.node].machine.interfaces or ()
    changed = tuple(replace(i, addresses=addresses[i.name]) for i in there)
    cluster.change(at.node, interfaces=changed, rdma=other.rdma)  # GIDs follow addresses


def _hostname(cluster: VirtualCluster, at: At) -> None:
    cluster.change(at.node, hostname=cluster.machines[at.other].machine.hostname)


def _facts(change: Callable[[Any], Mapping[str, Any]]) -> Apply:
    """Other facts of a node's survey than its machine."""

    def apply(cluster: VirtualCluster, at: At) -> None:
        survey = cluster.machines[at.node]
        facts = replace(survey.facts, **change(survey.facts))  # type: ignore[type-var]
        cluster.machines[at.node] = replace(survey, facts=facts)

    return apply


def _small_shm(facts: Any) -> Mapping[str, Any]:
    small = {"size_bytes": 64 << 20, "free_bytes": 64 << 20}
    return {
        "directories": tuple(
            replace(one, **small) if one.key == "/dev/shm" else one for one in facts.directories
        )
    }


def _skew(cluster: VirtualCluster, at: At) -> None:
    for node, survey in enumerate(cluster.machines):
        assert survey.paths is not None
        paths = tuple(
            replace(
                one, offset_s=one.offset_s + (at.strength if one.to == at.node else -at.strength)
            )
            if one.offset_s is not None and at.node in (node, one.to)
            else one
            for one in survey.paths.paths
        )
        cluster.machines[node] = replace(survey, paths=replace(survey.paths, paths=paths))


def _slow_names(cluster: VirtualCluster, at: At) -> None:
    survey = cluster.machines[at.node]
    assert survey.paths is not None
    look_ups = tuple(replace(one, took_s=at.strength) for one in survey.paths.look_ups)
    paths = replace(survey.paths, look_ups=look_ups)
    cluster.machines[at.node] = replace(survey, paths=paths)


def _throttled(cluster: VirtualCluster, at: At) -> None:
    cluster.slowed[at.rank(cluster)] = 0.6


_FABRIC, _DEVICES, _SCALING = ("fabric",), ("devices",), ("scaling",)
_OLD_GID = Gid(index=0, gid="fe80::1", type="RoCE v1")
# fmt: off
_TABLE: tuple[tuple[Any, ...], ...] = (
    ("slow_nic", "nic", "a NIC at a share of its rate", _shares(*_NICS), 0.94, 1, _FABRIC),
    ("slow_tx", "nic", "a NIC that sends at a share", _shares("tx"), 0.94, 1, _FABRIC),
    ("slow_rx", "nic", "a NIC that receives at a share", _shares("rx"), 0.94, 1, _FABRIC),
    ("half_rate", "nic", "a link that came up at half its rate", _half_rate),
    ("dead_port", "nic", "a port that is down; its traffic moves to another", _dead_port),
    ("failover", "nic", "a port that dies after preflight; its traffic moves to another",
     _failover, None, 1, _FABRIC),
    ("port_init", "nic", "a port that waits for a subnet manager", _port(state="INIT")),
    ("missing_nic", "nic", "a NIC that is not on the bus", _missing_nic),
    ("nic_slot", "nic", "a NIC in a slot of half its lanes",
     _all_of(_narrow("networks"), _shares(*_NICS), strength=0.55)),
    ("far_nic", "nic", "a NIC reached through the other socket", _shares(*_NICS), 0.94, 1, _FABRIC),
    ("closed_nic", "nic", "an RDMA device that a process may not open", _of_node(_closed)),
    ("other_layer", "nic", "a port with another link layer",
     _port(link_layer="Ethernet", node_type="RNIC")),
    ("no_gid", "nic", "a port without a GID of the right type", _port(gids=(_OLD_GID,))),
    ("bad_cable", "nic", "a cable with symbol errors",
     _counts("symbol_error", "rx_errors"), 1, 0, _FABRIC),
    ("flapping_link", "nic", "a link that goes down and up",
     _counts("link_downed", "carrier_changes"), 1, 0, _FABRIC),
    ("bad_packets", "nic", "packets with errors received",
     _counts("port_rcv_errors", "rx_errors"), 1, 0, _FABRIC),
    ("rail", "rail", "one NIC of each node at a share", _rail, 0.94, 1, _FABRIC),
    ("slow_path", "path", "a path between two nodes at a share", _path, 0.91, 1, _FABRIC),
    ("leaf", "leaf", "uplinks of a node's leaf at a share",
     lambda c, at: _uplinks(c, at, at.node // LEAF_NODES), 0.05, 1, _FABRIC),
    ("spine", "cluster", "uplinks of all leaves at a share",
     lambda c, at: _uplinks(c, at, slice(None)), 0.05, 1, _FABRIC),
    ("tcp_fallback", "node", "ranks that use TCP", _adds("tcp"), None, 1, _FABRIC),
    ("staged", "node", "ranks whose NCCL leaves GPUDirect off", _adds("staged"),
     None, 1, _FABRIC),
    ("wrong_nic", "node", "ranks of the first rail that send over the second's NIC",
     _adds("crossed"), None, 1, _FABRIC),
    ("no_gpudirect", "node", "NICs that cannot reach GPU memory",
     _all_of(_software(driver_is_open=False), _adds("staged"), _all_nics(0.5))),
    ("acs", "node", "PCIe traffic that is sent through the root", _all_nics(0.54),
     None, 1, _FABRIC),
    ("cross_rail", "node", "ranks that send over another rail's NIC", _all_nics(0.7),
     None, 1, _FABRIC),
    ("narrow_nvlink", "node", "NVLink at a share of its rate", _inside, 0.81, 1, _FABRIC),
    ("nvlink_down", "node", "accelerators that reach each other by PCIe",
     _all_of(_inside, strength=0.1), None, 1, _FABRIC),
    ("late_host", "node", "a host that is late in each step, s", _at_node("late_s"),
     6.3e-5, 0, ("fabric", "scaling")),
    ("slow_storage", "node", "storage that is late in each step, s", _at_node("input_s"),
     0.0076, 0, _SCALING),
    ("slow_gpu", "gpu", "a GPU at a share of its rate", _shares("matmul"), 0.92, 1, _DEVICES),
    ("throttled_gpu", "gpu", "a GPU whose clock is held back by heat",
     _all_of(_throttled, _shares("matmul"), strength=0.9), None, 1, _DEVICES),
    ("slow_hbm", "gpu", "memory of a GPU at a share", _shares("hbm"), 0.93, 1, _DEVICES),
    ("slow_to_device", "gpu", "copies to a GPU at a share", _shares("to_device"),
     0.91, 1, _DEVICES),
    ("slow_from_device", "gpu", "copies from a GPU at a share", _shares("from_device"),
     0.91, 1, _DEVICES),
    ("gpu_slot", "gpu", "a GPU in a slot of half its lanes",
     _all_of(_narrow("accelerators"), _shares("to_device", "from_device"), strength=0.5)),
    ("miscomputing_gpu", "gpu", "a GPU that computes wrong values",
     lambda c, at: c.miscomputes.add(at.rank(c)), None, 1, _DEVICES),
    ("corrupting_gpu", "gpu", "a rank that sends wrong values, share of calls",
     _at_rank("corrupts"), 0.013, 0, ("mesh", "fabric")),
    ("stale_results", "gpu", "a rank that keeps earlier results, share of calls",
     _at_rank("stale"), 0.013, 0, ("mesh", "fabric")),
    ("missing_gpu", "gpu", "a GPU that is not there", _of_node(lambda m, at: {
        "accelerators": tuple(one for one in m.accelerators or () if one.index != at.gpu)})),
    ("lost_gpu", "gpu", "a GPU that answers no more", _of_node(lambda m, at: {
        "accelerators": tuple(Accelerator(index=one.index) if one.index == at.gpu else one
                              for one in m.accelerators or ())})),
    ("other_gpu", "gpu", "a GPU of another model", _accelerator(name="another model")),
    ("small_gpu", "gpu", "a GPU with half of its memory", _accelerator(memory_bytes=1 << 34)),
    ("ecc_off", "gpu", "a GPU without error correction", _accelerator(ecc_enabled=False)),
    ("ecc_errors", "gpu", "uncorrected errors of memory", _accelerator(ecc_uncorrected=3)),
    ("row_remap", "gpu", "a row that could not be remapped",
     _accelerator(remapped_rows_failed=True)),
    ("remap_pending", "gpu", "a row remap that waits for a reset",
     _accelerator(remapped_rows_pending=True)),
    ("mig", "gpu", "a GPU that is divided", _accelerator(mig_enabled=True)),
    ("no_persistence", "gpu", "a driver that unloads", _accelerator(persistence=False)),
    ("hot_gpu", "gpu", "a GPU that is throttled while idle",
     _accelerator(throttled=("HwThermalSlowdown",))),
    ("xid", "gpu", "an Xid in the kernel log", _xid(79)),
    ("nvlink_xid", "gpu", "an NVLink error in the kernel log", _xid(74)),
    ("driver", "node", "another driver", _software(driver=OTHER_DRIVER)),
    ("firmware", "node", "another firmware of the NICs", _of_node(lambda m, _: {
        "rdma": tuple(replace(one, firmware=OTHER_FIRMWARE) for one in m.rdma or ())})),
    ("kernel", "node", "another kernel", _software(kernel="6.8.1")),
    ("nccl", "node", "another NCCL", _software(nccl="2.27.3")),
    ("torch", "node", "another torch", _software(torch="2.8.0")),
    ("package", "node", "another version of a package", _software(packages={"numpy": "1.26.4"})),
    ("code", "node", "another version of the code",
     _facts(lambda _: {"code": {"train.py": "ffffffffffff"}})),
    ("sysctl", "node", "another kernel setting",
     _of_node(lambda *_: {"settings": {"net.core.rmem_max": "4194304"}})),
    ("memlock", "node", "a small limit of locked memory",
     _of_node(lambda *_: {"limits": Limits(1 << 26, 1 << 20)})),
    ("open_files", "node", "a small limit of open files",
     _of_node(lambda *_: {"limits": Limits(None, 256)})),
    ("small_shm", "node", "a small /dev/shm", _facts(_small_shm)),
    ("reading", "check", "a node that reads other than a check promises",
     lambda c, at: c.odd.append((at.node, at.check))),
    ("setting", "node", "a setting of NCCL that costs speed",
     lambda c, at: c.settings.__setitem__(at.node, (("NCCL_P2P_DISABLE", "1"),))),
    ("wrong_numa", "node", "ranks and their memory on the other socket",
     lambda c, at: c.unbound.add(at.node), None, 1, ("numa",)),
    ("clock_skew", "node", "a clock that is off, s", _skew, 0.06, 0),
    ("clock_step", "node", "a clock that is set during a criterion, s",
     lambda c, at: c.clock_steps_s.__setitem__(at.node, at.strength), 0.063, 0, _FABRIC),
    ("slow_names", "node", "look-ups that take long, s", _slow_names, 1.3, 0),
    ("same_address", "path", "two nodes with one address", _same_address),
    ("same_hostname", "path", "two nodes with one host name", _hostname),
)
# fmt: on
FAULTS: Mapping[str, Fault] = {name: Fault(*rest) for name, *rest in _TABLE}
"""All kinds of faults by name."""
