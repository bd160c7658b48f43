"""Why did this job fail? Reads a folder of what it left, and names culprit and cause.

Logs of ranks, jobs, NCCL, Slurm, Kubernetes and kernels; reports of NCCL's RAS, as text or JSON;
and dumps of torch's flight recorder, as pickles or JSON, whose names end with the rank. Says what
is missing to be sure. The exit status is 1 if no cause was found.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_mnode.logs.aftermath import Answer

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
            f"culprit: {one.cause.culprit or 'not named'}",
            f"cause: {one.cause.name} ({one.cause.kind.meaning}{detail})",
            f"shown by: {one.file}: {one.cause.line!r}",
            f"remedy: {one.cause.kind.remedy}",
        ]
    for other in found.others[:_MOST_ALSO]:
        lines.append(f"also: {other.cause.culprit or other.file}: {other.cause.short}")
    if (more := len(found.others) - _MOST_ALSO) > 0:
        lines.append(f"also: {more} more")
    counted = Counter(one.cause.name for one in found.followed)
    lines += [f"followed by: {name}, in {files} files" for name, files in counted.items()]
    lines += [f"to be sure: {line}" for line in found.missing]
    return "\n".join(lines)


def _json(found: Answer) -> dict[str, Any]:
    def shown(one: Any) -> dict[str, Any]:
        cause = one.cause
        return {
            "cause": cause.name,
            "root": cause.root,
            "meaning": cause.kind.meaning,
            "remedy": cause.kind.remedy,
            "ranks": list(cause.ranks),
            "host": cause.host,
            "device": cause.device,
            "peer": cause.peer,
            "detail": cause.detail,
            "file": one.file,
            "line": cause.line,
        }

    return {
        "cause": None if found.cause is None else shown(found.cause),
        "others": [shown(one) for one in found.others],
        "followed_by": [shown(one) for one in found.followed],
        "missing": list(found.missing),
        "files": found.files,
    }
