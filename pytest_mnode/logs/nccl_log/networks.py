"""What carries the bytes of the networks that NCCL names in its logs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_mnode.logs.nccl_log.facts import Network, Process

_RDMA = re.compile(
    r"(?:NET[/ ])?(?:IB(?:ext)?(?:_v\d+)?|gIB(?:_v\d+)?|SHARP(?:_v\d+)?|UCX(?:[-_][\w-]+)?|"
    r"SPCX(?:_v\d+)?|(?:RCCL-)?ANP|NCCL RDMA Plugin(?: v\d+)?|EFA)",
    re.IGNORECASE,
)
_SOCKETS = re.compile(r"(?:NET[/ ])?(?:Socket|FastSocket|Fast ?Socket)(?:_v\d+)?", re.IGNORECASE)
_GPUDIRECT_TCP = re.compile(r"(?:GPUDirectTCPX\w*|FasTrak\w*|TCPXO?\w*)", re.IGNORECASE)
_LIBFABRIC = re.compile(r"(?:AWS )?(?:Libfabric|OFI)(?:_v\d+)?", re.IGNORECASE)

_CONFIG = re.compile(
    r"\[(?P<host>[\w.-]{1,255}):(?P<pid>\d{1,9}) ?:\d{1,9}\].{0,100} UCX +INFO +"
    r".{0,100}?(?:inter-node cfg#\d{1,5} ?|ep_cfg\[\d{1,5}\]: )(?P<lanes>.+)"
)
_LANE = re.compile(r"\b([a-z]\w{1,30})/([\w.:-]{1,80})")
_RDMA_LANE = re.compile(r"(?:rc|dc|ud|gga|srd)(?:_\w+)?")
_WITHIN_LANES = ("self", "sysv", "posix", "mm", "cma", "knem", "xpmem", "cuda_ipc", "rocm_ipc")

_RDMA_PROVIDERS = ("efa", "efa-direct", "verbs", "cxi", "opx", "psm2", "psm3", "gni", "ucx", "mlx")
_SOCKET_PROVIDERS = ("tcp", "sockets", "udp", "net")


def network_of(name: str, providers: Sequence[str] = ()) -> Network:
    """What carries the bytes of a network called `name` in channel lines or `Using network …`.

    `providers`: those that libfabric selected (`efa`, `verbs;ofi_rxm`, `tcp` …). Libfabric
    without one, or with several that disagree, is unknown, as is any name that is not listed.

    Sources: NCCL's internal networks (IB, Socket); nccl-rdma-sharp-plugins (IBext, UCX, SHARP);
    aws-ofi-nccl; Google's gIB, GPUDirect-TCPX and FasTrak, Fast Socket; NVIDIA Spectrum-X (SPCX);
    fi_provider(7).
    """
    name = name.strip()
    if _SOCKETS.fullmatch(name):
        return Network.SOCKETS
    if _GPUDIRECT_TCP.fullmatch(name):
        return Network.GPUDIRECT_TCP
    if _LIBFABRIC.fullmatch(name):
        kinds = {provider_network(provider) for provider in providers}
        return kinds.pop() if len(kinds) == 1 else Network.UNKNOWN
    return Network.RDMA if _RDMA.fullmatch(name) else Network.UNKNOWN


def provider_network(provider: str) -> Network:
    """What carries the bytes of a libfabric provider; `verbs;ofi_rxm` is judged by its core."""
    core = provider.strip().lower().split(";")[0]
    if core in _RDMA_PROVIDERS:
        return Network.RDMA
    return Network.SOCKETS if core in _SOCKET_PROVIDERS else Network.UNKNOWN


def family_of(name: str) -> str:
    """The name that devices of a network are listed under: plugins over verbs list theirs as IB."""
    name = name.strip()
    if _LIBFABRIC.fullmatch(name):
        return "OFI"
    if _SOCKETS.fullmatch(name):
        return "Socket"
    return "IB" if _RDMA.fullmatch(name) else name


@dataclass(frozen=True, slots=True)
class UcxConfig:
    """What UCX uses to another node: `inter-node cfg#2 tag(rc_mlx5/mlx5_0:1 tcp/eth0)`."""

    process: Process
    rdma: tuple[str, ...]
    """Devices, such as mlx5_0:1."""
    tcp: tuple[str, ...]
    """Interfaces."""


def read_ucx(line: str) -> UcxConfig | None:
    """The configuration that a line of UCX_LOG_LEVEL=info tells; None within a node.

    `ep_cfg[2]: …` of UCX before 1.14 does not say where it leads: within a node where it has
    shared memory. Source: UCX, src/ucp/core/ucp_worker.c.
    """
    found = _CONFIG.search(line) if "UCX" in line else None
    lanes = _LANE.findall(found["lanes"]) if found is not None else []
    if found is None or any(name in _WITHIN_LANES for name, _ in lanes):
        return None
    rdma = dict.fromkeys(device for name, device in lanes if _RDMA_LANE.fullmatch(name))
    tcp = dict.fromkeys(device for name, device in lanes if name == "tcp")
    process = Process(host=found["host"], pid=int(found["pid"]))
    return UcxConfig(process, tuple(rdma), tuple(tcp)) if rdma or tcp else None
