"""The parts of a cluster: nodes, accelerators, networks, storage, scheduler, power.

YAML keys carry no unit and their values do (`line_rate: 200 Mbit/s`); attributes hold plain numbers
and carry the unit in their name (`line_rate_bits_s`).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from pytest_mnode.spec.fields import (
    AbsolutePath,
    BitsPerSecond,
    Bytes,
    BytesPerSecond,
    Count,
    Interface,
    Mtu,
    Positive,
    Seconds,
    Section,
    Some,
    Text,
)

Dtype = Literal["float64", "float32", "bfloat16", "float16"]
_POWER = re.compile(r"\d+e-\d+", re.ASCII)


class Domain(Section):
    """Accelerators that one NVLink network connects, within a node or across nodes."""

    gpus: Annotated[int, Field(strict=True, ge=2)]
    """Number of accelerators of one domain, such as 72 of an NVL72 rack."""
    bandwidth_bytes_s: BytesPerSecond | None = Field(None, alias="bandwidth")
    """Bandwidth of one accelerator into the domain, in each direction, such as 900 GB/s."""


class Accelerators(Section):
    """The accelerators of each node."""

    per_node: Count
    """Number of accelerators; 0 if ranks compute on CPUs."""
    model: Text | None = None
    """Name of the model as the driver gives it, such as NVIDIA H100 80GB HBM3."""
    memory_bytes: Bytes | None = Field(None, alias="memory")
    """Memory of one accelerator, such as 80 GB."""
    peak_tflops: Mapping[Dtype, Positive] = Field(default_factory=dict)
    """Dense peak of one accelerator by data type, such as {bfloat16: 989}: MFU is a share of it."""
    domain: Domain | None = None
    """Accelerators that share one NVLink network; left out: those of a node."""

    @field_validator("domain")
    @classmethod
    def _holds_whole_nodes(cls, domain: Domain | None, info: ValidationInfo) -> Domain | None:
        per_node = info.data.get("per_node")
        if domain is not None and per_node is not None and (not per_node or domain.gpus % per_node):
            raise ValueError(
                f"gpus: {domain.gpus} with accelerators.per_node {per_node}; "
                "accepted: a multiple of accelerators.per_node, above 0"
            )
        return domain

    @property
    def nodes_of_a_domain(self) -> int:
        """Number of nodes whose accelerators share one NVLink network."""
        return self.domain.gpus // self.per_node if self.domain else 1


NetworkName = Literal["fabric", "management"]


class Network(Section):
    """Links of one kind, the same on each node."""

    interfaces: tuple[Interface, ...] = Field(min_length=1)
    """Names or shell patterns (fab0, mlx5_*) of the interfaces, or of the RDMA devices."""
    line_rate_bits_s: BitsPerSecond = Field(alias="line_rate")
    """Line rate of one NIC in each direction, such as 400 Gbit/s."""

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


def _rate(written: Any) -> Any:
    """YAML reads 1e-15, without a point, as text."""
    return float(written) if isinstance(written, str) and _POWER.fullmatch(written) else written


class Fabric(Network):
    """The network that training traffic must use."""

    kind: Literal["ethernet", "roce", "infiniband", "efa", "tcpx", "tcpxo", "cxi", "ub"]
    """What the traffic runs on: TCP on ethernet; RDMA on roce, infiniband and efa; NCCL's plugins
    for GPUDirect-TCPX on tcpx and GPUDirect-TCPXO (FasTrak) on tcpxo; Slingshot by libfabric's
    provider on cxi; Huawei's UnifiedBus (UB, HCCS) by HCCL on ub."""
    nics_per_node: Some
    """Number of NICs of each node that carry training traffic."""
    mtu_bytes: Mtu = Field(alias="mtu")
    """Largest packet in bytes, without the frame: 1500, or 9000 for jumbo frames."""
    gpudirect: Annotated[bool, Field(strict=True)] | None = None
    """Whether NICs must read and write the accelerators' memory by themselves (GPUDirect RDMA)."""
    carrier_changes_at_most: Count = 0
    """How often the carrier of a port may come or go while one criterion runs."""
    errors_at_most: Count = 0
    """By how much an error counter of a port may rise while one criterion runs."""
    bit_error_rate_at_most: Annotated[
        float, Field(strict=True, ge=0, lt=1), BeforeValidator(_rate)
    ] = 1e-15
    """Errors per bit of the line rate that a port may receive, after correction, before its
    counters of damaged symbols and packets accuse it. The default is what NVIDIA tests its cables
    to; the InfiniBand specification asks for 1e-12. Source: NVIDIA DGX SuperPOD, Cabling Data
    Centers Design Guide, Bit Error Rate."""
    lost_at_most_fraction: Annotated[float, Field(strict=True, ge=0, lt=1)] = 0.01
    """Part of a port's packets, or of a node's TCP packets on ethernet, that may be lost or sent
    again while one criterion runs."""

    @property
    def protocol(self) -> str | None:
        """Protocol of its RDMA ports, as `machine.rdma` names it; None without RDMA."""
        return {"infiniband": "InfiniBand", "roce": "RoCE", "efa": "EFA"}.get(self.kind)

    @property
    def is_shown(self) -> bool:
        """Whether nodes show its NICs as interfaces or RDMA devices, and so their counters.

        Links of UnifiedBus end in the accelerators. Source: Huawei, HCCL (link types HCCS_SW, UB).
        """
        return self.kind != "ub"

    @property
    def by_kernel(self) -> bool:
        """Whether the kernel's TCP carries the traffic, so that interfaces count it.

        TCPX receives payload in GPU memory, but by the kernel's TCP; TCPXO and Slingshot pass the
        kernel by, and have no RDMA port that counts either. Source: Google, GPUDirect-TCPX and
        GPUDirect-TCPXO; HPE, Slingshot host software.
        """
        return self.kind in ("ethernet", "tcpx")


