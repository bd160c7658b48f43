"""Whether nodes keep the page that was made of them: preflight's questions, put once. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from pytest_mnode.criteria.preflight.facts import Survey
from pytest_mnode.criteria.preflight.questions import (
    clocks,
    devices,
    links,
    mtu,
    names,
    payload,
    reach,
    room,
    same,
    storage,
)
from pytest_mnode.criteria.preflight.questions.answer import Answer, NotPromised
from pytest_mnode.measurement import Measurement, Verdict
from pytest_mnode.spec import Spec

Question = Callable[[Survey, Spec, str], Answer]
QUESTIONS: tuple[Question, ...] = (
    *(links.interfaces, links.speed, reach.master, reach.peers, names.names),
    *(mtu.interface_mtu, mtu.path_mtu, payload.payload, clocks.clocks),
    *(partial(same.same, part=part) for part in same.PARTS),
    *(devices.accelerators, devices.rdma_ports, devices.rdma_errors, devices.gpudirect),
    *(storage.usable, storage.shared, storage.sample),
    *(room.shared_memory, room.locked_memory, room.open_files, room.disk),
)


@dataclass(frozen=True, slots=True)
class Findings:
    """What nodes do not keep, and what could not be told, a line each; `asked`: measurements."""

    broken: tuple[str, ...]
    untold: tuple[str, ...]
    asked: int

    def paragraphs(self) -> Iterator[str]:
        """For the head of the page."""
        nodes = f"preflight was asked with this page, and made {self.asked} measurements"
        if not self.broken and not self.untold:
            yield f"Then {nodes}: all nodes keep it."
            return
        yield f"Then {nodes}. Nodes do not keep all of it:"
        yield from (f"- {line}" for line in self.broken)
        yield from (f"- could not be told: {line}" for line in self.untold)


def findings(survey: Survey, spec: Spec, questions: Sequence[Question] = QUESTIONS) -> Findings:
    """Put each question to each node, of a survey that was made with this page."""
    broken, untold, asked = [], [], 0
    for node in survey.nodes:
        for question in questions:
            answer = question(survey, spec, node.name)
            if isinstance(answer, NotPromised):
                continue
            asked += len(answer)
            broken += [_told(m, node.name) for m in answer if m.verdict is Verdict.FAIL]
            untold += [_told(m, node.name) for m in answer if m.verdict is Verdict.INCONCLUSIVE]
    return Findings(tuple(broken), tuple(untold), asked)


def _told(one: Measurement, node: str) -> str:
    """What was measured, and of whom."""
    if one.value is None:
        return f"{one.name} on {node}: {one.note}"
    note = f" ({one.note})" if one.note else ""
    return f"{one.culprit or node}: {one.name} {one.measured}{note}"
