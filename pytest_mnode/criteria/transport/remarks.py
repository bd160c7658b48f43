"""Remarks of the four facts on nodes and ranks, and the one measurement of each fact."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pytest_mnode.culprit import Culprit
from pytest_mnode.machine.cpus import format_cpulist
from pytest_mnode.measurement import Measurement, Verdict, equals, with_suspects


class ProofFact(StrEnum):
    """The four facts that must agree, in the order in which they are shown."""

    PINNED = "pinned"
    LOGGED = "logged"
    COUNTED = "counted"
    QUIET = "quiet"


_QUESTIONS = {
    ProofFact.PINNED: "settings of ranks that send traffic elsewhere",
    ProofFact.LOGGED: "ranks or nodes that use another network",
    ProofFact.COUNTED: "nodes whose fabric did not carry the expected bytes",
    ProofFact.QUIET: "other NICs that were not quiet",
}


class Case(StrEnum):
    """Kinds of remark, causes before their consequences: remarks are shown in this order."""

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


@dataclass(frozen=True, slots=True)
class Remark:
    """One statement of a fact about one place: a rank, a node, or all nodes.

    verdict: FAIL contradicts the promise, INCONCLUSIVE lacks a reading, PASS is only a note.
    text: without the place. node: None for all nodes. rank: None for the whole node.
    fallback: the place uses sockets instead of RDMA. setting: name of the variable that it is on.
    sure: False if other places may be to blame for it instead.
    """

    fact: ProofFact
    verdict: Verdict
    case: Case
    text: str
    node: str | None = None
    rank: int | None = None
    fallback: bool = False
    setting: str = ""
    sure: bool = True


@dataclass(frozen=True, slots=True)
class About:
    """Makes the remarks of one fact on one place."""

    fact: ProofFact
    node: str | None = None
    rank: int | None = None

    def fail(self, case: Case, text: str, *, fallback: bool = False, setting: str = "") -> Remark:
        """A remark that contradicts the promise."""
        return Remark(self.fact, Verdict.FAIL, case, text, self.node, self.rank, fallback, setting)

    def inconclusive(self, case: Case, text: str, setting: str = "") -> Remark:
        """A remark on a reading that is missing, so that the fact is not proven."""
        missing = Verdict.INCONCLUSIVE
        return Remark(self.fact, missing, case, text, self.node, self.rank, setting=setting)

    def note(self, case: Case, text: str, setting: str = "") -> Remark:
        """A remark that is no objection."""
        return Remark(self.fact, Verdict.PASS, case, text, self.node, self.rank, setting=setting)


def measured(fact: ProofFact, remarks: Iterable[Remark], nodes: Sequence[str]) -> Measurement:
    """The number of contradictions to one fact; None if a reading is missing. nodes: all names."""
    own = [remark for remark in remarks if remark.fact is fact]
    against = [remark for remark in own if remark.verdict is Verdict.FAIL]
    missing = in_words((r for r in own if r.verdict is Verdict.INCONCLUSIVE), nodes)
    notes = in_words((r for r in own if r.verdict is Verdict.PASS), nodes)
    return Measurement(
        f"transport, {fact}: {_QUESTIONS[fact]}",
        None if missing and not against else len(against),
        "",
        equals(0),
        "all four facts must agree with the fabric that the spec promises",
        with_suspects(in_words(against, nodes) or None, filter(None, [missing])),
        "; ".join(filter(None, [f"missing: {missing}" if missing else "", notes])),
    )


def in_words(remarks: Iterable[Remark], nodes: Sequence[str]) -> Culprit:
    """Remarks, equal ones once with all their places: "node1, rank 3 on node2: … ; …"."""
    same: dict[tuple[Case, str], list[Remark]] = {}
    for remark in sorted(remarks, key=lambda remark: _ORDER[remark.case]):
        same.setdefault((remark.case, remark.text), []).append(remark)
    parts = [_placed(found, nodes, text) for (_, text), found in same.items()]
    return Culprit.merged("; ".join(parts), parts)


def _placed(remarks: Sequence[Remark], nodes: Sequence[str], text: str) -> Culprit:
    """A text with its places. What is said of all nodes blames none of them."""
    places = _places(remarks, nodes)
    named = {remark.node for remark in remarks if remark.node is not None}
    of_all = any(remark.node is None for remark in remarks) or named >= set(nodes)
    if of_all:
        return Culprit(f"{places}{text}")
    if not all(remark.sure for remark in remarks):
        return Culprit(f"{places}{text}", either=[named])
    return Culprit(f"{places}{text}", named)


def _places(remarks: Sequence[Remark], nodes: Sequence[str]) -> str:
    if any(remark.node is None for remark in remarks):
        return ""
    named = dict.fromkeys(remark.node for remark in remarks)
    whole = {remark.node for remark in remarks if remark.rank is None}
    if set(nodes) <= set(named) and len(nodes) > 1:
        return "all nodes: "
    places = []
    for node in named:
        ranks = {r.rank for r in remarks if r.node == node and r.rank is not None}
        several = "s" if len(ranks) > 1 else ""
        shown = f"rank{several} {format_cpulist(ranks)} on " if ranks and node not in whole else ""
        places.append(f"{shown}{node}")
    return f"{', '.join(places)}: "
