"""Why did this job fail? Reads a folder of what it left, and names culprit and cause.

Logs of ranks, jobs, NCCL, Slurm, Kubernetes and kernels; reports of NCCL's RAS, as text or JSON;
and dumps of torch's flight recorder, as pickles or JSON, whose names end with the rank. Says what
is missing to be sure. The exit status is 1 if no cause was found.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_mnode.machine.cpus import format_cpulist

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_mnode.logs.aftermath import Answer
    from pytest_mnode.logs.causes import Cause

_MOST_ALSO = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="folders, or files")
    parser.add_argument("--format", choices=("text", "json"), default="text")


def run(options: argparse.Namespace) -> int:
    from pytest_mnode.logs.aftermath import answer, read

    found = answer(read(options.paths))
    print(json.dumps(_json(found), indent=2) if options.format == "json" else _text(found))
    return int(found.cause is None)


def _text(found: Answer) -> str:
    lines = []
    if (one := found.cause) is None:
        lines.append(f"no known cause in {found.files} files")
    else:
        detail = f": {one.cause.detail}" if one.cause.detail else ""
        lines += [
            *_who(found, one.cause),
            f"cause: {one.cause.name} ({one.cause.kind.meaning}{detail})",
            f"shown by: {one.file}: {one.cause.line!r}",
            f"remedy: {one.cause.kind.remedy}",
        ]
    for other in found.others[:_MOST_ALSO]:
        lines.append(f"also: {other.cause.culprit or other.file}: {other.cause.short}")
    if (more := len(found.others) - _MOST_ALSO) > 0:
        lines.append(f"also: {more} more")
    for name in dict.fromkeys(one.cause.name for one in found.followed):
        every = {r for one in found.followed if one.cause.name == name for r in one.cause.ranks}
        of = f" (ranks {format_cpulist(tuple(sorted(every)))})" if every else ""
        lines.append(f"followed by: {name}{of}")
    lines += [f"to be sure: {line}" for line in found.missing]
    return "\n".join(lines)


def _who(found: Answer, cause: Cause) -> Iterator[str]:
    """The culprit; of a cause that only its victims report, whom they seem to wait for."""
    if not cause.by_victim:
        yield f"culprit: {cause.culprit or 'not named'}"
        if found.alike:
            ranks = tuple(one for one in found.alike if isinstance(one, int))
            nodes = ", ".join(map(str, found.alike))
            yield f"seen by: ranks {format_cpulist(ranks)}" if ranks else f"seen by: {nodes}"
        return
    only = tuple(rank for rank in cause.ranks if rank not in found.suspects)
    seen = replace(cause, peer=None, ranks=only).culprit
    suspect = replace(cause, ranks=found.suspects, host=None, device=None).culprit
    yield f"culprit: {f'perhaps {suspect}' if suspect else 'not named'}"
    if seen:
        yield f"seen by: {seen}"


def _json(found: Answer) -> dict[str, Any]:
    def shown(one: Any) -> dict[str, Any]:
        cause = one.cause
        return {
            "cause": cause.name,
            "root": cause.root,
            "seen_by_victims": cause.by_victim,
            "meaning": cause.kind.meaning,
            "remedy": cause.kind.remedy,
            "ranks": list(cause.ranks),
            **{name: getattr(cause, name) for name in ("host", "device", "peer", "detail", "line")},
            "file": one.file,
        }

    return {
        "cause": None if found.cause is None else shown(found.cause),
        "others": [shown(one) for one in found.others],
        "followed_by": [shown(one) for one in found.followed],
        "suspects": list(found.suspects),
        "alike": list(found.alike),
        "missing": list(found.missing),
        "files": found.files,
    }
