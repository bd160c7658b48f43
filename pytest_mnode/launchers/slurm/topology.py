"""Slurm's topology.conf and topology.yaml: which nodes share a switch, or a block. Pure.

Source: Slurm, topology.conf(5), plugins tree and block; topology.yaml(5), since 25.05.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.hosts import expand

_SETTING = re.compile(r"(\w+)\s*=\s*(\S+)")


def leaves(text: str) -> dict[str, tuple[str, ...]]:
    """Nodes by the name of their leaf switch, or of their block.

    Raises ValueError, in one line, if none is declared, or a list of nodes cannot be read.
    """
    joined = re.sub(r"\\\s*\n", " ", text)
    plain = [line.partition("#")[0].strip() for line in joined.splitlines()]
    of_lines = [{k.lower(): v for k, v in _SETTING.findall(line)} for line in plain]
    pairs = [
        (one.get("switchname") or one["blockname"], one["nodes"])
        for one in of_lines
        if "nodes" in one and ("switchname" in one or "blockname" in one)
    ]
    try:
        found = {name: expand(nodes) for name, nodes in pairs or _of_yaml(text)}
    except UsageError as error:
        raise ValueError(str(error)) from None
    if not found:
        raise ValueError("declares no switch and no block with nodes")
    return found


def _of_yaml(text: str) -> Iterator[tuple[str, str]]:
    try:
        page = yaml.safe_load(text)
    except yaml.YAMLError:
        return
    every = [one for one in page if isinstance(one, Mapping)] if isinstance(page, list) else []
    kinds = (("tree", "switches", "switch"), ("block", "blocks", "block"))
    chosen = [one for one in every if one.get("cluster_default")] or every
    for one in chosen:
        for kind, many, name in kinds:
            parts: Any = one.get(kind)
            listed = [part for part in (parts or {}).get(many) or () if part.get("nodes")]
            if listed:
                yield from ((str(part[name]), str(part["nodes"])) for part in listed)
                return
