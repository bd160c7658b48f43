"""What do settings of libraries, job and nodes gain on this cluster?"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from pytest_mnode import not_promised
from pytest_mnode.criteria.tuning import judging
from pytest_mnode.criteria.tuning.catalogue import CATALOGUE
from pytest_mnode.criteria.tuning.experiment import NotHere
from pytest_mnode.criteria.tuning.running import Runner, cost
from pytest_mnode.errors import MnodeError
from pytest_mnode.option_texts import EXPERIMENTS
from pytest_mnode.options import RUN, read_settings
from pytest_mnode.skipping import promised
from pytest_mnode.spec.tuning import TuningCriterion

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster
    from pytest_mnode.measure import Measure
    from pytest_mnode.spec import Spec

if "torch" in sys.modules:  # in the fork server, but not in the controller
    import pytest_mnode.criteria.tuning.in_ranks  # noqa: F401

pytestmark = pytest.mark.criterion


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_settings_gain_what_is_promised(
    experiment: str,
    take_cluster: Callable[[], Cluster],
    spec: Spec,
    measure: Measure,
    pytestconfig: pytest.Config,
) -> None:
    """What do other settings gain here, and which lines make them last?"""
    asked = experiment in read_settings(pytestconfig).tune
    promise: Any = None if asked else promised(spec, f"tuning.{experiment}")
    tuning = spec.criteria.tuning
    promise = getattr(tuning, experiment, None)
    run: Any = pytestconfig.stash[RUN]
    tried = CATALOGUE[experiment]
    runner = Runner(take_cluster(), spec, run.backend)
    try:
        settings = tuple(tried.settings(runner.place))
        rounds = tuning.rounds if tuning else TuningCriterion.model_fields["rounds"].default
        run.console.show([f"mnode: {cost(tried, len(settings), rounds)}"])
        found = runner.run(tried, settings, rounds)
    except (NotHere, MnodeError) as error:
        why = str(error).partition("\n")[0]
        if promise is None or not promise.model_fields_set:
            not_promised(f"{experiment}, which cannot be tried here: {why}")
        measure.record(judging.not_tried(tried, why))
        return
    finally:
        runner.close()
    measure.record(judging.judge(found, promise))
    measure.chart(judging.advice(found))


def test_fabric_ports_stay_up_and_free_of_errors(fabric_ports: Any, measure: Measure) -> None:
    """Did every fabric port stay up, free of errors and losses, during this criterion?"""
    measure.record(fabric_ports.measurements())
