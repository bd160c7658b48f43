"""The time of one call of a collective by a given algorithm: t = steps × α + moved / line. Pure.

Bounds, `expect`, `judge` and the virtual cluster all use it. moved is bus factor × size, so that
busbw = moved / t tends to the line; α depends on where a step goes: inside an NVLink domain, or
between domains over the fabric (Hockney, Parallel Computing 20, 1994; Thakur et al., IJHPCA 19,
2005). A domain is a node unless the spec says otherwise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pytest_mnode.measurement import Bound, Term
from pytest_mnode.spec.bandwidth import (
    BusbwAtLineRate,
    Collective,
    bus_factor,
    busbw_at_line_rate,
    line_rate_gbytes_s,
)
from pytest_mnode.spec.quantity import BYTE_RATE

if TYPE_CHECKING:
    from pytest_mnode.spec.inventory import Inventory

KNEE = 0.95
"""Share of its line that a ring reaches at the knee, where judged sizes begin if the spec does not
say. [choice] There a bound of 0.9 of the model is still kept if α is three times the model's, as
that of one A100 and of one GH200 cluster is at smaller sizes."""
FEW = 2
"""Domains up to which NCCL's default surely is a tree where switches of NVLink reduce: over two
domains each byte crosses the NICs once, over three 1.5 times, from four on twice, as in a ring.
Published 2-node runs on Hopper and Blackwell all exceed one ring (1.08 to 1.71 of its line), runs
of 4 nodes none (0.78 to 0.92)."""


@dataclass(frozen=True, slots=True)
class Nvls:
    """Whether NCCL lets the switches of NVLink reduce, where there are any.

    used: None if nothing says it. why: what says it, or what would.
    """

    used: bool | None
    why: str = ""


NVLS_USED = Nvls(used=True)


class Algorithm(StrEnum):
    """How a collective moves its data."""

    RING = "ring"
    TREE = "tree"
    """A double binary tree over domains (Sanders, Speck and Träff 2009), a chain inside them."""
    HIERARCHICAL = "hierarchical"
    """Reduced inside each domain first, then a ring of each place over the domains."""
    NVLS = "nvls"
    """Switches of NVLink reduce inside a domain, and a double tree joins the domains."""
    IN_NETWORK = "in-network"
    """Switches of the fabric reduce too (SHARP)."""
    DIRECT = "direct"
    """From each rank to each that it sends to."""
    RAILS = "rails"
    """From each rank to that of its place on the next node, so that all ranks share the NICs."""


DIRECT = frozenset({Collective.ALL_TO_ALL, Collective.SEND_RECV})
"""Collectives that have no algorithm to choose: each rank sends to those it has data for."""
_STEPPED = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER)


@dataclass(frozen=True, slots=True)
class Alpha:
    """Seconds of a call's start, of a step inside a domain, and of one between domains."""

    start_s: float
    inside_s: float
    between_s: float
    source: str


_START_S = 8.4e-6
_BY_RELEASE = (
    ((2, 18), 3.4e-6, 14e-6),
    ((2, 14), 3.4e-6, 9.6e-6),
    ((2, 12), 3.4e-6, 28e-6),
    ((2, 7), 3.4e-6, 9.6e-6),
    ((0, 0), 5.7e-6, 6.6e-6),
)
"""First release of NCCL, and what its own model of costs takes for a step of a ring by NVLink and
by the network, with the protocol Simple. Source: NCCL, tuning.cc of 2.5.6 to 2.30.7, baseLat and
hwLat."""
RELEASES_EQUAL_SINCE = (2, 18)
"""Release from which on all have the same, which is also what one that is not known has."""
SLOW_BELOW_KNEE = 2.0
"""[choice] Factor of α that bounds below the knee allow, where steps take more than 0.05 of the
time: 20 racks of GB200 have 1.9 times the model's at 8 GiB, 128 nodes of H100 1.3 at 1 GiB."""
SLOW_STEPS = 5.0
"""[choice] Factor of the model's steps above which those of a night are a finding of their own:
published clusters have up to three times the model's."""


