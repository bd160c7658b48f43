"""Bounds that a first spec promises by the kind of cluster, because no node shows them. Pure.

Each comes with its reason, so that an operator can replace it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from pytest_mnode.discover.nodes import FoundNetwork, Kind
from pytest_mnode.discover.page import Entry, listed, mapped
from pytest_mnode.spec import bandwidth
from pytest_mnode.spec.quantity import SIZE

_PUBLISHED: dict[Kind, tuple[float, str]] = {
    "infiniband": (
        0.82,
        "published over tens of nodes: 165 to 185 of 200 GB/s with 8×200G; with 8×400G 356 of 400 "
        "at 512 MB and 387 at 8 GB, for which 0.89 can be promised",
    ),
    "roce": (
        0.8,
        "published: 75 of 100 GB/s on two nodes with 8×100G, a bit low, as NCCL's developers say",
    ),
    "efa": (0.8, "published: a pinned ring over 4 nodes with 16×200G at 365 of 400 GB/s"),
    "cxi": (0.62, "published: 69 of 100 GB/s over 8 nodes with 4×200G, and 123 over two"),
}
_TCP_PART = 0.9
"""Fraction of TCP's payload rate: the rest is for acknowledgements, bursts and message ends."""
_LEAST_MTU_BYTES = 68
"""Smallest MTU of IP networks (RFC 791); with a smaller one TCP's headers do not fit."""
_SECONDS_ON_THE_WIRE = 0.2
_LEAST_BYTES, _MOST_BYTES = 4 << 20, 256 << 20


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts of a cluster on which bounds depend.

    managed, managed_mtu: there is a management network, and its MTU is known. numa_known: the NUMA
    node of each accelerator is known. nvml: NVML answered on all nodes. remapped_rows, pcie_links,
    kernel_log: all nodes show them. gpudirect, memlock: "" if not promised.
    """

    nodes: int
    accelerators: bool
    emulated: bool
    fabric: FoundNetwork
    managed: bool
    managed_mtu: bool
    numa_nodes: int
    numa_known: bool
    nvml: bool
    ecc: bool | None
    persistence: bool | None
    mig: bool | None
    remapped_rows: bool
    pcie_links: bool
    kernel_log: bool
    gpudirect: str
    shm_bytes: int | None
    memlock: str
    open_files: int | None


def criteria(machine: Machine) -> tuple[Entry, ...]:
    """One entry for each criterion that can be promised for such a cluster."""
    found = [
        Entry("preflight", "", "", tuple(_questions(machine))),
        Entry("mesh", "{}", "Sums over all ranks are exact."),
    ]
    if (placed := numa(machine)) is not None:
        found.append(placed)
    found += [_devices(machine)]
    if machine.nodes > 1:
        found.append(_fabric(machine))
    slow = "Nearly all of this time is the import of torch on every node, slow from file servers."
    found += [
        Entry("groups", "{}", "Ranks of parallel dimensions, and their sums, are exact."),
        Entry("data", "{}", "Shards, batches, metrics and seeds are exact."),
        Entry("launch", "", "", (Entry("torchrun", "{within: 2 min}", slow),)),
    ]
    return (*found, *_training(machine))


def _questions(machine: Machine) -> Iterator[Entry]:
    reached = ["fabric"] * machine.fabric.addressed + ["management"] * machine.managed
    if reached and machine.nodes > 1:
        within = mapped({"within": "2 s", "networks": listed(reached)})
        yield Entry("reachable", within, "TCP, from each node to each other.")
    torchrun = "torchrun stalls for 10 s where a reverse look-up hangs."
    yield Entry("names", "{within: 1 s}", torchrun)
    yield Entry("interfaces", "{}", "The interfaces above exist and are up, in the number above.")
    if machine.nodes > 1:
        yield Entry("addresses", "unique", "No two nodes have one address on these interfaces.")
    yield Entry("speed", "{at_least_fraction: 1.0}", "The interfaces above run at their line_rate.")
    sized = ["fabric"] * (machine.fabric.addressed and machine.fabric.mtu_bytes is not None)
    sized += ["management"] * (machine.managed and machine.managed_mtu)
    if sized:
        why = "Interfaces have the MTU above, and packets of that size pass with don't-fragment."
        yield Entry("mtu", mapped({"networks": listed(sized)}), why)
    if reached and machine.nodes > 1:
        sent = mapped({"size": "4 MiB", "within": "5 s", "networks": listed(reached[:1])})
        yield Entry("payload", sent, "Sent by TCP; no link corrupts bytes unseen by checksums.")
    if machine.nodes > 1:
        yield Entry("clocks", "{skew: 50 ms}", "NTP reaches this skew, PTP a far smaller one.")
        why = "One node with another version is what makes jobs fail at random."
        yield Entry("same", listed(_parts(machine)), why)
    if machine.nvml:
        yield Entry("accelerators", mapped(_health(machine)), "States as seen on most nodes.")
    if machine.fabric.kind in ("infiniband", "roce"):
        why = "Ports are ACTIVE, and their error counters do not increase."
        yield Entry("rdma", mapped(_rdma(machine)), why)
    if machine.kernel_log and not machine.emulated:
        why = "No failure of a device since boot; the log could be read on all nodes."
        yield Entry("kernel_log", "{}", why)
    if machine.pcie_links and not machine.emulated:
        yield Entry("pcie", "full", "Links have the full width that card and slot support.")
    if machine.gpudirect:
        yield Entry(
            "gpudirect",
            machine.gpudirect,
            "Seen: how NICs can reach the memory of accelerators by themselves.",
        )
    if limits := _limits(machine):
        why = "As seen on most nodes; of sizes of shm within a tenth the least, rounded down."
        yield Entry("limits", mapped(limits), why)
    yield Entry("environment", "{}", "List this cluster's own variables under allowed.")


def _parts(machine: Machine) -> list[str]:
    parts = ["code", "python", "torch", "packages", "kernel", "sysctl"]
    if machine.nvml:
        parts += ["nccl", "driver"]
    return parts + ["firmware"] * (machine.fabric.kind in ("infiniband", "roce"))


def _health(machine: Machine) -> dict[str, str]:
    switches = {"ecc": machine.ecc, "persistence": machine.persistence, "mig": machine.mig}
    states = {key: '"on"' if on else '"off"' for key, on in switches.items() if on is not None}
    counted = {"ecc_errors_at_most": "0"} if machine.ecc else {}
    rows = {"remapped_rows": "none"} if machine.remapped_rows else {}
    return {**states, **counted, "throttling": "none", **rows}


def _rdma(machine: Machine) -> dict[str, str]:
    wanted = "RoCE v2" if machine.fabric.kind == "roce" else "IB"
    types = {"gid_types": f"[{wanted}]"} if wanted in machine.fabric.gid_types else {}
    return {**types, "errors_at_most": "0"}


def _limits(machine: Machine) -> dict[str, str]:
    found = {}
    if machine.shm_bytes:
        found["shm"] = SIZE.text(machine.shm_bytes)
    if machine.memlock:
        found["memlock"] = machine.memlock
    if machine.open_files:
        found["open_files"] = str(machine.open_files)
    return found


def numa(machine: Machine) -> Entry | None:
    """The promise of placement; None if nodes do not show what it is judged by."""
    if machine.numa_nodes < 2 or not machine.accelerators or not machine.numa_known:
        return None
    rdma = {"nic": "nearest"} if machine.fabric.kind != "ethernet" else {}
    promised = {"cpus": "near", "memory_near_fraction": "0.9", **rdma}
    seen = f"Seen: {machine.numa_nodes} NUMA nodes, and the NUMA node of each accelerator."
    return Entry("numa", mapped(promised), seen)


def _devices(machine: Machine) -> Entry:
    if not machine.accelerators:
        why = "Ranks compute on CPUs, and share caches and memory with their neighbours."
        return Entry(
            "devices",
            "",
            why,
            (
                Entry("matmul", "{dtypes: [float32], size: 512, at_least_fraction: 0.7}"),
                Entry("training_step", "{width: 64, layers: 2, context: 32}"),
                Entry("memory_copy", "{size: 32 MiB, at_least_fraction: 0.65}"),
            ),
        )
    why = "Of the median of all ranks: accelerators of one model differ by a few per cent."
    return Entry(
        "devices",
        "",
        why,
        (
            Entry("matmul", "{dtypes: [bfloat16], size: 8192, at_least_fraction: 0.95}"),
            Entry("training_step", "{dtype: bfloat16}"),
            Entry("device_copy", "{size: 1 GiB, at_least_fraction: 0.95}"),
            Entry("host_to_device", "{size: 1 GiB, at_least_fraction: 0.9}"),
            Entry("device_to_host", "{size: 1 GiB, at_least_fraction: 0.9}"),
        ),
    )


def _fabric(machine: Machine) -> Entry:
    if machine.fabric.kind == "ethernet":
        fraction, why = tcp_fraction(machine.fabric.mtu_bytes or 1500, emulated=machine.emulated)
        if machine.accelerators:
            fraction, why = 0.5, "NCCL over sockets carries at most 0.6 of a fast link"
        plateau = tcp_plateau_bytes((machine.fabric.rate_mbits_s or 0.0) * machine.fabric.nics)
        sizes = mapped({"from": SIZE.text(plateau >> 6), "to": SIZE.text(plateau), "factor": "8"})
    else:
        fraction, why = _PUBLISHED[machine.fabric.kind]
        plateau = (1 if machine.nodes <= 8 else 8) << 30
        sizes = mapped({"from": "1 MiB", "to": SIZE.text(plateau), "factor": "2"})
    swept = (
        Entry("at_least_fraction", f"{fraction:g}", f"Of the line rate: {why}."),
        Entry("sizes", sizes),
        Entry("plateau_from", SIZE.text(plateau)),
    )
    found = [Entry("all_reduce_busbw", "", "", swept)]
    written = {"infiniband": 0.9, "roce": 0.96}.get(machine.fabric.kind)  # as parts of profiles
    if written is not None:
        found.append(
            Entry(
                "write_bandwidth",
                f"{{at_least_fraction: {written}}}",
                "Of one port, if ib_write_bw is installed on the nodes.",
            )
        )
    size = plateau if machine.fabric.kind == "ethernet" else 1 << 30
    found.append(
        Entry("transport", mapped({"size": SIZE.text(size)}), "Four facts that agree; exact.")
    )
    return Entry("fabric", "", "", tuple(found))


def tcp_fraction(mtu_bytes: int, *, emulated: bool) -> tuple[float, str]:
    """Fraction of an Ethernet line rate that a healthy all-reduce over TCP reaches, and why."""
    mtu_bytes = max(mtu_bytes, _LEAST_MTU_BYTES)
    framing = bandwidth.ETHERNET_HEADER_BYTES if emulated else bandwidth.ETHERNET_WIRE_BYTES
    share = bandwidth.tcp_payload_share(mtu_bytes, framing_bytes=framing)
    fraction = math.floor(share * _TCP_PART * 20) / 20
    return fraction, f"TCP at MTU {mtu_bytes} carries {share:.3f} of it, and {_TCP_PART:g} of that"


def tcp_plateau_bytes(rate_mbits_s: float) -> int:
    """A power of two in bytes that keeps a node's links busy long enough to be measured."""
    wanted = rate_mbits_s * 1e6 / 8 * _SECONDS_ON_THE_WIRE
    size = 1 << max(0, int(math.log2(max(1.0, wanted))))
    return min(max(size, _LEAST_BYTES), _MOST_BYTES)


def _training(machine: Machine) -> Iterator[Entry]:
    if machine.accelerators:
        dtype = {"dtype": "bfloat16", "allowed_causes": "[communication]"}
        if machine.nodes > 1:
            why = "Published: 0.89 to 0.98 over ten times as many nodes."
            yield Entry("scaling", mapped(dtype), why)
        why = "Left out until storage.checkpoints is named. For a spare node see node_loss."
        yield Entry("restart", "{within: 5 min}", why, left_out=True)
        return
    why = "Left open; see docs/scaling.md and docs/restart.md before you promise them:"
    yield Entry("scaling", "{}", why, left_out=True)
    yield Entry("restart", "{within: 5 min}", left_out=True)
