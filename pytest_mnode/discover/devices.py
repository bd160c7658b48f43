"""The entry of accelerators, and what else nodes say of them. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pytest_mnode.discover.around import scheduled
from pytest_mnode.discover.cluster import CONFIRM, Cluster, look_of
from pytest_mnode.discover.facts import Accelerators, NodeLook
from pytest_mnode.discover.page import Entry, scalar
from pytest_mnode.spec.quantity import SIZE


def accelerators(cluster: Cluster) -> Entry:
    """How many of which kind each node has, as most nodes show it."""
    count = cluster.of("accelerators", _count)
    if count.value is None or isinstance(count.value, str):
        cluster.missing.append("accelerators.per_node")
        hint = "; ask for them with --gpus-per-node" if scheduled(cluster) else ""
        seen = f"{count.value}{hint}. {count.seen}" if count.value else count.seen
        why = f"FILL IN per_node, and uncomment: {seen}."
        return Entry("accelerators", "{per_node: 8}", why, left_out=True, gap=True)
    if not count.value:
        seen = f"None, by NVML or on PCI: {count.seen}. {CONFIRM}."
        return Entry("accelerators", "{per_node: 0}", seen, gap=True)
    children = [Entry("per_node", str(count.value), f"{count.seen}, {_told_by(cluster)}.")]
    model = cluster.of("model of accelerators", _of_all("models"))
    if model.value is None:
        why = f"Left out: {_why_mute(cluster)}. As the driver names it:"
        children.append(Entry("model", "NVIDIA H100 80GB HBM3", why, left_out=True))
    else:
        children.append(Entry("model", scalar(model.value), f"{model.seen}, by NVML. {CONFIRM}."))
    memory = cluster.of("memory of accelerators", _of_all("memory_bytes"), SIZE.text)
    if memory.value is not None:
        seen = f"Of each. {memory.seen}, by NVML. {CONFIRM}."
        children.append(Entry("memory", SIZE.text(memory.value), seen))
    about = f"{CONFIRM}: number, model and memory of the accelerators of a node."
    return Entry("accelerators", "", about, tuple(children), gap=True)


def told_of(cluster: Cluster) -> list[Accelerators]:
    """What nodes say of accelerators, of those nodes that do."""
    return [told for node in cluster.nodes if (told := look_of(node).accelerators) is not None]


def _count(look: NodeLook) -> int | str | None:
    """How many; in words where NVML shows fewer than there are, for either number may be meant.

    A process in a job sees those that the job was given; one that fell off its bus nobody sees.
    """
    told = look.accelerators
    if told is None:
        return None
    if told.models is None:
        return told.on_pci
    shown = len(told.models)
    if shown < told.nvidia_on_pci:
        return f"NVML shows {shown} of {told.nvidia_on_pci} on PCI"
    return shown or told.on_pci


def _of_all(name: str) -> Callable[[NodeLook], Any]:
    """What all accelerators of a node have; None where they differ or one does not tell."""

    def read(look: NodeLook) -> Any:
        each = set(getattr(look.accelerators, name, None) or ())
        return each.pop() if len(each) == 1 else None

    return read


def _told_by(cluster: Cluster) -> str:
    told = told_of(cluster)
    if all(one.models for one in told):
        return "by NVML"
    makers = sorted({maker for one in told for maker in one.makers})
    return f"on PCI ({', '.join(makers) or 'of unknown make'})"


def _why_mute(cluster: Cluster) -> str:
    for node in cluster.nodes:
        told = look_of(node).accelerators
        if told is not None and not told.models:
            return f"{node.name}: {told.why or 'NVML shows none'}"
    return "those of a node, or of several, differ"


@dataclass(frozen=True, slots=True)
class Direct:
    """How NICs can reach the memory of accelerators."""

    way: Literal["peermem", "dma-buf"]
    seen: str


def gpudirect(cluster: Cluster) -> Direct | None:
    """None where most nodes have none, or there are no accelerators."""
    told = told_of(cluster)
    if len(told) < len(cluster.nodes) or not all(one.on_pci or one.models for one in told):
        return None
    if all(one.peermem for one in told):
        return Direct("peermem", "Seen: the module nvidia_peermem is loaded on all nodes")
    if all(one.driver_is_open for one in told):
        return Direct("dma-buf", "Seen: all nodes have the open kernel driver, which has dma-buf")
    ways = cluster.of("GPUDirect", _way)
    match ways.value:
        case "peermem" | "dma-buf" as way:
            return Direct(way, f"By the module nvidia_peermem or the open driver. {ways.seen}")
        case _:
            return None


def _way(look: NodeLook) -> str | None:
    told = look.accelerators
    if told is None:
        return None
    return "peermem" if told.peermem else "dma-buf" if told.driver_is_open else "none"
