"""A gang runs, and one of its nodes is switched off."""

from __future__ import annotations

from collections.abc import Callable

from pytest_mnode.errors import ClusterError
from pytest_mnode.gang.bereft import Lost
from pytest_mnode.gang.engine import Ask
from pytest_mnode.gang.stage import Stage
from pytest_mnode.gang.timeline import Gang, State
from pytest_mnode.gang.watching import Watch

_HEARD_S = 3.0

Power = Callable[[str, str], None]
"""Switches a node, by name, "off" or "on". Raises ClusterError."""


def lose_a_node(stage: Stage, title: str, power: Power) -> Lost:
    """A gang runs; one of its nodes is switched off, and on again when the gang has left them."""
    plan, promise = stage.plan, stage.promise
    struck: list[tuple[str, float]] = []

    def conduct(watch: Watch) -> None:
        long_s = 4 * promise.lost_within_s
        requeue = promise.node_loss != "cancelled"
        gang = watch.submit(Ask("B", plan.size, long_s, long_s, plan.arena, requeue=requeue))
        limit = promise.next_within_s + _HEARD_S
        watch.until(lambda: _runs(watch, gang, 0) or watch.state(gang) is State.OVER, limit)
        watch.watch(_HEARD_S)
        last = watch.last(gang)
        if last is None or not _runs(watch, gang, last.life):
            watch.problem = (
                f"{title}: the gang did not run, or was not heard of, so that it could lose no "
                f"node: {watch.told([gang])}"
            )
            return
        life = last.life
        node = plan.order(title, sorted(watch.held(gang)))[0]
        try:
            at = stage.clock.now()
            watch.strike(node)
            watch.during(lambda: power("off", node))
            struck.append((node, at))
            watch.note(f"{node} switched off")
            watch.until(lambda: not _is_whole(watch, gang, life), promise.lost_within_s)
        except BaseException as error:
            # Also where it was not said to be off: a command that runs into its limit may have done
            # what it was to do all the same.
            try:
                power("on", node)
            except ClusterError as still:
                if isinstance(error, ClusterError):
                    raise ClusterError(f"{error}; {node} may be without power: {still}") from error
            raise
        watch.during(lambda: power("on", node))
        watch.note(f"{node} switched on")

        def settled() -> bool:
            return watch.state(gang) is State.OVER or _runs(watch, gang, life + 1)

        watch.until(settled, promise.lost_within_s)
        watch.watch(_HEARD_S)

    window = stage.watched(title, conduct, back_within_s=promise.lost_within_s)
    return Lost(window, *struck[0]) if struck else Lost(window)


def _is_whole(watch: Watch, gang: Gang, life: int) -> bool:
    """Whether it is whole as it was before."""
    last = watch.last(gang)
    return last is not None and last.state is State.WHOLE and last.life == life


def _runs(watch: Watch, gang: Gang, life: int) -> bool:
    """Whether it is whole in this life, or a later one, and all of its ranks were heard."""
    last = watch.last(gang)
    if last is None or last.state is not State.WHOLE or last.life < life:
        return False
    heard = {
        (beat.job, beat.rank)
        for look in watch.looks
        for beat in look.beats
        if beat.job in gang.jobs and beat.life == last.life
    }
    return len(heard) >= gang.size
