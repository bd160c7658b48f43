"""Environment of ranks: torchrun's variables, and settings that cost the speed of a backend.

It is read in the ranks of a world and judged in the controller.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from pytest_mnode.criteria.preflight.judges.common import Subject, listed, promises
from pytest_mnode.criteria.transport.selection import Selection
from pytest_mnode.criteria.transport.settings import cost, is_default
from pytest_mnode.culprit import Culprit
from pytest_mnode.evidence.rules import difference
from pytest_mnode.logs import nccl_files
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.software import nccl_version
from pytest_mnode.measurement import Measurement, equals
from pytest_mnode.spec import Spec

if TYPE_CHECKING:
    from pytest_mnode.rank.world import World

_TORCHRUN = (
    *("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    *("GROUP_RANK", "GROUP_WORLD_SIZE"),
)
_SETTINGS = re.compile(r"(NCCL|GLOO|TORCH_NCCL|TORCH_DISTRIBUTED|FI|UCX|OFI_NCCL)_[A-Z0-9_]+")
_SETTING_TOO = frozenset(
    (
        *("CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS", "NVIDIA_TF32_OVERRIDE"),
        *("CUBLAS_WORKSPACE_CONFIG", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "PYTHONHASHSEED"),
        *("OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"),
        *("MKL_NUM_THREADS", "MKL_CBWR", "OPENBLAS_NUM_THREADS"),
    )
)
"""Variables of the device and of mathematical libraries, which decide speed and the last digits."""
_TORCH = "torch."
"""Begin of the names of torch's own settings."""
_TORCHRUN_PRIVATE = frozenset({"TORCH_NCCL_ASYNC_ERROR_HANDLING"})
"""Settings that torchrun itself makes."""
_COMMON = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
_INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
_HCA = "NCCL_IB_HCA"
_HOST = "NCCL_HOSTID"
_OF_NODE = (*_INTERFACES, _HCA, "NCCL_IB_GID_INDEX", "UCX_NET_DEVICES", _HOST)
"""Nodes may name and number their devices differently."""
_OF_RANK = (
    *("NCCL_DEBUG_FILE", "NCCL_GRAPH_DUMP_FILE", "NCCL_TOPO_DUMP_FILE", "UCX_LOG_FILE"),
    *("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"),
    *("OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"),
)
"""Files that a rank or a node writes for itself (this package gives ranks an NCCL_DEBUG_FILE), and
the CPUs that a rank is pinned to."""


@dataclass(frozen=True, slots=True)
class RankEnvironment:
    """The environment of one rank.

    number: its position in the world. variables: torchrun's, by name. settings: value and origin
    (" in FILE"; "" for the environment) of each backend setting, by name. nccl: version of the
    library that torch loads; None if there is none or it is unknown. hcas: ports, such as mlx5_0:1,
    of RDMA devices that the rank can open; None if unknown.
    """

    number: int
    node: str
    variables: Mapping[str, str]
    settings: Mapping[str, tuple[str, str]]
    nccl: str | None = None
    hcas: tuple[str, ...] | None = None


def read_environment(*, world: World) -> RankEnvironment:
    """Read the environment of the rank that calls this."""
    nccl = None
    with contextlib.suppress(OSError, AttributeError):
        nccl = nccl_version()
    files = nccl_files.settings_of_files(os.environ)
    found = environment_of(os.environ, world.rank, world.node, files, nccl)
    return replace(
        found,
        settings={**found.settings, **torch_settings()},
        hcas=hcas_of(Machine.read(parts=("rdma", "verbs"))),
    )


def torch_settings() -> dict[str, tuple[str, str]]:
    """Settings of this rank's torch that change speed or the last digits of results.

    A node's own start-up code (sitecustomize, a wrapper) sets them without any variable.
    """
    import torch

    cudnn = torch.backends.cudnn
    readers: dict[str, Callable[[], object]] = {
        "num_threads": torch.get_num_threads,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
        "default_dtype": torch.get_default_dtype,
        "cudnn.deterministic": lambda: cudnn.deterministic,
        "cudnn.benchmark": lambda: cudnn.benchmark,
        "cudnn.allow_tf32": lambda: cudnn.allow_tf32,
        "float32_matmul_precision": torch.get_float32_matmul_precision,
    }
    found: dict[str, tuple[str, str]] = {}
    for name, read in readers.items():
        with contextlib.suppress(RuntimeError):  # set by torch's newer interface of precision
            found[f"{_TORCH}{name}"] = (str(read()), "")
    return found


def hcas_of(machine: Machine) -> tuple[str, ...] | None:
    """Ports of the RDMA devices that a process can open; None if unknown."""
    if machine.rdma is None or machine.verbs is None:
        return None
    opened = {one.device for one in machine.verbs if not one.problem}
    return tuple(port.name for port in machine.ports if port.device in opened)


