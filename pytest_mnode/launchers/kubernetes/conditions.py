"""Conditions, by which objects of Kubernetes say how they are. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Object = Mapping[str, Any]
"""As the API server has it."""


def conditions(found: Object | None) -> dict[str, Object]:
    """Conditions of an object by type."""
    status = (found or {}).get("status") or {}
    return {one["type"]: one for one in status.get("conditions") or []}


def is_true(found: Mapping[str, Object], name: str) -> bool:
    """Whether a condition is there and true."""
    return found.get(name, {}).get("status") == "True"


def why_unscheduled(pod: Object) -> str | None:
    """The scheduler's own reason for a pod without a node, "" where it gives none; None for a pod
    that the scheduler has nothing against."""
    found = conditions(pod).get("PodScheduled", {})
    if found.get("status") != "False":
        return None
    return str(found.get("message") or found.get("reason") or "")
