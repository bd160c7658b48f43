"""Reports of ranks about their groups, and collectives inside these, with values that differ by
rank, by position and by call. All ranks of the world call these functions together."""

from __future__ import annotations

import contextlib
import itertools
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from pytest_mnode.checks.groups.judge import (
    CollectiveResult,
    Expected,
    Layout,
    Membership,
    RankGroups,
    agreed,
    judge_collectives,
    judge_inside_node,
    judge_members,
    refusals,
    shown_sizes,
)
from pytest_mnode.checks.judged import At, numbered
from pytest_mnode.measurement import Measurement
from pytest_mnode.measuring.collectives import all_gather_single, reduce_scatter_single
from pytest_mnode.measuring.ranks import boot_id, gathered
from pytest_mnode.rank.world import World

COUNT = 64
"""Number of values of a part."""
_RANKS = 1 << 20
"""More than the ranks of any world."""
_NOT_WRITTEN = -(1 << 40)
"""Initial value of receive buffers, which no rank sends."""


def sent(rank: int, salt: int, device: torch.device) -> torch.Tensor:
    """Whole numbers that no other rank sends, nor this one with another salt (below 2^20)."""
    first = (salt * _RANKS + rank) * COUNT
    return torch.arange(first, first + COUNT, device=device)


@dataclass(frozen=True, slots=True)
class Call:
    """One collective in one group on one rank; it uses as many salts as the group has ranks."""

    group: Any
    ranks: Sequence[int]
    me: int
    salt: int
    device: torch.device

    @property
    def place(self) -> int:
        return self.ranks.index(self.me)

    def sent_by(self, rank: int, salt: int = 0) -> torch.Tensor:
        return sent(rank, self.salt + salt, self.device)

    def sent_to_each(self) -> torch.Tensor:
        """A part for each rank of the group, each with a salt of its own."""
        return torch.cat([self.sent_by(self.me, place) for place in range(len(self.ranks))])

    def sent_here(self) -> list[torch.Tensor]:
        """The parts that the ranks of the group send to this one."""
        return [self.sent_by(rank, self.place) for rank in self.ranks]

    def empty(self, parts: int = 1) -> torch.Tensor:
        size = (parts * COUNT,)
        return torch.full(size, _NOT_WRITTEN, dtype=torch.int64, device=self.device)


