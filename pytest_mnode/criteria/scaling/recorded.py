"""From what the reference job records of a step to what is attributed. Pure."""

from __future__ import annotations

from pytest_mnode.criteria.scaling.facts import Step
from pytest_mnode.reference_job.records import StepRecord
from pytest_mnode.reference_job.timeline import merged


def step_of(record: StepRecord, elapsed_s: float) -> Step:
    """What a record of the reference job says of a step that took so long.

    What the job does for its records, after the step that it times, counts as the rest.
    """
    parts = record.parts
    moved = None
    if record.transfers is not None:
        spans = merged([(one.began, one.ended) for one in record.transfers])
        moved = sum(end - begin for begin, end in spans)
    return Step(
        wall_s=elapsed_s,
        compute=parts["forward"] + parts["backward"],
        exposed=parts["exposed"] + parts["metrics"],
        input=parts["input"],
        optimiser=parts["optimiser"],
        checkpoint=parts["checkpoint"],
        rest=parts["rest"] + elapsed_s - record.wall_s,
        backward_s=parts["backward"],
        sent_s=moved,
        hidden_s=record.hidden_s,
    )
