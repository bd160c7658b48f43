"""Promises about what settings gain on this cluster."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pytest_mnode.spec.fields import Bytes, Section, Share
from pytest_mnode.spec.inventory import NonEmptyCriterion


class GainPromise(Section):
    """An experiment. Without a bound its result is recorded."""

    gain_at_least: Share | None = None
    """Share by which the best of its other settings gains on the first, such as 0.03."""
    gain_at_most: Share | None = None
    """The same, at most: where the first is what users get, nothing is left to gain."""


class AlgorithmPromise(GainPromise):
    """Which algorithm is fastest for which size of an all-reduce."""

    ring_and_tree_cross_at_most_bytes: Bytes | None = Field(
        None, alias="ring_and_tree_cross_at_most"
    )
    """Size from which on a ring is faster than a tree, at most, such as 4 MiB."""


class TuningCriterion(NonEmptyCriterion):
    """Measured advice: settings that are tried in turns, and what they gain."""

    rounds: Annotated[int, Field(strict=True, ge=3)] = 8
    """How often each setting is measured, in an order that is turned round each time."""
    algorithm: AlgorithmPromise | None = None
    """Ring, tree and the library's choice, by size."""
    mtu: GainPromise | None = None
    """The MTU that the nodes of an Ethernet fabric have, against 1500 and 9000; as root."""
    overlap: GainPromise | None = None
    """Gradients in buckets that travel during the backward pass, against all at its end."""
    compression: GainPromise | None = None
    """Gradients as they are, against 16 bits, 8 bits and PowerSGD."""
    accumulation: GainPromise | None = None
    """A sum of gradients with each pass, against every few passes, and local SGD."""
    network: GainPromise | None = None
    """A collective beside other traffic on the fabric, against that on the management network."""
    topology: GainPromise | None = None
    """Nodes in the order of the run, against an order by their measured distance."""
    placement: GainPromise | None = None
    """Memory moved from any CPUs, against those near the accelerator or NIC, and far from it."""
    loader: GainPromise | None = None
    """Workers of a data loader, batches ahead, pinned memory."""
    fsdp: GainPromise | None = None
    """Parameters that FSDP2 gathers as it does by itself, against all at once and further ahead."""
    channels: GainPromise | None = None
    """NCCL's channels, queue pairs, split data and adaptive routing."""
