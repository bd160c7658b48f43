"""Two runs beside each other, number by number. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite

from pytest_mnode.criteria.restart.lives import Life
from pytest_mnode.reference_job.records import EndRecord, StepRecord
from pytest_mnode.wrong import Wrong, found, listed

Curve = Mapping[int, Mapping[int, StepRecord]]
"""What each rank wrote, by step and rank."""


@dataclass(frozen=True, slots=True)
class Like:
    """How equal two runs have to be.

    tolerance: of losses, relative; 0: bit by bit, and then parameters too. source: why.
    same_ranks: both have as many ranks, so that what belongs to a rank can be compared.
    """

    tolerance: float
    source: str
    same_ranks: bool = True

    @property
    def exact(self) -> bool:
        """Whether parameters and optimiser state have to be equal bit by bit."""
        return self.tolerance == 0 and self.same_ranks

    def loss(self, one: float, other: float) -> bool:
        """Whether two losses are equal enough; what is no number never is, and nothing is near to
        infinity."""
        if self.tolerance == 0 or not (isfinite(one) and isfinite(other)):
            return one == other
        return abs(one - other) <= self.tolerance * max(abs(one), abs(other))

    def differences(
        self, one: Mapping[int, StepRecord], other: Mapping[int, StepRecord]
    ) -> Iterator[str]:
        """How the same step of two runs differs, a line for each rank and number."""
        for rank in sorted(one.keys() & other.keys()):
            a, b = one[rank], other[rank]
            where = f"rank {rank} on {b.node}"
            if not self.loss(a.loss, b.loss):
                yield f"{where}: loss {b.loss!r} instead of {a.loss!r}"
            if a.lr != b.lr:
                yield f"{where}: learning rate {b.lr!r} instead of {a.lr!r}"
            if self.same_ranks and a.world_size == b.world_size:
                if a.samples != b.samples:
                    yield f"{where}: other samples"
                if a.rng != b.rng:
                    yield f"{where}: other random states"


def differing(whole: Curve, cut: Curve, like: Like) -> list[Wrong]:
    """What differs from the run that was never killed, over all steps that both did."""
    losses = _Compared(
        "losses that differ",
        lambda a, b: like.loss(a.loss, b.loss),
        lambda a, b: f"{b.loss!r} instead of {a.loss!r}",
        lambda a, b: abs(a.loss - b.loss) / (max(abs(a.loss), abs(b.loss)) or 1.0),
    )
    rates = _Compared(
        "learning rates that differ",
        lambda a, b: a.lr == b.lr,
        lambda a, b: f"{b.lr!r} instead of {a.lr!r}",
    )
    states = _Compared("random states that differ", lambda a, b: a.rng == b.rng, lambda *_: "")
    numbers = [losses, rates, states] if like.same_ranks else [losses, rates]
    return [*(one.over(whole, cut, like) for one in numbers), _other_samples(whole, cut, like)]


@dataclass(frozen=True, slots=True)
class _Compared:
    """One number of each step and rank. equal(a, b): b is the one of the run that was killed."""

    name: str
    equal: Callable[[StepRecord, StepRecord], bool]
    shown: Callable[[StepRecord, StepRecord], str]
    far: Callable[[StepRecord, StepRecord], float] | None = None

    def over(self, whole: Curve, cut: Curve, like: Like) -> Wrong:
        """Count what differs, and name where it begins for each rank."""
        count = pairs = 0
        farthest = 0.0
        first: dict[int, str] = {}
        for step in sorted(whole.keys() & cut.keys()):
            for rank, a, b in _paired(whole[step], cut[step], like):
                pairs += 1
                if self.far is not None:
                    farthest = max(farthest, self.far(a, b))
                if not self.equal(a, b):
                    count += 1
                    how = self.shown(a, b)
                    text = f"rank {rank} on {b.node} from step {step} on" + f": {how}" * bool(how)
                    first.setdefault(rank, text)
        if not pairs:
            return Wrong(self.name, None, like.source, note="no step that both runs did")
        note = f"of {pairs} steps and ranks"
        if self.far is not None and farthest:
            note += f", by {farthest:.2g} at most, relative"
        return Wrong(self.name, count, like.source, listed(first.values()) or None, note)


def _paired(
    whole: Mapping[int, StepRecord], cut: Mapping[int, StepRecord], like: Like
) -> Iterator[tuple[int, StepRecord, StepRecord]]:
    """Rank by rank; with another number of ranks each beside any, as losses are of all of them."""
    if like.same_ranks:
        for rank in sorted(whole.keys() & cut.keys()):
            yield rank, whole[rank], cut[rank]
    elif whole:
        some = whole[min(whole)]
        for rank in sorted(cut):
            yield rank, some, cut[rank]


def _other_samples(whole: Curve, cut: Curve, like: Like) -> Wrong:
    """Steps whose samples, over all ranks, are not those of the run that was never killed."""
    wrong = []
    for step in sorted(whole.keys() & cut.keys()):
        one, other = (
            sorted(sample for record in curve[step].values() for sample in record.samples)
            for curve in (whole, cut)
        )
        if one != other:
            new = sorted(set(other) - set(one))
            wrong.append(f"step {step}: samples {new[:4] or 'missing'} that it had not")
    return found("steps of other samples", like.source, wrong)


def differing_ends(whole: Life, cut: Life, like: Like) -> list[Wrong]:
    """Final parameters, optimiser state and learning rate of each rank, compared bit by bit.

    With a tolerance, or another number of ranks, digests say nothing; then only ends are counted.
    """
    missing = [f"rank {rank}" for rank in range(cut.size) if _end(cut, rank) is None]
    findings = [found("ranks that did not come to the end", like.source, missing)]
    if not like.exact:
        return findings
    for name, what in (
        ("parameters", "final parameters that differ"),
        ("optimiser", "final optimiser states that differ"),
        ("lr", "final learning rates that differ"),
    ):
        wrong = []
        known = 0
        for rank in range(cut.size):
            a, b = _end(whole, rank), _end(cut, rank)
            if a is not None and b is not None:
                known += 1
                if getattr(a, name) != getattr(b, name):
                    wrong.append(f"rank {rank} on {b.node}")
        if not known:
            findings.append(Wrong(what, None, like.source, note="no rank came to the end in both"))
        else:
            findings.append(found(what, like.source, wrong))
    return findings


def _end(life: Life, rank: int) -> EndRecord | None:
    own = life.by_rank.get(rank)
    return None if own is None or own.end is None or own.end.preempted else own.end
