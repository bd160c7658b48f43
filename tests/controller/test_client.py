"""A client whose hub does not answer, or whose answer arrives before the client looks."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from pytest_mnode.controller import client as module
from pytest_mnode.controller.client import Client
from pytest_mnode.errors import ClusterError, TimeLimitError
from pytest_mnode.limits import Limits
from pytest_mnode.protocol.channel import LocalLine
from pytest_mnode.protocol.launcher_requests import (
    LauncherRequest,
    LinkRates,
    PowerOn,
    SwitchPower,
)
from pytest_mnode.protocol.messages import (
    HUB,
    Answer,
    Call,
    Death,
    Lease,
    PartLost,
    Shape,
    WorldInfo,
)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setattr(module, "LEASE_LIMIT_S", 0.0)
    for kind in (LauncherRequest, SwitchPower):
        monkeypatch.setattr(kind, "limit_s", 0.0)
    return Client("client/1", LocalLine(lambda _, __: None), Limits(0.0, 0.0))


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda c: c.lease(None, False, "test_a"), "test_a was not given all nodes within 0 s"),
        (lambda c: c.lease(1, False, "test_a"), "test_a was not given 1 node within 0 s"),
        (lambda c: c.lease(3, True, "test_a"), "test_a was not given 3 nodes within 0 s"),
        (lambda c: c.open_world(Lease(1, ("n0",)), 1, True), "no world was started within 0 s"),
        (
            lambda c: c.ask_launcher(LinkRates("n0", "fab0")),
            "the launcher did not report the rate of a node's link within 0 s",
        ),
        (
            lambda c: c.ask_launcher(PowerOn("n0")),
            "the launcher did not switch nodes on within 0 s",
        ),
    ],
)
def test_missing_answers_are_named(client: Client, ask: Callable[[Client], Any], text: str) -> None:
    with pytest.raises(TimeLimitError) as caught:
        ask(client)
    assert str(caught.value) == text


def test_an_answer_in_time_counts_even_if_read_late(client: Client) -> None:
    assert isinstance(client.line, LocalLine)
    for message in ("of another test", Answer(1, Lease(7, ("n0",)))):
        client.line.put(pickle.dumps(message))
    assert client.lease(1, False, "test_a") == Lease(7, ("n0",))
    assert client.next_message(0.0) == "of another test"


class Hub:
    """Grants every request, and notes what it was told."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.line = LocalLine(self._hear)
        self.client = Client("client/1", self.line, Limits(), alone=True)
        self._ids = itertools.count(1)

    def _hear(self, destination: str, payload: bytes) -> None:
        assert destination == HUB
        message = pickle.loads(payload)
        self.told.append(message)
        match message:
            case Call(seq, "lease"):
                self.say(Answer(seq, Lease(next(self._ids), ("n0", "n1"))))
            case Call(seq, "open_world"):
                world = WorldInfo(f"w{next(self._ids)}", Shape(2, 1), ("n0", "n1"))
                self.say(Answer(seq, world))
            case Call(seq, "ask_launcher"):
                self.say(Answer(seq, ClusterError("no")))

    def say(self, message: Any) -> None:
        self.line.put(pickle.dumps(message))

    def methods(self) -> list[str]:
        """Methods that were called since the last time."""
        told, self.told = self.told, []
        return [call.method for call in told]

    def test(self, *, reusable: bool = True, holds: bool = False, **request: Any) -> WorldInfo:
        """What a test does; its world is given back. request: of nodes or of the world."""
        nodes = {name: request.pop(name) for name in ("nodes", "exclusive") if name in request}
        on = request.pop("on", ())
        whole = {"nodes": None, "exclusive": False, **nodes}
        lease = self.client.lease(label="test_a", on=on, **whole)
        asked = {"procs_per_node": 1, "fresh": False, "file": "a.py", **request}
        world = self.client.open_world(lease, **asked)
        self.client.close_world(world, reusable, new_group=False, held=holds)
        self.client.release(lease)
        return world


GIVEN_BACK = ["close_world", "release"]
ASKED = ["lease", "open_world"]