def environment_of(
    env: Mapping[str, str],
    number: int,
    node: str,
    files: Mapping[str, tuple[str, str]] = MappingProxyType({}),
    nccl: str | None = None,
) -> RankEnvironment:
    """The variables in `env` that concern a world. files: settings from NCCL's own files."""
    settings = {name: (value, f" in {file}") for name, (value, file) in files.items()}
    for name, value in env.items():
        concerns = _SETTINGS.fullmatch(name) or name in _SETTING_TOO
        if concerns and name not in _TORCHRUN_PRIVATE:
            settings[name] = (value, "")
    variables = {name: env[name] for name in _TORCHRUN if name in env}
    return RankEnvironment(number, node, variables, settings, nccl)


def contract(
    ranks: Sequence[RankEnvironment] | None, spec: Spec, name: str, why: str = ""
) -> list[Measurement]:
    """Number of torchrun's variables that are missing, wrong or unlike those of other ranks.

    ranks: all ranks of the world, by rank; without a world, None and the reason in `why`.
    """
    if promises(spec).environment is None:
        return []
    label = "variables of torchrun that are wrong"
    subject = Subject(label, "", equals(0), "torchrun's contract")
    mine = _on(name, ranks or ())
    if ranks is None or not mine:
        return [subject.unknown(why or f"no rank runs on {name}")]
    faults = [fault for rank in mine for fault in _faults(rank, ranks)]
    culprit = f"{name}: {listed(faults, 1)}" if faults else None
    note = listed(faults, 3) or f"{len(mine)} ranks of {len(ranks)}"
    return [subject.measured(len(faults), culprit, note)]


def _on(name: str, ranks: Sequence[RankEnvironment]) -> list[RankEnvironment]:
    return [rank for rank in ranks if rank.node == name]


def _faults(rank: RankEnvironment, ranks: Sequence[RankEnvironment]) -> list[str]:
    """Faults of a rank's variables; `rank.number` is its actual position in the world."""
    local = [other for other in ranks if other.node == rank.node]
    expected = {
        "RANK": str(rank.number),
        "WORLD_SIZE": str(len(ranks)),
        "LOCAL_RANK": str(local.index(rank)),
        "LOCAL_WORLD_SIZE": str(len(local)),
    }
    found = []
    for variable, wanted in expected.items():
        value = rank.variables.get(variable)
        if value is None:
            found.append(f"rank {rank.number}: {variable} is not set")
        elif value != wanted:
            found.append(f"rank {rank.number}: {variable}={value}, expected {wanted}")
    for variable in _COMMON[:2]:
        value = rank.variables.get(variable)
        usual = _most_common([other.variables.get(variable) for other in ranks])
        if value is None or not value:
            found.append(f"rank {rank.number}: {variable} is not set")
        elif value != usual:
            found.append(f"rank {rank.number}: {variable}={value}, {usual} in most ranks")
    port = rank.variables.get("MASTER_PORT")
    if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        found.append(f"rank {rank.number}: MASTER_PORT={port} is not a port")
    return found


def _on_loopback(ranks: Sequence[RankEnvironment]) -> bool:
    return all(rank.variables.get("MASTER_ADDR", "").startswith("127.") for rank in ranks)


def _most_common(values: Sequence[str | None]) -> str | None:
    known = [value for value in values if value]
    return max(known, key=known.count) if known else None


def _not_fabric(variable: str, value: str, spec: Spec) -> bool:
    """Whether a list of interfaces omits the fabric's, or names others."""
    if spec.fabric.kind != "ethernet":
        return False  # on RDMA fabrics sockets only carry the bootstrap
    if variable == "GLOO_SOCKET_IFNAME":  # whole names
        names = [name.strip() for name in value.split(",") if name.strip()]
        return not all(map(spec.fabric.has_interface, names))
    chosen = Selection.of(value)
    hit = [p for p in spec.fabric.interfaces if chosen.takes(p.rstrip("*"))]
    foreign = [name for name, _ in chosen.names if not spec.fabric.has_interface(name)]
    if chosen.excludes:
        return len(hit) < len(spec.fabric.interfaces)
    ours = len(foreign) < len(chosen.names)  # a whole name that matches a pattern of the fabric
    return not (hit or ours) or bool(foreign and chosen.exact)


