"""What a cluster promises: the page (YAML), its models and loader, and what the wire allows.

Reads no machine and starts nothing: text in, frozen values out. Probes that compare the promise
with a machine live in `pytest_mnode.machine`; judging lives in `pytest_mnode.measurement`.

Names are imported on first use, so that `pytest_mnode.spec.wire` costs neither pydantic nor yaml.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .criteria import BusbwPromise, Criteria, FabricCriterion, MeshCriterion
    from .doubtful import doubts
    from .load import default_spec_path, load_spec
    from .models import (
        Accelerators,
        Certificate,
        Fabric,
        Management,
        NotPromised,
        Scheduler,
        Spec,
        Storage,
    )
    from .schema import json_schema

__all__ = [
    "Accelerators",
    "BusbwPromise",
    "Certificate",
    "Criteria",
    "Fabric",
    "FabricCriterion",
    "Management",
    "MeshCriterion",
    "NotPromised",
    "Scheduler",
    "Spec",
    "Storage",
    "default_spec_path",
    "doubts",
    "json_schema",
    "load_spec",
]

_HOME = {
    "BusbwPromise": "criteria",
    "Criteria": "criteria",
    "FabricCriterion": "criteria",
    "MeshCriterion": "criteria",
    "default_spec_path": "load",
    "doubts": "doubtful",
    "json_schema": "schema",
    "load_spec": "load",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME.get(name, 'models')}", __name__), name)
