"""What options ask of each node, and which nodes have it: so that none is counted that has not.

A job that asks for more than a node has never gets that node, and the scheduler is right. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_mnode.errors import UsageError
from pytest_mnode.gang.slurmplaces import option_of
from pytest_mnode.launchers.slurm.fields import number, records

_UNCOUNTED = re.compile(
    r"(--(?:gpus|gpus-per-task|gpus-per-socket|cpus-per-gpu|mem-per-cpu|mem-per-gpu|mincpus|tmp"
    r"|tres-per-\w+|nodefile|sockets-per-node|cores-per-socket|threads-per-core|extra-node-info"
    r"|contiguous|switches))(?:=.*)?|(-[GFB])(?!-).*"
)
_SALLOCS = re.compile(
    r"-I\d*|--immediate(=.*)?|--(no-)?bell|-K\w*|--kill-command(=.*)?|--no-shell|--x11(=.*)?"
)
"""Words of salloc, or of srun, that sbatch refuses."""
_UNITS = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}
_TYPED = re.compile(r"([A-Za-z][\w.-]*):(?:([A-Za-z][\w.-]*):)?(\d+)(?:\(.*\))?")


@dataclass(frozen=True, slots=True)
class Needs:
    """Of each node. gres: (name, type, how many), the type None where any will do."""

    gres: tuple[tuple[str, str | None, int], ...] = ()
    memory_mbytes: float = 0.0
    cpus: int = 0

    @classmethod
    def read(cls, options: Sequence[str]) -> Needs:
        """Raises UsageError for what cannot be counted here, and for what cannot be read."""
        for word in options:
            if match := _UNCOUNTED.fullmatch(word):
                raise UsageError(
                    f"--mnode-slurm-args: {match[1] or match[2]}: which nodes can have it cannot "
                    "be counted; accepted for gangs: --gpus-per-node, --gres, --mem, "
                    "--cpus-per-task"
                )
        gpus = option_of(options, "--gpus-per-node") or ""
        listed = [f"gpu:{one}" for one in filter(None, gpus.split(","))]
        asked = [_gres(one, f"--gpus-per-node={gpus}", "4, a100:4") for one in listed]
        text = option_of(options, "--gres") or ""
        some = [] if text.lower() == "none" else [one for one in text.split(",") if one]
        asked += [_gres(one, f"--gres={text}", "gpu:4, gpu:a100:4") for one in some]
        return cls(tuple(asked), _mbytes(options), _cpus(options))

    @property
    def any(self) -> bool:
        """Whether anything is asked for."""
        return self != Needs()

    def met(self, text: str) -> set[str]:
        """Nodes that have it, by name, in the output of `scontrol --oneliner show node`."""
        return {record["NodeName"] for record in records(text, "NodeName") if self._by(record)}

    def _by(self, node: dict[str, str]) -> bool:
        has = [
            (match[1], match[2], int(match[3]))
            for one in re.split(r",(?![^()]*\))", node.get("Gres", ""))
            if (match := _TYPED.fullmatch(one))
        ]
        memory = (number(node.get("RealMemory")) or 0) - (number(node.get("MemSpecLimit")) or 0)
        return (
            all(_count(has, name, kind) >= count for name, kind, count in self.gres)
            and memory >= self.memory_mbytes
            and (number(node.get("CPUTot")) or 0) >= self.cpus
        )


def for_sbatch(options: Sequence[str]) -> list[str]:
    """Without the words that only salloc knows: the same arguments are for both."""
    return [word for word in options if not _SALLOCS.fullmatch(word)]


def _count(has: Sequence[tuple[str, str | None, int]], name: str, kind: str | None) -> int:
    return sum(count for n, k, count in has if n == name and kind in (None, k))


def _gres(text: str, option: str, accepted: str) -> tuple[str, str | None, int]:
    name, *rest = text.removeprefix("gres/").split(":")
    count = rest.pop() if rest and rest[-1].isdigit() else "1"
    if not re.fullmatch(r"[A-Za-z][\w.-]*", name) or len(rest) > 1 or not all(rest):
        raise UsageError(f"--mnode-slurm-args: {option}: not read; accepted: {accepted}")
    return name, rest[0] if rest else None, int(count)


def _mbytes(options: Sequence[str]) -> float:
    text = option_of(options, "--mem")
    if text is None:
        return 0.0
    match = re.fullmatch(r"(\d+)([KMGT]?)B?", text.upper())
    if match is None:
        raise UsageError(f"--mnode-slurm-args: --mem={text}: not read; accepted: 64G, 512000M")
    return int(match[1]) * _UNITS[match[2] or "M"]


def _cpus(options: Sequence[str]) -> int:
    text = option_of(options, "--cpus-per-task", "-c")
    if text is not None and not text.isdigit():
        raise UsageError(f"--mnode-slurm-args: --cpus-per-task={text}: not read; accepted: 16")
    return int(text or 0)
