"""Certify multi-node training clusters with pytest.

Fixtures come with the plugin; the names here are for annotations and for `cluster.launch(Job(…))`.
They are imported on first use, so that having this package costs other pytest runs nothing.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # stands for typing.TYPE_CHECKING, whose import costs milliseconds
if TYPE_CHECKING:
    from typing import Any

    from pytest_mnode.checks.world_check import RowsOfRanks, WorldCheck
    from pytest_mnode.cluster import Cluster, RankWorld
    from pytest_mnode.culprit import Culprit
    from pytest_mnode.evidence.check import Check, check
    from pytest_mnode.evidence.row import RankRows, Row, row
    from pytest_mnode.evidence.rules import Rows
    from pytest_mnode.jobs import Job, JobResult, LaunchedJob, RunningJob
    from pytest_mnode.launchers.node import CommandResult
    from pytest_mnode.measure import Measure
    from pytest_mnode.measurement import Bound, Curve, Measurement, Point, Verdict
    from pytest_mnode.rank.world import World
    from pytest_mnode.skipping import not_promised
    from pytest_mnode.spec import Spec

__version__ = "0.1.0"

__all__ = [
    "Bound",
    "Check",
    "Cluster",
    "CommandResult",
    "Culprit",
    "Curve",
    "Job",
    "JobResult",
    "LaunchedJob",
    "Measure",
    "Measurement",
    "Point",
    "RankRows",
    "RankWorld",
    "Row",
    "Rows",
    "RowsOfRanks",
    "RunningJob",
    "Spec",
    "Verdict",
    "World",
    "WorldCheck",
    "check",
    "not_promised",
    "row",
]

_HOMES = {
    "checks.world_check": ("RowsOfRanks", "WorldCheck"),
    "cluster": ("Cluster", "RankWorld"),
    "culprit": ("Culprit",),
    "evidence.check": ("Check", "check"),
    "evidence.row": ("RankRows", "Row", "row"),
    "evidence.rules": ("Rows",),
    "jobs": ("Job", "JobResult", "LaunchedJob", "RunningJob"),
    "launchers.node": ("CommandResult",),
    "measure": ("Measure",),
    "measurement": ("Bound", "Curve", "Measurement", "Point", "Verdict"),
    "rank.world": ("World",),
    "skipping": ("not_promised",),
    "spec": ("Spec",),
}


if not os.path.exists(f"{__path__[0]}/acceptance"):  # noqa: PTH110
    # A clone has acceptance/ beside this package; make it importable as pytest_mnode.acceptance.
    __path__.append(os.path.dirname(__path__[0]))  # noqa: PTH120


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            from importlib import import_module

            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
