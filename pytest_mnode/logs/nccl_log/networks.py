"""Kinds of the networks that NCCL names in its logs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum


class NetworkKind(StrEnum):
    """How a network carries its bytes."""

    RDMA = "RDMA"
    """The adapter itself reads and writes memory: InfiniBand, RoCE, EFA, Slingshot."""
    SOCKETS = "sockets"
    """The kernel's TCP."""
    GPUDIRECT_TCP = "GPUDirect-TCP"
    """TCP whose payload the adapter writes to GPU memory (GPUDirect-TCPX, TCPXO, FasTrak)."""
    UNKNOWN = "unknown"
    """A name that no known document explains: inconclusive."""


_RDMA = re.compile(
    r"(?:NET[/ ])?(?:IB(?:ext)?(?:_v\d+)?|gIB(?:_v\d+)?|SHARP(?:_v\d+)?|UCX(?:[-_][\w-]+)?|"
    r"SPCX(?:_v\d+)?|IB-CAST|(?:RCCL-)?ANP|NCCL RDMA Plugin(?: v\d+)?|EFA)",
    re.IGNORECASE,
)
_SOCKETS = re.compile(r"(?:NET[/ ])?(?:Socket|FastSocket|Fast ?Socket)(?:_v\d+)?", re.IGNORECASE)
_GPUDIRECT_TCP = re.compile(r"(?:GPUDirectTCPX\w*|FasTrak\w*|TCPXO?\w*)", re.IGNORECASE)
_LIBFABRIC = re.compile(r"(?:AWS )?(?:Libfabric|OFI)(?:_v\d+)?", re.IGNORECASE)
_RDMA_PROVIDERS = ("efa", "efa-direct", "verbs", "cxi", "opx", "psm2", "psm3", "gni", "ucx", "mlx")
_SOCKET_PROVIDERS = ("tcp", "sockets", "udp", "net")


def network_of(name: str, providers: Sequence[str] = ()) -> NetworkKind:
    """Kind of the network called `name` in channel lines or `Using network …`.

    providers: those that libfabric selected (`efa`, `verbs;ofi_rxm`, `tcp` …). Libfabric
    without a provider, or with providers of different kinds, is unknown, as is any unlisted name.

    Sources: NCCL's internal networks (IB, Socket); nccl-rdma-sharp-plugins (IBext, UCX, SHARP);
    aws-ofi-nccl; Google's gIB, GPUDirect-TCPX and FasTrak, Fast Socket; NVIDIA Spectrum-X (SPCX);
    RCCL (IB-CAST); fi_provider(7).
    """
    name = name.strip()
    if _SOCKETS.fullmatch(name):
        return NetworkKind.SOCKETS
    if _GPUDIRECT_TCP.fullmatch(name):
        return NetworkKind.GPUDIRECT_TCP
    if _LIBFABRIC.fullmatch(name):
        kinds = {provider_network(provider) for provider in providers}
        return kinds.pop() if len(kinds) == 1 else NetworkKind.UNKNOWN
    return NetworkKind.RDMA if _RDMA.fullmatch(name) else NetworkKind.UNKNOWN


def is_offloaded(name: str) -> bool:
    """Whether a network of GPUDirect-TCP passes the kernel's TCP by: FasTrak, which is TCPXO."""
    return name.strip().lower().startswith(("fastrak", "tcpxo"))


def provider_network(provider: str) -> NetworkKind:
    """Kind of a libfabric provider's network; for `verbs;ofi_rxm`, the core provider decides."""
    core = provider.strip().lower().split(";")[0]
    if core in _RDMA_PROVIDERS:
        return NetworkKind.RDMA
    return NetworkKind.SOCKETS if core in _SOCKET_PROVIDERS else NetworkKind.UNKNOWN


def family_of(name: str) -> str:
    """The network under which NCCL lists the devices of `name`: IB for plugins over verbs."""
    name = name.strip()
    if _LIBFABRIC.fullmatch(name):
        return "OFI"
    if _SOCKETS.fullmatch(name):
        return "Socket"
    return "IB" if _RDMA.fullmatch(name) else name
