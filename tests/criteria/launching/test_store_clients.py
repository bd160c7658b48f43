"""The common start of client threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from pytest_mnode.criteria.launching.store_clients import Start

COUNT = 5


def waiting(start: Start) -> tuple[list[threading.Thread], list[bool]]:
    """Threads that wait for the start, and what each of them was told."""
    told: list[bool] = []
    return [threading.Thread(target=lambda: told.append(start.given())) for _ in range(COUNT)], told


def nothing() -> None:
    pass


def test_all_are_let_go_after_the_agreement() -> None:
    start = Start(20)
    threads, told = waiting(start)
    seen: list[int] = []
    before = time.perf_counter()
    began = start.run(threads, lambda: seen.append(sum(t.is_alive() for t in threads)))
    assert (seen, told) == ([COUNT], [True] * COUNT)
    assert before < began < time.perf_counter()


def no_agreement() -> None:
    raise RuntimeError("nobody agreed")


def test_without_an_agreement_all_are_sent_home() -> None:
    start = Start(20)
    threads, told = waiting(start)
    with pytest.raises(RuntimeError, match="nobody agreed"):
        start.run(threads, no_agreement)
    assert told == [False] * COUNT
    assert not any(thread.is_alive() for thread in threads)


def test_where_one_cannot_be_started_the_others_are_sent_home() -> None:
    start = Start(20)
    threads, told = waiting(start)

    def refuse() -> None:
        raise RuntimeError("can't start new thread")

    refused: Callable[[], None] = refuse
    threads[3].start = refused  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="can't start new thread"):
        start.run(threads, nothing)
    assert told == [False] * 3
    assert not any(thread.is_alive() for thread in threads)


def test_a_start_that_is_never_given_has_a_limit() -> None:
    began = time.monotonic()
    assert not Start(0.1).given()
    assert time.monotonic() - began < 5
