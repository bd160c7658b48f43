"""The page that says what a cluster promises, as frozen values.

YAML keys carry no unit and their values do (`line_rate: 200 Mbit/s`); attributes hold plain numbers
and carry the unit in their name (`line_rate_bits_s`). Read a page with `load_spec`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from pytest_mnode.spec.criteria import Criteria
from pytest_mnode.spec.fields import (
    AbsolutePath,
    BitsPerSecond,
    Bytes,
    Count,
    Interface,
    Mtu,
    Page,
    Seconds,
    Some,
    Text,
)
from pytest_mnode.spec.numa import Topology
from pytest_mnode.spec.power import Power


class Accelerators(Page):
    """The accelerators of each node."""

    per_node: Count
    """How many; 0 where ranks compute on CPUs."""
    model: Text | None = None
    """As the driver names it, such as NVIDIA H100 80GB HBM3."""
    memory_bytes: Bytes | None = Field(None, alias="memory")
    """Memory of one accelerator, such as 80 GB."""


class Network(Page):
    """Links of one kind, the same on each node."""

    interfaces: tuple[Interface, ...] = Field(min_length=1)
    """Names or shell patterns (fab0, mlx5_*) of the interfaces, or of the RDMA devices."""
    line_rate_bits_s: BitsPerSecond = Field(alias="line_rate")
    """Of one NIC, in each direction, such as 400 Gbit/s."""

    @property
    def line_rate_gbits_s(self) -> float:
        """Line rate of one NIC, Gbit/s."""
        return self.line_rate_bits_s / 1e9

    @property
    def line_rate_mbits_s(self) -> float:
        """Line rate of one NIC, Mbit/s."""
        return self.line_rate_bits_s / 1e6

    def has_interface(self, name: str) -> bool:
        """Whether the interface `name` belongs to this network, by name or pattern."""
        return any(fnmatchcase(name, pattern) for pattern in self.interfaces)


class Fabric(Network):
    """The network that training traffic must use."""

    kind: Literal["ethernet", "roce", "infiniband", "efa"]
    """What the traffic runs on: TCP on ethernet, RDMA on the others."""
    nics_per_node: Some
    """How many NICs of each node carry training traffic."""
    mtu_bytes: Mtu = Field(alias="mtu")
    """Largest packet in bytes, without the frame: 1500, or 9000 for jumbo frames."""
    gpudirect: Annotated[bool, Field(strict=True)] | None = None
    """Whether NICs must read and write the accelerators' memory by themselves (GPUDirect RDMA)."""
    carrier_changes_at_most: Count = 0
    """How often the carrier of a port may come or go while one criterion runs."""
    errors_at_most: Count = 0
    """By how much an error counter of a port may rise while one criterion runs."""
    lost_at_most_fraction: Annotated[float, Field(strict=True, ge=0, lt=1)] = 0.01
    """Of the packets of a port, or of a node's TCP on ethernet: lost or sent again meanwhile."""

    @property
    def protocol(self) -> str | None:
        """What its RDMA ports must speak, as `probes.rdma` calls it; None without RDMA."""
        return {"infiniband": "InfiniBand", "roce": "RoCE", "efa": "EFA"}.get(self.kind)


class Management(Network):
    """The network for everything else: ssh, the scheduler, this controller."""

    mtu_bytes: Mtu | None = Field(None, alias="mtu")
    """Largest packet in bytes, without the frame."""


class Storage(Page):
    """Absolute paths that every node sees."""

    datasets: AbsolutePath | None = None
    """Where training data is read from."""
    checkpoints: AbsolutePath | None = None
    """Where checkpoints are kept, shared by all nodes."""
    scratch: AbsolutePath | None = None
    """Where a job may write what it does not keep."""


class Scheduler(Page):
    """Who hands out nodes."""

    kind: Literal["slurm"]
    """The scheduler that jobs are submitted to."""
    names: Mapping[str, Text] = Field(default_factory=dict)
    """Free-form names that a submission needs: partition, account, queue, namespace."""


class NotPromised(Page):
    """One question that the cluster's owner does not answer for."""

    question: Text
    """A criterion's name, or the question in words."""
    reason: Text
    """Why it is not promised."""


class Certificate(Page):
    """How long the answers hold."""

    valid_for_s: Seconds = Field(alias="valid_for")
    """From the end of the run, such as 7 days."""


class Spec(Page):
    """What a cluster promises."""

    name: Text
    """What the cluster is called."""
    confirmed: Annotated[bool, Field(strict=True)] = True
    """Whether somebody compared this page with what was bought. A page by --mnode-discover says
    false until then, and no run with it certifies."""
    emulated: tuple[Text, ...] = ()
    """What is emulated and not real, a line each; said on the certificate."""
    nodes: Some | None = None
    """How many nodes the cluster has; left out where as many are made as a run asks for."""
    accelerators: Accelerators
    fabric: Fabric
    management: Management | None = None
    topology: Topology | None = None
    storage: Storage | None = None
    scheduler: Scheduler | None = None
    power: Power | None = None
    criteria: Criteria
    not_promised: tuple[NotPromised, ...] = ()
    """Questions left open on purpose: reported as such, never as passed."""
    certificate: Certificate

    @field_validator("criteria")
    @classmethod
    def _emulates_nothing_real(cls, criteria: Criteria, info: ValidationInfo) -> Criteria:
        accelerators, scaling = info.data.get("accelerators"), criteria.scaling
        if accelerators and accelerators.per_node and scaling and scaling.compute_s is not None:
            raise ValueError(
                f"scaling.compute: {scaling.compute_s:g} s, with accelerators.per_node "
                f"{accelerators.per_node}: real accelerators compute for real; leave it out"
            )
        return criteria

    @field_validator("criteria")
    @classmethod
    def _has_a_scheduler(cls, criteria: Criteria, info: ValidationInfo) -> Criteria:
        if criteria.gang is not None and info.data.get("scheduler", 0) is None:
            raise ValueError(
                "gang: promised without a scheduler; accepted: with scheduler: {kind: slurm}"
            )
        return criteria

    @property
    def promised_criteria(self) -> tuple[str, ...]:
        """Names of the criteria that this cluster promises, in the order they are judged."""
        criteria = self.criteria
        return tuple(name for name in Criteria.model_fields if getattr(criteria, name) is not None)

    def promised(self, criterion: str) -> bool:
        """Whether this cluster promises `criterion`; an unknown name is not promised."""
        return criterion in self.promised_criteria

    def digest(self) -> str:
        """sha256 (hexadecimal) of what is promised: comments, order and spelling do not count."""
        content = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(content.encode()).hexdigest()
