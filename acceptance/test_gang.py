"""Does a gang get all of its nodes at once, or none?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_mnode import gang, not_promised
from pytest_mnode.options import read_settings

if TYPE_CHECKING:
    from pytest_mnode.measure import Measure
    from pytest_mnode.spec import Spec

pytestmark = pytest.mark.criterion(without_nodes=True)  # it needs them free


@pytest.fixture
def site(spec: Spec, pytestconfig: pytest.Config) -> gang.Site:
    """The scheduler that the spec names; jobs go there, and not by way of the run's launcher."""
    if spec.scheduler is None:
        not_promised("a scheduler")
    if spec.criteria.gang is None:
        not_promised("gang")
    return gang.Site.of(spec, read_settings(pytestconfig), pytestconfig.rootpath)


def test_a_gang_waits_until_there_is_room_for_all_of_it(site: gang.Site, measure: Measure) -> None:
    """Where one node too few is free, does the gang hold none, and start when there is one more?"""
    report = site.filled()
    print(report.text())
    report.record(measure)


def test_of_two_gangs_at_once_one_waits(site: gang.Site, measure: Measure) -> None:
    """Of two gangs and room for one, does one run whole, and the other when it ends?"""
    report = site.race()
    print(report.text())
    report.record(measure)


def test_a_gang_larger_than_the_cluster_is_in_nobodys_way(
    site: gang.Site, measure: Measure
) -> None:
    """Is what can never run refused, or told why it waits, and do others run meanwhile?"""
    report = site.oversize()
    print(report.text())
    report.record(measure)


def test_a_gang_whose_node_dies_goes_whole(site: gang.Site, measure: Measure) -> None:
    """Is a gang that lost a node requeued whole, or cancelled whole?"""
    if site.promise.node_loss is None:
        not_promised("gang.node_loss")
    report = site.loss()
    print(report.text())
    report.record(measure)
