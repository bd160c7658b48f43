"""What the table holds."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """One cause: its name, what it means, what to do, and how lines that tell of it look.

    in_info: whether NCCL prints it as INFO too; other INFO lines of NCCL tell of no failure.
    unless_other: whether it is taken only for lines that tell of nothing else in the table.
    """

    name: str
    root: bool
    meaning: str
    remedy: str
    patterns: tuple[re.Pattern[str], ...]
    in_info: bool = False
    unless_other: bool = False


def root(name: str, meaning: str, remedy: str, *patterns: str, **flags: bool) -> Kind:
    """A cause that explains a failure."""
    return Kind(name, True, meaning, remedy, tuple(map(re.compile, patterns)), **flags)


def lost(name: str, meaning: str, remedy: str, *patterns: str, **flags: bool) -> Kind:
    """What a rank prints because of another one."""
    return Kind(name, False, meaning, remedy, tuple(map(re.compile, patterns)), **flags)


def ended_by(signal: int) -> str:
    """How launchers, shells and Kubernetes print the exit code of a process that a signal ended."""
    return (
        rf"(?i:exitcode\s*: |return code = |exit (?:code|status):? )(?:-{signal}|{128 + signal})\b"
    )


CUDA_ERROR = (
    r"(?:CUDA error: |(?:Cuda|CUDA|HIP) (?:failure|error) ?(?:\d+ )?'?|cudaError\w* ?:? ?'?)"
)
COMPLETION = r"Got completion (?:from peer |with ).*?(?:status=|error )(?:\w+\()?"
"""How NCCL says that an RDMA operation ended; the status follows."""
QP_GONE = "Invalid receiver queue pair"
"""How libfabric says that the process of a peer is gone."""
