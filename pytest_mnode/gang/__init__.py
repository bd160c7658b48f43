"""Gangs: jobs that get all of their nodes at once, or none and wait.

One experiment for all schedulers: `contention`, `oversize` and `loss` conduct it, through an engine
of four functions (`engine`; `slurm` is the first), and watch allocation records beside heartbeats
of the ranks themselves (`watching`, `beating`). What was seen becomes values (`terms`, `timeline`,
`beats`), of which `holding`, `running`, `turns`, `toolarge` and `bereft` say what is wrong, without
a process or a clock. `conduct` goes from a spec to findings.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_mnode.gang.conduct import Report, Site

__all__ = ["Report", "Site"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.conduct"), name)
