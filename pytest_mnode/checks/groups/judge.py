"""Judging groups: facts of all ranks against the groups there should be. Pure, without torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pytest_mnode.checks.groups.facts import Expected, Membership, RankGroups, Talked, agreed
from pytest_mnode.wrong import Wrong, alike, listed

NOT_TRIED = "ranks disagree on who is in it, so that a collective in it would not end"


def judge_members(label: str, gathered: Sequence[RankGroups], expected: Expected) -> list[Wrong]:
    """Who is in a wrong group, and who is at a wrong place in the right one. Names the ranks.

    What torch declares and who answered inside the group are judged alike; where nothing is wrong
    but somebody was not asked, it is inconclusive.
    """
    strangers, misplaced = [], []
    for name, groups in expected.items():
        right = {rank: tuple(group) for group in groups for rank in group}
        for facts in gathered:
            ours, has = right.get(facts.rank), facts.groups.get(name)
            if text := _stranger(name, ours, has):
                strangers.append(f"{facts.where} {text}")
            elif ours is not None and has is not None and (text := _misplaced(name, ours, has)):
                misplaced.append(f"{facts.where} {text}")
    unsure = "; ".join(_not_asked(gathered, expected))
    unasked: int | None = None if unsure else 0
    return [
        Wrong(
            f"{label}: ranks in a wrong group",
            len(strangers) or unasked,
            "each group has the ranks that differ along its dimension only",
            listed(strangers) or None,
            unsure,
        ),
        Wrong(
            f"{label}: ranks at a wrong place in their group",
            # Of wrong members the order says nothing.
            len(misplaced) or (None if strangers else unasked),
            "a group's ranks are in the order of the mesh",
            listed(misplaced) or None,
            unsure or ("members are wrong" if strangers and not misplaced else ""),
        ),
    ]


def _not_asked(gathered: Sequence[RankGroups], expected: Expected) -> Iterator[str]:
    """What there is no answer to: of ranks that did not say, or that heard nobody."""
    ranks = sorted({rank for groups in expected.values() for group in groups for rank in group})
    if not ranks:
        yield "no group is expected"
    told = {facts.rank for facts in gathered}
    if silent := [rank for rank in ranks if rank not in told]:
        yield f"{_named(silent)} did not say which groups they are in"
    unlike = [name for name in expected if not agreed(gathered, name)]
    if unlike:
        yield f"nobody was heard in {', '.join(unlike)}: {NOT_TRIED}"
    deaf = []
    for facts in gathered:
        asked = ((name, facts.groups.get(name)) for name in expected if name not in unlike)
        if names := [name for name, has in asked if has is not None and has.heard is None]:
            deaf.append((facts.where, f"nobody was heard in {', '.join(names)}"))
    if deaf:
        yield listed(alike(deaf, len(gathered)))


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
    """Which groups of these names have ranks on more than one host, by each host's own name.

    Inconclusive where there is no group of one of the names, or a rank's host is not known.
    """
    asked = tuple(names)
    hosts = {facts.rank: _host(facts, gathered) for facts in gathered}
    broken: list[str] = []
    unknown: set[int] = set()
    absent: list[str] = []
    groups = 0
    for name in asked:
        declared = {f.groups[name].declared for f in gathered if name in f.groups}
        groups += len(declared)
        if not declared:
            absent.append(name)
        for group in sorted(declared):
            by_rank = {rank: hosts.get(rank) for rank in group}
            there = list(dict.fromkeys(host for host in by_rank.values() if host is not None))
            unknown.update(rank for rank, host in by_rank.items() if host is None)
            if len(there) > 1:
                broken.append(f"{name} {_shown(group)} spans {', '.join(there)}")
    notes = [f"{groups} groups over {len(set(hosts.values()) - {None})} hosts"]
    if absent:
        notes.append(f"there is no group of {' and '.join(absent)}")
    if unknown:
        which = "host of {} is" if len(unknown) == 1 else "hosts of {} are"
        notes.append(f"the {which.format(_named(sorted(unknown)))} not known")
    return Wrong(
        f"{label}: {' and '.join(asked)} groups over more than one {inside}",
        len(broken) or (None if absent or unknown or not asked else 0),
        "the hosts that their ranks read their own names on",
        listed(broken) or None,
        "; ".join(notes),
    )


def _host(facts: RankGroups, gathered: Sequence[RankGroups]) -> str | None:
    """A host by its name, and by its machine where another machine has the same name.

    None where nodes have hosts of the same name and the machine of one could not be read.
    """
    alike = [one for one in gathered if one.host == facts.host]
    machines = {one.machine for one in alike}
    if "" in machines and len({one.node for one in alike}) > 1:
        return None
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
        "; ".join(filter(None, [reasons, ", ".join(tried)])) or "no collective was run",
    )


def _named(ranks: Sequence[int], most: int = 8) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:most])
    more = f" and {len(ranks) - most} more" if len(ranks) > most else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{more}"


def _shown(ranks: Sequence[int], most: int = 8) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:most])
    return f"[{shown}{', …' if len(ranks) > most else ''}]"
