"""Plans meshes to try, and the ranks of their groups, independently of torch; and judges process
groups: the reports of all ranks against the right groups. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Self

from pytest_mnode.checks.judged import At, numbered, texts_by_who
from pytest_mnode.culprit import Culprit
from pytest_mnode.errors import UsageError
from pytest_mnode.measurement import HeadlineMark, Measurement, listed

if TYPE_CHECKING:
    from pytest_mnode.rank.world import World
    from pytest_mnode.spec.checks import GroupsCriterion


Expected = Mapping[str, Sequence[Sequence[int]]]
"""The right groups by name: each is its ranks of the world, in the order of the group."""
NOT_TRIED = "ranks disagree on who is in it, so that a collective in it would not end"


@dataclass(frozen=True, slots=True)
class Membership:
    """One group as one of its ranks reports it.

    declared: ranks of the world in the order of the group, as torch declares them. place: this
    rank's place. coordinate: this rank's coordinate in the mesh; None for a group without a mesh.
    heard: the rank that answered at each place; None if no answers were gathered.
    """

    declared: tuple[int, ...]
    place: int
    coordinate: int | None = None
    heard: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class RankGroups:
    """One rank's groups, by name.

    host: its host name. machine: an identifier that no two machines share; "" if it could not be
    read.
    """

    at: At
    host: str
    groups: Mapping[str, Membership]
    machine: str = ""


@dataclass(frozen=True, slots=True)
class CollectiveResult:
    """One collective on one rank: how many values were wrong, and the first one in words.

    senders: whose values they are, where values are copied; none where they are summed.
    """

    group: str
    collective: str
    wrong: int
    first: str = ""
    senders: frozenset[int] = frozenset()


def agreed(gathered: Sequence[RankGroups], name: str) -> bool:
    """Whether all declared members of a group of this name declare the same members.

    If they do not, a collective in it would wait for ranks that never join.
    """
    has = {one.at.rank: one.groups[name] for one in gathered if name in one.groups}
    by_members: dict[tuple[int, ...], set[int]] = {}
    for rank, mine in has.items():
        by_members.setdefault(mine.declared, set()).add(rank)
    in_place = all(m.declared[m.place : m.place + 1] == (rank,) for rank, m in has.items())
    return in_place and all(set(members) == ranks for members, ranks in by_members.items())


def refusals(gathered: Sequence[RankGroups], expected: Expected) -> dict[str, str]:
    """Why no collective is run in a group, by the name of the group."""
    wrong = {
        name: "it has wrong ranks"
        for name, _, ours, has in _compared(gathered, expected)
        if _wrong_members(name, ours, has)
    }
    return wrong | {name: NOT_TRIED for name in expected if not agreed(gathered, name)}


def _compared(
    gathered: Sequence[RankGroups], expected: Expected
) -> Iterator[tuple[str, RankGroups, tuple[int, ...] | None, Membership | None]]:
    """Each expected name with each rank: the group it should be in and the one it is in."""
    for name, groups in expected.items():
        right = {rank: tuple(group) for group in groups for rank in group}
        for facts in gathered:
            yield name, facts, right.get(facts.at.rank), facts.groups.get(name)


def judge_members(
    label: str, gathered: Sequence[RankGroups], expected: Expected
) -> list[Measurement]:
    """Judge which ranks are in a wrong group, and which are at a wrong place in the right one.

    By the ranks that torch declares and those that answered inside the group. Inconclusive if
    nothing is wrong and some rank reported no groups or heard no answers.
    """
    strangers, misplaced = [], []
    for name, facts, ours, has in _compared(gathered, expected):
        if text := _wrong_members(name, ours, has):
            strangers.append(facts.at.culprit(f" {text}"))
        elif ours is not None and has is not None and (text := _wrong_place(name, ours, has)):
            misplaced.append(facts.at.culprit(f" {text}"))
    unsure = "; ".join(_not_asked(gathered, expected))
    return [
        Measurement.none_allowed(
            f"{label}: ranks in a wrong group",
            strangers,
            "each group has the ranks that differ along its dimension only",
            unsure=unsure,
        ),
        Measurement.none_allowed(
            f"{label}: ranks at a wrong place in their group",
            misplaced,
            "a group's ranks are in the order of the mesh",
            # The order of wrong members says nothing.
            unsure=unsure or ("members are wrong" if strangers and not misplaced else ""),
        ),
    ]


def _not_asked(gathered: Sequence[RankGroups], expected: Expected) -> Iterator[str]:
    """Ranks that reported nothing, and groups in which a rank heard no answers."""
    ranks = {rank for groups in expected.values() for group in groups for rank in group}
    if not ranks:
        yield "no group is expected"
    if silent := ranks - {facts.at.rank for facts in gathered}:
        yield f"{numbered('rank', sorted(silent), 8)} reported no groups"
    unlike = [name for name in expected if not agreed(gathered, name)]
    if unlike:
        yield f"no rank answered in {', '.join(unlike)}: {NOT_TRIED}"
    deaf = []
    for facts in gathered:
        asked = {name: facts.groups.get(name) for name in expected if name not in unlike}
        if names := [name for name, has in asked.items() if has and has.heard is None]:
            deaf.append((facts.at, f"no rank answered in {', '.join(names)}"))
    if deaf:
        yield listed(texts_by_who(deaf, len(gathered)))


def _wrong_members(name: str, ours: tuple[int, ...] | None, has: Membership | None) -> str:
    """What is wrong with the members, in any order; "" if nothing is."""
    if has is None:
        return "" if ours is None else f"is in no {name}, expected in {_shown(ours)}"
    if ours is None:
        return f"is in {name} {_shown(has.declared)}, expected in none"
    if sorted(has.declared) != sorted(ours):
        return f"is in {name} {_shown(has.declared)}, expected {_shown(ours)}"
    if has.heard is not None and sorted(has.heard) != sorted(ours):
        return f"heard {_shown(has.heard)} in {name}, expected {_shown(ours)}"
    return ""


def _wrong_place(name: str, ours: tuple[int, ...], has: Membership) -> str:
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
    label: str, gathered: Sequence[RankGroups], names: Iterable[str]
) -> Measurement:
    """Judge which groups of these names have ranks on more than one host, by each host's own name.

    Inconclusive if there is no group of one of the names, or a rank's host is not known.
    """
    asked = tuple(names)
    namesakes: dict[str, list[RankGroups]] = {}
    for facts in gathered:
        namesakes.setdefault(facts.host, []).append(facts)
    nodes = {facts.at.rank: facts.at.node for facts in gathered}
    hosts = {facts.at.rank: _host(facts, namesakes[facts.host]) for facts in gathered}
    groups = {
        name: sorted({one.groups[name].declared for one in gathered if name in one.groups})
        for name in asked
    }
    every = [(name, group) for name, of_name in groups.items() for group in of_name]
    broken = []
    for name, group in every:
        spanned = list(dict.fromkeys(filter(None, map(hosts.get, group))))
        if len(spanned) > 1:
            words = f"{name} {_shown(group)} spans {', '.join(spanned)}"
            broken.append(Culprit(words, either=[{nodes[rank] for rank in group if rank in nodes}]))
    absent = [name for name in asked if not groups[name]]
    unknown = {rank for _, group in every for rank in group if hosts.get(rank) is None}
    unsure = []
    if absent or not asked:
        unsure.append(f"there is no group of {' and '.join(absent) or 'any name'}")
    if unknown:
        which = "host of {} is" if len(unknown) == 1 else "hosts of {} are"
        unsure.append(f"the {which.format(numbered('rank', sorted(unknown), 8))} not known")
    return Measurement.none_allowed(
        f"{label}: {' and '.join(asked)} groups over more than one node",
        broken,
        "the hosts that their ranks read their own names on",
        unsure="; ".join(unsure),
        note=f"{len(every)} groups over {len(set(hosts.values()) - {None})} hosts",
    )


def _host(facts: RankGroups, namesakes: Sequence[RankGroups]) -> str | None:
    """A host by its name, and by its machine if another machine has the same name.

    None if nodes have hosts of the same name and the machine of one could not be read.
    """
    machines = {one.machine for one in namesakes}
    if "" in machines and len({one.at.node for one in namesakes}) > 1:
        return None
    return facts.host if len(machines) < 2 else f"{facts.host} ({facts.machine})"


def judge_collectives(
    name: str,
    gathered: Sequence[tuple[At, Sequence[CollectiveResult]]],
    not_tried: Mapping[str, str],
    expected: Expected | None = None,
) -> Measurement:
    """Judge the values of collectives inside groups.

    gathered: the results of each rank. not_tried: by name, why no collective was run in a group.
    expected: the right groups, whose number the headline says; None if it says none.
    """
    results = [(at, one) for at, of_rank in gathered for one in of_rank]
    unsure = [f"{group} not tried: {why}" for group, why in not_tried.items()]
    if not results:
        unsure.append("no collective was run")
    return Measurement.none_allowed(
        name,
        list(_blamed(results, expected or {})),
        "sums of whole numbers are exact, and copies are equal",
        count=sum(one.wrong for _, one in results),
        unsure="; ".join(unsure),
        note=", ".join(dict.fromkeys(one.collective for _, one in results)),
        headline=_groups_right(results, expected) if expected is not None else None,
    )


def _blamed(
    results: Sequence[tuple[At, CollectiveResult]], expected: Expected
) -> Iterator[Culprit]:
    """The one rank, else node, that explains all wrong results; else who may explain each.

    A rank explains those of a collective in a group if each is its own, or of values that it alone
    sent. Of a sum a rank is to blame that alone has it wrong: what it sends is wrong on the others
    too. Of a copy that came wrong either end may be at fault.
    """
    every = {at.rank: at for at, _ in results}
    wrong: dict[tuple[str, str, tuple[int, ...]], dict[At, CollectiveResult]] = {}
    for at, one in results:
        if one.wrong:
            group = next((g for g in expected.get(one.group, ()) if at.rank in g), ())
            wrong.setdefault((one.group, one.collective, tuple(group)), {})[at] = one

    def explain(ats: Mapping[At, CollectiveResult]) -> list[At]:
        ends = [{at} | {every.get(n, at) for n in _single(one.senders)} for at, one in ats.items()]
        common = ends[0].intersection(*ends[1:]) if any(one.senders for one in ats.values()) else ()
        return sorted(common or frozenset[At]().union(*ends), key=lambda at: at.rank)

    def in_all(of: Callable[[At], object]) -> frozenset[object]:
        found = [frozenset(map(of, ats)) for ats in explaining.values()]
        return frozenset[object]().union(*found).intersection(*found)

    explaining = {key: explain(ats) for key, ats in wrong.items()}
    ranks, nodes = in_all(lambda at: at.rank), in_all(lambda at: at.node)
    for key, ats in wrong.items():
        (name, collective, _), able = key, explaining[key]
        if len(ranks) == 1 or len(nodes) == 1:
            able = [at for at in able if at.rank in ranks or (len(ranks) != 1 and at.node in nodes)]
        if len(able) == 1 or len(ranks) == 1 or len(nodes) == 1:
            for at in able:
                where, one = (at, ats[at]) if at in ats else next(iter(ats.items()))
                seen = "" if where is at else f", on {where}"
                yield at.culprit(f": {collective} in {name}{seen}: {one.first}")
        else:
            for at, one in ats.items():
                words = f"{at}: {collective} in {name}: {one.first}"
                yield Culprit.one_of(words, [each.culprit("") for each in able])


def _single(ranks: frozenset[int]) -> frozenset[int]:
    return ranks if len(ranks) == 1 else frozenset()


def _groups_right(
    results: Sequence[tuple[At, CollectiveResult]], expected: Expected
) -> HeadlineMark:
    """How many groups had right values on all of their ranks, of all that should be there."""
    wrong = {(one.group, at.rank) for at, one in results if one.wrong}
    ran = {(one.group, at.rank) for at, one in results} - wrong
    groups = [(name, group) for name, of_name in expected.items() for group in of_name]
    right = sum(all((name, rank) in ran for rank in group) for name, group in groups)
    return HeadlineMark(after="groups with right collectives", of=len(groups), right=right)


def _shown(ranks: Sequence[int], most: int = 8) -> str:
    shown = ", ".join(map(str, ranks[:most]))
    return f"[{shown}{', …' if len(ranks) > most else ''}]"


@dataclass(frozen=True, slots=True)
class Layout:
    """Named dimensions over ranks 0 … size-1, outermost first: ranks are neighbours along the last.

    Raises ValueError unless each size has a name of its own, and for a size below 1.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.names) != len(self.sizes) or len(set(self.names)) < len(self.names):
            raise ValueError(f"names {self.names} do not each name one of the sizes {self.sizes}")
        if min(self.sizes, default=0) < 1:
            raise ValueError(f"sizes {self.sizes}; give dimensions of 1 or more")

    @classmethod
    def of(cls, **sizes: int) -> Self:
        """A layout by keywords, such as `Layout.of(pp=2, dp=4, tp=8)`."""
        return cls(tuple(sizes), tuple(sizes.values()))

    @property
    def size(self) -> int:
        """Number of ranks."""
        return prod(self.sizes)

    def wider_than_one(self, names: Iterable[str]) -> tuple[str, ...]:
        """The dimensions of `names` along which this layout has more than one rank."""
        sizes = dict(zip(self.names, self.sizes, strict=True))
        return tuple(name for name in names if sizes.get(name, 1) > 1)

    def groups(self, *names: str) -> tuple[tuple[int, ...], ...]:
        """All groups along these dimensions, in the order of their first rank.

        The ranks of a group differ along these dimensions only; they are in order, outermost first.
        """
        fixed = [number for number, name in enumerate(self.names) if name not in names]
        found: dict[tuple[int, ...], list[int]] = {}
        for rank, place in enumerate(itertools.product(*map(range, self.sizes))):
            found.setdefault(tuple(place[number] for number in fixed), []).append(rank)
        return tuple(map(tuple, found.values()))

    def group_of(self, rank: int, *names: str) -> tuple[int, ...]:
        """The group of `rank` along these dimensions."""
        return next(group for group in self.groups(*names) if rank in group)

    def __str__(self) -> str:
        return shown_sizes(dict(zip(self.names, self.sizes, strict=True)))


