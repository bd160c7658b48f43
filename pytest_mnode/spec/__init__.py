"""The cluster spec (YAML): its models, its loader, and formulas for what the links allow.

Reads no machine and starts nothing: text in, frozen values out. `inventory` has the parts of
the cluster, `criteria` one model per criterion with its doubts, `bandwidth` the formulas.
Readers of a machine live in `pytest_mnode.machine`; judges live in `pytest_mnode.criteria`.

Names are imported on first use, so that `pytest_mnode.spec.bandwidth` costs neither pydantic nor
yaml.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .fabric import BusbwPromise, FabricCriterion
    from .inventory import Accelerators, Fabric, Management, Scheduler, Storage
    from .load import load_spec, profile_spec
    from .models import Certificate, Criteria, MeshCriterion, NotPromised, Spec, doubts
    from .profiles import default_spec_path
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
    "profile_spec",
]

_HOME = {
    "Storage": "inventory",
    "Scheduler": "inventory",
    "Management": "inventory",
    "Fabric": "inventory",
    "Accelerators": "inventory",
    "BusbwPromise": "fabric",
    "FabricCriterion": "fabric",
    "json_schema": "schema",
    "load_spec": "load",
    "profile_spec": "load",
    "default_spec_path": "profiles",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME.get(name, 'models')}", __name__), name)
