"""Is every node fit for what is to run on it?

Each question is a check of `pytest_mnode.checks.node`, or of a package or conftest.py of yours; see
docs/checks.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_mnode.criteria.preflight.survey_fixture import NodeJudgement, case_of
from pytest_mnode.evidence.check import catalogue

if TYPE_CHECKING:
    from pytest_mnode.measure import Measure
    from pytest_mnode.spec import Spec

pytestmark = pytest.mark.criterion(first=True)


@pytest.fixture
def ask(request: pytest.FixtureRequest, spec: Spec, node: str, measure: Measure) -> NodeJudgement:
    """Judges this test's node by one key of the spec."""
    return NodeJudgement(request.node, spec, node, measure)


globals().update({one.case(): case_of(one, __file__) for one in catalogue("preflight")})
