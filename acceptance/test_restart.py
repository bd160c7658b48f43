"""Does a training job that is killed come back by itself, and lose nothing?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_mnode import not_promised, restart
from pytest_mnode.spec.restart import KILLS, Kill

if TYPE_CHECKING:
    from pytest_mnode.handle import Cluster
    from pytest_mnode.measure import Measure
    from pytest_mnode.spec import Spec

pytestmark = pytest.mark.criterion


@pytest.fixture
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kept for all tests of the session: the run that nobody kills is made once."""
    return tmp_path_factory.getbasetemp()


@pytest.mark.parametrize("kill", KILLS)
def test_a_killed_job_comes_back_and_loses_nothing(
    kill: Kill, cluster: Cluster, spec: Spec, base: Path, measure: Measure
) -> None:
    """Does it come back from this kill, with each step and sample once and every number equal?"""
    promised = spec.criteria.restart
    if promised is None or kill not in promised.kills:
        not_promised(f"restart.kills: {kill}")
    killed = restart.judged_kill(kill, promised, cluster, spec, base)
    print("\n".join(killed.lines))
    killed.record(measure)
