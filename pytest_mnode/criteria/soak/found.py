"""What a round of a soak found, as values, as rows of the evidence, and back. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_mnode.culprit import Culprit, Parts
from pytest_mnode.evidence.row import Row, row
from pytest_mnode.measurement import Measurement
from pytest_mnode.spec import Spec

KEY = "soak"
"""Of its rows in the evidence, as a check's."""
_BEGAN, _ASKED, _ENDED, _ROUND = "soak began", "soak asked for", "soak ended", "round"
_FAILURE, _SYMPTOM, _RATE, _CHECKED, _PARTNERS, _UNKNOWN = (
    *("failure", "symptom", "rate", "calls checked", "partners", "not known"),
)


@dataclass(frozen=True, slots=True)
class Failure:
    """What was wrong in a round. name: of the measurement. measured: its value, in words.

    symptom: whether another failure of the same round may have caused it, as a port that went down
    makes paths slow and ranks wait.
    """

    name: str
    measured: str
    culprit: Culprit
    symptom: bool = False


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast a node was in a round; node: "" for all nodes together."""

    what: str
    node: str
    value: float
    unit: str


@dataclass(frozen=True, slots=True)
class Round:
    """A round that ended. number: from 1, which is its seed too. began_s: seconds since 1970.

    took_s: seconds under load. partners: pairs of nodes that sent to each other, for pairs_s.
    checked: number of calls with checked results, by kind. unknown: what could not be measured.
    """

    number: int
    began_s: float
    took_s: float
    nodes: tuple[str, ...]
    partners: tuple[tuple[str, str], ...] = ()
    pairs_s: float = 0.0
    checked: Mapping[str, int] = field(default_factory=dict)
    rates: tuple[Rate, ...] = ()
    failures: tuple[Failure, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def blamed(self) -> tuple[Failure, ...]:
        """Its failures without symptoms of others."""
        return tuple(one for one in self.failures if not one.symptom) or self.failures

    def rows(self) -> Iterator[Row]:
        """The last one says that the round is whole."""
        for one in self.failures:
            yield from _rows_of(one)
        for rate in self.rates:
            yield row(_RATE, rate.value, rate.unit, node=rate.node, device=rate.what)
        for kind, count in self.checked.items():
            yield row(_CHECKED, count, device=kind)
        for a, b in self.partners:
            yield row(_PARTNERS, self.pairs_s, "s", node=a, peer=b)
        for name in self.unknown:
            yield row(_UNKNOWN, name)
        yield row(_ROUND, self.took_s, "s", peer=" ".join(self.nodes), time_s=self.began_s)

    def numbered(self) -> list[Row]:
        """Its rows, each with its number."""
        return [replace(one, repeat=self.number) for one in self.rows()]


def _rows_of(failure: Failure) -> Iterator[Row]:
    """A row per node to blame, with its device, and one per set of nodes of which one is."""
    culprit, metric = failure.culprit, _SYMPTOM if failure.symptom else _FAILURE

    def one(node: str = "", device: str = "", peer: str = "") -> Row:
        value = f"{failure.name}: {failure.measured}"
        return row(metric, value, why=str(culprit), node=node, device=device, peer=peer)

    devices = defaultdict(list)
    for node, device in culprit.parts.devices:
        devices[node].append(device)
    for node in sorted(culprit.nodes):
        yield from (one(node, device) for device in devices[node] or [""])
    for group in sorted(map(sorted, culprit.either)):
        ways = [f"{a} {b}" for a, b in culprit.parts.paths if sorted((a, b)) == group]
        yield from (one(device="path", peer=way) for way in ways)
        if not ways:
            yield one(peer=" ".join(group))


def _failures_of(rows: Sequence[Row]) -> Iterator[Failure]:
    """The inverse of `_rows_of`, of all rows of a round."""
    found: dict[tuple[str, str, str], list[Row]] = {}
    for one in rows:
        if one.metric in (_FAILURE, _SYMPTOM):
            found.setdefault((one.metric, str(one.value), one.why), []).append(one)
    for (metric, value, words), of_one in found.items():
        name, _, measured = value.partition(": ")
        groups = [tuple(one.peer.split()) for one in of_one if not one.node]
        sure = [one for one in of_one if one.node]
        parts = Parts(
            devices=tuple((one.node, one.device) for one in sure if one.device),
            paths=tuple(
                (a, b)
                for one in of_one
                if one.device == "path" and not one.node
                for a, b in [one.peer.split()]
            ),
        )
        culprit = Culprit(words, [one.node for one in sure], groups, parts)
        yield Failure(name, measured, culprit, metric == _SYMPTOM)


LogOfNode = tuple[tuple[str, str, str], ...] | str
"""When, which device and what, of each failure in a node's kernel log; or why it was not read."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A round that is to be run. number: from 1. rounds: how many there may be in all, which share
    the chance of a false alarm. reads_log: whether the kernel log is promised."""

    number: int
    rounds: int
    spec: Spec
    reads_log: bool


@dataclass(slots=True)
class Measured:
    """What the ranks of a round measured. partners: indices of nodes. logs: by node."""

    measurements: list[Measurement] = field(default_factory=list)
    rates: list[Rate] = field(default_factory=list)
    checked: dict[str, int] = field(default_factory=dict)
    partners: tuple[tuple[int, int], ...] = ()
    pairs_s: float = 0.0
    slow: list[Measurement] = field(default_factory=list)
    logs: Mapping[str, LogOfNode] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Kept:
    """The soak that a report has.

    asked_s: for how long it was asked for last. ended_s: the same; None if it was cut.
    """

    rounds: tuple[Round, ...] = ()
    asked_s: float = 0.0
    ended_s: float | None = None

    @property
    def soaked_s(self) -> float:
        return sum(one.took_s for one in self.rounds)


def began() -> Row:
    """Rounds before this row are of another soak."""
    return row(_BEGAN)


def asked(for_s: float) -> Row:
    """A run asks for this, at its begin or to go on."""
    return row(_ASKED, for_s, "s")


def latest(rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Rows, as plain values, of the latest soak."""
    begins = [place for place, one in enumerate(rows) if one.get("metric") == _BEGAN]
    return rows[begins[-1] :] if begins else rows


