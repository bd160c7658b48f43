"""The truth of a virtual cluster: what each part of it can do, and how much its parts differ.

A tree: spine, leaf, node, NIC and accelerator. Shares are of what a healthy part does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from pytest_mnode.criteria.preflight.answers import NodeSurvey
from pytest_mnode.measuring.locating.pairs import Rails
from pytest_mnode.rank.world import World
from pytest_mnode.spec import Spec
from pytest_mnode.spec.alpha_beta import Algorithm as Moves
from pytest_mnode.spec.alpha_beta import CollectiveModel, Platform
from pytest_mnode.spec.bandwidth import Collective, line_rate_gbytes_s
from pytest_mnode.spec.models import wire_allows_fraction
from pytest_mnode.virtual.machines import links_of, surveys

Shares = NDArray[np.float64]

LEAF_NODES = 16
"""Nodes of a leaf. [choice] half of a switch of 64 ports of 400 Gbit/s, 2 of a node on each."""
OF_LINE = 0.97
"""Share of the line that a ring fills. Source: rings pinned on 8 × 400 Gbit/s carried 384 to 393 of
400 GB/s; perftest 392 of 400 Gbit/s."""
STEP_S, TCP_STEP_S = 4.5e-6, 40e-6
"""Seconds of a message between nodes by RDMA (writes take 4.2 to 5 µs), and by TCP [choice]."""
TCP_GBYTES_S = 3.0
"""Of a node that fell back to TCP. Source: about 3 of 489 GB/s, NVIDIA/aicr issue 2683."""
INSIDE_OVER_LINE = 1.12
"""Of a ring between accelerators of a node, over the line of its NICs. Source: 450 GB/s of NVLink
and 400 of 8 × 400 Gbit/s (H100, H200). [choice] for other platforms."""
DEVICES_DIFFER = 0.01
"""Standard deviation of equal devices, none of which is off by more than four. [choice] GPUs of a
node differ by 5 % and more from end to end (stas00/ml-engineering, MAMF), settled ones by less."""
COPIES_DIFFER = 0.006
"""Of copies, which a link's rate limits. [choice]"""
COMMUNICATORS_DIFFER: Mapping[str, float] = {
    "infiniband": 0.008,
    "roce": 0.02,
    "efa": 0.015,
    "ethernet": 0.01,
    "tcpx": 0.015,
    "tcpxo": 0.015,
    "cxi": 0.01,
    "ub": 0.01,
}
"""How much a communicator loses by the paths that it drew, mean of an exponential. [choice] more
where switches choose paths by hashes (ECMP) than by a subnet manager."""
REPEATS_DIFFER = 0.003
"""Standard deviation of repeats on one communicator. [choice]"""


@lru_cache(4096)
def _time_s(model: CollectiveModel, algorithm: str, size_bytes: int) -> float:
    """Seconds of a call, of whose algorithms NCCL takes the fastest: many groups have the same."""
    chosen = model.algorithms(algorithm)
    if model.collective == Collective.ALL_REDUCE and algorithm == "default":
        chosen = (*chosen, Moves.TREE)
    return min(model.time_s(one, size_bytes) for one in chosen)


