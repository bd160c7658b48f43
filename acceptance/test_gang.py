"""Does a gang get all of its nodes at once, or none?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_mnode import gang
from pytest_mnode.options import read_settings
from pytest_mnode.skipping import promised

if TYPE_CHECKING:
    from pytest_mnode.measure import Measure
    from pytest_mnode.spec import Spec

pytestmark = pytest.mark.criterion(without_nodes=True)  # gangs need free nodes


@pytest.fixture
def site(spec: Spec, pytestconfig: pytest.Config) -> gang.Site:
    """The scheduler named by the spec; jobs go there, not to the run's launcher."""
    promised(spec, "scheduler")
    promised(spec, "gang")
    return gang.Site.of(spec, read_settings(pytestconfig), pytestconfig.rootpath)


def test_a_gang_waits_until_there_is_room_for_all_of_it(site: gang.Site, measure: Measure) -> None:
    """Does a gang hold no node while one node too few is free, and start when one more is free?"""
    report = site.filled()
    print(report.text())
    measure.record(report.measurements)
    measure.chart(*report.charts)


def test_of_two_gangs_at_once_one_waits(site: gang.Site, measure: Measure) -> None:
    """With room for one of two gangs, does one run whole, and the other one after it?"""
    report = site.race()
    print(report.text())
    measure.record(report.measurements)
    measure.chart(*report.charts)


def test_a_gang_larger_than_the_cluster_is_in_nobodys_way(
    site: gang.Site, measure: Measure
) -> None:
    """Is a gang that can never run refused or given a reason, while other jobs run?"""
    report = site.oversize()
    print(report.text())
    measure.record(report.measurements)
    measure.chart(*report.charts)


def test_a_gang_whose_node_dies_goes_whole(site: gang.Site, spec: Spec, measure: Measure) -> None:
    """Is a gang that lost a node requeued whole or cancelled whole?"""
    promised(spec, "gang.node_loss")
    report = site.loss()
    print(report.text())
    measure.record(report.measurements)
    measure.chart(*report.charts)