def plan_layouts(nodes: int, per_node: int) -> tuple[Layout, ...]:
    """Meshes to try over nodes × ranks per node: tp inside a node, pp and dp over nodes.

    If the ranks of a node can be divided, dp is also tried inside it, beside tp.
    """
    stages = smallest_factor(nodes) if nodes > 1 else 1
    inner = smallest_factor(per_node)
    layouts = [
        Layout.of(dp=nodes, tp=per_node),
        Layout.of(pp=stages, dp=nodes // stages, tp=per_node),
    ]
    if 1 < inner < per_node:
        tp = per_node // inner
        layouts.append(Layout.of(pp=stages, dp=nodes // stages * inner, tp=tp))
    if nodes == 1:  # only the ranks of the one node are left for dp and pp
        layouts[1] = Layout.of(pp=inner, dp=per_node // inner, tp=1)
    return tuple(dict.fromkeys(layouts))


def layouts(promise: GroupsCriterion, world: World) -> tuple[Layout, ...]:
    """The meshes to try over a world: those that the spec names, else those planned.

    Raises UsageError, one line, for a mesh that does not fit the world.
    """
    if promise.meshes is None:
        return plan_layouts(len(world.nodes), world.local_size)
    return tuple(asked_layout(mesh, world.size) for mesh in promise.meshes)


def asked_layout(sizes: Mapping[str, int | str], ranks: int) -> Layout:
    """A mesh that the spec names, over `ranks` ranks.

    Raises UsageError, one line, if it does not fit them.
    """
    text = ", ".join(f"{name}: {size}" for name, size in sizes.items())
    given = {name: size for name, size in sizes.items() if isinstance(size, int)}
    fixed = prod(given.values())
    full = len(given) == len(sizes)
    if ranks % fixed or (full and fixed != ranks):
        least = "" if full else "a multiple of "
        raise UsageError(
            f"mesh {{{text}}} needs {least}{fixed} ranks, and there are {ranks}; "
            "give other sizes, or rest for one of them"
        )
    # Layout.of does not accept a dimension named cls.
    return Layout(tuple(sizes), tuple(given.get(name, ranks // fixed) for name in sizes))


def smallest_factor(number: int) -> int:
    """The smallest prime that divides a number; 1 for 1."""
    return next((f for f in range(2, number + 1) if number % f == 0), 1)


def shown_sizes(sizes: Mapping[str, int]) -> str:
    """Names with the sizes of their groups, such as "dp 4 × tp 2"."""
    return " × ".join(f"{name} {size}" for name, size in sizes.items())
