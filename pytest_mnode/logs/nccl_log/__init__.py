"""Reader of NCCL's debug log (`NCCL_DEBUG=INFO`), 2.10 to 2.30 and RCCL, of one rank or of many.

`read_nccl_log` takes any text or bytes and always answers; what it cannot read it says
(`unknown_lines`, `truncated`) instead of guessing. Judging is not done here.
"""

from pytest_mnode.logs.nccl_log.facts import (
    Channel,
    Comm,
    Direction,
    Network,
    Plan,
    Process,
    Transport,
    Tuning,
    Warn,
)
from pytest_mnode.logs.nccl_log.log import NcclLog, Rails, RankLog
from pytest_mnode.logs.nccl_log.networks import UcxConfig, network_of, provider_network
from pytest_mnode.logs.nccl_log.read import read_nccl_log
from pytest_mnode.logs.nccl_log.surroundings import (
    Absence,
    Device,
    Gid,
    GpuDirect,
    Interface,
    NetworkUse,
    NoDevice,
    Provider,
    Purpose,
    Setting,
    Use,
)

__all__ = [
    "Absence",
    "Channel",
    "Comm",
    "Device",
    "Direction",
    "Gid",
    "GpuDirect",
    "Interface",
    "NcclLog",
    "Network",
    "NetworkUse",
    "NoDevice",
    "Plan",
    "Process",
    "Provider",
    "Purpose",
    "Rails",
    "RankLog",
    "Setting",
    "Transport",
    "Tuning",
    "UcxConfig",
    "Use",
    "Warn",
    "network_of",
    "provider_network",
    "read_nccl_log",
]
