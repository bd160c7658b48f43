"""NVLink's fabric beyond a GPU: registration with NVSwitches, fabric manager, IMEX.

Sources: nvidia-smi(1), section Fabric of -q; NVIDIA, "Fabric Manager User Guide", "NVIDIA IMEX
Service for NVLink Networks".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_mnode.machine import sysfs
from pytest_mnode.machine.programs import output_of

IMEX_CONFIG = "etc/nvidia-imex/config.cfg"
IMEX_NODES = "etc/nvidia-imex/nodes_config.cfg"
_GPU = re.compile(r"GPU ([0-9A-Fa-f]+:[0-9A-Fa-f:.]+)\s*$")
_NODE = re.compile(r"\s*Node #\d+\s*-\s*(\S+)\s*-\s*([A-Z_]+)")
_STATE = re.compile(r"Domain State:\s*(\S+)")
_NODES_FILE = re.compile(r"(?m)^\s*IMEX_NODES?_CONFIG_FILE\s*=\s*(\S+)")
_NO_ILLS = {"state", "status", "cliqueid", "clusteruuid", "partitionassigned"}
_WELL = ("healthy", "full", "false", "none")
_UNKNOWN = ("n/a", "[n/a]", "not supported", "[not supported]", "unknown", "")


@dataclass(frozen=True, slots=True)
class Registration:
    """A GPU in its NVLink fabric; None if the driver does not say.

    state, status: such as Completed, Success. cluster: UUID of its domain, all zeros within a node.
    clique: partition of the domain. ills: what its health names, such as "Bandwidth Degraded".
    """

    state: str | None = None
    status: str | None = None
    cluster: str | None = None
    clique: int | None = None
    ills: tuple[str, ...] = ()


def parse_fabric(text: str) -> list[Registration | None]:
    """GPUs of `nvidia-smi -q` in their order; None for one without a section Fabric."""
    found: list[Registration | None] = []
    fields: dict[str, str] = {}
    depth: int | None = None
    for line in [*text.splitlines(), "GPU 0:0"]:
        indent = len(line) - len(line.lstrip())
        if depth is not None and line.strip() and indent <= depth:
            if found:
                found[-1] = _registration(fields)
            depth, fields = None, {}
        if _GPU.match(line):
            found.append(None)
        elif line.strip() == "Fabric":
            depth = indent
        elif depth is not None and ":" in line:
            key, _, value = line.partition(":")
            fields[" ".join(key.split())] = value.strip()
    return found[:-1]


def _registration(fields: Mapping[str, str]) -> Registration:
    known = {
        name.replace(" ", "").lower(): value
        for name, value in fields.items()
        if value.lower() not in _UNKNOWN
    }
    clique = known.get("cliqueid", "")
    return Registration(
        known.get("state"),
        known.get("status"),
        known.get("clusteruuid"),
        int(clique) if clique.isascii() and clique.isdigit() else None,
        tuple(
            f"{name} {value}"
            for name, value in fields.items()
            if name.replace(" ", "").lower() in known.keys() - _NO_ILLS
            and value.lower() not in _WELL
        ),
    )


@dataclass(frozen=True, slots=True)
class Imex:
    """What `nvidia-imex-ctl -N` says. state: of the domain, such as UP; None if it says none.

    nodes: state of each, such as READY, by address.
    """

    state: str | None = None
    nodes: Mapping[str, str] = field(default_factory=dict)


def parse_imex(text: str) -> Imex:
    """The domain and its nodes, from the output of `nvidia-imex-ctl -N`."""
    states = _STATE.findall(text)
    nodes = [match for line in text.splitlines() if (match := _NODE.match(line))]
    return Imex(states[-1] if states else None, {one[1]: one[2] for one in nodes})


def read_imex() -> Imex:
    """The IMEX domain as this node's daemon sees it; raises OSError, with the reason."""
    said = output_of("nvidia-imex-ctl", "-N", package="nvidia-imex", may_fail=True)
    found = parse_imex(said)
    if found.state is None:
        first = said.strip().partition("\n")[0]
        raise OSError(f"nvidia-imex-ctl -N: {first or 'no output'}")
    return found


def imex_nodes(root: Path) -> tuple[str, ...] | None:
    """Addresses in IMEX's file of nodes, in its order; None if there is no such file."""
    configured = _NODES_FILE.search(sysfs.text(root / IMEX_CONFIG) or "")
    file = root / (configured[1].lstrip("/") if configured else IMEX_NODES)
    text = sysfs.text(file)
    if text is None:
        return None
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return tuple(line for line in lines if line)


def service(process: str, unit: str, root: Path) -> str | None:
    """State of a service: "running" if its process is there, or what systemd calls it; None if
    neither can be seen, as in a container. process: its name, of which 15 bytes are compared."""
    if any(name == process[:15] for name in _processes(root)):
        return "running"
    if root != Path("/"):
        return "not running"
    try:
        said = output_of("systemctl", "is-active", unit, package="systemd", may_fail=True).strip()
    except OSError:
        return None
    return {"active": "running", "inactive": "not running", "failed": "failed"}.get(said)


def _processes(root: Path) -> Iterator[str]:
    for entry in sysfs.entries(root / "proc"):
        if entry.name.isdecimal():
            yield sysfs.text(entry / "comm") or ""
