"""Entries of the fabric and of the management network. Pure."""

from __future__ import annotations

from pytest_mnode.discover.cluster import CONFIRM, Cluster
from pytest_mnode.discover.devices import gpudirect
from pytest_mnode.discover.facts import NetworkSeen
from pytest_mnode.discover.page import Entry, listed
from pytest_mnode.spec.quantity import RATE

_RATED_BY: dict[str, str] = {
    "ethernet": "Of one NIC: the speed its driver tells, or what an emulated link is shaped to",
    "infiniband": "Of one NIC: the rate of its port, as the link came up",
    "roce": "Of one NIC: the rate of its port, as the link came up",
    "efa": "Of one NIC: the rate of its port, which older drivers give as 100 Gbit/s for any NIC",
}


def fabric(cluster: Cluster) -> Entry:
    """The network that training traffic must use, as most nodes show it."""
    kind = cluster.of_network("fabric", "kind", lambda f: f.kind)
    names = cluster.of_network("fabric", "interfaces", lambda f: f.interfaces, ", ".join)
    rate = cluster.of_network("fabric", "line rate", _rate_bits_s, RATE.text)
    nics = cluster.of_network("fabric", "NICs", lambda f: f.nics)
    mtu = cluster.of_network("fabric", "MTU", lambda f: f.mtu_bytes)
    usual = cluster.usual("fabric")
    nothing = _nothing(cluster)
    tells_none = nothing or "no interface of it tells its rate"
    no_mtu = nothing or "no interface of it tells one, or several do; see active_mtu of ibv_devinfo"
    mtus = "4096" if kind.value in ("infiniband", "efa") else "9000"
    rdma = kind.value not in (None, "ethernet")
    children = [
        cluster.entry(
            *("fabric.kind", kind, str),
            by="By link layer and driver of the RDMA ports" if rdma else "No RDMA port for ranks",
            example="ethernet",
            why_not=nothing,
        ),
        cluster.entry(
            *("fabric.interfaces", names, listed),
            by="RDMA devices" if rdma else "Interfaces",
            example="[eth0]",
            why_not=nothing,
        ),
        cluster.entry(
            *("fabric.line_rate", rate, RATE.text),
            by=_RATED_BY[kind.value] if kind.value else "",
            example="400 Gbit/s",
            why_not=tells_none,
        ),
        cluster.entry(
            *("fabric.nics_per_node", nics, str),
            by="Ports that are ACTIVE" if rdma else "Interfaces that are up",
            example="1",
            why_not=nothing,
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
    about = "The network that training traffic must use"
    about += f": taken for it are {usual.why}." if usual else "."
    if usual and usual.aside:
        about += f" Taken for no part of it: {'; '.join(usual.aside)}."
    return Entry("fabric", "", about, tuple(children), gap=True)


def _rate_bits_s(network: NetworkSeen) -> int | None:
    return None if network.rate_mbits_s is None else round(network.rate_mbits_s * 1e6)


def _nothing(cluster: Cluster) -> str:
    """Why no node shows a fabric; "" where one does."""
    if any(found.fabric for found in cluster.networks.values()):
        return ""
    name, found = next(iter(cluster.networks.items()))
    return f"no interface looks like a link to other nodes; {name}: {found.no_fabric}"


def management(cluster: Cluster) -> Entry:
    """The network for everything else, as most nodes show it; left out where not told."""
    names = cluster.of_network("management", "interfaces", lambda m: m.interfaces, ", ".join)
    rate = cluster.of_network("management", "line rate", _rate_bits_s, RATE.text)
    mtu = cluster.of_network("management", "MTU", lambda m: m.mtu_bytes)
    if names.value is None or rate.value is None:
        reasons = {found.no_management for found in cluster.networks.values()} - {""}
        why = names.found.differences or rate.found.differences or "; ".join(sorted(reasons))
        form = "{interfaces: [eth0], line_rate: 25 Gbit/s, mtu: 1500}"
        return Entry("management", form, f"Left out: {why}.", left_out=True, gap=True)
    children = [
        Entry("interfaces", listed(names.value), f"Interfaces. {names.seen}. {CONFIRM}."),
        Entry(
            "line_rate",
            RATE.text(rate.value),
            f"{_RATED_BY['ethernet']}. {rate.seen}. {CONFIRM}.",
        ),
    ]
    if mtu.value is not None:
        children.append(Entry("mtu", str(mtu.value), f"{mtu.seen}. {CONFIRM}."))
    about = "The network for everything else: the interface by whose address nodes are reached."
    return Entry("management", "", about, tuple(children), gap=True)
