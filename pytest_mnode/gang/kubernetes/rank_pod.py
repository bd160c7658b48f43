"""The pod template of a rank: the user's template with the experiment's additions. Pure."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_mnode.gang import heartbeat_rank
from pytest_mnode.gang.kubernetes.kinds import Plain
from pytest_mnode.gang.kubernetes.pods import GANG_LABEL
from pytest_mnode.launchers.kubernetes.manifest import (
    RUN_LABEL,
    Manifest,
    keep_apart,
    only_on,
    set_command,
)

_GANG, _RESTARTS, _NODE = "MNODE_GANG", "MNODE_RESTARTS", "MNODE_NODE"
_GRACE_S = 2


def template(
    given: Mapping[str, object],
    labels: Mapping[str, str],
    *,
    python: str,
    runs_s: float,
    kind: Plain,
    nodes: Sequence[str],
    priority: str,
) -> Manifest:
    """A pod template whose main container prints heartbeats for `runs_s` seconds.

    given: the user's template, kept except for the command and other containers. labels: the
    gang's. nodes: the only ones that the pod may have; () for any. priority: "" for none.
    """
    made: Manifest = copy.deepcopy(dict(given))
    metadata = made.setdefault("metadata", {})
    metadata.setdefault("labels", {}).update(labels)
    spec = made["spec"]
    text = Path(heartbeat_rank.__file__).read_text()
    variables = [_GANG, _RESTARTS, kind.rank_variable, _NODE]
    command = [python, "-I", "-S", "-c", text, "-", f"{runs_s:.3f}", *variables]
    main = set_command(made, command)
    spec["containers"] = [main]  # another one would keep the pod after its rank has ended
    restarts: Manifest = {"value": "0"}
    if path := kind.restarts_from:
        restarts = {"valueFrom": {"fieldRef": {"fieldPath": path}}}
    node_name = {"valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    main.setdefault("env", []).extend(
        [
            {"name": _GANG, "value": labels[GANG_LABEL]},
            {"name": _RESTARTS, **restarts},
            {"name": _NODE, **node_name},
        ]
    )
    spec["restartPolicy"] = "Never"
    spec.setdefault("terminationGracePeriodSeconds", _GRACE_S)
    spec.setdefault("enableServiceLinks", False)
    if priority:
        spec["priorityClassName"] = priority
    affinity = spec.setdefault("affinity", {})
    keep_apart(affinity, RUN_LABEL, labels[RUN_LABEL])
    if nodes:
        only_on(affinity, nodes)
    return made
