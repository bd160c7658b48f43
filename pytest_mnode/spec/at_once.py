"""Promises about traffic of many nodes at once: across halves, into one node, beside each other."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from pytest_mnode.spec.fields import Count, Fraction, OnOff, Page, Seconds, Share, Text

HostList = Text
"""Nodes as Slurm lists them, of which a run may have only some."""
Counted = Literal["may", "must", "never"]


class BisectionPromise(Page):
    """Two halves of the nodes exchange at full rate: every node with one of the other half."""

    at_least_fraction: Annotated[Fraction, Field(le=1)]
    """Part of what the NICs of one half send, divided by `oversubscription`, that arrives."""
    halves: tuple[HostList, HostList] | None = None
    """Nodes of each half, such as [node[01-16], node[17-32]], of which those of a run count; left
    out: the first half of the run's nodes, and the second. They should be on different leaves."""
    oversubscription: Annotated[float, Field(strict=True, ge=1)] = 1.0
    """How many times as much the NICs of a half send as its uplinks carry: 1 without blocking."""


class IncastPromise(Page):
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


class CongestionPromise(Page):
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


class FailoverPromise(Page):
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


class SwitchesPromise(Page):
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
