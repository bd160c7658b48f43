"""What the four facts say, each by itself and all together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pytest_mnode.measurement import Verdict


class Fact(StrEnum):
    """The four facts that must agree, in the order they are told."""

    PINNED = "pinned"
    LOGGED = "logged"
    COUNTED = "counted"
    QUIET = "quiet"


class Answer(StrEnum):
    """What a fact says of the promise."""

    AGREES = "agrees"
    DISAGREES = "disagrees"
    MISSING = "missing"


class Case(StrEnum):
    """What is wrong, causes before what follows from them: the first met is told first."""

    NO_DEVICE = "no RDMA device"
    IB_DISABLED = "RDMA switched off by a setting"
    NET_CHOSEN = "another network chosen by a setting"
    WRONG_INTERFACE = "wrong interface"
    IPOIB = "sockets over IPoIB"
    SOCKETS = "sockets instead of RDMA"
    OTHER_NETWORK = "another network than promised"
    GID_TYPE = "wrong GID type"
    FAILED = "the network failed"
    RAIL_DOWN = "a rail missing"
    STRAY_RAIL = "a stray rail"
    GPUDIRECT_OFF = "GPUDirect off"
    NOT_ON_FABRIC = "bytes not on the fabric"
    TOO_MANY_BYTES = "more bytes than the algorithm moves"
    NOT_QUIET = "another NIC not quiet"
    DIFFERS = "ranks differ"
    UNKNOWN_NETWORK = "unknown network"
    NO_LOG = "no log"
    NO_COUNTER = "no counter"
    UNREADABLE = "cannot be read"
    RECOVERED = "a warning that recovered"
    NOTED = "noted"


_ORDER = {case: i for i, case in enumerate(Case)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that a fact says of one place. AGREES is a note: good to know, and no objection.

    node: None for all of the world. rank: None for all of the node. text: without the place.
    """

    fact: Fact
    answer: Answer
    case: Case
    text: str
    node: str | None = None
    rank: int | None = None


Says = Callable[..., Finding]


@dataclass(frozen=True, slots=True)
class FactVerdict:
    """One fact: what it says, and each thing that it objects to, lacks or notes."""

    fact: Fact
    findings: tuple[Finding, ...]

    @property
    def answer(self) -> Answer:
        """Disagrees where anything disagrees; missing where anything is; else agrees."""
        answers = {finding.answer for finding in self.findings}
        for answer in (Answer.DISAGREES, Answer.MISSING):
            if answer in answers:
                return answer
        return Answer.AGREES

    def of(self, answer: Answer) -> tuple[Finding, ...]:
        """Findings with this answer."""
        return tuple(finding for finding in self.findings if finding.answer is answer)

    def text(self, answer: Answer, nodes: Sequence[str]) -> str:
        """Findings with this answer in words, equal ones once; "" where there are none."""
        return in_words(self.of(answer), nodes)


@dataclass(frozen=True, slots=True)
class Proof:
    """All four facts of one world; `nodes` are its names in order."""

    nodes: tuple[str, ...]
    facts: tuple[FactVerdict, ...]

    @property
    def verdict(self) -> Verdict:
        """A fact that disagrees fails it; one that is missing leaves it inconclusive."""
        answers = {fact.answer for fact in self.facts}
        if Answer.DISAGREES in answers:
            return Verdict.FAIL
        if Answer.MISSING in answers or {fact.fact for fact in self.facts} != set(Fact):
            return Verdict.INCONCLUSIVE
        return Verdict.PASS

    @property
    def culprit(self) -> str | None:
        """Who or what is to blame, causes first; None where nothing objects or is missing."""
        every = [finding for fact in self.facts for finding in fact.findings]
        worst = [f for f in every if f.answer is Answer.DISAGREES]
        worst = worst or [f for f in every if f.answer is Answer.MISSING]
        return in_words(worst, self.nodes) or None

    @property
    def cases(self) -> frozenset[Case]:
        """Kinds of what disagrees or is missing."""
        return frozenset(
            finding.case
            for fact in self.facts
            for finding in fact.findings
            if finding.answer is not Answer.AGREES
        )

    def of(self, fact: Fact) -> FactVerdict:
        """The verdict of one fact."""
        return next(verdict for verdict in self.facts if verdict.fact is fact)

    def summary(self) -> str:
        """One line: each fact with its answer."""
        return ", ".join(f"{fact.fact} {fact.answer}" for fact in self.facts)

    def lines(self) -> list[str]:
        """For a reader: a line a fact and answer, with all that it has to say."""
        told = []
        for fact in self.facts:
            texts = [(answer, fact.text(answer, self.nodes)) for answer in reversed(Answer)]
            said = [(answer, text) for answer, text in texts if text]
            told += [
                f"{fact.fact} {'notes' if answer is Answer.AGREES else answer}: {text}"
                for answer, text in said
            ] or [f"{fact.fact} agrees"]
        return told


def in_words(findings: Iterable[Finding], nodes: Sequence[str]) -> str:
    """Equal things told once with all their places: "node1, rank 3 on node2: … ; …"."""
    places: dict[tuple[Case, str], list[Finding]] = {}
    for finding in sorted(findings, key=lambda f: _ORDER[f.case]):
        places.setdefault((finding.case, finding.text), []).append(finding)
    return "; ".join(f"{_who(found, nodes)}{text}" for (_, text), found in places.items())


def _who(findings: Sequence[Finding], nodes: Sequence[str]) -> str:
    if any(finding.node is None for finding in findings):
        return ""
    named = dict.fromkeys(finding.node for finding in findings)
    whole = {finding.node for finding in findings if finding.rank is None}
    if set(nodes) <= set(named) and len(nodes) > 1:
        return "all nodes: "
    told = []
    for node in named:
        ranks = sorted({f.rank for f in findings if f.node == node and f.rank is not None})
        several = len(ranks) > 1
        shown = f"rank{'s' if several else ''} {_ranges(ranks)} on " if ranks else ""
        told.append(f"{'' if node in whole else shown}{node}")
    return f"{', '.join(told)}: "


def _ranges(numbers: Sequence[int]) -> str:
    """1, 2, 3, 7 as 1-3,7."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
