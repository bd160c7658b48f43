"""The report of a pod whose relay ended: the pod's end if known, otherwise the relay's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pytest_mnode.launchers.kubernetes.pod_relay import HEADER
from pytest_mnode.launchers.kubernetes.pods import PodState
from pytest_mnode.launchers.kubernetes.relays import Relays
from pytest_mnode.launchers.kubernetes.run_pods import RunPods
from pytest_mnode.launchers.kubernetes.streams import Streams
from pytest_mnode.launchers.remote.bridge_server import STDERR, STDOUT

POD = PodState("pod-a", "a.0", 0, "node0", "10.0.0.1", True, "", False, "")
EVICTED = "its pod was disrupted: Eviction API: evicting"
KILLED = "its program ended with status 137: OSError: no space left"
LIMIT_S = 30.0


class Killed:
    """A relay program that opened its port and was killed."""

    async def run(self, streams: Streams) -> tuple[int, str]:
        await streams.write(STDOUT, HEADER.pack(0, 4) + b"4000")
        await asyncio.sleep(0)
        await streams.write(STDERR, b"Traceback:\nOSError: no space left\n")
        return 137, ""


async def start_exec(*, pod: str, argv: Sequence[str]) -> Any:
    assert (pod, argv) == ("pod-a", ["relay", "0"])
    return Killed()


def reported(pod_now: PodState) -> list[dict[str, Any]]:
    """The first event, if another request for the pod returns this; the watch is silent."""
    pods = RunPods(1)
    pods.heard(POD)
    events: list[dict[str, Any]] = []

    async def keep() -> None:
        first = asyncio.Event()

        def report(event: dict[str, Any]) -> None:
            events.append(event)
            first.set()

        async def look(name: str) -> None:
            assert name == "pod-a"
            for event in pods.heard(pod_now):
                report(event)
                relays.end("0")

        relays = Relays(pods, start_exec, ["relay"], 1, look=look, report=report)
        await relays.start("0")
        await first.wait()
        await asyncio.sleep(0)
        relays.end("0")

    asyncio.run(asyncio.wait_for(keep(), LIMIT_S))
    return events


@pytest.mark.parametrize(
    ("pod_now", "why"),
    [
        (replace(POD, ready=False, over=EVICTED), EVICTED),
        (POD, f"its pod cannot reach this machine: {KILLED}"),
    ],
    ids=["evicted", "as before"],
)
def test_the_end_of_a_pod_explains_the_end_of_its_relay(pod_now: PodState, why: str) -> None:
    assert reported(pod_now) == [{"lost": "0", "why": why}]
