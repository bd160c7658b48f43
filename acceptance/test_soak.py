"""Do nodes stay right, connected and as fast under load for hours?"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from pytest_mnode import not_promised
from pytest_mnode.criteria.soak import asking
from pytest_mnode.skipping import promised, skip_if_waived

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster
    from pytest_mnode.measure import Measure
    from pytest_mnode.spec import Spec

if "torch" in sys.modules:  # in the fork server, but not in the controller
    import pytest_mnode.criteria.soak.rounds
    import pytest_mnode.reference_job.trainer  # noqa: F401

pytestmark = pytest.mark.criterion(last=True)


def test_nodes_stay_right_and_as_fast_under_load(
    take_cluster: Callable[[], Cluster],
    spec: Spec,
    measure: Measure,
    request: pytest.FixtureRequest,
) -> None:
    """Do nodes compute right, keep their links and their rates for as long as they are loaded?"""
    skip_if_waived(spec, "soak")
    if (for_s := asking.asked_s(request.config, spec)) is None:
        promised(spec, "soak")
        not_promised(key="soak")
    soak = asking.soak(request.config, take_cluster(), spec, for_s)
    soak.run()
    measure.record(asking.judged(soak))
    measure.chart(*asking.charts(soak))
    if soak.interrupted:
        request.session.shouldstop = soak.cut
