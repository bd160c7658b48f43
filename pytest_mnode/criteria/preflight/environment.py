"""Environment of ranks: torchrun's variables, and settings of backends. Read in a world's ranks."""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from pytest_mnode.evidence.check import Check
from pytest_mnode.evidence.reading import CheckRows, ReadOrder, read
from pytest_mnode.evidence.row import Row
from pytest_mnode.evidence.rules import Unread
from pytest_mnode.logs import nccl_files
from pytest_mnode.machine.encoding import plain
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.software import nccl_version
from pytest_mnode.measurement import Measurement, equals

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
TORCH = "torch."
"""Begin of the names of torch's own settings."""
_TORCHRUN_PRIVATE = frozenset({"TORCH_NCCL_ASYNC_ERROR_HANDLING"})
"""Settings that torchrun itself makes."""


@dataclass(frozen=True, slots=True)
class RankEnvironment:
    """The environment of one rank.

    number: its position in the world. variables: torchrun's, by name. settings: value and origin
    (" in FILE"; "" for the environment) of each backend setting, by name. nccl: version of the
    library that torch loads; None if there is none or it is unknown. hcas: ports, such as mlx5_0:1,
    of RDMA devices that the rank can open; None if unknown. read: rows of checks.
    """

    number: int
    node: str
    variables: Mapping[str, str]
    settings: Mapping[str, tuple[str, str]]
    nccl: str | None = None
    hcas: tuple[str, ...] | None = None
    read: tuple[CheckRows, ...] = ()


@dataclass(frozen=True, eq=False)
class Ranks:
    """The ranks of a world over all `nodes`, by rank; without a world none, and why."""

    nodes: Sequence[str]
    all: tuple[RankEnvironment, ...] = ()
    why: str = ""

    @cached_property
    def _by_node(self) -> Mapping[str, tuple[RankEnvironment, ...]]:
        found: dict[str, list[RankEnvironment]] = {}
        for rank in self.all:
            found.setdefault(rank.node, []).append(rank)
        return {node: tuple(ranks) for node, ranks in found.items()}

    def on(self, node: str) -> tuple[RankEnvironment, ...]:
        """The ranks of a node."""
        return self._by_node.get(node, ())

    @cached_property
    def variables(self) -> frozenset[str]:
        """Names of all settings of all ranks."""
        return frozenset(variable for rank in self.all for variable in rank.settings)

    @cache  # noqa: B019  as long-lived as the ranks
    def most_common(self, variable: str) -> str | None:
        """The value of torchrun's variable that most ranks have."""
        found = Counter(value for one in self.all if (value := one.variables.get(variable)))
        return found.most_common(1)[0][0] if found else None

    def unread(self, node: str) -> str:
        """Why nothing is known of a node's ranks; "" if something is."""
        return "" if self.on(node) else self.why or f"no rank runs on {node}"

    def rows(self, case: str) -> Mapping[str, Sequence[Row]]:
        """Rows of a check by node, of all of its ranks, or why it has none."""
        return {node: self._rows(case, node) for node in self.nodes}

    def _rows(self, case: str, node: str) -> Sequence[Row]:
        found: list[Row] = []
        why = self.unread(node)
        for rank in self.on(node):
            for one in (one for one in rank.read if one.case == case):
                why = why or (one.why and f"rank {rank.number}: {one.why}")
                found += (replace(row, node=node, rank=rank.number) for row in one.rows)
        return Unread(why) if why else found


KEPT = "environment of a rank"
"""What rows of `ranks_to_json` have as their check."""


def ranks_to_json(ranks: Ranks) -> Iterator[dict[str, Any]]:
    """The environment of each rank, or why there is none, for the evidence of a run."""
    if ranks.why:
        yield {"check": KEPT, "why": ranks.why}
    for rank in ranks.all:
        yield {"check": KEPT, "answers": plain(rank)}


class RankCheck(Check):
    """A check without a reading of its own, which judges the environment of ranks: it counts what
    must not be there.

    counted: name of that number. source: where the bound comes from.
    """

    counted: ClassVar[str]
    source: ClassVar[str]

    def judge(self, evidence: Ranks, node: str) -> Iterable[Measurement]:
        """Findings about the ranks of one node. Pure."""
        if why := evidence.unread(node):
            found = Measurement.unknown(self.counted, why, expected=equals(0), source=self.source)
            return [found]
        return [self.measured(evidence, node)]

    def measured(self, ranks: Ranks, node: str) -> Measurement:
        """The number, of a node that has ranks."""
        raise NotImplementedError


def read_environment(orders: Sequence[ReadOrder] = (), *, world: World) -> RankEnvironment:
    """Read the environment of the rank that calls this. orders: readings of checks."""
    nccl = None
    with contextlib.suppress(OSError, AttributeError):
        nccl = nccl_version()
    files = nccl_files.settings_of_files(os.environ)
    found = environment_of(os.environ, world.rank, world.node, files, nccl)
    return replace(
        found,
        settings={**found.settings, **torch_settings()},
        hcas=hcas_of(Machine.read(parts=("rdma", "verbs"))),
        read=tuple(map(read, orders)),
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
    for name, setting in readers.items():
        with contextlib.suppress(RuntimeError):  # set by torch's newer interface of precision
            found[f"{TORCH}{name}"] = (str(setting()), "")
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
