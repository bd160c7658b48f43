"""Variables that networks obey: which they are, and what their values mean."""

from __future__ import annotations

from collections.abc import Mapping

PREFIXES = ("NCCL_", "RCCL_", "GLOO_", "TORCH_GLOO_", "TP_", "UCX_", "UCC_", "FI_", "OFI_NCCL_")
"""What a rank's environment is read for."""

MUST_BE_EQUAL = (
    *("GLOO_SOCKET_IFNAME", "NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_IB_DISABLE", "NCCL_ALGO"),
    *("NCCL_PROTO", "NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_READ", "NCCL_COLLNET_ENABLE"),
    *("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_CROSS_NIC", "NCCL_NVLS_ENABLE"),
    *("NCCL_IB_ROCE_VERSION_NUM", "NCCL_IB_TC", "NCCL_IB_SL", "FI_PROVIDER"),
)
"""Ranks that differ in one of these do not run the same way. Names of interfaces and devices, and
indices of GIDs, may differ where nodes do."""

OFF_UNLESS_SET = (
    *("NCCL_IB_DISABLE", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_COLLNET_ENABLE"),
)
"""Switches of which 0 says what is so anyway. Source: NCCL user guide, environment variables."""

TIES_HANDS = (
    *("NCCL_ALGO", "NCCL_PROTO", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_P2P_LEVEL"),
    *("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS", "NCCL_MIN_NRINGS"),
    *("NCCL_COLLNET_ENABLE", "NCCL_NVLS_ENABLE", "NCCL_CROSS_NIC", "NCCL_BUFFSIZE"),
    *("NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "NCCL_NET_DISABLE_INTRA", "NCCL_IGNORE_CPU_AFFINITY"),
)
"""Settings that take from NCCL what it would choose: no other path, perhaps another rate."""


def of_networks(environment: Mapping[str, str]) -> dict[str, str]:
    """What of an environment networks obey."""
    return {name: value for name, value in environment.items() if name.startswith(PREFIXES)}


def number(value: str | None) -> int | None:
    """As NCCL reads a number: decimal, 0x… or 0…; None where it is none, which NCCL ignores."""
    text = (value or "").strip()
    try:
        return int(text, 8 if text.startswith("0") and text.isdigit() and len(text) > 1 else 0)
    except ValueError:
        return None


def is_on(value: str | None) -> bool:
    """Whether a switch is set to anything but 0."""
    return number(value) not in (None, 0)


def is_off(value: str | None) -> bool:
    """Whether a switch is set to 0."""
    return number(value) == 0
