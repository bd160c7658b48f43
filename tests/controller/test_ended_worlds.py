"""Worlds that the hub has agents end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_mnode.controller.leases import Asked
from pytest_mnode.errors import WorldError
from pytest_mnode.protocol.messages import Call, Death, PartLost
from tests.controller.desk import Desk


def up(desk: Desk, number: int) -> str:
    """The name of a world that is ready."""
    name = desk.ask(number, 2)
    desk.has_started(name)
    return name


def idle(desk: Desk, number: int) -> str:
    name = up(desk, number)
    desk.worlds.close(name, True)
    return name


def lost(desk: Desk, name: str) -> None:
    desk.worlds.broke(PartLost("n1", name, "gone"))
    desk.requests.go_on()


@pytest.mark.parametrize(
    ("make", "end"),
    [
        (up, lambda desk, name: desk.worlds.close(name, False)),
        (up, lambda desk, _: desk.worlds.stop_leased(2)),
        (idle, lost),
        (idle, lambda desk, _: desk.worlds.node_lost("n1", "gone")),
    ],
    ids=["its test failed", "its nodes are given back", "a rank died", "its node is lost"],
)
def test_a_world_without_a_user_is_ended(
    make: Callable[[Desk, int], str], end: Callable[[Desk, str], None]
) -> None:
    desk = Desk()
    kept, name = make(desk, 0), make(desk, 1)
    sent = len(desk.to_agents)
    end(desk, name)
    assert desk.to_agents[sent:] == [Call(0, "stop_world", ("n1", name))]
    assert set(desk.worlds.worlds) == {kept}


def test_idle_worlds_can_be_leased_without_their_nodes() -> None:
    """Then the client learns of deaths there, and ends them with its lease."""
    desk = Desk()
    used, name = up(desk, 0), idle(desk, 1)
    lease = desk.worlds.leases.lease_no_node(Asked("client/end", 1))
    assert [world.id for world in desk.worlds.lease_idle(lease.id)] == [name]
    died = Death("n1", name, 0, 1, None, 9)
    desk.worlds.broke(died)
    assert desk.sent[-1] == ("client/end", died)
    desk.worlds.stop_leased(lease.id)
    assert set(desk.worlds.worlds) == {used}
    assert desk.worlds.notices == []


def test_a_world_that_does_not_start_is_ended() -> None:
    desk = Desk()
    name = desk.ask(1, 2)
    sent = len(desk.to_agents)
    lost(desk, name)
    assert desk.to_agents[sent:] == [Call(0, "stop_world", ("n1", name))]
    assert isinstance(desk.sent[-1][1].value, WorldError)


def test_the_oldest_idle_world_makes_room() -> None:
    desk = Desk(idle_worlds=1)
    name, other = idle(desk, 1), idle(desk, 2)
    desk.worlds.leases.nodes["n1"].store_port = 5
    desk.ask(1, 3, procs=2)
    assert Call(0, "stop_world", ("n1", name)) in desk.to_agents
    assert other in desk.worlds.worlds
