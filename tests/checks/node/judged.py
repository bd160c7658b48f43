"""Reads and judges a check as a run does, on a tree of /proc and /sys for each node."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import yaml

from pytest_mnode.evidence.check import Check
from pytest_mnode.evidence.reading import CheckRows, ReadOrder, read
from pytest_mnode.evidence.row import Row
from pytest_mnode.evidence.rules import Rows, Unread
from pytest_mnode.machine.encoding import decode
from pytest_mnode.measurement import Measurement
from pytest_mnode.spec import profile_spec
from pytest_mnode.spec.checked import PreflightCriterion
from pytest_mnode.spec.inventory import Accelerators


def tree(root: Path, files: Mapping[str, str | bytes]) -> Path:
    """`root` with these files below it, by path; an empty text is a folder."""
    for name, text in files.items():
        path = root / name
        if text == "":
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else f"{text}\n".encode())
    return root


def rows_of(check: type[Check], promise: str, root: Path = Path("/")) -> CheckRows:
    """Rows as the controller gets them: the order and the answer travel as JSON."""
    order = decode(ReadOrder, json.dumps(asdict(ReadOrder.of(check, _promise(check, promise)))))
    return decode(CheckRows, json.dumps(asdict(read(order, root))))


def judged(
    check: type[Check],
    promise: str,
    nodes: Mapping[str, Path | CheckRows],
    interfaces: tuple[str, ...] = ("fab0",),
    accelerators: Accelerators | None = None,
) -> dict[str, list[Measurement]]:
    """Findings about each node. promise: as YAML. nodes: root, or rows, by name. interfaces: of the
    fabric. accelerators: of the spec, instead of the rack's none."""
    found = {
        name: rows_of(check, promise, one) if isinstance(one, Path) else one
        for name, one in nodes.items()
    }
    by_node: dict[str, list[Row] | Unread] = {
        name: Unread(one.why) if one.why else [replace(row, node=name) for row in one.rows]
        for name, one in found.items()
    }
    value = _promise(check, promise)
    spec = profile_spec("rack")
    fabric = spec.fabric.model_copy(update={"interfaces": interfaces})
    changed = {"fabric": fabric, "accelerators": accelerators or spec.accelerators}
    made = check(value, spec.model_copy(update=changed))
    return {name: list(made.rule(Rows(name, check.key, value, by_node))) for name in nodes}


def verdicts(found: Mapping[str, list[Measurement]]) -> str:
    """First letters of all verdicts: "pfi" of three nodes that pass, fail and are inconclusive."""
    return " ".join("".join(str(one.verdict)[0] for one in every) for every in found.values())


def blamed(found: Mapping[str, list[Measurement]]) -> set[str]:
    """Nodes that are sure culprits."""
    every = [one.culprit for findings in found.values() for one in findings]
    return {name for culprit in every if culprit for name in culprit.nodes}


def _promise(check: type[Check], written: str) -> object:
    name = check.key.removeprefix("preflight.")
    criterion = PreflightCriterion.model_validate({name: yaml.safe_load(written)})
    return getattr(criterion, name)
