"""Rounds made by hand: two gangs at once, and a gang and a small job beside what fills the room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_mnode.criteria.restart.findings import Finding
from pytest_mnode.gang.engine import Beat, Look, Record
from pytest_mnode.gang.judging import judged_rounds
from pytest_mnode.gang.terms import CLEARED, Terms, Window
from pytest_mnode.gang.timeline import Gang
from pytest_mnode.gang.turns import Round, filled_turn, race_turn
from tests.gang.byhand import (
    TERMS,
    A,
    B,
    Shown,
    all_ran,
    both,
    course,
    holds,
    over,
    told,
    waits,
    watched,
)


def raced(
    looks: tuple[Look, ...], cleared: float, terms: Terms = TERMS, **more: object
) -> dict[str, tuple[str, str]]:
    return told(judged_race(looks, cleared, terms, **more))


def judged_race(
    looks: tuple[Look, ...], cleared: float, terms: Terms = TERMS, **more: object
) -> Sequence[Finding]:
    window = Window("race 1", (A, B), looks, notes=((cleared, CLEARED),))
    window = replace(window, **more)  # type: ignore[arg-type]
    return judged_rounds([Round(window, race_turn(window, ("A", "B")))], terms)


RACE = both(course("1", 101, 107), course("2", 108, 114))
RACED = [*all_ran("1", 101.3, 106.3), *all_ran("2", 108.3, 113.3)]


def filled(
    second: Shown,
    small: Shown,
    beats: list[Beat],
    cleared: float,
    off: dict[str, float] | None = None,
) -> dict[str, tuple[str, str]]:
    """A filler has n3 until 135 s; B and a small job are submitted at 105 s."""
    gangs = (
        Gang("filler 1", 1, ("1",), 500.0, 100.0),
        Gang("B", 3, ("2",), 5.0, 105.0),
        Gang("small", 1, ("3",), 1.0, 105.2),
    )

    def shown(t: float) -> dict[str, Record]:
        first = {"1": holds("1", "n3") if t < 135 else over("1", "CANCELLED")}
        return first if t < 105.2 else {**first, **second(t), **small(t)}

    looks = watched(shown, beats, cleared + 2, off)
    window = Window("filled 1", gangs, looks, notes=((cleared, CLEARED),))
    turn = filled_turn(window, "B", ["filler 1"], ("filler 1", "small"))
    return told(judged_rounds([Round(window, turn)], TERMS))


def small_at(began: float, ended: float) -> Shown:
    def at(t: float) -> dict[str, Record]:
        return {
            "3": waits("3") if t < began else holds("3", "n0") if t < ended else over("3"),
        }

    return at
