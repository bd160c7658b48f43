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
from pytest_mnode.machine.nvml import Accelerator
from pytest_mnode.machine.pci import PciTree
from pytest_mnode.machine.process import Limits
from pytest_mnode.machine.rdma import Gid
from pytest_mnode.spec import Spec
from pytest_mnode.virtual.cluster import LEAF_NODES, VirtualCluster
from pytest_mnode.virtual.machines import OTHER_DRIVER, OTHER_FIRMWARE, links_of
from pytest_mnode.virtual.readings import judged

Place = Literal["node", "nic", "gpu", "check", "path", "leaf", "rail", "cluster"]
_WHERE: Mapping[Place, tuple[str, ...]] = {
    "node": ("NODE",),
    "nic": ("NODE", "NIC"),
    "gpu": ("NODE", "NUMBER"),
    "check": ("NODE", "CHECK"),
    "path": ("NODE+NODE",),
    "leaf": ("NODE",),
    "rail": ("NIC",),
    "cluster": (),
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
    form = ":".join((name, *_WHERE[fault.place]))
    return form + ("" if strength is None else f"[={strength:g}]")


def inject(cluster: VirtualCluster, text: str) -> None:
    """Inject a fault such as slow_nic:node3:mlx5_2 or slow_gpu:node1:0=0.8.

    Raises UsageError, one line, that names the accepted form.
    """
    match = _STRENGTH.fullmatch(text)
    assert match is not None  # it matches any text of one line
    name, *where = match["fault"].split(":")
    if (fault := FAULTS.get(name)) is None:
        raise UsageError(f"--fault={text}: no fault {name!r}; accepted: {', '.join(FAULTS)}")
    form, strength = ":".join((name, *_WHERE[fault.place])), match["strength"]
    if strength is not None and fault.strength is None:
        raise UsageError(f"--fault={text}: {name} has no strength; accepted: {form}")
    try:
        given = float(strength) if strength else fault.strength or 0.0
        fault.apply(cluster, At(given, **_at(cluster, fault, where)))
    except (ValueError, IndexError):
        accepted = form + ("" if fault.strength is None else f" or {form}={fault.strength:g}")
        nodes = f"{len(cluster.nodes)} nodes {cluster.nodes[0]} to {cluster.nodes[-1]}"
        if fault.place in ("leaf", "cluster"):
            nodes = f"more than the {LEAF_NODES} nodes of a leaf; it has {nodes}"
        nics = f"NICs {', '.join(links_of(cluster.spec.fabric))}"
        if fault.place == "check":
            nics = f"checks {', '.join(odd_readings(cluster.spec)) or 'none that are promised'}"
        raise UsageError(f"--fault={text}: accepted: {accepted}, with {nodes}, {nics}") from None


def _at(cluster: VirtualCluster, fault: Fault, where: Sequence[str]) -> dict[str, Any]:
    """Raises ValueError or IndexError for what is not there."""
    nodes, found = list(cluster.nodes), dict[str, Any]()
    for part, text in zip(_WHERE[fault.place], where, strict=True):
        match part:
            case "NODE":
                found["node"] = nodes.index(text)
            case "NODE+NODE":
                found["node"], found["other"] = map(nodes.index, text.split("+"))
                if found["node"] == found["other"]:
                    raise ValueError(text)
            case "NIC":
                found["nic"] = links_of(cluster.spec.fabric).index(text)
            case "NUMBER":
                found["gpu"] = range(cluster.per_node).index(int(text))
            case _:
                known = odd_readings(cluster.spec)
                found["check"] = known[known.index(text)]
    return found


def odd_readings(spec: Spec) -> list[str]:
    """Checks that read by themselves, that the spec promises, and whose breach can be rehearsed."""
    asked = (one for one in catalogue("preflight") if one.reads() and one.on == "node")
    checks = promised_checks(spec, asked)
    return sorted({one.key.partition(".")[2] for one in checks if judged(one, ("node0", "node1"))})


_PICKS: Mapping[str, Callable[[VirtualCluster, At, int, Any], bool]] = {
    "*": lambda *_: True,
    "nic": lambda _, at, number, __: number == at.nic,
    "gpu": lambda _, at, number, one: getattr(one, "index", number) == at.gpu,
    "link": lambda cluster, at, _, one: one.name in _links(cluster, at),
    "card of nic": lambda cluster, at, _, one: one == _pci(cluster, at).networks[at.nic],
    "card of gpu": lambda cluster, at, _, one: one == _pci(cluster, at).accelerators[at.gpu],
    "/dev/shm": lambda _, __, ___, one: one.key == "/dev/shm",
}
"""Which parts of several a fault is in, by the name in its path."""
_GONE = object()
"""The value of a part that is not there."""


def _links(cluster: VirtualCluster, at: At) -> tuple[str, str]:
    name = links_of(cluster.spec.fabric)[at.nic]
    return name, f"net_{name}"


def _pci(cluster: VirtualCluster, at: At) -> PciTree:
    return cluster.machines[at.node].machine.pci


def _facts(values: Mapping[str, Any], of: str = "facts.machine.") -> Apply:
    """Other facts of a node's survey, by their path in it. A value may be a function of the cluster
    and the place; `_GONE` leaves a part out."""

    def apply(cluster: VirtualCluster, at: At) -> None:
        for path, value in values.items():
            new = value(cluster, at) if callable(value) else value
            survey = cluster.machines[at.node]
            cluster.machines[at.node] = _with(survey, f"{of}{path}".split("."), new, cluster, at)

    return apply


def _with(there: Any, path: Sequence[str], new: object, cluster: VirtualCluster, at: At) -> Any:
    """A value with another one in its place."""
    if not path or there is None:
        return new if not path else None
    first, *rest = path
    if not isinstance(there, tuple):
        return replace(there, **{first: _with(getattr(there, first), rest, new, cluster, at)})
    changed = (
        _with(one, rest, new, cluster, at) if _PICKS[first](cluster, at, number, one) else one
        for number, one in enumerate(there)
    )
    return tuple(one for one in changed if one is not _GONE)


Key = Callable[[VirtualCluster, At], Any]
_NICS = ("tx", "rx")


def _leaf(cluster: VirtualCluster, at: At) -> int:
    if len(cluster.uplinks) < 2:
        raise ValueError("one leaf has no uplink")
    return at.node // LEAF_NODES


_KEYS: Mapping[str, Key] = {
    "node": lambda _, at: at.node,
    "nic": lambda _, at: (at.node, at.nic),
    "gpu": lambda _, at: (at.node, at.gpu),
    "rank": lambda cluster, at: at.node * cluster.per_node + at.gpu,
    "rail": lambda _, at: (slice(None), at.nic),
    "path": lambda _, at: (min(at.node, at.other), max(at.node, at.other)),
    "check": lambda _, at: (at.node, at.check),
    "leaf": _leaf,
    "leaves": lambda cluster, at: slice(None) if _leaf(cluster, at) >= 0 else None,
    "all": lambda *_: slice(None),
}
"""Which values of a part of the cluster a fault is in."""


def _times(key: str, *parts: str, by: float | None = None) -> Apply:
    """A share of the rates of these parts of the cluster. by: in place of the strength."""

    def apply(cluster: VirtualCluster, at: At) -> None:
        for part in parts:
            getattr(cluster, part)[_KEYS[key](cluster, at)] *= at.strength if by is None else by

    return apply


def _put(key: str, part: str, value: object = None) -> Apply:
    """A member of a set of the cluster, or the strength, or the value, at a key of a mapping."""

    def apply(cluster: VirtualCluster, at: At) -> None:
        there, where = getattr(cluster, part), _KEYS[key](cluster, at)
        if isinstance(there, set):
            there.add(where)
        else:
            there[where] = at.strength if value is None else value

    return apply


def _all_of(*faults: Apply) -> Apply:
    """Several at once."""

    def apply(cluster: VirtualCluster, at: At) -> None:
        for one in faults:
            one(cluster, at)

    return apply


def _counts(counter: str, of_ethernet: str, by: float | None = None) -> Apply:
    def apply(cluster: VirtualCluster, at: At) -> None:
        name = counter if cluster.spec.fabric.protocol is not None else of_ethernet
        if name:
            key = at.node, links_of(cluster.spec.fabric)[at.nic], name
            cluster.errors[key] += round(at.strength if by is None else by)

    return apply


def _xid(number: int) -> Key:
    def log(cluster: VirtualCluster, at: At) -> Log:
        card = _pci(cluster, at).accelerators[at.gpu].address
        return Log((Event(Severity.FAULT, "2026-01-01T00:00:00", card, f"Xid {number}"),))

    return log


def _facts_of(part: str) -> Callable[..., Apply]:
    return lambda **changes: _facts({f"{part}.{name}": new for name, new in changes.items()})


_gpu_facts, _port_facts = _facts_of("accelerators.gpu"), _facts_of("rdma.nic.ports.*")
_software = _facts_of("software")


def _failover(cluster: VirtualCluster, at: At) -> None:
    """NCCL moves the traffic of a dead port to the next one, which then carries twice as much."""
    share = 0.5 if cluster.spec.fabric.nics_per_node > 1 else 1e-3
    _times("nic", *_NICS, by=share)(cluster, at)
    cluster.dead.add((at.node, at.nic))
    _counts("link_downed", "", 1)(cluster, at)


def _same_address(cluster: VirtualCluster, at: At) -> None:
    other = cluster.machines[at.other].machine
    addresses = {one.name: one.addresses for one in other.interfaces or ()}
    there = cluster.machines[at.node].machine.interfaces or ()
    changed = tuple(replace(i, addresses=addresses[i.name]) for i in there)
    _facts({"interfaces": changed, "rdma": other.rdma})(cluster, at)  # GIDs follow addresses


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


_FABRIC, _DEVICES, _SCALING, _STORAGE = ("fabric",), ("devices",), ("scaling",), ("storage",)
_OLD_GID = Gid(index=0, gid="fe80::1", type="RoCE v1")
# fmt: off
_TABLE: tuple[tuple[Any, ...], ...] = (
    ("slow_nic", "nic", "a NIC at a share of its rate", _times("nic", *_NICS), 0.94, 1, _FABRIC),
    ("slow_tx", "nic", "a NIC that sends at a share", _times("nic", "tx"), 0.94, 1, _FABRIC),
    ("slow_rx", "nic", "a NIC that receives at a share", _times("nic", "rx"), 0.94, 1, _FABRIC),
    ("half_rate", "nic", "a link that came up at half its rate", _all_of(
        _times("nic", *_NICS, by=0.5),
        _port_facts(rate_gbits_s=lambda c, _: c.spec.fabric.line_rate_gbits_s / 2),
        _facts({"interfaces.link.speed_mbits_s":
                lambda c, _: round(c.spec.fabric.line_rate_mbits_s / 2)}))),
    ("dead_port", "nic", "a port that is down; its traffic moves to another", _all_of(
        _port_facts(state="DOWN", phys_state="Polling"),
        _facts({"interfaces.link.carrier": False, "interfaces.link.operstate": "down"}),
        _failover)),
    ("failover", "nic", "a port that dies after preflight; its traffic moves to another",
     _failover, None, 1, _FABRIC),
    ("port_init", "nic", "a port that waits for a subnet manager", _port_facts(state="INIT")),
    ("missing_nic", "nic", "a NIC that is not on the bus", _all_of(
        _facts({"interfaces.link": _GONE, "rdma.nic": _GONE}),
        _put("nic", "dead"), _times("nic", *_NICS, by=0.5))),
    ("nic_slot", "nic", "a NIC in a slot of half its lanes",
     _all_of(_facts({"pci.functions.card of nic.link_width": 8}),
             _times("nic", *_NICS, by=0.55))),
    ("far_nic", "nic", "a NIC reached through the other socket", _times("nic", *_NICS),
     0.94, 1, _FABRIC),
    ("closed_nic", "nic", "an RDMA device that a process may not open",
     _facts({"verbs.nic.problem": "permission denied"})),
    ("other_layer", "nic", "a port with another link layer",
     _port_facts(link_layer="Ethernet", node_type="RNIC")),
    ("no_gid", "nic", "a port without a GID of the right type", _port_facts(gids=(_OLD_GID,))),
    ("bad_cable", "nic", "a cable with symbol errors",
     _counts("symbol_error", "rx_errors"), 5, 0, _FABRIC),
    ("flapping_link", "nic", "a link that goes down and up",
     _counts("link_downed", "carrier_changes"), 1, 0, _FABRIC),
    ("bad_packets", "nic", "packets with errors received",
     _counts("port_rcv_errors", "rx_errors"), 5, 0, _FABRIC),
    ("rail", "rail", "one NIC of each node at a share",
     _times("rail", *_NICS), 0.94, 1, _FABRIC),
    ("slow_path", "path", "a path between two nodes at a share",
     _put("path", "pairs"),
     0.91, 1, _FABRIC),
    ("leaf", "leaf", "uplinks of a node's leaf at a share",
     _times("leaf", "uplinks"), 0.05, 1, _FABRIC),
    ("spine", "cluster", "uplinks of all leaves at a share",
     _times("leaves", "uplinks"), 0.05, 1, _FABRIC),
    ("tcp_fallback", "node", "ranks that use TCP", _put("node", "tcp"), None, 1, _FABRIC),
    ("staged", "node", "ranks whose NCCL leaves GPUDirect off", _put("node", "staged"),
     None, 1, _FABRIC),
    ("wrong_nic", "node", "ranks of the first rail that send over the second's NIC",
     _put("node", "crossed"), None, 1, _FABRIC),
    ("no_gpudirect", "node", "NICs that cannot reach GPU memory",
     _all_of(_software(driver_is_open=False), _put("node", "staged"),
             _times("node", *_NICS, by=0.5))),
    ("acs", "node", "PCIe traffic that is sent through the root", _times("node", *_NICS, by=0.54),
     None, 1, _FABRIC),
    ("cross_rail", "node", "ranks that send over another rail's NIC",
     _times("node", *_NICS, by=0.7), None, 1, _FABRIC),
    ("narrow_nvlink", "node", "NVLink at a share of its rate", _times("node", "inside"),
     0.9, 1, _DEVICES),
    ("nvlink_down", "node", "accelerators that reach each other by PCIe",
     _times("node", "inside", by=0.1), None, 1, _DEVICES),
    ("late_host", "node", "a host that is late in each step, s", _put("node", "late_s"),
     6.3e-5, 0, ("fabric", "scaling")),
    ("slow_storage", "node", "storage that is late in each step, s", _put("node", "input_s"),
     0.0076, 0, _SCALING),
    ("slow_mount", "node", "storage of a node at a share", _times("node", "storage"),
     0.8, 1, _STORAGE),
    ("slow_server", "cluster", "storage of all nodes at a share", _times("all", "storage"),
     0.84, 1, _STORAGE),
    ("late_files", "node", "renamed files that are seen late, s", _put("node", "files_late_s"),
     5, 0, _STORAGE),
    ("local_locks", "node", "locks that exclude no other node", _put("node", "local_locks"),
     None, 1, _STORAGE),
    ("stale_files", "node", "files that are read as they were before", _put("node", "stale_files"),
     None, 1, _STORAGE),
    ("slow_failover", "node", "traffic that pauses while a port is down, s",
     _put("node", "pauses_s"), 2.1, 0, _FABRIC),
    ("slow_gpu", "gpu", "a GPU at a share of its rate", _times("gpu", "matmul"), 0.92, 1, _DEVICES),
    ("throttled_gpu", "gpu", "a GPU whose clock is held back by heat",
     _all_of(_put("rank", "slowed", 0.6), _times("gpu", "matmul", by=0.9)), None, 1, _DEVICES),
    ("slow_hbm", "gpu", "memory of a GPU at a share", _times("gpu", "hbm"), 0.93, 1, _DEVICES),
    ("slow_to_device", "gpu", "copies to a GPU at a share", _times("gpu", "to_device"),
     0.91, 1, _DEVICES),
    ("slow_from_device", "gpu", "copies from a GPU at a share", _times("gpu", "from_device"),
     0.91, 1, _DEVICES),
    ("gpu_slot", "gpu", "a GPU in a slot of half its lanes",
     _all_of(_facts({"pci.functions.card of gpu.link_width": 8}),
             _times("gpu", "to_device", "from_device", by=0.5))),
    ("miscomputing_gpu", "gpu", "a GPU that computes wrong values",
     _put("rank", "miscomputes"), None, 1, _DEVICES),
    ("corrupting_gpu", "gpu", "a rank that sends wrong values, share of calls",
     _put("rank", "corrupts"), 0.013, 0, ("mesh", "fabric")),
    ("stale_results", "gpu", "a rank that keeps earlier results, share of calls",
     _put("rank", "stale"), 0.013, 0, ("mesh", "fabric")),
    ("missing_gpu", "gpu", "a GPU that is not there", _facts({"accelerators.gpu": _GONE})),
    ("lost_gpu", "gpu", "a GPU that answers no more", _facts(
        {"accelerators.gpu": lambda _, at: Accelerator(index=at.gpu)})),
    ("other_gpu", "gpu", "a GPU of another model", _gpu_facts(name="another model")),
    ("small_gpu", "gpu", "a GPU with half of its memory", _gpu_facts(memory_bytes=1 << 34)),
    ("ecc_off", "gpu", "a GPU without error correction", _gpu_facts(ecc_enabled=False)),
    ("ecc_errors", "gpu", "uncorrected errors of memory", _gpu_facts(ecc_uncorrected=3)),
    ("row_remap", "gpu", "a row that could not be remapped",
     _gpu_facts(remapped_rows_failed=True)),
    ("remap_pending", "gpu", "a row remap that waits for a reset",
     _gpu_facts(remapped_rows_pending=True)),
    ("mig", "gpu", "a GPU that is divided", _gpu_facts(mig_enabled=True)),
    ("no_persistence", "gpu", "a driver that unloads", _gpu_facts(persistence=False)),
    ("hot_gpu", "gpu", "a GPU that is throttled while idle",
     _gpu_facts(throttled=("HwThermalSlowdown",))),
    ("xid", "gpu", "an Xid in the kernel log", _facts({"kernel_log": _xid(79)})),
    ("nvlink_xid", "gpu", "an NVLink error in the kernel log",
     _facts({"kernel_log": _xid(74)})),
    ("driver", "node", "another driver", _software(driver=OTHER_DRIVER)),
    ("firmware", "node", "another firmware of the NICs",
     _facts({"rdma.*.firmware": OTHER_FIRMWARE})),
    ("kernel", "node", "another kernel", _software(kernel="6.8.1")),
    ("nccl", "node", "another NCCL", _software(nccl="2.27.3")),
    ("torch", "node", "another torch", _software(torch="2.8.0")),
    ("package", "node", "another version of a package", _software(packages={"numpy": "1.26.4"})),
    ("code", "node", "another version of the code",
     _facts({"code": {"train.py": "ffffffffffff"}}, of="facts.")),
    ("sysctl", "node", "another kernel setting",
     _facts({"settings": {"net.core.rmem_max": "4194304"}})),
    ("memlock", "node", "a small limit of locked memory",
     _facts({"limits": Limits(1 << 26, 1 << 20)})),
    ("open_files", "node", "a small limit of open files",
     _facts({"limits": Limits(None, 256)})),
    ("small_shm", "node", "a small /dev/shm", _facts(
        {f"directories./dev/shm.{size}_bytes": 64 << 20 for size in ("size", "free")},
        of="facts.")),
    ("reading", "check", "a node that reads other than a check promises",
     _put("check", "odd")),
    ("setting", "node", "a setting of NCCL that costs speed",
     _put("node", "settings", (("NCCL_P2P_DISABLE", "1"),))),
    ("wrong_numa", "node", "ranks and their memory on the other socket",
     _put("node", "unbound"), None, 1, ("numa",)),
    ("clock_skew", "node", "a clock that is off, s", _skew, 0.06, 0),
    ("clock_step", "node", "a clock that is set during a criterion, s",
     _put("node", "clock_steps_s"), 0.063, 0, _FABRIC),
    ("slow_names", "node", "look-ups that take long, s",
     _facts({"paths.look_ups.*.took_s": lambda _, at: at.strength}, of=""), 1.3, 0),
    ("same_address", "path", "two nodes with one address", _same_address),
    ("same_hostname", "path", "two nodes with one host name", _facts(
        {"hostname": lambda c, at: c.machines[at.other].machine.hostname})),
)
# fmt: on
FAULTS: Mapping[str, Fault] = {name: Fault(*rest) for name, *rest in _TABLE}
"""All kinds of faults by name."""