@dataclass(kw_only=True)
class VirtualCluster:
    """Parts by node, then by NIC or accelerator; shares of a healthy part's rate.

    rng: of all noise, whose seed makes the night. tx, rx: of NICs. matmul, hbm, to_device,
    from_device, host: of accelerators, or of CPU ranks. late_s: host delay of a step. uplinks:
    share of full bisection by leaf. pairs: of paths between two nodes, both ways. inside: of links
    between accelerators of a node. errors: by node, port and counter, of each criterion. tcp: nodes
    whose ranks fell back to TCP; staged: whose NICs cannot
    reach GPU memory; crossed: whose ranks of the first rail send over the second's NIC. corrupts,
    stale: ranks that send wrong values, or keep those of an earlier call, and the share of calls.
    miscomputes: ranks that compute wrong values. input_s: storage's delay of a step. clock_steps_s:
    by node, during each criterion. slowed: by rank, the share of samples in which heat or hardware
    holds back its clock. storage: of a node's rates of files. files_late_s: by node, after which it
    sees others' files. local_locks, stale_files: nodes whose locks exclude no other, and that read
    what files had before. pauses_s: by node, of traffic while a port of it is down.
    """

    spec: Spec
    nodes: tuple[str, ...]
    rng: np.random.Generator
    machines: list[NodeSurvey]
    tx: Shares
    rx: Shares
    matmul: Shares
    hbm: Shares
    to_device: Shares
    from_device: Shares
    host: Shares
    late_s: Shares
    input_s: Shares
    storage: Shares
    uplinks: Shares
    inside: Shares
    pairs: dict[tuple[int, int], float] = field(default_factory=dict)
    errors: Counter[tuple[int, str, str]] = field(default_factory=Counter)
    tcp: set[int] = field(default_factory=set)
    staged: set[int] = field(default_factory=set)
    crossed: set[int] = field(default_factory=set)
    corrupts: dict[int, float] = field(default_factory=dict)
    stale: dict[int, float] = field(default_factory=dict)
    miscomputes: set[int] = field(default_factory=set)
    slowed: dict[int, float] = field(default_factory=dict)
    clock_steps_s: dict[int, float] = field(default_factory=dict)
    odd: set[tuple[int, str]] = field(default_factory=set)
    settings: dict[int, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    unbound: set[int] = field(default_factory=set)
    dead: set[tuple[int, int]] = field(default_factory=set)
    files_late_s: dict[int, float] = field(default_factory=dict)
    local_locks: set[int] = field(default_factory=set)
    stale_files: set[int] = field(default_factory=set)
    pauses_s: dict[int, float] = field(default_factory=dict)

    @classmethod
    def healthy(cls, spec: Spec, count: int, seed: int) -> VirtualCluster:
        """A cluster of `count` nodes that keeps what its platform is known for."""
        rng = np.random.default_rng(seed)
        nodes = tuple(f"node{i}" for i in range(count))
        nics, each = spec.fabric.nics_per_node, spec.accelerators.per_node or 1

        def devices(spread: float) -> Shares:
            drawn = 1 + spread * rng.standard_normal((count, each))
            return np.asarray(np.clip(drawn, 1 - 4 * spread, 1 + 4 * spread))

        leaves = -(-count // LEAF_NODES)
        return cls(
            spec=spec,
            nodes=nodes,
            rng=rng,
            machines=surveys(spec, nodes, rng),
            tx=np.ones((count, nics)),
            rx=np.ones((count, nics)),
            matmul=devices(DEVICES_DIFFER),
            hbm=devices(COPIES_DIFFER),
            to_device=devices(COPIES_DIFFER),
            from_device=devices(COPIES_DIFFER),
            host=devices(COPIES_DIFFER),
            late_s=np.zeros(count),
            input_s=np.zeros(count),
            storage=np.ones(count),
            uplinks=np.ones(leaves),
            inside=np.ones(count),
        )

    @property
    def per_node(self) -> int:
        """Ranks of a node."""
        return self.spec.accelerators.per_node or 1

    @property
    def ranks(self) -> int:
        return len(self.nodes) * self.per_node

    @property
    def world(self) -> World:
        """The world of all ranks, as the last one sees it: the first one prints."""
        last = self.per_node - 1
        return World(self.ranks - 1, self.ranks, last, self.per_node, self.nodes[-1], self.nodes)

    @property
    def backend(self) -> str:
        return "nccl" if self.spec.accelerators.per_node else "gloo"

    @cached_property
    def rails(self) -> Rails:
        return Rails.of(self.world, self.spec.fabric.nics_per_node)

    @cached_property
    def domains(self) -> tuple[int, ...]:
        """By node, its NVLink domain."""
        return tuple(i // self.spec.accelerators.nodes_of_a_domain for i in range(len(self.nodes)))

    def leaf(self, node: int) -> int:
        return node // LEAF_NODES

    @property
    def of_line(self) -> float:
        """Share of the line that payload can fill."""
        return OF_LINE * wire_allows_fraction(self.spec)[0]

    def rail_shares(self, shares: Shares) -> Shares:
        """Shares by node and rail: the mean of the NICs that a rail's rank uses."""
        count, nics = shares.shape
        used = self.rails.count * (nics // self.rails.count)
        return np.asarray(shares[:, :used].reshape(count, self.rails.count, -1).mean(axis=2))

    def weakest_share(self, members: NDArray[np.intp] | None = None) -> float:
        """Share of the line that a ring over these nodes gets: NCCL gives each rail an equal part,
        so that the slowest NIC of any of them holds back all."""
        tx, rx = (self.tx, self.rx) if members is None else (self.tx[members], self.rx[members])
        share = float(min(tx.min(), rx.min()))
        inside = set(range(len(self.nodes))) if members is None else set(members.tolist())
        neighbours = sorted(inside)
        for (one, other), of_path in self.pairs.items():
            if one in inside and other in inside:
                near = abs(neighbours.index(one) - neighbours.index(other))
                if near in (1, len(neighbours) - 1):
                    share = min(share, of_path)
        # A ring leaves each leaf once, so that an uplink has to carry one node of it.
        leaves = {self.leaf(node) for node in neighbours}
        if len(leaves) > 1:
            share = min(share, *(self.uplinks[leaf] * LEAF_NODES for leaf in leaves))
        if Platform.of(self.spec).domain_nodes == 1:
            share = min(share, float(self.inside[neighbours].min()) * INSIDE_OVER_LINE)
        if self.tcp & inside:
            share = min(share, TCP_GBYTES_S / line_rate_gbytes_s(self.spec.fabric))
        return share

    def collective_s(
        self,
        collective: str,
        size_bytes: int,
        *,
        algorithm: str = "ring",
        members: NDArray[np.intp] | None = None,
    ) -> float:
        """Seconds of one call without noise, by the model on NICs of the weakest share."""
        nodes, name = len(self.nodes) if members is None else len(members), Collective(collective)
        share = self.weakest_share(members)
        if name is Collective.ALL_TO_ALL and nodes > LEAF_NODES:
            share = min(share, float(self.uplinks.min()))
        healthy = Platform.of(self.spec)
        rate_bits_s = int(healthy.line_rate_bits_s * self.of_line * share)
        platform = replace(healthy, line_rate_bits_s=rate_bits_s)
        if (nvlink := healthy.nvlink) is not None and healthy.domain_nodes > 1:
            inside = self.inside if members is None else self.inside[members]
            platform = replace(platform, domain_bytes_s=nvlink.bytes_s * float(inside.min()))
        model = CollectiveModel(platform, name, nodes, self.per_node, self.backend)
        late = self.late_s if members is None else self.late_s[members]
        return _time_s(model, algorithm, size_bytes) + float(late.max())

    @property
    def step_s(self) -> float:
        return TCP_STEP_S if self.spec.fabric.by_kernel else STEP_S

    @property
    def inside_bytes_s(self) -> float:
        """Rate of a ring between accelerators of a healthy node."""
        return INSIDE_OVER_LINE * line_rate_gbytes_s(self.spec.fabric) * 1e9

    def around(self, value: float, spread: float) -> float:
        """A value with relative normal noise."""
        return float(value * max(0.05, 1 + spread * self.rng.standard_normal()))

    def communicator_loss(self) -> float:
        """Share that a fresh communicator keeps of the rate, by the paths that it drew."""
        spread = COMMUNICATORS_DIFFER[self.spec.fabric.kind]
        return float(1 / (1 + min(6 * spread, self.rng.exponential(spread))))

    def wrong_calls(self, checked: int) -> tuple[list[int], tuple[int, ...]]:
        """Wrong values of so many calls by rank, and the ranks that sent them, as far as known.

        A rank that corrupts what it sends spoils the results of all; one that keeps stale results
        spoils its own.
        """
        rng = self.rng
        senders = [
            rank
            for rank, share in self.corrupts.items()
            if rng.random() < 1 - (1 - share) ** checked
        ]
        stale = [
            rank for rank, share in self.stale.items() if rng.random() < 1 - (1 - share) ** checked
        ]
        return [7 * bool(senders or rank in stale) for rank in range(self.ranks)], tuple(senders)

    def carried(self, node: int, total: int) -> dict[str, int]:
        """Bytes by link of a node that sends `total`, in equal parts. The next NIC has those of one
        that is idle; the management network has all of them by TCP."""
        names, management = links_of(self.spec.fabric), self.spec.management
        other = links_of(management)[0] if management else "eth0"
        if node in self.tcp:
            return dict.fromkeys(names, 0) | {other: total}
        idle = {nic for at, nic in self.dead if at == node}
        idle |= {0} if node in self.crossed and len(names) > 1 else set()
        sent = dict.fromkeys((*names, other), 0)
        for nic in range(len(names)):
            ways = (
                names[(nic + i) % len(names)]
                for i in range(len(names))
                if (nic + i) % len(names) not in idle
            )
            if (name := next(ways, None)) is not None:
                sent[name] += total // len(names)
        return sent
