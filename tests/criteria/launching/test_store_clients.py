"""The common start of client threads of a store."""

from __future__ import annotations

import threading
import time
from unittest.mock import Mock

import pytest

from pytest_mnode.criteria.launching.rendezvous import Start

COUNT = 5


def waiting(start: Start) -> tuple[list[threading.Thread], list[bool]]:
    """Threads that wait for the start, and the result of each."""
    given: list[bool] = []
    return [
        threading.Thread(target=lambda: given.append(start.given())) for _ in range(COUNT)
    ], given


def test_all_threads_start_after_the_agreement() -> None:
    start = Start(20)
    threads, given = waiting(start)
    seen: list[int] = []
    before = time.perf_counter()
    began = start.run(threads, lambda: seen.append(sum(t.is_alive() for t in threads)))
    assert (seen, given) == ([COUNT], [True] * COUNT)
    assert before < began < time.perf_counter()


def test_without_an_agreement_no_thread_starts() -> None:
    start = Start(20)
    threads, given = waiting(start)
    with pytest.raises(RuntimeError, match="nobody agreed"):
        start.run(threads, Mock(side_effect=RuntimeError("nobody agreed")))
    assert given == [False] * COUNT
    assert not any(thread.is_alive() for thread in threads)


def test_if_one_thread_cannot_start_no_thread_starts() -> None:
    start = Start(20)
    threads, given = waiting(start)
    refused = Mock(side_effect=RuntimeError("can't start new thread"))
    threads[3].start = refused  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="can't start new thread"):
        start.run(threads, Mock())
    assert given == [False] * 3
    assert not any(thread.is_alive() for thread in threads)


def test_a_start_that_is_never_given_has_a_limit() -> None:
    assert not Start(0.1).given()