def overrides(
    ranks: Sequence[RankEnvironment] | None, spec: Spec, name: str, why: str = ""
) -> list[Measurement]:
    """Number of settings of this node's ranks that cost speed and are not on the allow-list.

    They come from the environment and from the files that NCCL reads; the environment wins. A
    setting that differs between ranks of the node or from most nodes counts, whatever its effect.
    """
    promise = promises(spec).environment
    if promise is None:
        return []
    subject = Subject("settings that cost speed", "", equals(0), "preflight.environment.allowed")
    ranks = ranks or ()
    mine = _on(name, ranks)
    if not mine:
        return [subject.unknown(why or f"no rank runs on {name}")]
    allowed = promise.allowed
    settings = {(k, v, origin) for rank in mine for k, (v, origin) in rank.settings.items()}
    found: dict[str, str] = {}
    for variable, value, origin in sorted(settings):
        if variable in allowed or f"{variable}={value}" in allowed:
            continue
        costs = cost(variable, value, spec.fabric.kind, mine[0].nccl)
        # Nodes that share one machine have no interface but lo, and need identities of their own.
        if variable == _HOST and _on_loopback(mine):
            costs = None
        if variable in _INTERFACES and not (value.removeprefix("=") == "lo" and _on_loopback(mine)):
            costs = "not the fabric's interface" if _not_fabric(variable, value, spec) else None
        if costs is not None:
            found[f"{variable}={value}"] = f"{variable}={value}{origin} ({costs})"
    variables = {variable for rank in ranks for variable in rank.settings}
    variables -= {*allowed, *_OF_RANK, *(costly.partition("=")[0] for costly in found)}
    sure = bool(found)
    for variable in sorted(variables):
        text, tied = _differs(ranks, variable, name)
        if text:
            found[variable] = text
            sure = sure or not tied
    harmless = sorted(
        {f"{k}={v}" for k, v, _ in settings if not k.startswith(_TORCH)} - found.keys()
    )
    note = listed(list(found.values()))
    if harmless:
        note = "; ".join(filter(None, [note, f"also set: {listed(harmless)}"]))
    words = f"{name}: {listed(list(found.values()), 2)}"
    culprit = Culprit(words, name) if sure else Culprit(words, either=[[name]])
    return [subject.measured(len(found), culprit, note)]


def _differs(ranks: Sequence[RankEnvironment], variable: str, name: str) -> tuple[str, bool]:
    """Difference of a setting between ranks of this node, or from most nodes; "" if none. And
    whether no value is that of most nodes, so that nobody knows which is wrong."""
    values: dict[str, set[str]] = {}
    for rank in ranks:
        value, _ = rank.settings.get(variable, ("not set", ""))
        of_node = values.setdefault(rank.node, set())
        of_node.add("not set" if is_default(variable, value) else value)
    if len(values[name]) > 1:
        return f"{variable} differs between ranks ({listed(sorted(values[name]))})", False
    alike = {node: next(iter(found)) for node, found in values.items() if len(found) == 1}
    odd = None if variable in _OF_NODE else difference(alike, name)
    if odd is None:
        return "", False
    return f"{variable} is {alike[name]}, {odd.usual} on {odd.who}", odd.tied


def devices(
    ranks: Sequence[RankEnvironment] | None, spec: Spec, name: str, why: str = ""
) -> list[Measurement]:
    """Number of names in NCCL_IB_HCA that match no RDMA device that this node's ranks can open.

    NCCL skips such a name, and sends over fewer NICs or over TCP.
    """
    if promises(spec).environment is None or spec.fabric.kind not in ("infiniband", "roce"):
        return []
    subject = Subject(f"names in {_HCA} without a device", "", equals(0), "preflight.environment")
    mine = _on(name, ranks or ())
    if not mine:
        return [subject.unknown(why or f"no rank runs on {name}")]
    lists = {(rank.settings[_HCA][0], rank.hcas) for rank in mine if _HCA in rank.settings}
    if any(hcas is None for _, hcas in lists):
        return [subject.unknown(f"{name}: its RDMA devices cannot be read")]
    absent = sorted({fault for value, hcas in lists for fault in _absent(value, hcas or ())})
    there = sorted({hca for _, hcas in lists for hca in hcas or ()})
    values = sorted({f"{_HCA}={value}" for value, _ in lists})
    note = f"{name}: {listed(values) or f'{_HCA} is not set'}"
    if lists:
        note += f"; ranks can open {listed(there) or 'no device'}"
    return [subject.measured(len(absent), f"{name}: {_HCA} names {listed(absent)}", note)]


def _absent(value: str, hcas: Sequence[str]) -> list[str]:
    """Names of a list that match none of these ports; the whole list if it excludes every port."""
    chosen = Selection.of(value)
    known = [(device, int(port)) for device, _, port in (hca.partition(":") for hca in hcas)]
    if chosen.excludes:
        return [] if any(chosen.takes(*one) for one in known) else [value]
    return [
        device if port is None else f"{device}:{port}"
        for device, port in chosen.names
        if not any(replace(chosen, names=((device, port),)).takes(*one) for one in known)
    ]