def nccl_alpha(release: tuple[int, int] | None) -> Alpha:
    """α of a release of NCCL by its own model; that of the newest if it is not known."""
    known = release or RELEASES_EQUAL_SINCE
    first, inside_s, between_s = next(one for one in _BY_RELEASE if known >= one[0])
    shown = "2.18 to 2.30" if first == RELEASES_EQUAL_SINCE else ".".join(map(str, known))
    return Alpha(
        *(_START_S, inside_s, between_s),
        f"NCCL {shown}, tuning.cc, ring and Simple: {_START_S * 1e6:g} µs, {inside_s * 1e6:g} µs by"
        f" NVLink, {between_s * 1e6:g} µs by the network",
    )


_AMD_INSIDE_S = 9e-6
"""rccl-tests over 2 × 8 MI300X take 0.28 ms more than their bytes at 0.25 to 1 GiB, in 30 steps
(public all_reduce tables of ROCm 6.4)."""
_EFA_MORE_S = 18e-6
"""A small all_reduce over 2 nodes, two steps between them: 65 µs by EFA and 30 by InfiniBand
(nccl-tests on 2 × 8 H100, awslabs and NVIDIA/nccl-tests #309)."""
_TCPXO_MORE_S = 30e-6
"""A small all_gather over 2 nodes of 8 H100 or H200, one step between them: 85 µs by TCPXO on
a3-mega, 54 by RoCE on a3-ultra (GoogleCloudPlatform/cluster-toolkit)."""
_SOCKETS_S = 50e-6
"""[choice] TCP from process to process through two kernels."""
_LEAST_FOR_NVLS, _WHOLE_NVLS = 5, 8
"""Ranks of a domain for which NVLS is expected, and those from which it has its full busbw: of 4
H100 a ring is as fast; of 5 to 8 the algbw of NVLS stays the same (NVIDIA/nccl #1455)."""
_NVLS_INSIDE_S, _NVLS_CHUNK_BYTES = 25e-6, 16 * (128 << 10)
"""NCCL's tuning.cc: 25 µs inside. Of each rank it moves 128 KiB in each of 16 channels at a time,
which are reduced and spread, and between these sent up and down where there are several domains, so
that two or four such chunks pass before the last ends: 8 H100 need 0.12 to 0.16 ms more than their
bytes (NVIDIA/nccl-tests #290), 2 × 8 0.21 ms (#309), 72 GB200 0.6 ms, and two racks of them 1.0 to
1.3 ms (coreweave/nccl-tests)."""


@dataclass(frozen=True, slots=True)
class NvLink:
    """The network inside a domain, of one kind of accelerator, by their number on a node and the
    driver's name of the model.

    bytes_s: of one accelerator in each direction. ring: share of it that a ring inside one domain
    reaches. nvls: share that all_reduce reaches where switches reduce; None where they do not.
    links: to that many others, of which fewer ranks use fewer, and one that sends to one other uses
    one; None where switches join them. bridge_bytes_s: of NVLink bridges, which cards on PCIe may
    have between two or four of them.
    """

    names: str
    bytes_s: float
    ring: float
    nvls: float | None
    links: int | None = None
    bridge_bytes_s: float = 0.0

    @property
    def is_pcie(self) -> bool:
        """Whether it is PCIe, which a ring over nodes shares with the NICs."""
        return self.bytes_s <= _PCIE_BYTES_S


