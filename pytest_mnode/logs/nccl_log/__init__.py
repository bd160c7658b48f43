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
    from pytest_mnode.logs.nccl_log.networks import NetworkKind, network_of, provider_network
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
    "network_of",
    "provider_network",
    "read_nccl_log",
]


def __getattr__(name: str) -> Any:
    for home in ("model", "networks", "log", "read") if name in __all__ else ():
        module = import_module(f".{home}", __name__)
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