class Management(Network):
    """The network for everything else: ssh, the scheduler, this controller."""

    mtu_bytes: Mtu | None = Field(None, alias="mtu")
    """Largest packet in bytes, without the frame."""


class Storage(Section):
    """Absolute paths that every node sees."""

    datasets: AbsolutePath | None = None
    """Where training data is read from."""
    checkpoints: AbsolutePath | None = None
    """Where checkpoints are kept, shared by all nodes."""
    scratch: AbsolutePath | None = None
    """Where a job may write temporary files."""


KubernetesEngine = Literal[
    "default", "native", "kueue", "volcano", "coscheduling", "jobset", "trainjob", "pytorchjob"
]
SlurmName = Literal["partition", "account", "qos", "reservation", "constraint"]
"""Names in a submission to Slurm, as sbatch calls its options."""
_OF_KUBERNETES = ("engine", "namespace", "queue", "priority", "min_available")


class Scheduler(Section):
    """The scheduler that allocates nodes."""

    kind: Literal["slurm", "kubernetes"]
    """Kind of the scheduler that jobs are submitted to."""
    names: Mapping[SlurmName, Text] = Field(default_factory=dict)
    """Names that a submission to Slurm needs: partition, account, qos, reservation, constraint."""
    engine: KubernetesEngine | None = None
    """For Kubernetes: what keeps gangs whole there; `default` is the scheduler without gangs."""
    namespace: Text | None = None
    """For Kubernetes: the namespace of jobs; left out: the context's."""
    queue: Text | None = None
    """For Kubernetes: the queue of Kueue or Volcano that jobs are submitted to."""
    priority: Text | None = None
    """For Kubernetes: the jobs' PriorityClass."""
    min_available: Annotated[int, Field(strict=True, ge=1)] | None = None
    """For Kubernetes: fewest pods with which a gang may start (Volcano's minAvailable, a PodGroup's
    minCount or minMember); left out: all."""

    @model_validator(mode="after")
    def _is_of_its_kind(self) -> Self:
        theirs = {name: getattr(self, name) for name in _OF_KUBERNETES}
        given = [name for name, value in theirs.items() if value is not None]
        if self.kind == "slurm" and given:
            raise ValueError(f"{given[0]}: not with kind slurm; accepted: with kind kubernetes")
        if self.kind == "kubernetes" and self.engine is None:
            accepted = ", ".join(get_args(KubernetesEngine))
            raise ValueError(f"kind kubernetes without engine; accepted: engine: {accepted}")
        if self.engine in ("kueue", "jobset") and self.queue is None:
            raise ValueError(f"engine {self.engine} without queue; accepted: queue: its LocalQueue")
        if self.kind == "kubernetes" and self.names:
            raise ValueError("names: not with kind kubernetes; accepted: namespace, queue")
        return self


