"""Which job is killed and where, from the promise alone."""

from __future__ import annotations

import pytest

from pytest_mnode.criteria.restart.experiments import sizes
from pytest_mnode.criteria.restart.plan import KILL_AFTER, kills_in_order, plan
from pytest_mnode.errors import UsageError
from pytest_mnode.spec import profile_spec
from pytest_mnode.spec.inventory import Power
from pytest_mnode.spec.restart import KILLS, RestartCriterion

NODES = ("node0", "node1", "node2", "node3")


RACK = profile_spec("rack")


def test_kills_follow_from_what_the_site_can_do() -> None:
    """Nothing switches nodes off without a power section; a kill that is named stays."""
    site = RACK.model_copy(update={"emulated": ()})
    power = Power.model_validate({"switch_off": "off {node}", "switch_on": "on {node}"})
    rest = ("rank", "checkpoint", "preemption")
    assert kills_in_order(_promise(), site) == rest
    assert kills_in_order(_promise(kills=KILLS), site) == (*rest, "node")
    powered = site.model_copy(update={"power": power})
    assert kills_in_order(_promise(), powered) == (*rest, "node")


def _promise(**given: object) -> RestartCriterion:
    return RestartCriterion.model_validate({"within": "60 s", **given})


def test_a_spare_node_is_kept_free() -> None:
    planned = plan(_promise(), NODES, 2)
    assert planned.nodes == NODES[:3]
    assert planned.spares == ("node3",)
    assert (planned.ranks, planned.fewest) == (6, None)
    assert all(planned.ranks_after(kill) == 6 for kill in KILLS)
    assert (planned.victim, planned.observer_node) == ("node1", "node0")
    config = planned.config
    assert (config.global_batch, config.samples, config.steps) == (12, 120, 28)
    assert config.local_batch(6) == 2
    assert planned.terms("node", _promise()).tolerance.exact
    job = planned.job("config.json", _promise())
    assert (job.nodes, job.spares, job.requeues, job.restarts) == (NODES[:3], ("node3",), 2, 3)


def test_fewer_nodes_continue_without_dropout_and_within_a_tolerance() -> None:
    promise = _promise(node_loss="fewer", resharded_tolerance=0.001)
    planned = plan(promise, NODES, 2)
    assert planned.nodes == NODES
    assert planned.spares == ()
    assert planned.fewest == 3
    assert [planned.ranks_after(kill) for kill in KILLS] == [8, 6, 8, 8]
    # The batch is divisible on 8 ranks and on 6.
    assert planned.config.local_batch(8) == 3
    assert planned.config.local_batch(6) == 4
    assert planned.config.dropout == 0
    assert planned.config.reshard
    tolerance = planned.terms("node", promise).tolerance
    assert (tolerance.relative, tolerance.same_ranks, tolerance.exact) == (0.001, False, False)
    assert planned.terms("preemption", promise).tolerance.exact
    assert not planned.exact(promise)


def test_the_rebooted_node_continues() -> None:
    planned = plan(_promise(node_loss="rebooted"), NODES, 1)
    assert (planned.nodes, planned.spares, planned.fewest) == (NODES, (), None)


def test_two_nodes_are_enough_and_one_is_not() -> None:
    planned = plan(_promise(), NODES[:2], 1)
    assert (planned.nodes, planned.spares) == (("node0",), ("node1",))
    assert (planned.victim, planned.observer_node) == ("node0", "node1")
    with pytest.raises(UsageError, match="1 node; give --mnode-nodes=2 or more"):
        plan(_promise(), NODES[:1], 1)


def test_promised_kills_run_in_the_order_of_their_steps() -> None:
    assert kills_in_order(_promise(), RACK) == ("rank", "checkpoint", "preemption", "node")
    assert kills_in_order(_promise(kills=["node", "rank"]), RACK) == ("rank", "node")
    steps = [KILL_AFTER[kill] for kill in kills_in_order(_promise(), RACK)]
    assert steps == sorted(steps)


def test_the_reference_run_has_no_pause_and_no_held_checkpoint() -> None:
    planned = plan(_promise(pause="1 s"), NODES, 1)
    whole, cut = planned.whole("/a"), planned.cut(("rank", "checkpoint"), "/b")
    assert (whole.pause_s, whole.directory) == (0.0, "/a")
    assert (cut.pause_s, cut.directory) == (1.0, "/b")
    both = KILL_AFTER["rank"], KILL_AFTER["checkpoint"]
    assert (whole.hold_after, cut.hold_after) == ((), both)
    saved = [step for step in KILL_AFTER.values() if step % cut.checkpoint_every == 0]
    assert saved == [KILL_AFTER["checkpoint"]], "others wait between two steps"
    assert planned.digest() == plan(_promise(pause="2 s"), NODES, 1).digest()
    assert planned.digest() != plan(_promise(), NODES[:3], 1).digest()
    assert planned.digest() != plan(_promise(width=32), NODES, 1).digest()


@pytest.mark.parametrize("kills", [KILLS, ("rank", "checkpoint", "preemption"), ("node",)])
def test_each_kill_has_a_checkpoint_before_it_and_steps_after_it(kills: tuple[str, ...]) -> None:
    promise = _promise(kills=kills)
    config = plan(promise, NODES, 1).config
    for kill in kills_in_order(promise, RACK):
        assert config.checkpoint_every < KILL_AFTER[kill] <= config.steps - 6
    assert KILL_AFTER["checkpoint"] % config.checkpoint_every == 0
    assert config.steps % config.checkpoint_every == 0  # the last step is saved


@pytest.mark.parametrize(
    ("nodes", "doubled", "saved", "resumed"),
    [
        (4, True, 4, [2, 8]),
        (4, False, 2, [1, 4]),
        (2, True, 2, [1, 4]),
        (2, False, 1, [2]),
        (3, True, 3, [1, 6]),
    ],
)
def test_other_numbers_of_ranks(nodes: int, doubled: bool, saved: int, resumed: list[int]) -> None:
    on, others = sizes(NODES[:nodes], 1, doubled)
    assert on.ranks == saved
    assert [size.ranks for size in others] == resumed
    batch = 2 * max(on.ranks, *resumed)
    assert all(batch % size.ranks == 0 for size in (on, *others))
