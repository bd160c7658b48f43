"""Training steps, digested and compared with those of other ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_mnode.checks.world_check import WorldCheck
from pytest_mnode.criteria.devices import rank_with
from pytest_mnode.culprit import Culprit
from pytest_mnode.detection import smallest_share_wrong
from pytest_mnode.evidence.check import check
from pytest_mnode.measurement import Measurement, all_of, equals, listed, with_suspects
from pytest_mnode.spec.devices import TrainingStepPromise

if TYPE_CHECKING:
    import torch

    from pytest_mnode.measuring.results_of_ranks import SameSteps
    from pytest_mnode.rank.world import World


@check("devices.training_step")
class EveryRankComputesTheSameTrainingSteps(WorldCheck):
    """Do all ranks compute bit-identical training steps, and if not, which ranks differ?"""

    promise: TrainingStepPromise
    """Training steps, on the rank's device, digested and compared with those of other ranks."""
    fault = "wrong_layers:{node}"

    @property
    def duration_s(self) -> float:
        return self.promise.duration_s or 0.0

    def measure(self, world: World, device: torch.device) -> Iterator[tuple[SameSteps, ...]]:
        from pytest_mnode.measuring.results_of_ranks import repeated_steps

        yield repeated_steps(self.promise, world, device)

    def rule(self, found: tuple[SameSteps, ...]) -> list[Measurement]:
        return judge_steps(*found)


def judge_steps(*turns: SameSteps) -> list[Measurement]:
    """Whether all ranks computed the same training steps, and which ranks did not."""
    wrong: Counter[str] = Counter()
    for turn in turns:
        wrong.update(turn.wrong)
    disagreeing = [culprit for turn in turns for culprit in turn.unresolved]
    rows = [row for turn in turns for row in turn.rows]
    failed = list(dict.fromkeys(f"{row.name}: {row.why}" for row in rows if row.why))
    each = sum(max((len(row.models) for row in turn.rows), default=0) for turn in turns)
    culprits = [rank_with(name, f"({count} of {each})") for name, count in wrong.items()]
    alone = [row.name for row in turns[0].rows if len(set(row.models)) == 1]
    note = f"{each} models of {turns[0].steps} steps on each rank"
    if alone:
        note += f"; no other device of its kind to compare with: {listed(alone)}"
    return [
        Measurement(
            "training steps, digests that differ",
            None if failed and not wrong else sum(wrong.values()) + len(disagreeing),
            "",
            equals(0),
            "steps of one seed are equal bit by bit on devices of one kind",
            with_suspects(
                all_of([*culprits, *dict.fromkeys(disagreeing)]),
                (Culprit.of(row.name) for row in rows if row.why),
            ),
            f"could not be computed by {listed(failed)}" if failed else note,
            detection=smallest_share_wrong(each * turns[0].steps),
        )
    ]
