"""Page entries for accelerators, the fabric and the management network. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Literal, TypeVar

from pytest_mnode.discover.cluster import CONFIRM, Cluster
from pytest_mnode.discover.networks import has_accelerators
from pytest_mnode.discover.nodes import FoundNetwork, machine_of
from pytest_mnode.discover.page import Entry, listed, scalar
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.nvml import Accelerator
from pytest_mnode.spec.quantity import RATE, SIZE

V = TypeVar("V", bound=Hashable)
_RATED_BY: dict[str, str] = {
    "ethernet": "Of one NIC: the speed its driver shows, or what an emulated link is shaped to",
    "infiniband": "Of one NIC: the rate of its port, as the link came up",
    "roce": "Of one NIC: the rate of its port, as the link came up",
    "efa": "Of one NIC: the rate of its port, which older drivers give as 100 Gbit/s for any NIC",
}


def accelerators(cluster: Cluster) -> Entry:
    """Number, model and memory of the accelerators of a node, as most nodes show them."""
    count = cluster.fact("accelerators", _count)
    if count.value is None or isinstance(count.value, str):
        cluster.missing.append("accelerators.per_node")
        hint = "; request them with --gpus-per-node" if scheduled(cluster) else ""
        seen = f"{count.value}{hint}. {count.seen}" if count.value else count.seen
        why = f"FILL IN per_node, and uncomment: {seen}."
        return Entry("accelerators", "{per_node: 8}", why, left_out=True, gap=True)
    if not count.value:
        seen = f"None, by NVML or on PCI: {count.seen}. {CONFIRM}."
        return Entry("accelerators", "{per_node: 0}", seen, gap=True)
    children = [Entry("per_node", str(count.value), f"{count.seen}, {_source(cluster)}.")]
    model = cluster.fact("model of accelerators", _model)
    if model.value is None:
        why = f"Left out: {_why_no_model(cluster)}. Use the driver's name of the model:"
        children.append(Entry("model", "NVIDIA H100 80GB HBM3", why, left_out=True))
    else:
        seen = f"{model.seen}, {_source(cluster)}. {CONFIRM}."
        children.append(Entry("model", scalar(model.value), seen))
    memory = cluster.fact(
        "memory of accelerators", _of_all(lambda one: one.memory_bytes), SIZE.text
    )
    if memory.value is not None:
        seen = f"Of each. {memory.seen}, {_source(cluster)}. {CONFIRM}."
        children.append(Entry("memory", SIZE.text(memory.value), seen))
    about = f"{CONFIRM}: number, model and memory of the accelerators of a node."
    return Entry("accelerators", "", about, tuple(children), gap=True)


def _count(machine: Machine) -> int | str | None:
    """Number of accelerators; a text if NVML shows fewer than PCI: either number may be correct.

    A process in a job sees only the job's accelerators; NVML does not show one that fell off the
    bus.
    """
    if "pci" in machine.unread:
        return None
    on_pci = machine.pci.accelerators
    if machine.accelerators is None:
        return len(on_pci)
    shown = len(machine.accelerators)
    of_nvidia = sum(one.is_nvidia and one.physical_function is None for one in on_pci)
    if shown < of_nvidia:
        return f"NVML shows {shown} of {of_nvidia} on PCI"
    return shown or len(on_pci)


def _of_all(read: Callable[[Accelerator], V | None]) -> Callable[[Machine], V | None]:
    """Reader of the value of all accelerators of a node; None if they differ or one is unknown."""

    def of_machine(machine: Machine) -> V | None:
        each = {read(one) for one in machine.accelerators or ()}
        return each.pop() if len(each) == 1 else None

    return of_machine


def _model(machine: Machine) -> str | None:
    """Of all accelerators of a node: by the driver, or else by their numbers on PCI."""
    by_driver = _of_all(lambda one: one.name)(machine)
    on_pci = {one.model for one in machine.pci.accelerators if one.physical_function is None}
    return by_driver or (on_pci.pop() if len(on_pci) == 1 else None)


def _source(cluster: Cluster) -> str:
    machines = [machine_of(node) for node in cluster.nodes]
    if all(one.accelerators for one in machines):
        nvidia = all(f.is_nvidia for one in machines for f in one.pci.accelerators)
        return "by NVML" if nvidia else "by the driver's programs"
    functions = [function for one in machines for function in one.pci.accelerators]
    makers = sorted({one.maker for one in functions})
    return f"on PCI ({', '.join(makers) or 'of unknown make'})"


def _why_no_model(cluster: Cluster) -> str:
    for node in cluster.nodes:
        machine = machine_of(node)
        if not machine.accelerators:
            return f"{node.name}: {machine.unread.get('accelerators', 'NVML shows none')}"
    return "accelerators of a node, or of different nodes, differ"


@dataclass(frozen=True, slots=True)
class Direct:
    """How NICs can access the memory of accelerators."""

    mechanism: Literal["peermem", "dma-buf"]
    seen: str


def gpudirect(cluster: Cluster) -> Direct | None:
    """GPUDirect of most nodes; None if they have none, or a node has no accelerators."""
    machines = [machine_of(node) for node in cluster.nodes]
    if not all(has_accelerators(one) for one in machines):
        return None
    software = [one.software for one in machines]
    if all(one is not None and one.driver_is_open for one in software):
        return Direct("dma-buf", "Seen: all nodes have the open kernel driver, which has dma-buf")
    if all(one is not None and one.peermem for one in software):
        return Direct("peermem", "Seen: the module nvidia_peermem is loaded on all nodes")
    mechanisms = cluster.fact("GPUDirect", _mechanism)
    match mechanisms.value:
        case "peermem" | "dma-buf" as mechanism:
            why = f"By the open driver or the module nvidia_peermem. {mechanisms.seen}"
            return Direct(mechanism, why)
        case _:
            return None


def _mechanism(machine: Machine) -> str | None:
    software = machine.software
    if software is None:
        return None
    return "dma-buf" if software.driver_is_open else "peermem" if software.peermem else "none"


def scheduled(cluster: Cluster) -> bool:
    """Whether Slurm allocates the nodes, as the run or the nodes show."""
    answers = {machine_of(node).scheduler for node in cluster.nodes}
    return cluster.found.launcher == "slurm" or ("slurm" in answers and not cluster.found.emulated)


def fabric(cluster: Cluster) -> Entry:
    """The network that training traffic must use, as most nodes show it."""
    kind = cluster.of_network("fabric", "kind", lambda f: f.kind)
    names = cluster.of_network("fabric", "interfaces", lambda f: f.interfaces, ", ".join)
    rate = cluster.of_network("fabric", "line rate", _rate_bits_s, RATE.text)
    nics = cluster.of_network("fabric", "NICs", lambda f: f.nics)
    mtu = cluster.of_network("fabric", "MTU", lambda f: f.mtu_bytes)
    usual = cluster.usual("fabric")
    no_fabric = _no_fabric_reason(cluster)
    no_rate = no_fabric or "the rate of none of its interfaces is known"
    no_mtu = no_fabric or "its interfaces show no MTU, or several; see active_mtu of ibv_devinfo"
    mtus = "4096" if kind.value in ("infiniband", "efa") else "9000"
    rdma = kind.value not in (None, "ethernet")
    children = [
        cluster.entry(
            *("fabric.kind", kind, str),
            by="By link layer and driver of the RDMA ports" if rdma else "No RDMA port for ranks",
            example="ethernet",
            why_not=no_fabric,
        ),
        cluster.entry(
            *("fabric.interfaces", names, listed),
            by="RDMA devices" if rdma else "Interfaces",
            example="[eth0]",
            why_not=no_fabric,
        ),
        cluster.entry(
            *("fabric.line_rate", rate, RATE.text),
            by=_RATED_BY[kind.value] if kind.value else "",
            example="400 Gbit/s",
            why_not=no_rate,
        ),
        cluster.entry(
            *("fabric.nics_per_node", nics, str),
            by="Ports that are ACTIVE" if rdma else "Interfaces that are up",
            example="1",
            why_not=no_fabric,
        ),
        cluster.entry(
            *("fabric.mtu", mtu, str),
            by="Of the interfaces, or else of the RDMA ports",
            example=mtus,
            why_not=no_mtu,
        ),
    ]
    direct = gpudirect(cluster) if rdma else None
    if direct is not None:
        children.append(Entry("gpudirect", "true", f"{direct.seen}. {CONFIRM}."))
    about = "The network that training traffic must use."
    if usual:
        about += f" Chosen: {usual.why}."
        about += f" Not chosen: {'; '.join(usual.not_chosen)}." if usual.not_chosen else ""
    return Entry("fabric", "", about, tuple(children), gap=True)


def _rate_bits_s(network: FoundNetwork) -> int | None:
    return None if network.rate_mbits_s is None else round(network.rate_mbits_s * 1e6)


def _no_fabric_reason(cluster: Cluster) -> str:
    """Reason why no node shows a fabric; "" if a node shows one."""
    if any(found.fabric for found in cluster.networks.values()):
        return ""
    name, found = next(iter(cluster.networks.items()))
    return f"no interface looks like a link to other nodes; {name}: {found.no_fabric}"


def management(cluster: Cluster) -> Entry:
    """The network for all other traffic, as most nodes show it; left out if unknown."""
    names = cluster.of_network("management", "interfaces", lambda m: m.interfaces, ", ".join)
    rate = cluster.of_network("management", "line rate", _rate_bits_s, RATE.text)
    mtu = cluster.of_network("management", "MTU", lambda m: m.mtu_bytes)
    if names.value is None or rate.value is None:
        reasons = {found.no_management for found in cluster.networks.values()} - {""}
        why = names.differences or rate.differences or "; ".join(sorted(reasons))
        form = "{interfaces: [eth0], line_rate: 25 Gbit/s, mtu: 1500}"
        return Entry("management", form, f"Left out: {why}.", left_out=True, gap=True)
    children = [
        Entry("interfaces", listed(names.value), f"Interfaces. {names.seen}. {CONFIRM}."),
        Entry(
            "line_rate", RATE.text(rate.value), f"{_RATED_BY['ethernet']}. {rate.seen}. {CONFIRM}."
        ),
    ]
    if mtu.value is not None:
        children.append(Entry("mtu", str(mtu.value), f"{mtu.seen}. {CONFIRM}."))
    about = "The network for everything else: the interface by whose address nodes are reached."
    return Entry("management", "", about, tuple(children), gap=True)
