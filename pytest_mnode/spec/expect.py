"""Expected bus bandwidth of a cluster, by collective and size, and reasons for less. Pure.

The wire allows the line; the model (`alpha_beta`) takes the time of steps from it, and bounds are
fractions of what it gives. The usual range is that of published runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from pytest_mnode.spec.alpha_beta import NVLS_USED, Algorithm, CollectiveModel, Nvls, Platform
from pytest_mnode.spec.bandwidth import BusbwAtLineRate, Collective, line_rate_gbytes_s
from pytest_mnode.spec.fabric import OVER_PCIE_FRACTION, BusbwPromise, usual_promise
from pytest_mnode.spec.models import Spec, wire_allows_fraction

SIZES_BYTES = tuple(1 << power for power in (20, 24, 28, 30, 33))
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")

_NEARLY = 1.05
"""Factor by which a value may exceed its limit because of the clock's resolution."""
_FASTER_THAN_PCIE = 504e9
"""Bits per second of 16 lanes of PCIe of the fifth generation (PCI-SIG)."""
_MOST_REASONS, _AS_LIKELY = 3, math.log(1.25)
"""Reasons are named together if they miss a value by factors that differ by less than 1.25."""


@dataclass(frozen=True, slots=True)
class Usual:
    """The least usual share of what the model gives, and its source."""

    low: float
    source: str


RDMA = Usual(
    0.75,
    "published all-reduces by RDMA: 75 of 100 GB/s (A100, 8×100G RoCE, 2 nodes), 165 to 189 of 200 "
    "(A100, 8×200G), 356 of 400 at 512 MB and 387 to 393 at 8 GB (H100, 8×400G)",
)
TCP = Usual(
    0.6,
    "what TCP leaves of the frames (RFC 9293, IEEE 802.3), and 60 % of it where one connection or "
    "one core is the limit",
)


PCIE = Usual(OVER_PCIE_FRACTION, "published all-reduces of 2 to 8 cards in one node")


@dataclass(frozen=True, slots=True)
class Expected:
    """Bus bandwidth of one size in GB/s. wire: that of a ring at the line rate. low, high: the
    usual range. bound: what the spec promises at least; None where nothing is judged."""

    wire: float
    low: float
    high: float
    bound: float | None = None


@dataclass(frozen=True, slots=True)
class Reason:
    """A possible reason of a value. least, most: share of the line that it leaves."""

    least: float
    most: float
    text: str

    def distance(self, share: float) -> float:
        """0 if it explains this share; else the logarithm of the factor that it is off by."""
        nearest = min(max(share, self.least), self.most)
        return abs(math.log(share / nearest))


def likeliest(known: Iterable[Reason], share: float) -> list[str]:
    """The reasons that explain this share of the line best: at most three, the likeliest first."""
    likely = sorted(known, key=lambda one: one.distance(share))
    far = likely[0].distance(share) + _AS_LIKELY
    return [one.text for one in likely if one.distance(share) <= far][:_MOST_REASONS]


_OF_A_PORT = (
    Reason(
        *(0.905, 0.935),
        "RoCE at an MTU of 1024, as interfaces at 1500 allow, whose headers leave 0.926: jumbo "
        "frames on NICs and switches",
    ),
    Reason(
        *(0.45, 0.55),
        "half of the port: a link or PCIe slot at half its speed: acceptance/test_preflight.py",
    ),
    Reason(
        *(0.22, 0.28),
        "a quarter of the port: a link that came up two speeds lower, or a PCIe slot of a quarter "
        "of its lanes: acceptance/test_preflight.py",
    ),
    Reason(
        *(0.55, 0.9),
        "client or server ran, or had its memory, on the other socket (0.54 to 0.71 of the near "
        "one's rate are published: kubernetes-sigs/dranet, GB200, p4d, H100); one queue pair is "
        "too few (-q 4); or the path is congested",
    ),
    Reason(
        *(0.001, 0.22),
        "not this port, or through the kernel: look at the device and the GID of the run (-d, -x)",
    ),
)


