"""Judging groups: facts of all ranks against the groups there should be. Pure, without torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pytest_mnode.groups.facts import Expected, Membership, RankGroups, Talked, agreed
from pytest_mnode.wrong import Wrong, found, listed

NOT_TRIED = "ranks disagree on who is in it, so that a collective in it would not end"


def judge_members(label: str, gathered: Sequence[RankGroups], expected: Expected) -> list[Wrong]:
    """Who is in a wrong group, and who is at a wrong place in the right one. Names the ranks.

    What torch declares and who answered inside the group are judged alike.
    """
    strangers, misplaced, deaf = [], [], []
    for name, groups in expected.items():
        right = {rank: tuple(group) for group in groups for rank in group}
        unheard = not agreed(gathered, name)
        for facts in gathered:
            ours, has = right.get(facts.rank), facts.groups.get(name)
            if text := _stranger(name, ours, has):
                strangers.append(f"{facts.where} {text}")
            elif ours is not None and has is not None and (text := _misplaced(name, ours, has)):
                misplaced.append(f"{facts.where} {text}")
        if unheard:
            deaf.append(name)
    unsure = f"nobody was heard in {', '.join(deaf)}: {NOT_TRIED}" if deaf else ""
    # Of wrong members the order says nothing; and what was not asked is not right.
    in_order: int | None = None if deaf or strangers else 0
    return [
        found(
            f"{label}: ranks in a wrong group",
            "each group has the ranks that differ along its dimension only",
            strangers,
        ),
        Wrong(
            f"{label}: ranks at a wrong place in their group",
            len(misplaced) or in_order,
            "a group's ranks are in the order of the mesh",
            listed(misplaced) or None,
            unsure or ("members are wrong" if in_order is None else ""),
        ),
    ]


def _stranger(name: str, ours: tuple[int, ...] | None, has: Membership | None) -> str:
    """What is wrong with the members, whatever their order; "" where nothing is."""
    if has is None:
        return "" if ours is None else f"is in no {name}, expected in {_shown(ours)}"
    if ours is None:
        return f"is in {name} {_shown(has.declared)}, expected in none"
    if sorted(has.declared) != sorted(ours):
        return f"is in {name} {_shown(has.declared)}, expected {_shown(ours)}"
    if has.heard is not None and sorted(has.heard) != sorted(ours):
        return f"heard {_shown(has.heard)} in {name}, expected {_shown(ours)}"
    return ""


def _misplaced(name: str, ours: tuple[int, ...], has: Membership) -> str:
    if has.declared != ours:
        return f"has {name} in the order {_shown(has.declared)}, expected {_shown(ours)}"
    if not 0 <= has.place < len(ours) or has.declared[has.place] != ours[has.place]:
        return f"says it is at place {has.place} of {name} {_shown(ours)}"
    if has.coordinate is not None and has.coordinate != has.place:
        return f"is at place {has.place} of {name} {_shown(ours)}, and {has.coordinate} in the mesh"
    if has.heard is not None and has.heard != ours:
        return f"heard {name} in the order {_shown(has.heard)}, expected {_shown(ours)}"
    return ""


def judge_inside_node(
    label: str, gathered: Sequence[RankGroups], names: Iterable[str], inside: str = "node"
) -> Wrong:
    """Which groups of these names have ranks on more than one host, by each host's own name."""
    hosts = {facts.rank: _host(facts, gathered) for facts in gathered}
    broken, groups = [], 0
    for name in names:
        declared = {f.groups[name].declared for f in gathered if name in f.groups}
        groups += len(declared)
        for group in sorted(declared):
            there = list(dict.fromkeys(hosts.get(rank, "?") for rank in group))
            if len(there) > 1:
                broken.append(f"{name} {_shown(group)} spans {', '.join(there)}")
    asked = " and ".join(names)
    wrong = found(
        f"{label}: {asked} groups over more than one {inside}",
        "the hosts that their ranks read their own names on",
        broken,
    )
    note = f"{groups} groups over {len(set(hosts.values()))} hosts"
    return Wrong(wrong.name, wrong.count if groups else None, wrong.source, wrong.culprit, note)


def _host(facts: RankGroups, gathered: Sequence[RankGroups]) -> str:
    """A host by its name, and by its machine where another machine has the same name."""
    machines = {one.machine for one in gathered if one.host == facts.host}
    return facts.host if len(machines) < 2 else f"{facts.host} ({facts.machine})"


def judge_talk(
    label: str,
    gathered: Sequence[tuple[str, Sequence[Talked]]],
    not_tried: Mapping[str, str],
    *,
    what: str = "wrong values",
) -> Wrong:
    """Values that came wrong in collectives inside groups.

    gathered: each rank's place in words, and what it got. not_tried: why, by name of the groups
    that no collective was run in.
    """
    bad: list[str] = []
    count = 0
    tried: dict[str, None] = {}
    for where, talked in gathered:
        for one in talked:
            tried.setdefault(one.collective)
            count += one.wrong
            if one.wrong:
                bad.append(f"{where}: {one.collective} in {one.group}: {one.first}")
    reasons = "; ".join(f"{name} not tried: {why}" for name, why in not_tried.items())
    unsure = not tried or (not count and bool(not_tried))
    return Wrong(
        f"{label}: {what}",
        None if unsure else count,
        "sums of whole numbers are exact, and copies are equal",
        listed(bad) or None,
        "; ".join(filter(None, [reasons, ", ".join(tried)])),
    )


def _shown(ranks: Sequence[int], most: int = 8) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:most])
    return f"[{shown}{', …' if len(ranks) > most else ''}]"
