"""What ranks find in their environment: read in the very ranks of a world, judged elsewhere."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_mnode.world.contract import World

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
    """

    number: int
    node: str
    hostname: str
    variables: Mapping[str, str]
    settings: Mapping[str, tuple[str, str]]


def read_environment(*, world: World) -> RankEnvironment:
    """Runs in a rank."""
    return environment_of(os.environ, world.rank, world.node, nccl_files(os.environ))


def nccl_files(env: Mapping[str, str]) -> tuple[Path, ...]:
    """Files that NCCL reads settings from: its own choice of the user's, and the system's.

    Source: NCCL user guide, "System configuration"; NCCL_CONF_FILE since 2.23.
    """
    own = env.get("NCCL_CONF_FILE")
    home = env.get("HOME", "")
    user = Path(own) if own else Path(home, ".nccl.conf")
    return (Path("/etc/nccl.conf"), user)


def environment_of(
    env: Mapping[str, str], number: int, node: str, files: tuple[Path, ...] = ()
) -> RankEnvironment:
    """What of an environment and of NCCL's files, the later ones stronger, concerns a world."""
    settings: dict[str, tuple[str, str]] = {}
    for file in files:
        for name, value in parse_settings(_text(file)).items():
            settings[name] = (value, f" in {file}")
    for name, value in env.items():
        concerns = _SETTINGS.fullmatch(name) or name in _SETTING_TOO
        if concerns and name not in _TORCHRUN_PRIVATE:
            settings[name] = (value, "")
    variables = {name: env[name] for name in _TORCHRUN if name in env}
    return RankEnvironment(number, node, socket.gethostname(), variables, settings)


def parse_settings(text: str) -> dict[str, str]:
    """NAME=VALUE lines; comments and what is no setting are left out."""
    found = {}
    for line in text.splitlines():
        name, separator, value = line.partition("#")[0].partition("=")
        if separator and re.fullmatch(r"[A-Z][A-Z0-9_]*", name.strip()):
            found[name.strip()] = value.strip()
    return found


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
