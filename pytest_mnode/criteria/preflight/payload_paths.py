"""Which paths change what is sent: asked of the nodes where the ranks of a test gave no answer.

A wire that changes a byte past the checksum changes one of gloo's or NCCL's own messages as well,
and then the receiver waits for ever for what has come under another name, or blames its peer. So
the nodes send payloads by plain TCP, in which nothing but the payload can change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_mnode.criteria.preflight.judges.corruption import payload_paths
from pytest_mnode.criteria.preflight.survey import survey
from pytest_mnode.spec.preflight import Payload, PreflightCriterion

if TYPE_CHECKING:
    from pytest_mnode.launchers.nodes import Nodes
    from pytest_mnode.measurement import Measurement
    from pytest_mnode.spec import Spec


def changed_paths(nodes: Nodes, spec: Spec) -> list[Measurement]:
    """The measurement of paths that change what is sent; none of one node, which has no path.

    Sends what preflight.payload of the spec promises, or its defaults. For `on_failure` of a test,
    which has a culprit already: payloads that did not arrive blame nobody here.
    """
    if len(nodes.nodes) < 2:
        return []
    promised = spec.criteria.preflight
    asked = (promised and promised.payload) or Payload.model_validate({})
    asked = asked.model_copy(update={"networks": ("fabric",)})
    preflight = PreflightCriterion.model_validate({"payload": asked})
    criteria = spec.criteria.model_copy(update={"preflight": preflight})
    of_payloads = spec.model_copy(update={"criteria": criteria})
    found = payload_paths(survey(nodes, of_payloads, ()), of_payloads, asked)
    return [] if found.value is None else [found]
