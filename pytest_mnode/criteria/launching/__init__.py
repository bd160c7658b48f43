"""Starting jobs as users do, and finding out what they got: paths, styles, meetings, the store.

The controller's side describes a job, submits it with a clean environment and judges what every
rank of it says it found. The ranks' side is `meeting`, the store under load, and the times of a
rendezvous. Nothing here starts a world's ranks, and nothing but functions run in ranks imports
torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_mnode.criteria.launching.crowded import crowds_of, record_crowds, table
    from pytest_mnode.criteria.launching.held_back import record_absent
    from pytest_mnode.criteria.launching.images import record_image
    from pytest_mnode.criteria.launching.placing import elsewhere, record_place
    from pytest_mnode.criteria.launching.rendezvous import record_rendezvous
    from pytest_mnode.criteria.launching.sbatch import path_of
    from pytest_mnode.criteria.launching.starting import job_of, start

__all__ = [
    "crowds_of",
    "elsewhere",
    "job_of",
    "path_of",
    "record_absent",
    "record_crowds",
    "record_image",
    "record_place",
    "record_rendezvous",
    "start",
    "table",
]

_MODULES = ("crowded", "held_back", "images", "placing", "rendezvous", "sbatch", "starting")


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in _MODULES:
            found = import_module(f"{__name__}.{module}")
            if name in vars(found):
                return vars(found)[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
