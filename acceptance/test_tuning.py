"""What do settings of libraries, job and nodes gain on this cluster?"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from pytest_mnode import not_promised
from pytest_mnode.criteria.tuning import judging
from pytest_mnode.criteria.tuning.catalogue import CATALOGUE
from pytest_mnode.criteria.tuning.experiment import Broken, NotHere
from pytest_mnode.criteria.tuning.running import Runner, cost
from pytest_mnode.errors import ClusterError, WorldError
from pytest_mnode.option_texts import EXPERIMENTS
from pytest_mnode.options import RUN, read_settings
from pytest_mnode.skipping import promised
from pytest_mnode.spec.tuning import TuningCriterion

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster
    from pytest_mnode.criteria.port_counters.watching import PortWatch
    from pytest_mnode.measure import Measure
    from pytest_mnode.spec import Spec

if "torch" in sys.modules:  # in the fork server, but not in the controller
    import pytest_mnode.criteria.tuning.in_ranks  # noqa: F401

pytestmark = pytest.mark.criterion


@pytest.fixture(scope="session")
def tried() -> list[str]:
    """Experiments that were run."""
    return []


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_settings_gain_what_is_promised(  # noqa: PLR0917  what it asks for
    experiment: str,
    tried: list[str],
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
    asked_of = CATALOGUE[experiment]
    tried.append(experiment)
    runner = Runner(take_cluster(), spec, run.backend)
    try:
        settings = tuple(asked_of.settings(runner.place))
        rounds = tuning.rounds if tuning else TuningCriterion.model_fields["rounds"].default
        run.console.show([f"mnode: {cost(asked_of, len(settings), rounds)}"])
        found = runner.run(asked_of, settings, rounds)
    except (Broken, ClusterError, WorldError) as error:
        measure.record(judging.broke(asked_of, error))
        return
    except NotHere as error:
        why = str(error)
        if promise is None or not promise.model_fields_set:
            not_promised(f"{experiment}, which cannot be tried here: {why}")
        measure.record(judging.not_tried(asked_of, why))
        return
    finally:
        runner.close()
    measure.record(judging.judge(found, promise))
    measure.chart(judging.advice(found))


def test_fabric_ports_stay_up_and_free_of_errors(
    fabric_ports: PortWatch, tried: list[str], measure: Measure
) -> None:
    """Did every fabric port stay up, free of errors and losses, during this criterion?"""
    # A setting that fails kills its ranks.
    fabric_ports.record(measure, kills=True, new_mtu="mtu" in tried)
