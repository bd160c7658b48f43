"""Runs an experiment from the controller: its settings in turns, A B B A, in one run."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pytest_mnode.certificate.text import first_line
from pytest_mnode.criteria.tuning.experiment import (
    Broken,
    Experiment,
    Found,
    NotHere,
    Place,
    Setting,
    longer,
)
from pytest_mnode.errors import MnodeError, RankError
from pytest_mnode.progress import progress
from pytest_mnode.spec.quantity import DURATION

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster, RankWorld
    from pytest_mnode.rank.world import World
    from pytest_mnode.spec import Spec

LIMIT_S = 60.0
"""[choice] Limit of one measurement, which takes seconds; a path may carry nothing."""
_REFUSALS = ("ncclInvalidUsage", "ncclInvalidArgument", "no algorithm/protocol available")
"""What NCCL says of an algorithm that it does not have here. Older ones call it an internal error,
with the last of these words. Source: NCCL, src/enqueue.cc."""


def cost(experiment: Experiment, settings: int, rounds: int) -> str:
    """What an experiment takes, said before it begins."""
    whole_s = max(1, round(rounds * settings * experiment.takes_s))
    return (
        f"tuning {experiment.name}: {settings} settings × {rounds}, about {DURATION.text(whole_s)}"
    )


class Runner:
    """Measures settings; ranks are kept from one measurement to the next where they can be."""

    def __init__(self, cluster: Cluster, spec: Spec, backend: str) -> None:
        self.place = Place(
            spec, tuple(cluster.nodes), cluster.procs_per_node, backend, self.in_ranks
        )
        self._cluster, self._spec = cluster, spec
        self._world: RankWorld | None = None

    def close(self) -> None:
        """End the ranks that are kept."""
        if self._world is not None:
            self._world.close()
            self._world = None

    def in_ranks(self, function: str, **arguments: Any) -> Any:
        """Call a function of `in_ranks` in ranks that are kept; its value, the same of all."""
        if self._world is None:
            self._world = self._cluster.world()
        return self._call(self._world, function, arguments)

    def _call(self, world: RankWorld, function: str, arguments: Mapping[str, Any]) -> Any:
        arguments = {"spec": self._spec, **arguments}
        limit_s = LIMIT_S * longer(len(self.place.nodes))
        try:
            every = world.run(_measure, function, arguments, timeout=limit_s, group=True)
        except MnodeError:
            self.close()
            raise
        for one in every:
            if isinstance(one, NotHere | Broken):
                raise one
        return every[0]

    def measure(self, function: str, setting: Setting) -> Any:
        """The values under a setting, which is undone afterwards."""
        if not (setting.env or setting.nodes):
            return self.in_ranks(function, **setting.arguments)
        self.close()
        with self._cluster.world(setting.nodes or None, fresh=True) as world:
            # Before any group exists, because libraries read it once.
            world.run(_set_env, dict(setting.env), timeout=LIMIT_S)
            return self._call(world, function, setting.arguments)

    def run(self, experiment: Experiment, settings: tuple[Setting, ...], rounds: int) -> Found:
        """Measure all settings in each round, in an order that is turned round each time.

        A setting that fails is not tried again. Raises NotHere if there is no first one here,
        Broken, RankError if ranks fail under the first one, and what tells of a lost node.
        """
        began_s, dropped, failed = time.monotonic(), dict[str, str](), dict[str, str]()
        values: dict[str, list[Any]] = {one.name: [] for one in settings}
        for number in range(rounds):
            for place, setting in enumerate(settings[:: -1 if number % 2 else 1]):
                if setting.name in dropped or setting.name in failed:
                    continue
                done = number * len(settings) + place
                progress(f"{experiment.name}, {setting.name}", done, rounds * len(settings))
                try:
                    values[setting.name].append(self.measure(experiment.function, setting))
                except NotHere as error:
                    dropped[setting.name] = str(error)
                    if setting is settings[0]:
                        raise NotHere(f"{setting.name}: {error}") from error
                except RankError as error:
                    if setting is settings[0] or self._lost():
                        raise
                    failed[setting.name] = _reason(error)
        return Found(experiment, settings, values, dropped, time.monotonic() - began_s, failed)

    def _lost(self) -> bool:
        """Whether ranks cannot be started any more, as without a node."""
        try:
            self._world = self._cluster.world()
        except MnodeError:
            return True
        return False


def _reason(error: Exception) -> str:
    """The line of a failure of ranks that says what went wrong."""
    lines = [line for line in str(error).splitlines() if "Error: " in line]
    return first_line(lines[-1].rpartition("Error: ")[2] if lines else str(error), 160)


def refusal(error: str, env: Mapping[str, str]) -> str:
    """Why NCCL does not have the algorithm that `env` names, by its error; "" if it is another."""
    refused = "NCCL_ALGO" in env and any(word in error for word in _REFUSALS)
    return first_line(error.strip().splitlines()[-1], 160) if refused else ""


def _measure(function: str, arguments: Mapping[str, Any], *, world: World) -> Any:
    """In ranks. What is no failure of the ranks themselves is a value."""
    import torch.distributed as dist

    from pytest_mnode.criteria.tuning import in_ranks

    try:
        return getattr(in_ranks, function)(**arguments, world=world)
    except (NotHere, Broken) as error:
        return error
    except dist.DistBackendError as error:
        if why := refusal(str(error), os.environ):
            return NotHere(why)
        raise


def _set_env(env: Mapping[str, str]) -> None:
    """In ranks, which have the variables of the run's beginning."""
    os.environ.update(env)
