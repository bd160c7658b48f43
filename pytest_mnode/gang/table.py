"""A round as lines to read: what was done, what each gang held, which ranks ran. Pure."""

from __future__ import annotations

from pytest_mnode.gang.beats import presences, spans
from pytest_mnode.gang.terms import Window
from pytest_mnode.gang.timeline import Gang, Stretch, stretches


def table(window: Window) -> list[str]:
    """Times are seconds since the round began."""
    began = window.began_s
    lines = [f"{window.title}:"]
    lines += [f"  {at - began:+7.1f} s  {text}" for at, text in window.notes]
    for gang in window.gangs:
        lines += [_state(gang, one, began) for one in stretches(window.seen(gang), gang.asked_s)]
        lines += _ranks(window, gang, began)
    if window.problem:
        lines.append(f"  {window.problem}")
    return lines


def _state(gang: Gang, one: Stretch, began: float) -> str:
    held = f"{len(one.nodes)} of {gang.size} ({' '.join(one.nodes)})  " if one.nodes else ""
    return (
        f"  {gang.name:<10} {one.began_s - began:+7.1f} s  {one.state.value:<8}"
        f"{max(0.0, one.shown_s):6.1f} s  {held}{one.said}"
    ).rstrip()


def _ranks(window: Window, gang: Gang, began: float) -> list[str]:
    lines = []
    beats = window.beats(gang)
    for life in sorted({beat.life for beat in beats}):
        for some in presences(spans(b for b in beats if b.life == life)):
            count = len({(r.job, r.rank) for r in some.ranks})
            lines.append(
                f"  {gang.name:<10} {some.began_s - began:+7.1f} s  ranks   {some.seconds:6.1f} s  "
                f"{count} of {gang.size} heard"
            )
    return lines