_PCIE_BYTES_S = 63e9
"""16 lanes of the fifth generation, each way (PCI-SIG)."""
_NVLINKS = (
    # NVIDIA's data sheets: 900 GB/s in both directions. One node of 8: ring 365 to 369 GB/s, NVLS
    # 480 (nccl-tests #309, stas00/ml-engineering). PCIe and NVL cards have no switch.
    NvLink(r"\b(H100 80GB HBM3|H100 SXM|H200(?! NVL)|H20)\b", 450e9, 0.82, 1.066),
    NvLink(r"\bH800\b(?!.*PCIe)", 200e9, 0.82, 1.066),
    # 1,800 GB/s in both directions. Ring 677 to 682 GB/s, NVLS 835 to 846, 72 of a rack 835.
    NvLink(r"\bG?B[23]00\b", 900e9, 0.755, 0.93),
    # 600 GB/s in both directions. 230 to 235 GB/s in one node; 200 to 205 of four without switches
    # (ALCF's Polaris).
    NvLink(r"^4 .*\bA100.SXM", 300e9, 0.68, None),
    NvLink(r"\bA100.SXM", 300e9, 0.78, None),
    # The same with 400 and 300 GB/s. 135 GB/s in one node of V100 (a tutorial on Oracle's cloud).
    NvLink(r"\bA800.SXM", 200e9, 0.78, None),
    NvLink(r"\bV100.SXM", 150e9, 0.87, None),
    # AMD's data sheets: 7 links of 64 GB/s, or of 76.8. 313 to 318 GB/s in one node, or 407.
    NvLink(r"\bMI3(00|08|25)X", 448e9, 0.7, None, 7),
    NvLink(r"\bMI35[05]X", 537.6e9, 0.75, None, 7),
    # PCIe of 16 lanes, in place of NVLink: 31.5 GB/s each way of the fourth generation, 63 of the
    # fifth (PCI-SIG). 34 to 47 of 63 GB/s of RTX PRO 6000 and 6000D over two nodes with faster NICs
    # (oracle-quickstart/oci-hpc-oke and a report on ConnectX-8), 22 to 33 of RTX 5090 by CPU
    # (NVIDIA/nccl-tests #332), which the share allows less a fifth. Bridges of NVLink by NVIDIA's
    # data sheets: 68.7 of 8 H200 NVL in one node, 115 of 2 H100 PCIe (NVIDIA/nccl-tests #194).
    NvLink(r"\b(RTX (PRO \d|6000D|50\d0)|H20 PCIe)", _PCIE_BYTES_S, 0.6, None),
    NvLink(r"\bH[12]00 (PCIe|NVL)", _PCIE_BYTES_S, 0.6, None, None, 450e9),
    NvLink(r"\b(A30|A40|RTX A\d000|RTX 3090)\b|\bA[18]00.*PCI[Ee]", 31.5e9, 0.6, None, None, 300e9),
    NvLink(r"\b(L40S?|L4|L20|A10G?|A16|RTX \w+)\b", 31.5e9, 0.6, None),
    # The same of the third generation, 15.75 GB/s: 9.4 of 4 V100 in one node (a university's guide
    # to its cluster), 9.2 over two nodes with a NIC of 12.5 GB/s (NVIDIA/nccl #371).
    NvLink(r"\b(V100|P100)-PCI[Ee]\b|\b(T4|P4|P40)\b", 15.75e9, 0.6, None),
)
_UNKNOWN_RING = 0.7
"""Share of the domain's bandwidth that a ring inside reaches: the least of the known ones."""


