"""Page entries for accelerators, the fabric and the management network; and the profile that
describes nodes, with what a page that extends it need not say again. Pure, but for reading the
profiles."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeVar

import yaml

from pytest_mnode.discover import bounds
from pytest_mnode.discover.cluster import CONFIRM, Cluster
from pytest_mnode.discover.networks import has_accelerators
from pytest_mnode.discover.nodes import FoundNetwork, machine_of
from pytest_mnode.discover.page import Entry, listed, scalar
from pytest_mnode.machine.dmi import Dmi
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.nvml import Accelerator
from pytest_mnode.spec import Spec, profile_spec
from pytest_mnode.spec.profiles import NODE_TYPES, find_profile, profile_names
from pytest_mnode.spec.quantity import RATE, SIZE, bits_per_s, size_bytes

V = TypeVar("V", bound=Hashable)
_RATED_BY: dict[str, str] = {
    "ethernet": "Of one NIC: the speed its driver shows, or what an emulated link is shaped to",
    **dict.fromkeys(
        ("infiniband", "roce"), "Of one NIC: the rate of its port, as the link came up"
    ),
    "efa": "Of one NIC: the rate of its port, which older drivers give as 100 Gbit/s for any NIC",
    "cxi": "Of one NIC: the speed its driver shows",
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


def scheduled(cluster: Cluster) -> str:
    """Kind of the scheduler that allocates the nodes, as the run or the nodes show; "" if none."""
    used = cluster.found.scheduler.get("kind", "")
    answers = () if cluster.found.emulated else (machine_of(n).scheduler for n in cluster.nodes)
    return used or next(filter(None, answers), "")


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
    rdma = kind.value in _RDMA
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


_CLOUDS = {
    "Amazon EC2": ("p4", "p5", "p6"),
    "Google": ("a3-", "a4"),
    "Microsoft Corporation": ("nd-",),
    "OracleCloud.com": ("oci-",),
}
"""How a cloud's profiles begin, by its vendor or asset tag in SMBIOS."""
_RDMA = ("infiniband", "roce", "efa")
_FORM = re.compile(r"[- ](\d+GB|HBM3e?|SXM\d?|AC|OAM|VF)\b")
_MEMORY_SHARE = 0.1
"""[choice] By how much memory that a driver shows differs from what is sold: ECC, GB and GiB."""


@dataclass(frozen=True, slots=True)
class Platform:
    """A profile that describes the nodes. why: what they have in common."""

    name: str
    spec: Spec
    why: str


def platform_of(accelerators: Entry, fabric: Entry, firmware: Dmi | None) -> Platform | None:
    """The profile with the nodes' GPUs and NICs, of their cloud if firmware names it; else None.

    accelerators, fabric: entries of a page, of what most nodes show.
    """
    gpus, nics = _seen(accelerators), _seen(fabric)
    firmware = firmware or Dmi()
    if not gpus.get("model"):
        return None
    specs = {name: profile_spec(name) for name in profile_names()}
    fitting = [name for name, spec in specs.items() if _fits(spec, gpus, nics)]
    clouds = {of for of in _CLOUDS if of in (firmware.vendor, firmware.asset_tag)}
    ours = tuple(start for of in clouds for start in _CLOUDS[of])
    others = tuple(start for starts in _CLOUDS.values() for start in starts)
    instance = find_profile(firmware.product or "")
    # Interfaces tell virtual NICs of one cloud from any other Ethernet only with that cloud's name.
    general = [n for n in fitting if not n.startswith(others) and specs[n].fabric.protocol]
    candidates = [name for name in fitting if ours and name.startswith(ours)] or general
    if instance is not None and instance.stem in fitting:
        candidates = [instance.stem]
    found = [f"{gpus['per_node']} {gpus['model']}"]
    if not candidates:
        return _by_node_type(gpus, str(nics.get("kind")), found)

    def unlike(name: str) -> tuple[bool, bool, str]:
        patterns = specs[name].fabric.interfaces
        names = nics.get("interfaces", ())
        named = all(any(fnmatchcase(one, pattern) for pattern in patterns) for one in names)
        return (specs[name].accelerators.model != gpus["model"], not named, name)

    name = min(candidates, key=unlike)
    found.append(f"{nics['nics_per_node']} NICs ({nics['kind']})")
    found += sorted(clouds) + ([str(firmware.product)] if instance is not None else [])
    return Platform(name, specs[name], ", ".join(found))