def test_the_next_test_of_the_same_shape_costs_the_hub_no_message() -> None:
    hub = Hub()
    first = hub.test()
    assert hub.methods() == ASKED
    second = hub.test()
    assert (hub.methods(), second.id) == ([], first.id)
    assert (first.new_group, second.new_group) == (True, False)
    hub.client.give_back()
    assert hub.methods() == GIVEN_BACK
    hub.client.give_back()
    assert hub.methods() == []


def test_what_is_kept_can_be_taken_at_the_end() -> None:
    hub = Hub()
    world = hub.test()
    taken = hub.client.take_kept()
    assert taken is not None
    assert [one.id for one in taken[1]] == [world.id]
    assert hub.methods() == ASKED
    assert hub.client.take_kept() is None
    hub.client.release(taken[0])
    assert hub.methods() == ["release"]


@pytest.mark.parametrize(
    ("request_of_nodes", "told"),
    [
        ({"nodes": 1}, GIVEN_BACK + ASKED),
        ({"exclusive": True}, GIVEN_BACK + ASKED),
        ({"on": ("n0",)}, GIVEN_BACK + ASKED),
        ({"on": ("n1", "n0")}, []),
        ({"procs_per_node": 2}, ["close_world", "open_world"]),
        ({"fresh": True}, ["close_world", "open_world"]),
        ({"file": "b.py"}, ["close_world", "open_world"]),
        ({"nodes_of_world": ("n0",)}, ["close_world", "open_world"]),
        ({"held": "w9"}, ["close_world", "open_world"]),
    ],
)
def test_a_test_with_another_request_asks_the_hub(
    request_of_nodes: dict[str, Any], told: list[str]
) -> None:
    hub = Hub()
    hub.test()
    hub.methods()
    if subset := request_of_nodes.pop("nodes_of_world", None):
        lease = hub.client.lease(None, False, "test_b")
        hub.client.open_world(lease, 1, False, subset, file="a.py")
    else:
        hub.test(**request_of_nodes)
    assert hub.methods()[: len(told) or None] == told


def test_a_held_world_is_for_tests_that_ask_for_it() -> None:
    hub = Hub()
    world = hub.test(holds=True)
    hub.methods()
    assert hub.test(held=world.id, on=("n0", "n1")).id == world.id
    assert hub.methods() == []


def test_a_world_that_is_not_reusable_is_not_kept() -> None:
    hub = Hub()
    hub.test(reusable=False)
    assert hub.methods() == ASKED + GIVEN_BACK


@pytest.mark.parametrize(
    "lost", [PartLost("n0", "w2", "gone"), Death("n0", "w2", 0, 1, 3, None, ordinal=7)]
)
def test_a_world_that_lost_a_rank_between_tests_is_given_back(lost: Any) -> None:
    hub = Hub()
    assert hub.test().id == lost.world
    hub.methods()
    hub.say(lost)
    assert hub.test().id != lost.world
    assert hub.methods() == GIVEN_BACK + ASKED


@pytest.mark.parametrize("deferred", [False, True], ids=["unread", "read by another world"])
def test_a_world_that_lost_a_rank_is_not_opened_again_on_the_same_lease(deferred: bool) -> None:
    hub = Hub()
    lease = hub.client.lease(None, False, "test_a")
    first = hub.client.open_world(lease, 1, False)
    hub.client.close_world(first, True, new_group=False)
    lost = Death("n0", first.id, 0, 1, 3, None, ordinal=7)
    if deferred:
        hub.client.defer(lost)
    else:
        hub.say(lost)
    assert hub.client.open_world(lease, 1, False).id != first.id
    assert hub.methods() == [*ASKED, "close_world", "open_world"]


def test_what_is_kept_is_given_back_before_any_other_request() -> None:
    hub = Hub()
    hub.test()
    hub.methods()
    with pytest.raises(ClusterError, match="no"):
        hub.client.ask_launcher(PowerOn("n0"))
    assert hub.methods() == [*GIVEN_BACK, "ask_launcher", "forget"]


def test_clients_of_a_hub_share_no_ordinal() -> None:
    clients = [
        Client("client/1", LocalLine(lambda _, __: None), Limits(), number=n) for n in range(3)
    ]
    drawn = [ordinal for one in clients for ordinal in itertools.islice(one.ordinals, 1000)]
    assert len(set(drawn)) == 3000