@dataclass(frozen=True, slots=True)
class Platform:
    """What the model needs to know of a cluster, by the spec's keys.

    accelerator: the model's name, "" if not said. domain_gpus, domain_bytes_s: None if not said.
    nccl: major and minor of the release that ran; None if not known, as before a run.
    steps_take: factor of α, for a bound that allows slower steps.
    """

    kind: str
    line_rate_bits_s: int
    nics_per_node: int
    per_node: int
    accelerator: str = ""
    domain_gpus: int | None = None
    domain_bytes_s: float | None = None
    nccl: tuple[int, int] | None = None
    steps_take: float = 1.0

    @classmethod
    def of(cls, spec: Inventory) -> Platform:
        """That of a spec."""
        fabric, accelerators = spec.fabric, spec.accelerators
        domain = accelerators.domain
        return cls(
            *(fabric.kind, fabric.line_rate_bits_s, fabric.nics_per_node, accelerators.per_node),
            *(accelerators.model or "", domain.gpus if domain else None),
            domain.bandwidth_bytes_s if domain else None,
        )

    @classmethod
    def of_leaves(cls, leaves: Mapping[str, Any]) -> Platform | None:
        """That of a certificate's spec, by dotted key; None if a key is missing."""
        if any(leaves.get(key) is None for key in _KEYS):
            return None
        kind, line_rate_bits_s, nics, per_node = (leaves[key] for key in _KEYS)
        gpus, bytes_s = (leaves.get(f"accelerators.domain.{key}") for key in ("gpus", "bandwidth"))
        model = leaves.get("accelerators.model") or ""
        return cls(kind, line_rate_bits_s, nics, per_node, model, gpus, bytes_s)

    @property
    def domain_nodes(self) -> int:
        """Number of nodes of one domain."""
        gpus = self.domain_gpus or 0
        return max(1, gpus // self.per_node) if self.per_node else 1

    @property
    def nvlink(self) -> NvLink | None:
        """The network inside a domain; None if neither the spec nor the model's name says it."""
        known = _known_nvlink(f"{self.per_node} {self.accelerator}")
        if self.domain_bytes_s is None:
            return known
        if known is None:
            return NvLink("", self.domain_bytes_s, _UNKNOWN_RING, None)
        return replace(known, bytes_s=self.domain_bytes_s)

    @property
    def alpha(self) -> Alpha:
        """α of this fabric and platform."""
        if not self.per_node:
            return Alpha(0.0, _SOCKETS_S, _SOCKETS_S, "TCP through two kernels 50 µs [choice]")
        found = nccl_alpha(self.nccl)
        if self.accelerator.startswith(("AMD", "MI")):
            found = replace(found, inside_s=_AMD_INSIDE_S, source=f"{found.source}; RCCL 9 inside")
        slower = {"efa": _EFA_MORE_S, "tcpxo": _TCPXO_MORE_S, "ethernet": _SOCKETS_S}
        more_s = slower.get(self.kind, 0.0)
        if more_s:
            more = f"{found.source}, and {more_s * 1e6:g} more by {self.kind}"
            found = replace(found, between_s=found.between_s + more_s, source=more)
        if self.steps_take == 1:
            return found
        times = self.steps_take
        return Alpha(
            *(times * found.start_s, times * found.inside_s, times * found.between_s),
            f"{times:g} × ({found.source})",
        )


@lru_cache
def _known_nvlink(accelerators: str) -> NvLink | None:
    return next((one for one in _NVLINKS if re.search(one.names, accelerators)), None)


_KEYS = ("fabric.kind", "fabric.line_rate", "fabric.nics_per_node", "accelerators.per_node")
MODEL_KEYS = (*_KEYS, "accelerators.model", "accelerators.domain")
"""Keys of the spec that the model reads."""


@dataclass(frozen=True, slots=True)
class CollectiveModel:
    """A collective over `nodes` × `ranks_per_node` ranks of a platform.

    backend: "gloo", "nccl" or another, of which the same is expected as of nccl. nvls: used unless
    said otherwise. Raises ValueError for an unknown collective or fewer than two ranks.
    """

    platform: Platform
    collective: str
    nodes: int
    ranks_per_node: int
    backend: str
    nvls: Nvls = NVLS_USED

    def __post_init__(self) -> None:
        if self.ranks < 2:
            raise ValueError(
                f"{self.collective} over one rank moves nothing; give two nodes or more"
            )
        bus_factor(self.collective, self.ranks)  # raises for an unknown collective

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node

    @property
    def domains(self) -> int:
        """Number of domains, filled one after the other."""
        return math.ceil(self.nodes / self.platform.domain_nodes)

    @property
    @lru_cache(maxsize=1024)  # noqa: B019  of values, not of objects
    def line(self) -> BusbwAtLineRate:
        """The line of a ring, or of direct messages: of the NICs of a domain, or of a rank's
        NVLink, if that is less or all ranks are in one domain."""
        of_a_domain, nvlink = self.platform.domain_nodes, self.platform.nvlink
        least_nodes = self.nodes % of_a_domain or of_a_domain
        nics = busbw_at_line_rate(
            self.collective,
            replace(self.platform, nics_per_node=self._nics_per_node * least_nodes),
            self.domains,
            self.ranks_per_node * least_nodes,
            self.backend,
        )
        if nvlink is None or self.backend == "gloo":
            return nics
        inside = self._inside_gbytes_s
        if self.domains > 1 and inside * (nvlink.ring if nvlink.is_pcie else 1) >= nics.gbytes_s:
            return nics
        said = self.platform.domain_bytes_s is not None
        of_whom = "accelerators.domain.bandwidth" if said else f"{self.platform.accelerator},"
        text = f"{of_whom} {BYTE_RATE.text(inside * 1e9)} × {nvlink.ring:g} of a ring inside"
        ceiling = None if self.domains == 1 else inside
        return replace(nics, gbytes_s=inside * nvlink.ring, text=text, ceiling_gbytes_s=ceiling)

    @property
    def _nics_per_node(self) -> int:
        """NICs that the ranks of a node use: all, or with fewer ranks than accelerators theirs."""
        nics, whole = self.platform.nics_per_node, self.platform.per_node
        return max(1, nics * self.ranks_per_node // whole) if self.ranks_per_node < whole else nics

    def allowing_slow_steps(self, size_bytes: float) -> CollectiveModel:
        """This model, or below the knee with steps that take `SLOW_BELOW_KNEE` times as long."""
        if size_bytes >= self.knee_bytes:
            return self
        return replace(self, platform=replace(self.platform, steps_take=SLOW_BELOW_KNEE))

    @property
    def _inside_gbytes_s(self) -> float:
        """What one accelerator sends to the others of its domain; infinite if not known."""
        nvlink = self.platform.nvlink
        if nvlink is None:
            return math.inf
        others = self.ranks // self.domains - 1
        if self.collective == Collective.SEND_RECV:
            others = min(others, 1)
        used = min(1.0, others / nvlink.links) if nvlink.links and others else 1.0
        return nvlink.bytes_s * used / 1e9

    @property
    def default(self) -> tuple[Algorithm, ...]:
        """What the library may choose by itself at sizes that are judged.

        On few domains with NVLS, where it is known to be used, a tree that the switches reduce for;
        otherwise a ring is among them, and nothing that it may choose instead is slower when chosen
        well.
        """
        if self.collective in DIRECT:
            return (Algorithm.DIRECT,)
        if self.backend == "gloo" and self.collective == Collective.BROADCAST:
            return (Algorithm.TREE,)
        if self.nvls.used is False or not self._switches_may_reduce:
            return (Algorithm.RING,)
        if self.nvls.used and self.domains <= FEW:
            return (Algorithm.NVLS,)
        return (Algorithm.RING, Algorithm.NVLS)

    @property
    def nvls_gives_more(self) -> bool:
        """Whether the default's bound is that of a ring only because NVLS is off or not known."""
        few = self.domains <= FEW and Algorithm.DIRECT not in self.default
        return few and self._switches_may_reduce and not self.nvls.used

    def algorithms(self, name: str) -> tuple[Algorithm, ...]:
        """Those that a measurement by this name may have used: "ring", "rails", or "default"."""
        return self.default if name == "default" else (Algorithm(name),)

    @property
    def ceiling_gbytes_s(self) -> float | None:
        """The busbw that the NICs allow any algorithm; None within one domain.

        By a ring of each place over the domains, or, where switches of InfiniBand may reduce, by
        sending everything up once.
        """
        highest = self.line.ceiling_gbytes_s
        if highest is None:
            return None
        factors = [1.0]
        if self.collective in _STEPPED:
            factors.append((self.ranks - 1) / (self.ranks - self.ranks / self.domains))
        if self.collective == Collective.ALL_REDUCE and self.platform.kind == "infiniband":
            factors.append(bus_factor(self.collective, self.ranks))
        return max(factors) * highest

    def time_s(self, algorithm: Algorithm, size_bytes: float) -> float:
        """Seconds of one call, of which the slowest step of each rank is never late."""
        moved = bus_factor(self.collective, self.ranks) * size_bytes
        return self.alpha_s(algorithm) + moved / (self.line_gbytes_s(algorithm) * 1e9)

    def busbw_gbytes_s(self, algorithm: Algorithm, size_bytes: float) -> float:
        """Bus bandwidth of one call."""
        moved = bus_factor(self.collective, self.ranks) * size_bytes
        return moved / self.time_s(algorithm, size_bytes) / 1e9

    def least_gbytes_s(self, algorithms: Sequence[Algorithm], size_bytes: float) -> float:
        """The least bus bandwidth of these algorithms: what a choice among them must reach."""
        return min(self.busbw_gbytes_s(one, size_bytes) for one in algorithms)

    @property
    def knee_bytes(self) -> int:
        """Size at which a ring, or direct messages, reach `KNEE` of their line."""
        algorithm = Algorithm.RING if Algorithm.DIRECT not in self.default else Algorithm.DIRECT
        moved = self.alpha_s(algorithm) * KNEE / (1 - KNEE) * self.line_gbytes_s(algorithm) * 1e9
        return math.ceil(moved / bus_factor(self.collective, self.ranks))

    def steps(self, algorithm: Algorithm) -> tuple[float, float]:
        """Number of steps one after the other inside domains, and between them."""
        ranks, domains = self.ranks, self.domains
        inside, height = ranks // domains - 1, math.ceil(math.log2(domains))
        ways = 2 if self._reduces_twice else 1
        match algorithm:
            case Algorithm.RING:
                between = ways * (domains - 1)
                return ways * (ranks - 1) - between, between
            case Algorithm.TREE:
                return ways * inside, ways * height
            case Algorithm.HIERARCHICAL:
                return ways * inside, ways * (domains - 1)
            case Algorithm.NVLS | Algorithm.IN_NETWORK:
                return 0, ways * (height if algorithm is Algorithm.NVLS else 1)
            case Algorithm.DIRECT if self.collective == Collective.ALL_TO_ALL:
                return ranks - 1, 1 if domains > 1 else 0
            case Algorithm.DIRECT | Algorithm.RAILS:
                return (0, 1) if domains > 1 else (1, 0)

    def alpha_s(self, algorithm: Algorithm) -> float:
        """Seconds of a call that do not depend on the size."""
        alpha = self.platform.alpha
        inside, between = self.steps(algorithm)
        found = alpha.start_s + inside * alpha.inside_s + between * alpha.between_s
        if algorithm in (Algorithm.NVLS, Algorithm.IN_NETWORK):
            stages = 2 if self.domains == 1 else 4
            chunks_bytes = stages * _NVLS_CHUNK_BYTES * self.ranks // self.domains
            moved = bus_factor(self.collective, self.ranks) * chunks_bytes
            found += _NVLS_INSIDE_S + moved / (self.line_gbytes_s(algorithm) * 1e9)
        return found

    def terms(self, bound: Bound, algorithms: Sequence[Algorithm], size_bytes: int) -> Bound:
        """The bound with the keys and parameters that it is computed from."""
        platform = self.platform
        domain = f"{platform.domain_gpus or 'node'} at {platform.domain_bytes_s or 'its'} B/s"
        known = (
            platform.kind,
            platform.line_rate_bits_s,
            platform.nics_per_node,
            platform.per_node,
        )
        values: dict[str, float | str] = dict(
            zip(MODEL_KEYS, (*known, platform.accelerator, domain), strict=True)
        )
        values |= {
            "model.collective": self.collective,
            "model.algorithms": " ".join(algorithms),
            "model.size": size_bytes,
            "model.nodes": self.nodes,
            "model.ranks_per_node": self.ranks_per_node,
            "model.backend": self.backend,
            "model.steps_take": platform.steps_take,
            "model.nccl": ".".join(map(str, platform.nccl or ())),
        }
        for key, value in values.items():
            bound = bound.of(key, value)
        return bound

    @property
    def _reduces_twice(self) -> bool:
        """Whether the data goes round twice: reduced, then gathered."""
        reduces = self.collective == Collective.REDUCE_SCATTER and self.backend == "gloo"
        return self.collective == Collective.ALL_REDUCE or reduces

    @property
    def _switches_may_reduce(self) -> bool:
        nvlink = self.platform.nvlink
        reduces = self.collective == Collective.ALL_REDUCE and self.backend != "gloo"
        enough = self.ranks // self.domains >= _LEAST_FOR_NVLS
        return bool(nvlink and nvlink.nvls and reduces and enough)

    def line_gbytes_s(self, algorithm: Algorithm) -> float:
        """The bus bandwidth of an algorithm as sizes grow."""
        ring = self.line.gbytes_s
        nvlink, domains, ranks = self.platform.nvlink, self.domains, self.ranks
        inside = math.inf
        if nvlink is not None and self.backend != "gloo":
            inside = self._inside_gbytes_s
            if algorithm in (Algorithm.NVLS, Algorithm.IN_NETWORK) and nvlink.nvls:
                few = min(max(ranks // domains, _LEAST_FOR_NVLS), _WHOLE_NVLS)
                inside *= nvlink.nvls * (1 - 1 / few) / (1 - 1 / _WHOLE_NVLS)
        reduced = self.collective == Collective.ALL_REDUCE
        if domains == 1:
            return inside if algorithm is Algorithm.NVLS and inside < math.inf else ring
        match algorithm:
            case Algorithm.NVLS | Algorithm.TREE if reduced:
                # The busiest domain sends S over two domains, 1.5 S over three, 2 S over more.
                sent = {2: 1.0, 3: 1.5}.get(domains, 2.0)
                return min(inside, ring * bus_factor(self.collective, ranks) / sent)
            case Algorithm.HIERARCHICAL if self.collective in _STEPPED:
                return min(inside, ring * (ranks - 1) / (ranks - ranks / domains))
            case Algorithm.RAILS:
                used = replace(self.platform, nics_per_node=self._nics_per_node)
                return min(inside, line_rate_gbytes_s(used) / self.ranks_per_node)
            case Algorithm.IN_NETWORK if reduced:
                return min(inside, ring * bus_factor(self.collective, ranks))
            case _:
                return ring


def expected_again(terms: Sequence[Term], leaves: Mapping[str, Any]) -> tuple[float, float] | None:
    """What the model of a bound's terms gives, and the line, for another spec's values by key.

    None if the bound is not the model's, or the other spec lacks a key that it reads.
    """
    values = {term.key: term.value for term in terms}
    platform = Platform.of_leaves(leaves)
    if platform is None or "model.collective" not in values:
        return None
    platform = replace(platform, steps_take=float(values.get("model.steps_take", 1)))
    known = str(values.get("model.nccl", "")).split(".")
    if len(known) == 2:
        platform = replace(platform, nccl=(int(known[0]), int(known[1])))
    model = CollectiveModel(
        platform,
        str(values["model.collective"]),
        int(values["model.nodes"]),
        int(values["model.ranks_per_node"]),
        str(values["model.backend"]),
    )
    named = str(values["model.algorithms"]).split()
    algorithms = [Algorithm(name) for name in named]
    return model.least_gbytes_s(algorithms, float(values["model.size"])), model.line.gbytes_s
