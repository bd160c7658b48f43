"""Decisions of ranks about a hypothesis example, from its outcome in each rank."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import timedelta

import pytest
from hypothesis.database import InMemoryExampleDatabase
from torch._C._distributed_c10d import HashStore

from pytest_mnode.contrib.examples import (
    Ballot,
    Decision,
    Kind,
    _OneDatabase,
    decide,
    received,
)
from pytest_mnode.rank.votes import Votes


@pytest.mark.parametrize(
    ("kinds", "kind", "differ"),
    [
        ("passed passed", "passed", False),
        ("passed rejected", "rejected", False),
        ("rejected failed", "failed", False),
        ("stopped stopped", "stopped", False),
        ("stopped passed", "stopped", True),
        ("fetches fetches", "fetches", False),
        ("fetches passed", "fetches", True),
        ("ended passed", "ended", True),
        ("ended ended", "ended", False),
    ],
)
def test_one_decision_for_all(kinds: str, kind: str, differ: bool) -> None:
    decision = decide([Ballot(Kind(word)) for word in kinds.split()])
    assert (decision.kind, decision.differ) == (kind, differ)


def test_failures_are_distinguished_by_rank_and_location() -> None:
    failed = [Ballot(Kind.FAILED, origin="a.py:1"), Ballot(Kind.PASSED)]
    other = [Ballot(Kind.PASSED), Ballot(Kind.FAILED, origin="a.py:1")]
    assert decide(failed).failed == (0,)
    assert decide(failed).origin != decide(other).origin


def test_no_answer_without_the_vote_of_every_rank() -> None:
    store = HashStore()
    store.set_timeout(timedelta(seconds=1))
    votes = Votes(store, "test_a", rank=0, size=2)
    with pytest.raises(TimeoutError, match="not all ranks voted within 0 s"):
        votes.agree("one", list, limit_s=0.1)


def test_no_key_of_votes_stays_in_the_store() -> None:
    store = HashStore()
    votes = Votes(store, "test_a", rank=0, size=1)
    assert [votes.agree(n, list) for n in range(3)] == [[0], [1], [2]]
    # The ballot, the count, and the last answer: other ranks may not have read that yet.
    assert store.num_keys() == 3
    votes.close()
    assert store.num_keys() == 0


def test_ranks_that_drew_different_values_cannot_continue() -> None:
    assert decide([Ballot(Kind.PASSED, "1"), Ballot(Kind.PASSED, "2")]).differ


def test_all_ranks_get_what_rank_0_read_and_learn_of_its_error() -> None:
    ballots = [Ballot(Kind.FETCHES, values=("78",)), Ballot(Kind.FETCHES)]
    assert decide(ballots).values == ("78",)
    assert not decide([Ballot(Kind.ENDED, well=False), Ballot(Kind.PASSED)]).well


def test_rank_0_alone_reads_and_writes_the_database() -> None:
    real, own = InMemoryExampleDatabase(), InMemoryExampleDatabase()
    first = _OneDatabase(
        real, 0, lambda ballot: decide([ballot, Ballot(ballot.kind, ballot.drawn)])
    )
    other = _OneDatabase(own, 1, lambda ballot: decide([Ballot(ballot.kind, ballot.drawn), ballot]))
    for database in (first, other):
        database.save(b"key", b"value")
    assert set(real.fetch(b"key")) == set(first.fetch(b"key")) == {b"value"}
    assert not set(own.fetch(b"key"))
    assert not set(other.fetch(b"key"))


@pytest.mark.parametrize(
    "vote",
    [
        Ballot(Kind.FETCHES, drawn="key", values=("", "00ff")),
        Decision(Kind.FAILED, failed=(0, 3), origin="0: E a.py:1", ended=(1,), well=False),
    ],
)
def test_votes_are_sent_whole(vote: Ballot | Decision) -> None:
    sent = json.dumps(asdict(vote))
    again = received(type(vote), json.loads(sent))
    assert again.kind is vote.kind
    assert json.dumps(asdict(again)) == sent
