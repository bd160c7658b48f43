"""What ranks find in their environment: read in the very ranks of a world, judged elsewhere."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from pytest_mnode.logs import nccl_files
from pytest_mnode.machine import software

if TYPE_CHECKING:
    from pytest_mnode.rank.world import World

_TORCHRUN = (
    *("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    *("GROUP_RANK", "GROUP_WORLD_SIZE"),
)
_SETTINGS = re.compile(r"(NCCL|GLOO|TORCH_NCCL|TORCH_DISTRIBUTED|FI|UCX|OFI_NCCL)_[A-Z0-9_]+")
_SETTING_TOO = frozenset({"CUDA_LAUNCH_BLOCKING"})
_TORCHRUN_PRIVATE = frozenset({"TORCH_NCCL_ASYNC_ERROR_HANDLING"})
"""Set by torchrun itself."""


@dataclass(frozen=True, slots=True)
class RankEnvironment:
    """The environment of one rank.

    number: which rank it is, by its place in the world. variables: of torchrun. settings: of
    backends, each with its value and where it comes from (" in FILE"; "" for the environment).
    nccl: version of the library that torch loads; None where there is none, or it does not tell.
    """

    number: int
    node: str
    hostname: str
    variables: Mapping[str, str]
    settings: Mapping[str, tuple[str, str]]
    nccl: str | None = None


def read_environment(*, world: World) -> RankEnvironment:
    """Runs in a rank."""
    nccl = None
    with contextlib.suppress(OSError, AttributeError):
        nccl = software.nccl_version()
    files = nccl_files.settings_of_files(os.environ)
    return environment_of(os.environ, world.rank, world.node, files, nccl)


def environment_of(
    env: Mapping[str, str],
    number: int,
    node: str,
    files: Mapping[str, tuple[str, str]] = MappingProxyType({}),
    nccl: str | None = None,
) -> RankEnvironment:
    """What of an environment concerns a world. files: value and file of what NCCL's files set."""
    settings = {name: (value, f" in {file}") for name, (value, file) in files.items()}
    for name, value in env.items():
        concerns = _SETTINGS.fullmatch(name) or name in _SETTING_TOO
        if concerns and name not in _TORCHRUN_PRIVATE:
            settings[name] = (value, "")
    variables = {name: env[name] for name in _TORCHRUN if name in env}
    return RankEnvironment(number, node, socket.gethostname(), variables, settings, nccl)
