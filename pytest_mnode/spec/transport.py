"""What is promised of the way that traffic takes: the bounds of the proof by four facts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pytest_mnode.spec.fields import Bytes, Page, Some

_Share = Annotated[float, Field(strict=True, ge=0, le=1)]


class TransportPromise(Page):
    """Traffic runs on the fabric, by what is pinned, logged, counted, and quiet elsewhere."""

    size_bytes: Bytes = Field(1 << 30, alias="size")
    """Of the all-reduce that is sent for the proof, such as 1 GiB: far more than ranks and nodes
    otherwise send meanwhile."""
    calls: Some = 4
    """How often it is sent; a backend that takes its interfaces in turn needs several."""
    under_fraction: _Share = 0.02
    """Part of the bytes that the algorithm must move by which the counters may fall short."""
    over_fraction: _Share = 0.1
    """Part of them, headers included, by which the counters may exceed it: acknowledgements,
    packets sent twice, what nodes say to each other besides."""
    elsewhere_fraction: _Share = 0.02
    """Part of them that each other NIC may send at most. A link that carries more is not quiet."""
    rail_fraction: Annotated[float, Field(strict=True, gt=0, le=1)] = 0.5
    """Part of its even share that each NIC of the fabric must carry at least."""
    roce_version: Literal["v1", "v2"] = "v2"
    """What RoCE must run on, by the type of the GIDs: v2 is routed (UDP), v1 is not."""