_PUBLISHED = (
    Reason(
        *(0.42, 0.56),
        "GPU and NIC meet over the CPU, as PCIe ACS redirects, the IOMMU translates, or the NIC is "
        "of the other socket: 0.45 to 0.54 (NVIDIA/nccl #2409, kubernetes-sigs/dranet): "
        "acceptance/test_preflight.py",
    ),
    Reason(
        *(0.1, 0.3),
        "a release of NCCL or an algorithm that is slow on this platform: 0.12 to 0.26 "
        "(NVIDIA/nccl #837, #2035): compare NCCL_ALGO=Ring and another release",
    ),
)
"""Reasons on fabrics with RDMA, with the shares that were published."""
_SLOT = Reason(
    *(0.5, 0.6),
    "a NIC of 800 Gbit/s whose data take the CPU's PCIe of the fifth generation, 63 GB/s each way: "
    "0.56 (kubernetes-sigs/dranet, GB300 with NCCL_IB_DATA_DIRECT=0)",
)
_LOSS = Reason(
    *(0.0, 0.1),
    "RoCE that loses packets, for want of PFC or ECN on NICs or switches: 0.01 to 0.1 (NVIDIA/nccl "
    "#378, #1453): acceptance/test_fabric.py -k ports",
)
_MOST_BY_TCP = 4.0
"""GB/s that NCCL's sockets reach where RDMA was meant: 3.0 to 3.8 are published (DGX Spark,
Polaris, CoreWeave)."""
_FEW_CHANNELS = Reason(
    *(0.77, 0.85),
    "few channels or queue pairs on four nodes and more: 0.81, and 0.98 with NCCL_MIN_CTAS=24 and "
    "NCCL_IB_QPS_PER_CONNECTION=2 (NVIDIA/nccl-tests #309)",
)


_INSIDE_USUAL = (0.87, 1.15)
"""Of the model. 64 GB200 and GB300 reach 924 and 930 GB/s at 16 GiB, 1.12 of it (OCI's guides)."""
_INSIDE = (
    Reason(
        *(1.15, 2),
        "more than these links give: accelerators.model or accelerators.domain.bandwidth of the "
        "spec, buffers that ranks share, or bridges of NVLink between cards on PCIe",
    ),
    Reason(
        *(0.72, 0.85),
        "a ring where NVLink's switches would reduce: NCCL_NVLS_ENABLE, NCCL_ALGO, or a fabric "
        "manager that is not ready: acceptance/test_preflight.py",
    ),
    Reason(
        *(0.4, 0.72),
        "NVLinks that are down or narrow (nvidia-smi nvlink -s): acceptance/test_devices.py; or "
        "other work on these accelerators",
    ),
    Reason(
        *(0.02, 0.2),
        "over PCIe or host memory in place of NVLink: NCCL_P2P_DISABLE, PCIe ACS, containers that "
        "do not share IPC",
    ),
)
"""Reasons inside one NVLink domain, with the share of the model that they leave: of 8 H200 a ring
has 366 of 473 GB/s (stas00/ml-engineering)."""


_INSIDE_PCIE = (
    _INSIDE[0],
    Reason(
        *(0.02, 0.55),
        "through host memory in place of PCIe from GPU to GPU: NCCL_P2P_DISABLE, NCCL_P2P_LEVEL, "
        "ACS or the IOMMU; or a slot of fewer lanes (nvidia-smi -q -d PCIE): "
        "acceptance/test_preflight.py",
    ),
)


def must_be_rdma(kind: str) -> str:
    """The setting that makes NCCL fail where it would take sockets instead of this fabric."""
    return "FI_PROVIDER=efa" if kind == "efa" else "NCCL_NET=IB"


def reasons_of_a_port(share: float) -> list[str]:
    """Reasons why perftest measured only this share of a port's line rate."""
    return likeliest(_OF_A_PORT, share)


