"""Reader of NCCL's debug log (`NCCL_DEBUG=INFO`), 2.10 to 2.31 and RCCL, of one rank or of many.

`read_nccl_log` reads any text or bytes. It never guesses: a line about a channel that it cannot
read is in `unknown_lines`, signs of missing lines are in `truncated`. Judging is not done here.

Names are imported on first use: a node that reads no log needs none of these modules.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_mnode.logs.nccl_log.log import NcclLog, RankLog
    from pytest_mnode.logs.nccl_log.model import (
        Absence,
        Channel,
        Direction,
        NcclGid,
        NcclProcess,
        Transport,
        UcxConfig,
        Warn,
    )
    from pytest_mnode.logs.nccl_log.networks import (
        NetworkKind,
        is_offloaded,
        network_of,
        provider_network,
    )
    from pytest_mnode.logs.nccl_log.read import read_nccl_log

__all__ = [
    "Absence",
    "Channel",
    "Direction",
    "NcclGid",
    "NcclLog",
    "NcclProcess",
    "NetworkKind",
    "RankLog",
    "Transport",
    "UcxConfig",
    "Warn",
    "is_offloaded",
    "network_of",
    "provider_network",
    "read_nccl_log",
]

_HOMES = {
    "log": ("NcclLog", "RankLog"),
    "networks": ("NetworkKind", "is_offloaded", "network_of", "provider_network"),
    "read": ("read_nccl_log",),
}
"""Names by module; all others are in `model`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((home for home, names in _HOMES.items() if name in names), "model")
    return getattr(import_module(f"{__name__}.{home}"), name)