def ended(for_s: float) -> Row:
    """The soak was not cut."""
    return row(_ENDED, for_s, "s")


def kept_in(rows: Iterable[Row]) -> Kept:
    """The latest soak of these rows, without a round that is not whole."""
    rounds: dict[int, Round] = {}
    of_round: list[Row] = []
    asked_s, ended_s = 0.0, None
    for one in rows:
        if one.metric == _BEGAN:
            rounds, of_round, ended_s = {}, [], None
        elif one.metric == _ASKED:
            asked_s, ended_s = float(one.value or 0.0), None
        elif one.metric == _ENDED:
            ended_s = float(one.value or 0.0)
        elif one.metric == _ROUND:
            rounds[one.repeat or 0] = _round_of(
                one, [r for r in of_round if r.repeat == one.repeat]
            )
            of_round, ended_s = [], None
        else:
            of_round.append(one)
    return Kept(tuple(rounds.values()), asked_s, ended_s)


def _round_of(last: Row, rows: Sequence[Row]) -> Round:
    def of(metric: str) -> list[Row]:
        return [one for one in rows if one.metric == metric]

    return Round(
        number=last.repeat or 0,
        began_s=last.time_s or 0.0,
        took_s=float(last.value or 0.0),
        nodes=tuple(last.peer.split()),
        partners=tuple((one.node, one.peer) for one in of(_PARTNERS)),
        pairs_s=max((float(one.value or 0.0) for one in of(_PARTNERS)), default=0.0),
        checked={one.device: int(one.value or 0) for one in of(_CHECKED)},
        rates=tuple(
            Rate(one.device, one.node, float(one.value or 0.0), one.unit) for one in of(_RATE)
        ),
        failures=tuple(_failures_of(rows)),
        unknown=tuple(str(one.value) for one in of(_UNKNOWN)),
    )