@dataclass(frozen=True, slots=True)
class Expectation:
    """A collective over `nodes` × `ranks_per_node` ranks of the cluster that a spec describes.

    algorithm: "default" for what the library chooses, or "ring" where it is pinned. Raises
    ValueError for an unknown collective or fewer than two ranks.
    """

    spec: Spec
    collective: str
    nodes: int
    ranks_per_node: int
    algorithm: str = "default"
    nvls: Nvls = NVLS_USED

    @property
    def by_tcp(self) -> bool:
        return self.spec.fabric.kind == "ethernet"

    @property
    def model(self) -> CollectiveModel:
        """The model of its time."""
        backend = "nccl" if self.spec.accelerators.per_node else "gloo"
        shape = (self.collective, self.nodes, self.ranks_per_node, backend)
        return CollectiveModel(Platform.of(self.spec), *shape, nvls=self.nvls)

    @property
    def line(self) -> BusbwAtLineRate:
        return self.model.line

    @property
    def payload_share(self) -> float:
        """Share of the line that headers leave; 1 if the headers are not known."""
        if self.model.domains == 1:
            return 1.0
        return wire_allows_fraction(self.spec)[0]

    @property
    def bridged_gbytes_s(self) -> float:
        """What bridges of NVLink may give in one node of cards on PCIe; 0 without any."""
        nvlink = self.model.platform.nvlink
        return nvlink.bridge_bytes_s / 1e9 if nvlink and self.nodes == 1 else 0.0

    @property
    def usual(self) -> Usual:
        return PCIE if self._over_pcie else TCP if self.by_tcp else RDMA

    @property
    def _over_pcie(self) -> bool:
        """Whether all ranks are in one node of cards on PCIe."""
        nvlink = self.model.platform.nvlink
        return bool(nvlink and nvlink.is_pcie and self.model.domains == 1)

    def of_size(self, size_bytes: int) -> Expected:
        """The expected bus bandwidth of this size."""
        model, wire = self.model, self.line.gbytes_s * self.payload_share
        least = model.least_gbytes_s(self._moves, size_bytes) * self.payload_share
        most = model.busbw_gbytes_s(self._quickest(size_bytes), size_bytes) * self.payload_share
        return Expected(wire, self.usual.low * least, most, self._bound(size_bytes))

    @property
    def _moves(self) -> tuple[Algorithm, ...]:
        return self.model.algorithms(self.algorithm)

    @property
    def _slowest(self) -> Algorithm:
        return Algorithm.DIRECT if Algorithm.DIRECT in self._moves else Algorithm.RING

    def _quickest(self, size_bytes: int) -> Algorithm:
        may = self._moves
        if self.algorithm == "default" and self.collective == Collective.ALL_REDUCE:
            may = (*may, Algorithm.TREE)
        return max(may, key=lambda one: self.model.busbw_gbytes_s(one, size_bytes))

    @property
    def promise(self) -> BusbwPromise | None:
        """The spec's promise of it over nodes."""
        fabric = self.spec.criteria.fabric
        return fabric.busbw(self.collective) if fabric and self.nodes > 1 else None

    @property
    def held_to(self) -> tuple[BusbwPromise | None, str]:
        """What results are held to, and why to nothing: the spec's promise, else what is usual."""
        model, fabric = self.model, self.spec.criteria.fabric
        if (promised := self.promise) is not None:
            return promised, ""
        if self.nodes == 1 and model.platform.nvlink is None:
            return None, (
                f"one node, and the NVLink of {model.platform.accelerator or 'its accelerators'} is"
                " not known: name accelerators.model or accelerators.domain.bandwidth in the spec"
            )
        if (
            self.collective == "all_to_all"
            and model.domains > 1
            and model.platform.domain_nodes > 1
        ):
            return None, (
                "published all-to-alls between NVLink domains of several nodes reach 0.4 to 0.94 of"
                " the NICs' rate: promise criteria.fabric.all_to_all_busbw in the spec"
            )
        all_reduce = fabric.all_reduce_busbw if fabric else None
        inside = model.platform.nvlink if self.nodes == 1 else None
        return usual_promise(self.collective, all_reduce, inside), ""

    def _bound(self, size_bytes: int) -> float | None:
        promise, _ = self.held_to
        if promise is None or size_bytes < promise.judged_from_bytes(self.model):
            return None
        return promise.bound_gbytes_s(self.model, self._moves, size_bytes).accepted[0]

    def is_usual(self, size_bytes: int, busbw_gbytes_s: float) -> bool:
        """Whether the value is in the usual range, or little above it."""
        of = self.of_size(size_bytes)
        inside = self.model.domains == 1
        most = _INSIDE_USUAL[1] * of.high if inside else _NEARLY * max(of.high, of.wire)
        return of.low <= busbw_gbytes_s <= most

    def reasons(self, size_bytes: int, busbw_gbytes_s: float) -> list[str]:
        """Reasons why the value is so low, or so high: the likeliest first."""
        line = self.line.gbytes_s * self.payload_share
        least = self.model.least_gbytes_s(self._moves, size_bytes) * self.payload_share
        expected, share = self.of_size(size_bytes), busbw_gbytes_s / max(line, least)
        if self.model.domains == 1:
            of_the_model = busbw_gbytes_s / max(least, min(busbw_gbytes_s, expected.high))
            usual = _INSIDE_USUAL[0] <= of_the_model <= _INSIDE_USUAL[1]
            found = [f"usual: {of_the_model:.0%} of the model"] if usual else []
            # Two nodes pass the line of their NICs by up to 1.7 (B200).
            if self.nodes > 1 and busbw_gbytes_s <= 1.75 * line_rate_gbytes_s(self.spec.fabric):
                found.append(
                    "over the NICs in place of NVLink between the nodes: NCCL_MNNVL_ENABLE, IMEX, "
                    "or nodes of several domains: acceptance/test_preflight.py"
                )
            return found or likeliest(_INSIDE_PCIE if self._over_pcie else _INSIDE, of_the_model)
        if busbw_gbytes_s >= (expected.bound or 0) and self.is_usual(size_bytes, busbw_gbytes_s):
            return [f"usual: {share:.0%} of the wire"]
        if busbw_gbytes_s > max(line, least):
            return [self._too_much(busbw_gbytes_s / line)]
        return likeliest(self._known(size_bytes), share)

    def _too_much(self, share: float) -> str:
        ranks = self.nodes * self.ranks_per_node
        in_network = 2 * (ranks - 1) / ranks
        inside = in_network / (2 * (self.nodes - 1) / self.nodes)
        pinned = "pin NCCL_ALGO=RING to judge the wire"
        reduces = self.collective == Collective.ALL_REDUCE
        if reduces and self.ranks_per_node > 1 and share <= _NEARLY * inside:
            return (
                f"{share:.0%} of one ring: ranks reduce inside nodes first, which allows "
                f"{inside:.0%} (bandwidth.hierarchical_node_bytes); {pinned}"
            )
        if reduces and not self.by_tcp and share <= _NEARLY * in_network:
            return (
                f"{share:.0%} of one ring: switches reduce (SHARP), which allows "
                f"{in_network:.0%} (bandwidth.in_network_node_bytes); {pinned}. Without such "
                "switches the spec's line_rate or nics_per_node is too low"
            )
        return (
            f"{share:.0%} of the wire: the spec's line_rate or nics_per_node is too low, or the "
            "bytes did not go over the fabric: acceptance/test_fabric.py -k traffic"
        )

    def _known(self, size_bytes: int) -> list[Reason]:
        """Known reasons for slow collectives, each with the share of the wire that it leaves."""
        fabric, management = self.spec.fabric, self.spec.management
        ring = self.model.busbw_gbytes_s(self._slowest, size_bytes) / self.line.gbytes_s
        found = [
            Reason(
                *(0.45, 0.55),
                "half of the wire: a link or PCIe slot at half its speed, two flows hashed to one "
                "link, or bytes staged through host memory because GPUDirect is off: "
                "acceptance/test_fabric.py with --mnode-locate, acceptance/test_preflight.py",
            ),
            Reason(
                *(0.22, 0.28),
                "a quarter of the wire: a link that came up two speeds lower, or a PCIe slot of a "
                "quarter of its lanes: acceptance/test_preflight.py",
            ),
            Reason(
                *(0.55, 0.9),
                "a slow node, or congestion: a collective is as fast as its slowest path: "
                "acceptance/test_fabric.py names it; beside RoCE look at PFC and ECN counters",
            ),
        ]
        if ring < 0.95:
            found.append(
                Reason(
                    *(0.7 * ring, 1.3 * ring),
                    f"too small a size: the steps of a {self._slowest} "
                    f"({sum(self.model.steps(self._slowest)):g}) leave {ring:.0%}; measure larger "
                    "ones",
                )
            )
        if fabric.nics_per_node > 1:
            left = (fabric.nics_per_node - 1) / fabric.nics_per_node
            found.append(
                Reason(
                    *(0.97 * left, 1.01 * left),
                    f"one of {fabric.nics_per_node} NICs carries nothing, which leaves {left:.0%}: "
                    "NCCL_IB_HCA, or a port that is down: acceptance/test_preflight.py",
                )
            )
            if ring > 0.5:
                found.append(
                    Reason(
                        *(0.4 / fabric.nics_per_node, 1.02 / fabric.nics_per_node),
                        f"one of {fabric.nics_per_node} NICs carries all bytes, in full or by "
                        "half: NCCL_IB_HCA, or NCCL sees no topology (NCCL_TOPO_FILE in a virtual "
                        "machine)",
                    )
                )
        if not self.by_tcp:
            found.append(
                Reason(
                    *(0.0, max(0.02, min(_MOST_BY_TCP / self.line.gbytes_s, 0.4))),
                    "silent TCP: NCCL found no RDMA and took sockets, about 3 GB/s of 400: "
                    f"{must_be_rdma(fabric.kind)} makes it an error; acceptance/test_fabric.py -k "
                    "traffic proves it",
                )
            )
            found += _PUBLISHED
            if fabric.kind == "roce":
                found.append(_LOSS)
            if fabric.line_rate_bits_s >= _FASTER_THAN_PCIE:
                found.insert(0, _SLOT)
            if self.nodes >= 4:
                found.append(_FEW_CHANNELS)
        if management is not None and management.line_rate_bits_s:
            share = management.line_rate_bits_s / 8e9 / self.line.gbytes_s
            found.append(
                Reason(
                    *(0.5 * share, share),
                    f"over the management network, which leaves {share:.1%} at most: "
                    "NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME; acceptance/test_fabric.py -k traffic",
                )
            )
        return found
