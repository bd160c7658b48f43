"""Conditions, which report the state of Kubernetes objects. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Object = Mapping[str, Any]
"""An object's JSON from the API server."""


def conditions(found: Object | None) -> dict[str, Object]:
    status = (found or {}).get("status") or {}
    return {one["type"]: one for one in status.get("conditions") or []}


def is_true(found: Mapping[str, Object], name: str) -> bool:
    return found.get(name, {}).get("status") == "True"


def why_unscheduled(pod: Object) -> str | None:
    """The scheduler's reason why a pod has no node, "" if it gives none; None if the scheduler does
    not report a failure."""
    found = conditions(pod).get("PodScheduled", {})
    if found.get("status") != "False":
        return None
    return str(found.get("message") or found.get("reason") or "")