class Topology(Section):
    """Sockets that each node of the rack shows, over the CPUs of this machine.

    On node i everything is i sockets further, so that nodes take turns on the CPUs. Nodes of other
    launchers show their real sockets.
    """

    sockets: Annotated[int, Field(strict=True, ge=2, le=8)] = 2
    """Number of sockets; each is one NUMA node. The keys below count them from 0."""
    accelerator_sockets: Annotated[tuple[Count, ...], Field(min_length=1)] = (0, 1)
    """Sockets of the accelerators: local rank i is beside entry i, modulo the number of entries."""
    fabric_socket: Count = 0
    """Socket of the fabric's NIC."""
    management_socket: Count = 1
    """Socket of the management network's NIC."""

    @field_validator("accelerator_sockets", "fabric_socket", "management_socket")
    @classmethod
    def _is_there(cls, value: int | tuple[int, ...], info: ValidationInfo) -> int | tuple[int, ...]:
        sockets = info.data.get("sockets")
        for socket in value if isinstance(value, tuple) else (value,):
            if sockets is not None and socket >= sockets:
                raise ValueError(f"socket {socket} of {sockets}; accepted: 0 to {sockets - 1}")
        return value


def _is_command(text: str) -> str:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}; accepted: a command, as for a shell") from None
    if not any("{node}" in word for word in words):
        raise ValueError(
            f"{text!r} does not say which node; accepted: a command with {{node}} in it, such as "
            "ipmitool -H {node}-bmc chassis power off"
        )
    return text


Command = Annotated[Text, AfterValidator(_is_command)]


class Power(Section):
    """Commands that switch a node, run where pytest runs, without a shell; {node} is its name.

    The keys are not off and on, because YAML reads these as no and yes.
    """

    switch_off: Command
    """Cuts the node's power, such as ipmitool -H {node}-bmc chassis power off."""
    switch_on: Command
    """Boots the node again."""
    within_s: Seconds = Field(600.0, alias="within")
    """Limit from the boot command until commands run on the node again, such as 10 min."""
    command_within_s: Seconds = Field(60.0, alias="command_within")
    """Time limit of either command itself."""


class Inventory(Section):
    """The description of a cluster, before anything is promised of it."""

    name: Text
    """What the cluster is called."""
    confirmed: Annotated[bool, Field(strict=True)] = True
    """Whether somebody compared this page with what was bought. A page by --mnode-discover says
    false until then, and no run with it certifies."""
    emulated: tuple[Text, ...] = ()
    """What is emulated and not real, one line each; printed on the certificate."""
    nodes: Some | None = None
    """Number of nodes of the cluster; left out if each run creates as many as it requests."""
    accelerators: Accelerators
    fabric: Fabric
    management: Management | None = None
    topology: Topology | None = None
    storage: Storage | None = None
    scheduler: Scheduler | None = None
    power: Power | None = None

    def nics_of_ranks(self, ranks_per_node: int) -> int:
        """Number of NICs of a node that must carry traffic: all, with one rank per accelerator.

        With fewer ranks, their share of the NICs, but at least one.
        """
        nics, accelerators = self.fabric.nics_per_node, self.accelerators.per_node
        if not accelerators or ranks_per_node >= accelerators:
            return nics
        return max(1, nics * ranks_per_node // accelerators)

    @property
    def shares_processors(self) -> bool:
        """Whether nodes share the processors of one machine, which other programs may use too."""
        return bool(self.emulated)


COMPARED_ONLY = frozenset(
    (
        "accelerators.model",
        "accelerators.memory",
        "fabric.carrier_changes_at_most",
        "fabric.errors_at_most",
        "fabric.bit_error_rate_at_most",
        "fabric.lost_at_most_fraction",
    )
)
"""Keys that values are only compared with: with another value nothing is measured in another way,
and no bound changes but those that name the key."""
USED_BY = {"storage": ("preflight", "restart"), "scheduler": ("launch", "restart", "gang")}
"""Sections that only these criteria measure with; of other sections, all do."""


class Criterion(Section):
    """Base of the promises for one criterion."""

    def doubts(self, cluster: Inventory) -> Iterator[str]:  # noqa: ARG002
        """One line for each promise that this cluster cannot keep, or that would hide a fault."""
        return iter(())


class NonEmptyCriterion(Criterion):
    """Base of a criterion without required keys, of which at least one must be given."""

    @model_validator(mode="after")
    def _promises_something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError(f"promises nothing; accepted: {', '.join(type(self).model_fields)}")
        return self
