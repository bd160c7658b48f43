"""Do ranks run, allocate and send beside their accelerators?

Each question but that of the ports is a check of `pytest_mnode.checks.placement`, or of a package
or conftest.py of yours; see docs/checks.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_mnode.checks.world_check import add_cases

if TYPE_CHECKING:
    from pytest_mnode.criteria.port_counters.watching import PortWatch
    from pytest_mnode.measure import Measure

pytestmark = [pytest.mark.criterion, pytest.mark.stops("numa", only_hung=True)]

add_cases(globals(), "numa")


def test_fabric_ports_stay_up_and_free_of_errors(fabric_ports: PortWatch, measure: Measure) -> None:
    """Did every fabric port stay up, free of errors and losses, during this criterion?"""
    fabric_ports.record(measure)