class Pending:
    """A collective in progress, and its right result. kept: buffers that are still being sent."""

    def __init__(
        self, works: Any, got: torch.Tensor, right: torch.Tensor, kept: object = None
    ) -> None:
        self._works = works if isinstance(works, list) else [works]
        self._got, self._right = got, right
        self._kept = kept

    def result(self, group: str, name: str) -> CollectiveResult:
        """Wait for the end, and count the wrong values on this rank."""
        for work in filter(None, self._works):
            work.wait()
        self._kept = None
        differs = (self._got != self._right).nonzero().flatten().tolist()
        if not differs:
            return CollectiveResult(group, name, 0)
        got, right = int(self._got[differs[0]]), int(self._right[differs[0]])
        summed = name in ("all_reduce", "reduce_scatter")
        text = f"{got}, expected {right}" if summed else difference(got, right)
        first = f"position {differs[0]} is {text}"
        rights = () if summed else set(self._right[differs].tolist()) - {_NOT_WRITTEN}
        senders = {one // COUNT % _RANKS for one in rights}
        return CollectiveResult(group, name, len(differs), first, frozenset(senders))


def difference(got: int, right: int) -> str:
    """Text that compares a copied value with the right one, by the ranks that send them."""
    sender, position = right // COUNT % _RANKS, right % COUNT
    if got == _NOT_WRITTEN:
        return f"not written, expected from rank {sender}"
    if right == _NOT_WRITTEN:
        return f"from rank {got // COUNT % _RANKS}, expected nothing"
    if got < 0:
        return f"{got}, which no rank sends, expected from rank {sender}"
    other = got // COUNT % _RANKS
    if other != sender:
        return f"from rank {other}, expected from rank {sender}"
    if got % COUNT != position:
        return f"rank {sender}'s of position {got % COUNT}, expected {position}"
    return f"what rank {sender} sends elsewhere"


def _all_reduce(call: Call) -> Pending:
    mine = call.sent_by(call.me)
    right = torch.stack([call.sent_by(rank) for rank in call.ranks]).sum(0)
    return Pending(dist.all_reduce(mine, group=call.group, async_op=True), mine, right)


def _all_gather(call: Call) -> Pending:
    every, mine = call.empty(len(call.ranks)), call.sent_by(call.me)
    work = all_gather_single(every, mine, group=call.group, async_op=True)
    return Pending(work, every, torch.cat([call.sent_by(rank) for rank in call.ranks]), mine)


def _reduce_scatter(call: Call) -> Pending:
    mine, parts = call.empty(), call.sent_to_each()
    work = reduce_scatter_single(mine, parts, group=call.group, async_op=True)
    return Pending(work, mine, torch.stack(call.sent_here()).sum(0), parts)


def _broadcast(call: Call) -> Pending:
    """From the last rank of the group, because the first is a default."""
    root = call.ranks[-1]
    here = call.sent_by(root) if call.me == root else call.empty()
    work = dist.broadcast(here, src=root, group=call.group, async_op=True)
    return Pending(work, here, call.sent_by(root))


def _all_to_all(call: Call) -> Pending:
    mine, parts = call.empty(len(call.ranks)), call.sent_to_each()
    work = dist.all_to_all_single(mine, parts, group=call.group, async_op=True)
    return Pending(work, mine, torch.cat(call.sent_here()), parts)


def _along(call: Call, step: int) -> Pending:
    """Send from each rank to the one `step` places on; ranks without a sender receive nothing."""
    here, mine = call.empty(), call.sent_by(call.me)
    right = here.clone()
    operations = []
    sender, receiver = call.place - step, call.place + step
    if 0 <= sender < len(call.ranks):
        operations.append(dist.P2POp(dist.irecv, here, call.ranks[sender], group=call.group))
        right = call.sent_by(call.ranks[sender])
    if 0 <= receiver < len(call.ranks):
        operations.append(dist.P2POp(dist.isend, mine, call.ranks[receiver], group=call.group))
    works = dist.batch_isend_irecv(operations) if operations else []
    return Pending(works, here, right, mine)


COLLECTIVES: Mapping[str, Callable[[Call], Pending]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "broadcast": _broadcast,
    "all_to_all": _all_to_all,
    "send to the next": partial(_along, step=1),  # as activations go from stage to stage
    "send to the one before": partial(_along, step=-1),  # as gradients go
}
_AT_ONCE = ("all_reduce", "all_gather", "broadcast")


def exchange(
    groups: Mapping[str, Any],
    expected: Expected,
    me: int,
    device: torch.device,
    *,
    at_once: bool = False,
) -> list[CollectiveResult]:
    """Run every collective in every group, one after the other.

    at_once: run three of them in all groups, twice, all in progress together, and wait for them
    from last to first. groups: those of this rank, by name. expected: the groups of all ranks,
    the same on each. All ranks start them in the same order, which NCCL requires. Calls are
    numbered by `expected`, because members of one group may be in different numbers of others.
    """
    widest = max((len(ranks) for every in expected.values() for ranks in every), default=1)

    def started() -> Iterator[tuple[str, str, Pending]]:
        calls = itertools.product(_AT_ONCE * 2 if at_once else COLLECTIVES, expected)
        for number, (collective, name) in enumerate(calls):
            ranks = next((ranks for ranks in expected[name] if me in ranks), None)
            if ranks is not None and name in groups:
                call = Call(groups[name], ranks, me, number * widest, device)
                yield name, collective, COLLECTIVES[collective](call)

    calls = reversed(list(started())) if at_once else started()
    return [pending.result(name, collective) for name, collective, pending in calls]


Groups = Mapping[str, Any]
"""The process groups that this rank is in, by name."""


@contextlib.contextmanager
def ending() -> Iterator[None]:
    """Destroy at the end the process groups that this rank creates inside, by meshes or singly."""

    def groups() -> frozenset[Any]:
        return frozenset(distributed_c10d._world.pg_map) - {dist.group.WORLD}

    before = groups()
    try:
        yield
    finally:
        for group in groups() - before:
            dist.destroy_process_group(group)


@contextlib.contextmanager
def mesh_of(layout: Layout, device: torch.device) -> Iterator[DeviceMesh]:
    """A DeviceMesh over all ranks; its groups and those of its slices are destroyed at the end."""
    with ending():
        yield init_device_mesh(device.type, layout.sizes, mesh_dim_names=layout.names)


def members(
    groups: DeviceMesh | Groups,
    world: World,
    device: torch.device,
    *,
    expected: Expected | Layout | None = None,
    label: str = "",
) -> list[Measurement]:
    """Judge whether every rank is in the right groups, and at the right place in each.

    groups: a mesh, or this rank's process groups by name. expected: the right groups by name, as
    ranks of the world in order; None for those of a mesh's names and sizes. Both the ranks that
    torch declares and those that answered inside the group are judged.
    """
    right = _expected_in(groups, expected)
    facts = _declared(groups, world)
    return judge_members(label or _label(right), _heard(facts, _named(groups), device), right)


def inside_node(
    groups: DeviceMesh | Groups, world: World, names: Sequence[str] = ("tp",)
) -> Measurement:
    """Judge whether the groups of these names stay on one host, by the host name of each rank."""
    facts = _declared(groups, world)
    there = {
        name: [one.groups[name].declared for one in facts if name in one.groups]
        for name in _all_names(facts)
    }
    return judge_inside_node(_label(there), facts, names)


def collectives(
    groups: DeviceMesh | Groups,
    world: World,
    device: torch.device,
    *,
    expected: Expected | Layout | None = None,
    label: str = "",
) -> Measurement:
    """Judge whether collectives inside the groups give right values, at every position:

    all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, and messages from each rank to
    the next and to the one before, as between pipeline stages.
    """
    right = _expected_in(groups, expected)
    name = f"{label or _label(right)}: wrong values inside groups"
    return _exchanged(name, _named(groups), right, world, device, at_once=False)


def together(
    meshes: Mapping[str, DeviceMesh | Groups],
    world: World,
    device: torch.device,
    *,
    expected: Mapping[str, Expected | Layout] | None = None,
) -> Measurement:
    """Judge collectives while those in all other groups, of all meshes, are in progress.

    meshes: by a name for the reader. expected: by the same names, as in `members`.
    """
    groups: dict[str, Any] = {}
    right: dict[str, Sequence[Sequence[int]]] = {}
    for name, mesh in meshes.items():
        there = _expected_in(mesh, (expected or {}).get(name))
        right |= {f"{name} {dimension}": every for dimension, every in there.items()}
        groups |= {f"{name} {dimension}": group for dimension, group in _named(mesh).items()}
    name = f"{', '.join(meshes)}: wrong values with all groups busy at once"
    return _exchanged(name, groups, right, world, device, at_once=True)


def slices(mesh: DeviceMesh, world: World, device: torch.device) -> list[Measurement]:
    """Judge whether slices of a mesh by two names, and flattened slices, have the right ranks.

    If this torch cannot flatten, only the slices are judged. Raises ValueError for a mesh of one
    dimension.
    """
    flat: dict[str, Any] = {}
    right: dict[str, Sequence[Sequence[int]]] = {}
    whole = _layout_of(mesh)
    if len(whole.names) < 2:
        raise ValueError(
            f"a mesh of one dimension, {whole.names[0]}, has no slices; give one of two or more"
        )
    for pair in itertools.combinations(whole.names, 2):
        part = mesh[pair]
        text = ", ".join(pair)
        for name in pair:
            flat[f"[{text}] {name}"] = part.get_group(name)
            right[f"[{text}] {name}"] = whole.groups(name)
        flatten = getattr(part, "flatten", None) or getattr(part, "_flatten", None)
        if flatten is not None:
            flat[f"[{text}] flattened"] = flatten("_".join(pair)).get_group()
            right[f"[{text}] flattened"] = whole.groups(*pair)
    text = f"{whole}, sliced"
    return [
        *members(flat, world, device, expected=right, label=text),
        collectives(flat, world, device, expected=right, label=text),
    ]


def _label(groups: Expected) -> str:
    """Names with the sizes of their largest groups."""
    return shown_sizes({name: max(map(len, of), default=0) for name, of in groups.items()})


def _declared(groups: DeviceMesh | Groups, world: World) -> tuple[RankGroups, ...]:
    """The groups of every rank, as torch declares them."""
    places: dict[str, int] = {}
    if isinstance(groups, DeviceMesh):
        # get_local_rank gives the group's order, not the mesh's: new groups sort their ranks.
        places = dict(zip(groups.mesh_dim_names or (), groups.get_coordinate() or (), strict=False))
    mine = {
        name: Membership(
            tuple(dist.get_process_group_ranks(group)), dist.get_rank(group), places.get(name)
        )
        for name, group in _named(groups).items()
    }
    at = At(world.rank, world.node)
    return gathered(RankGroups(at, socket.gethostname(), mine, boot_id()))


def _heard(
    facts: Sequence[RankGroups], groups: Groups, device: torch.device
) -> tuple[RankGroups, ...]:
    """`facts` with the ranks that answered in each group whose members agree on it."""
    mine = facts[dist.get_rank()]
    heard = dict(mine.groups)
    for name in _all_names(facts):
        if name in groups and agreed(facts, name):
            spoken = torch.tensor([mine.at.rank], device=device)
            every = [torch.full_like(spoken, -1) for _ in mine.groups[name].declared]
            dist.all_gather(every, spoken, group=groups[name])
            heard[name] = replace(heard[name], heard=tuple(map(int, every)))
    return gathered(replace(mine, groups=heard))


def _all_names(facts: Sequence[RankGroups]) -> list[str]:
    """Names of all groups, in the same order on all ranks."""
    return list(dict.fromkeys(name for one in facts for name in one.groups))


def _exchanged(
    name: str,
    groups: Groups,
    expected: Expected,
    world: World,
    device: torch.device,
    *,
    at_once: bool,
) -> Measurement:
    """Run collectives in the groups that all members will join, and judge the values received."""
    refused = refusals(_declared(groups, world), expected)
    able = {group: groups[group] for group in expected if group in groups.keys() - refused.keys()}
    done = exchange(able, expected, world.rank, device, at_once=at_once)
    results = gathered((At(world.rank, world.node), done))
    # The same groups are tried at once too, and count once.
    return judge_collectives(name, results, refused, None if at_once else expected)


def _layout_of(mesh: DeviceMesh) -> Layout:
    """The layout that a mesh over all ranks should have. Raises ValueError without names."""
    if mesh.mesh_dim_names is None:
        raise ValueError("a mesh without names; give init_device_mesh mesh_dim_names")
    return Layout(tuple(mesh.mesh_dim_names), tuple(mesh.shape))


def _named(groups: DeviceMesh | Groups) -> dict[str, Any]:
    """The process groups of a mesh by dimension, or those given, that this rank is in."""
    if isinstance(groups, DeviceMesh):
        groups = {name: groups.get_group(name) for name in groups.mesh_dim_names or ()}
    absent = dist.GroupMember.NON_GROUP_MEMBER
    return {name: group for name, group in groups.items() if group not in (None, absent)}


def _expected_in(groups: DeviceMesh | Groups, expected: Expected | Layout | None) -> Expected:
    """The right groups: `expected`, else those of the mesh's names and sizes.

    Raises TypeError for groups without a mesh and without `expected`, and ValueError for a rank in
    two groups of one name.
    """
    if expected is None:
        if not isinstance(groups, DeviceMesh):
            raise TypeError("say which groups there should be: expected={'tp': [[0, 1], [2, 3]]}")
        expected = _layout_of(groups)
    if isinstance(expected, Layout):
        return {name: expected.groups(name) for name in expected.names}
    for name, every in expected.items():
        twice = [rank for rank, n in Counter(itertools.chain(*every)).items() if n > 1]
        if twice:
            raise ValueError(
                f"expected: {numbered('rank', twice)} twice in {name}; give each group that a rank "
                "is in a name of its own"
            )
    return expected
