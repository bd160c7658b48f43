"""What nodes show. `NodeLook` travels as a line of JSON; networks are made of it by the controller.

Unknown is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

_STRICT: Mapping[str, Any] = {"extra": "forbid"}
Kind = Literal["ethernet", "roce", "infiniband", "efa"]


@dataclass(frozen=True, slots=True)
class Nic:
    """A network interface that is not loopback.

    up: set up and with a carrier; None where not told. rate_mbits_s: what its driver says, or the
    queue of an emulated link; None of a virtual one that nothing shapes. part_of: the bond or
    bridge that it is bound into. wires: interfaces with a device below it, itself where it has one.
    """

    __pydantic_config__ = _STRICT
    name: str
    kind: str
    up: bool | None
    rate_mbits_s: float | None
    shaped: bool
    hardware: bool
    mtu_bytes: int | None
    driver: str | None
    part_of: str | None
    addresses: tuple[str, ...]
    rdma_devices: tuple[str, ...]
    numa_node: int | None
    wires: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """A port of an RDMA device. virtual: made of an interface by software, as soft-RoCE is.

    nearest: how near the nearest accelerator is, in the words of nvidia-smi; None where there is
    none, or PCI does not tell. mtu_bytes: that is active, by ibv_devinfo.
    """

    __pydantic_config__ = _STRICT
    device: str
    port: int
    active: bool | None
    state: str | None
    protocol: str | None
    rate_gbits_s: float | None
    virtual: bool
    netdevs: tuple[str, ...]
    gid_types: tuple[str, ...]
    nearest: str | None
    numa_node: int | None
    mtu_bytes: int | None


@dataclass(frozen=True, slots=True)
class Accelerators:
    """Accelerators of a node.

    on_pci: how many PCI shows, of which makers. nvidia_on_pci: those of NVIDIA, without virtual
    functions of others. models, memory_bytes, ecc, persistence, mig: of each that NVML tells of,
    which may be those of a job alone; None where it could not be asked, for the reason in `why`.
    numa_nodes: beside which each is, by PCI. remapped_rows_told: each tells of its remapped rows.
    """

    __pydantic_config__ = _STRICT
    on_pci: int
    nvidia_on_pci: int
    makers: tuple[str, ...]
    why: str
    models: tuple[str | None, ...] | None
    memory_bytes: tuple[int | None, ...] | None
    ecc: tuple[bool | None, ...] | None
    persistence: tuple[bool | None, ...] | None
    numa_nodes: tuple[int | None, ...]
    driver_is_open: bool
    peermem: str | None
    mig: tuple[bool | None, ...] | None = None
    remapped_rows_told: bool = False


@dataclass(frozen=True, slots=True)
class SharedMount:
    """A file system of the network, as /proc/self/mountinfo has it."""

    __pydantic_config__ = _STRICT
    path: str
    kind: str
    source: str
    writable: bool


@dataclass(frozen=True, slots=True)
class NodeLook:
    """All that one node shows. unread: why a part is missing, by the part's name.

    pcie_links_told: each accelerator and RDMA device tells width and speed of its link.
    kernel_log_told: this user may read it.
    """

    __pydantic_config__ = _STRICT
    nics: tuple[Nic, ...] | None
    rdma: tuple[RdmaPort, ...] | None
    accelerators: Accelerators | None
    numa_nodes: int | None
    cpus: int | None
    shm_bytes: int | None
    memlock_bytes: int | None
    memlock_unlimited: bool
    open_files: int | None
    mounts: tuple[SharedMount, ...] | None
    scheduler: str | None
    unread: dict[str, str]
    pcie_links_told: bool = False
    kernel_log_told: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """A node and what it showed. address: where others reach it for control traffic.

    problem: why it showed nothing; "" where it did.
    """

    name: str
    address: str
    look: NodeLook | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Sight:
    """What was seen of a cluster. launcher, reason: how its nodes were reached.

    emulated: what is not real, a line each. names: what a submission needs, by its key, as the
    controller's own allocation has it.
    """

    nodes: tuple[Seen, ...]
    launcher: str
    reason: str
    made_at: str
    emulated: tuple[str, ...] = ()
    scheduler_names: tuple[tuple[str, str], ...] = ()

    @property
    def shown(self) -> tuple[Seen, ...]:
        """Nodes that showed something."""
        return tuple(node for node in self.nodes if node.look is not None)

    @property
    def silent(self) -> tuple[Seen, ...]:
        """Nodes that showed nothing."""
        return tuple(node for node in self.nodes if node.look is None)


@dataclass(frozen=True, slots=True)
class NetworkSeen:
    """A network as one node shows it.

    interfaces: names of interfaces, or of RDMA devices. nics: ports that carry. rate_mbits_s: of
    one NIC; None where not told. mtu_bytes: of the interfaces, or of RDMA ports that have none, on
    InfiniBand none with an address; None where not told, or they differ. addressed: they have IP
    addresses. why: how it was told
    from others. aside: what was taken for no part of it, with the reason.
    """

    kind: Kind
    interfaces: tuple[str, ...]
    nics: int
    rate_mbits_s: float | None
    mtu_bytes: int | None
    addressed: bool
    why: str
    aside: tuple[str, ...] = ()
    gid_types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Networks:
    """Networks of one node; None where it shows none, for the reason beside it."""

    fabric: NetworkSeen | None
    management: NetworkSeen | None
    no_fabric: str = ""
    no_management: str = ""