def _by_node_type(gpus: Mapping[str, Any], kind: str, seen: list[str]) -> Platform | None:
    """The type of node with such GPUs, beside the fabric's part: the page says rate and NICs."""
    for name in NODE_TYPES if kind in _RDMA else ():
        spec = profile_spec(name)
        there = spec.accelerators
        if there.per_node != gpus["per_node"] or _family(there.model) != _family(gpus["model"]):
            continue
        if spec.fabric.kind == kind:
            return Platform(name, spec, ", ".join(seen))
        return Platform(f"[{name}, {kind}]", profile_spec(name, kind), ", ".join((*seen, kind)))
    return None


def _family(model: str | None) -> str:
    """A model without its memory and form."""
    return _FORM.sub("", model or "")


def _seen(entry: Entry) -> dict[str, Any]:
    return {
        child.key: yaml.safe_load(child.value) for child in entry.children if not child.left_out
    }


def _fits(spec: Spec, gpus: Mapping[str, Any], nics: Mapping[str, Any]) -> bool:
    kind = spec.fabric.kind if spec.fabric.protocol else "ethernet"
    rate = nics.get("line_rate")
    return (
        (_family(gpus.get("model")), gpus.get("per_node"))
        == (_family(spec.accelerators.model), spec.accelerators.per_node)
        and (nics.get("kind"), nics.get("nics_per_node")) == (kind, spec.fabric.nics_per_node)
        and (rate is None or _has_rate(spec, rate))
    )


def _has_rate(spec: Spec, rate: str) -> bool:
    """Older drivers of EFA give 100 Gbit/s whatever the NIC."""
    old = 100 * 10**9 if spec.fabric.kind == "efa" else 0
    return bits_per_s(rate) in (spec.fabric.line_rate_bits_s, old)


def extending(
    platform: Platform, hardware: Sequence[Entry], machine: bounds.Machine | None
) -> tuple[Entry, ...]:
    """The line that extends the profile, what of the hardware differs from it, and what these nodes
    cannot show of its criteria. hardware: the entries of accelerators and fabric."""
    page = platform.spec.model_dump(mode="json", by_alias=True)
    same: list[str] = []
    differing = []
    for entry in hardware:
        kept = []
        for child in entry.children:
            known = page[entry.key].get(child.key)
            if known is None or not (child.left_out or _equal(child, known, platform.spec)):
                kept.append(child)
            else:
                lacking = "not seen" if child.left_out else child.value
                same.append(f"{entry.key}.{child.key} {lacking}")
        if kept:
            differing.append(replace(entry, children=tuple(kept)))
    about = (
        f"Recognised by {platform.why}. Bounds and their sources are this profile's. It says what "
        f"most nodes show: {'; '.join(same)}. {CONFIRM}. What follows differs, or is the site's."
    )
    extends = Entry("extends", platform.name, about, gap=True)
    nulls = tuple(_removed(platform.spec, machine))
    return (extends, *differing, *([Entry("criteria", "", "", nulls, gap=True)] if nulls else []))


def _equal(child: Entry, known: Any, spec: Spec) -> bool:
    if child.key == "memory":
        return bool(abs(size_bytes(child.value) / known - 1) <= _MEMORY_SHARE)
    if child.key == "line_rate":
        return _has_rate(spec, child.value)
    if child.key == "kind":
        return True  # what carries virtual NICs' traffic is the profile's to say
    return bool(yaml.safe_load(child.value) == known)


def _removed(spec: Spec, machine: bounds.Machine | None) -> Iterator[Entry]:
    """Promises of a profile that these nodes could not be held to."""
    preflight, lacking = spec.criteria.preflight, []
    if machine is not None and preflight is not None:
        lacking = [
            Entry(key, "null", f"Left out: {why}.")
            for key, there, why in (
                ("accelerators", machine.nvml, "the driver's library does not answer on all nodes"),
                ("kernel_log", machine.kernel_log, "not all nodes let this user read the log"),
                ("pcie", machine.pcie_links, "not all nodes show their links"),
            )
            if not there and getattr(preflight, key, None) is not None
        ]
    if lacking:
        yield Entry("preflight", "", "", tuple(lacking))
    if machine is not None and spec.criteria.numa is not None and bounds.numa(machine) is None:
        yield Entry("numa", "null", "Left out: the NUMA node of an accelerator is not known.")
    why = "Left out until storage.checkpoints is named: then delete this line."
    yield Entry("restart", "null", why)
