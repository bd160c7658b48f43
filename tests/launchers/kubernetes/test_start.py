"""How long a run waits for its pods, and which reasons end the wait."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.launchers.kubernetes import bridge
from pytest_mnode.launchers.kubernetes.api import ApiError
from tests.launchers.kubernetes.given import settings
from tests.launchers.kubernetes.test_run_pods import pod

LIMIT_S = 20.0
FORBIDDEN = 'Error creating: pods "mnode-r-0-x" is forbidden: '
REFUSALS = [
    f"{FORBIDDEN}exceeded quota: team, requested: requests.nvidia.com/gpu=8, limited: 16",
    f"{FORBIDDEN}maximum memory usage per Container is 1Gi, but limit is 2Gi",
    f'{FORBIDDEN}violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false',
    'Error creating: admission webhook "v.example.org" denied the request: no owner label',
]


def event(kind: str, name: str, reason: str, message: str, time: str = "") -> dict[str, Any]:
    about = {"kind": kind, "name": name}
    return {"involvedObject": about, "reason": reason, "message": message, "lastTimestamp": time}


def not_created(why: str, reason: str = "FailedCreate") -> dict[str, Any]:
    return event("Job", "mnode-r", reason, why)


PULLS = event("Pod", "a", "Pulling", 'Pulling image "big"', "2026-01-01T00:00:09Z")
SCHEDULED = event("Pod", "a", "Scheduled", "assigned team/a to n1", "2026-01-01T00:00:01Z")
MOUNT = event("Pod", "a", "FailedMount", 'secret "keys" not found', "2026-01-01T00:00:10Z")


class Events:
    """Answers requests for events by the kind of object that they are about."""

    namespace = "team"

    def __init__(self, *events: dict[str, Any], refuses: bool = False) -> None:
        self.events = list(events)
        self.refuses = refuses

    def path(self, kind: str, *_: str, **__: str) -> str:
        return kind

    def request(self, method: str, path: str, query: dict[str, str]) -> dict[str, Any]:
        assert (method, path) == ("GET", "events")
        if self.refuses:
            raise ApiError(403, "events is forbidden")
        about_pods = query["fieldSelector"] == "involvedObject.kind=Pod"
        some = [e for e in self.events if (e["involvedObject"]["kind"] == "Pod") == about_pods]
        return {"items": some}


Start = Callable[..., tuple[list[dict[str, Any]], float]]


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """started(api, *pods): what the launcher hears until the wait for three pods ends, and the
    seconds until then. then: what happens as it hears something."""

    def started(
        api: Events,
        *pods: Any,
        wait_s: float = 300.0,
        then: Callable[[bridge.KubernetesBridge], None] = lambda _: None,
    ) -> tuple[list[dict[str, Any]], float]:
        monkeypatch.setattr(bridge, "POLL_NODES_S", 0.02)
        monkeypatch.setattr(bridge, "EVENTS_S", 0.1)
        monkeypatch.setattr(bridge, "Api", lambda *_: api)
        made = bridge.KubernetesBridge(settings(tmp_path, nodes=3, wait_s=wait_s))
        for one in pods:
            made.pods.heard(one)
        heard: list[dict[str, Any]] = []

        def tell(event: dict[str, Any]) -> None:
            heard.append(event)
            then(made)

        monkeypatch.setattr(made, "tell", tell)
        began = time.monotonic()
        asyncio.run(asyncio.wait_for(made.give_up_when_late(), LIMIT_S))
        return heard, time.monotonic() - began

    return started


def creating(*names: str) -> list[Any]:
    return [pod(name, f"on-{name}", ready=False) for name in names]


@pytest.mark.parametrize("why", REFUSALS)
def test_a_refusal_of_pods_ends_the_wait_at_once(started: Start, why: str) -> None:
    [failed], seconds = started(Events(not_created(why)), pod("mnode-r-1", "n1"))
    assert failed == {"failed": {"Job mnode-r": f"2 pods were not created: {why}"}}
    assert seconds < LIMIT_S / 2


def test_a_refusal_names_no_pod_that_could_still_run(started: Start) -> None:
    why = REFUSALS[0]
    [failed], _ = started(Events(not_created(why), PULLS), *creating("a"), pod("b", "n2"))
    assert failed == {"failed": {"Job mnode-r": f"1 pod was not created: {why}"}}


def test_a_job_that_gave_up_ends_the_wait_at_once(started: Start) -> None:
    why = "Job has reached the specified backoff limit"
    [failed], _ = started(Events(not_created(why, "BackoffLimitExceeded")))
    assert failed == {"failed": {"Job mnode-r": f"3 pods were not created: {why}"}}


def test_a_passing_error_does_not_end_the_wait(started: Start) -> None:
    why = 'Error creating: Internal error occurred: failed calling webhook "v": timed out'
    [failed], seconds = started(Events(not_created(why)), wait_s=0.6)
    assert failed == {"failed": {"Job mnode-r": f"3 pods were not created: {why}"}}
    assert seconds > 0.6


def test_pods_that_pull_their_image_get_more_time(started: Start) -> None:
    def pulled(made: bridge.KubernetesBridge) -> None:
        for one in creating("a", "b", "c"):
            made.pods.heard(pod(one.name, one.node))

    api = Events(PULLS, SCHEDULED)
    heard, _ = started(api, *creating("a", "b", "c"), wait_s=0.3, then=pulled)
    assert heard == [{"waiting": 'a: Pulling image "big"'}]


def in_time(heard: dict[str, Any]) -> dict[str, Any]:
    """What is heard, as on a quick machine: "after 3 s" becomes "after 1 s"."""
    return {
        "failed": {a: re.sub(r"after \d+ s", "after 1 s", w) for a, w in heard["failed"].items()}
    }


def created_late(detail: str) -> dict[str, Any]:
    why = f"its container is being created ({detail}) after 1 s; raise --mnode-k8s-wait"
    return {"failed": {"a": why}}


ONE_OF_THREE = [*creating("a"), pod("b", "n2"), pod("c", "n3")]


def test_the_longest_pull_has_a_limit(started: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "PULL_S", 0.4)
    heard, seconds = started(Events(SCHEDULED, PULLS), *ONE_OF_THREE, wait_s=0.2)
    assert seconds > 0.6
    assert in_time(heard[-1]) == created_late('Pulling image "big"')


@pytest.mark.parametrize("refuses", [False, True])
def test_other_waits_end_in_time_and_name_the_option(started: Start, refuses: bool) -> None:
    api = Events(PULLS, MOUNT, SCHEDULED, refuses=refuses)
    [failed], _ = started(api, *ONE_OF_THREE, wait_s=0.5)
    detail = "image pull?" if refuses else 'secret "keys" not found'
    assert in_time(failed) == created_late(detail)
