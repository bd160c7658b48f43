"""Search for paths that change payloads, on the nodes where the ranks of a test gave no answer.

A link that changes bytes undetected by the checksum also changes gloo's or NCCL's own messages.
The receiver then waits forever for a message that came under another name, or blames its peer. The
nodes therefore send payloads by plain TCP, where only the payload can change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_mnode.checks.node.payloads import Payload, PayloadsArriveUnchanged, paths_that_change
from pytest_mnode.criteria.preflight.survey import survey
from pytest_mnode.criteria.preflight.survey_check import promise_of
from pytest_mnode.spec.preflight import PreflightCriterion

if TYPE_CHECKING:
    from pytest_mnode.launchers.nodes import Nodes
    from pytest_mnode.measurement import Measurement
    from pytest_mnode.spec import Spec


def changed_paths(nodes: Nodes, spec: Spec) -> list[Measurement]:
    """Measurement of the paths that change payloads; [] for one node, which has no path.

    Sends what preflight.payload of the spec promises, or its defaults. Used by `on_failure` of a
    test that already has a culprit: lost payloads alone blame nobody, so that the result is [].
    """
    if len(nodes.nodes) < 2:
        return []
    promise = promise_of(PayloadsArriveUnchanged, spec) or Payload.model_validate({})
    promise = promise.model_copy(update={"networks": ("fabric",)})
    preflight = PreflightCriterion.model_validate({"payload": promise})
    criteria = spec.criteria.model_copy(update={"preflight": preflight})
    of_payloads = spec.model_copy(update={"criteria": criteria})
    found = paths_that_change(survey(nodes, of_payloads, ()), of_payloads, promise)
    return [] if found.value is None else [found]
