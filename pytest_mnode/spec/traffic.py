"""Promises about traffic of many nodes at once: across halves, into one node, beside each other; of
experts, groups at the same time and two jobs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from pytest_mnode.spec.fields import (
    Bytes,
    Count,
    Fraction,
    OnOff,
    Seconds,
    Section,
    Share,
    Sizes,
    Some,
    Text,
)
from pytest_mnode.spec.inventory import NonEmptyCriterion

HostList = Text
"""Nodes as Slurm lists them, of which a run may have only some."""
Counted = Literal["may", "must", "never"]


class BisectionPromise(Section):
    """Two halves of the nodes exchange at full rate: every node with one of the other half."""

    at_least_fraction: Annotated[Fraction, Field(le=1)]
    """Part of what the NICs of one half send, divided by `oversubscription`, that arrives."""
    halves: tuple[HostList, HostList] | None = None
    """Nodes of each half, such as [node[01-16], node[17-32]], of which those of a run count; left
    out: the first half of the run's nodes, and the second. They should be on different leaves."""
    oversubscription: Annotated[float, Field(strict=True, ge=1)] = 1.0
    """How many times as much the NICs of a half send as its uplinks carry: 1 without blocking."""


class IncastPromise(Section):
    """All nodes send to one, in turns."""

    at_least_fraction: Annotated[Fraction, Field(le=1)]
    """Part of the line rate of its NICs that arrives at each node in its turn. Errors and carrier
    changes meanwhile are bounded by `fabric.errors_at_most` and `fabric.carrier_changes_at_most`.
    """
    lost_at_most_fraction: Annotated[float, Field(strict=True, ge=0, lt=1)] | None = None
    """Part of a port's packets that may be lost or sent again meanwhile; left out:
    `fabric.lost_at_most_fraction`, and by TCP, which finds its rate by losing some, recorded."""
    pause: Counted = "may"
    """Whether switches or NICs stop senders by pause frames (PFC), as ethtool -S counts them."""
    ecn: Counted = "may"
    """Whether congestion is marked, as NICs count it: np_cnp_sent, np_ecn_marked_roce_packets."""


class CongestionPromise(Section):
    """An all-reduce of some nodes, while others exchange as fast as they can."""

    loss_at_most: Share | None = None
    """Part of its rate that it may lose; left out: the loss is recorded."""
    victims: HostList | None = None
    """Nodes of the all-reduce; left out: every second node of the run."""
    aggressors: HostList | None = None
    """Nodes that exchange beside it; left out: all others."""

    @model_validator(mode="after")
    def _are_apart(self) -> CongestionPromise:
        if self.victims is not None and self.victims == self.aggressors:
            raise ValueError(f"victims and aggressors: {self.victims}; accepted: different nodes")
        return self


class FailoverPromise(Section):
    """A port of the fabric goes down under load, and the others take over."""

    ports: Annotated[tuple[Text, ...], Field(min_length=2)]
    """Interfaces of each node, such as those of a bond. Naming them permits a run to set them down,
    one of one node at a time; name none that anything else needs. Each comes up again also if the
    run is killed, unless its whole node, or container, is."""
    at_least_fraction: Annotated[Fraction, Field(le=1)]
    """Part of the rate of before that is kept while one is down: 1 of a bond with a spare port, 0.5
    where two share the traffic."""
    within_s: Seconds = Field(alias="within")
    """Longest pause of the traffic, when a port goes down and when it comes up."""
    down_for_s: Seconds = Field(5.0, alias="down_for")
    """How long each is down."""
    after_at_least_fraction: Annotated[Fraction, Field(le=1)] = 0.9
    """Part of the rate of before that is there `within` after it is up again. [choice] Two rates of
    seconds differ by a few per cent."""

    @model_validator(mode="after")
    def _ends_while_down(self) -> FailoverPromise:
        if self.within_s > self.down_for_s:
            raise ValueError(
                f"within: {self.within_s:g} s, down_for: {self.down_for_s:g} s; accepted: within "
                "up to down_for, as else a port is up again before its pause is too long"
            )
        return self


class SwitchesPromise(Section):
    """The InfiniBand switches, as the first node sees them by infiniband-diags, usually as root."""

    links: Literal["full"] | None = None
    """Each link of the subnet is up, with the width and speed that both its ends have enabled."""
    errors_at_most: Count | None = None
    """By how much the error counters of all ports together may rise while all nodes send."""
    subnet_manager: Literal["stable"] | None = None
    """The master is the same one before and after that."""
    ibdiagnet: Literal["clean"] | None = None
    """ibdiagnet finds no error in any of its stages. It asks every port, which takes minutes in a
    large subnet."""
    adaptive_routing: OnOff | None = None
    """Whether ibdiagnet says that adaptive routing is enabled on switches."""


CALLS_FOR_P99 = 459
"""Of fewer calls not even the slowest is above the 99th percentile with 99 %: 0.99^459 < 0.01."""
Times = Annotated[float, Field(ge=1, allow_inf_nan=False)]


class ExpertsPromise(Section):
    """Tokens that go to experts on all ranks and back: dispatch and combine, one at a time."""

    sizes_bytes: Sizes = Field((4 << 10, 64 << 10, 1 << 20), alias="sizes")
    """Bytes of a rank for the average other rank."""
    skew: Times = 3.0
    """Share of the rank whose experts are chosen most, over the average; each rank in its turn."""
    calls: Annotated[int, Field(strict=True, ge=20)] = 100
    """Number of timed calls of each size; at least one for each rank, and with p99_at_most_times
    459."""
    p50_at_most_times: Times | None = None
    """Median time, over that of the model: steps × α + bytes of the busiest node / line rate."""
    p99_at_most_times: Times | None = None
    """Time that 99 of 100 calls keep, over the median of the same size."""

    def calls_over(self, ranks: int) -> int:
        """Calls in which each rank is hot, and which say up to where a 99th percentile may be."""
        needed = 1 if self.p99_at_most_times is None else CALLS_FOR_P99
        return max(self.calls, ranks, needed)


class ParallelPromise(Section):
    """All dimensions of a mesh (`groups.meshes`, the last) at the same time."""

    size_bytes: Bytes | None = Field(None, alias="size")
    """Bytes of a call in each group; left out: what NICs send in 50 ms."""
    at_least_fraction: Annotated[Fraction, Field(le=1)] | None = None
    """Rate of each dimension by itself, as a fraction of the model's."""
    together_at_least_fraction: Annotated[Fraction, Field(le=1)] | None = None
    """Time of the dimensions one after the other, over that of all at once: 1 if they share one
    network fully and lose nothing, more if they use different ones."""
    rounds: Annotated[int, Field(strict=True, ge=3)] = 8


class JobsPromise(Section):
    """Two jobs side by side, each with all-reduces over its nodes."""

    loss_at_most: Share | None = None
    """Part of its rate that either may lose."""
    nodes: tuple[HostList, HostList] | None = None
    """Nodes of each; left out: every second node of the run, and the others."""
    size_bytes: Bytes | None = Field(None, alias="size")
    """Bytes of a call; left out: what NICs send in 50 ms."""
    rounds: Annotated[int, Field(strict=True, ge=3)] = 8


class TrafficCriterion(NonEmptyCriterion):
    """What jobs of today send: small skewed messages, several groups at once, beside other jobs."""

    experts: ExpertsPromise | None = None
    parallel: ParallelPromise | None = None
    jobs: JobsPromise | None = None
    most_paths: Some = 64
    """Paths between nodes that are measured alone, at most, to name what is slow."""
