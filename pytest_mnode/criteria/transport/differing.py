"""Settings in which ranks differ though all must run the same way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_mnode.criteria.transport.facts import RankFacts
from pytest_mnode.criteria.transport.proof import Answer, Case, Fact, Finding
from pytest_mnode.criteria.transport.settings import MUST_BE_EQUAL, is_default


def differing(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    """Each rank that has another value than most, in what must be equal on all."""
    for name in MUST_BE_EQUAL:
        holders: dict[str | None, list[RankFacts]] = {}
        for rank in ranks:
            value = rank.environment.get(name)
            holders.setdefault(None if is_default(name, value) else value, []).append(rank)
        if len(holders) < 2:
            continue
        usual = max(holders, key=lambda value: len(holders[value]))
        for value, group in holders.items():
            if value == usual:
                continue
            shown = "is not set" if value is None else f"is {value!r}"
            others = "not set" if usual is None else repr(usual)
            for rank in group:
                yield Finding(
                    fact=Fact.PINNED,
                    answer=Answer.DISAGREES,
                    case=Case.DIFFERS,
                    text=f"{name} {shown}, on other ranks {others}",
                    node=rank.node,
                    rank=rank.rank,
                )
