"""A site of the simulated scheduler, and an experiment conducted there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pytest_mnode.gang.conduct import Report, Site
from pytest_mnode.gang.engine import Engine
from pytest_mnode.spec.gang import GangCriterion
from tests.gang.simulated import Scheduler


def site(scheduler: Scheduler, **promised: object) -> Site:
    """A site of this scheduler, with a promise of short times."""
    page = {"rounds": 2, "runs": "3 s", "waits": "4 s", "next_within": "8 s", "together": "2 s"}
    promise = GangCriterion.model_validate({**page, **promised})

    @contextmanager
    def opened() -> Iterator[Engine]:
        yield scheduler

    return Site(promise, opened, scheduler.power, scheduler)


def ran(how: str, scheduler: Scheduler, **promised: Any) -> Report:
    done: Report = getattr(site(scheduler, **promised), how)()
    return done
