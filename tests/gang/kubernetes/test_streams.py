"""Reports of a watch of a gang's pods between two observations, and whether they are complete."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_mnode.gang.kubernetes.engine import Streams
from pytest_mnode.launchers.kubernetes.api import Api
from pytest_mnode.launchers.kubernetes.pod_streams import PodStreams


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    """Streams without a server; the first watch is running."""
    monkeypatch.setattr(PodStreams, "__init__", lambda *_: None)
    monkeypatch.setattr(PodStreams, "answers", lambda *_: True)
    made = Streams(Api.__new__(Api), "")
    made.watches = 1
    return made


def pod(name: str, version: int) -> dict[str, Any]:
    metadata = {"name": name, "uid": name, "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {}, "status": {}}


def test_one_uninterrupted_watch_is_complete(streams: Streams) -> None:
    streams.changed(pod("a", 1), False)
    _, every = streams.events({"a": 1}, 0)
    assert every  # no pod existed before the watch
    streams.changed(pod("b", 2), False)
    streams.changed(pod("b", 3), True)
    events, every = streams.events({"a": 1}, 0)
    assert [(one.pod.name, one.gone) for one in events] == [("b", False), ("b", True)]
    assert every
    assert streams.events({"a": 1}, 0) == ([], True)


def test_the_gap_between_two_watches_is_unknown(streams: Streams) -> None:
    streams.changed(pod("a", 1), False)
    streams.events({"a": 1}, 0)
    streams.watches = 2
    assert streams.events({"a": 1}, 0) == ([], False)
    assert streams.events({"a": 1}, 0) == ([], False)  # the first watch has ended
    streams.watches = 3
    assert streams.events({"a": 1}, 0) == ([], False)
    assert streams.events({"a": 1}, 0) == ([], True)


def test_without_a_pod_an_answer_of_the_server_is_needed(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert streams.events({}, 0) == ([], True)
    streams.changed(pod("a", 1), False)
    streams.changed(pod("a", 2), True)
    events, every = streams.events({}, 0)
    assert [one.gone for one in events] == [False, True]
    assert every
    monkeypatch.setattr(PodStreams, "answers", lambda *_: False)
    assert streams.events({}, 0) == ([], False)


@pytest.mark.parametrize("listed", [{"a": 2}, {"a": 1, "b": 2}])
def test_events_that_a_watch_has_not_reported_yet_are_unknown(
    streams: Streams, listed: dict[str, int]
) -> None:
    streams.changed(pod("a", 1), False)
    streams.events({"a": 1}, 0)
    assert streams.events(listed, 0) == ([], False)
    assert streams.events({"a": 1}, 0) == ([], False)
    assert streams.events({"a": 1}, 0) == ([], True)
