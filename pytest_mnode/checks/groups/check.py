"""Asking all ranks of their groups. Every function is called by all ranks of the world."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from pytest_mnode.checks.groups import talk
from pytest_mnode.checks.groups.facts import Expected, Membership, RankGroups, Talked, agreed
from pytest_mnode.checks.groups.judge import NOT_TRIED, judge_inside_node, judge_members, judge_talk
from pytest_mnode.checks.groups.made import Groups, expected_in, layout_of, named
from pytest_mnode.checks.groups.plan import Layout
from pytest_mnode.measuring.agree import gathered
from pytest_mnode.measuring.devices import BOOT_ID
from pytest_mnode.rank.world import World
from pytest_mnode.wrong import Wrong


def members(
    groups: DeviceMesh | Groups,
    world: World,
    device: torch.device,
    *,
    expected: Expected | Layout | None = None,
    label: str = "",
) -> list[Wrong]:
    """Is every rank in the groups it should be in, and at the right place in each?

    groups: a mesh, or this rank's process groups by name. expected: the groups there should be, by
    name, as ranks of the world in order; of a mesh what follows from its names and sizes. What
    torch declares is judged, and who answered inside the group.
    """
    said = expected_in(groups, expected)
    facts = _told(groups, world)
    return judge_members(label or _label(said), _heard(facts, named(groups), device), said)


def inside_node(
    groups: DeviceMesh | Groups, world: World, names: Sequence[str] = ("tp",), *, label: str = ""
) -> Wrong:
    """Do the groups of these names stay on one host, by the name that each rank reads there?"""
    facts = _told(groups, world)
    sizes = {
        name: max(len(one.groups[name].declared) for one in facts if name in one.groups)
        for name in _all_names(facts)
    }
    text = " × ".join(f"{name} {size}" for name, size in sizes.items())
    return judge_inside_node(label or text, facts, names)


def collectives(
    groups: DeviceMesh | Groups,
    world: World,
    device: torch.device,
    *,
    expected: Expected | Layout | None = None,
    label: str = "",
) -> Wrong:
    """Do collectives inside the groups come right, at every position?

    all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, and messages from each rank to
    the next and to the one before, as between pipeline stages.
    """
    said = expected_in(groups, expected)
    able, refused = _able(named(groups), said, world)
    done = talk.one_by_one(able, said, world.rank, device)
    return _judged(label or _label(said), done, refused, world, "wrong values inside groups")


def together(
    meshes: Mapping[str, DeviceMesh | Groups],
    world: World,
    device: torch.device,
    *,
    expected: Mapping[str, Expected | Layout] | None = None,
    label: str = "",
) -> Wrong:
    """Do collectives come right while those in all other groups, of all meshes, are under way?

    meshes: by a name of the reader's. expected: by the same names, as in `members`.
    """
    groups: dict[str, Any] = {}
    said: dict[str, Sequence[Sequence[int]]] = {}
    for name, mesh in meshes.items():
        for dimension, expect in expected_in(mesh, (expected or {}).get(name)).items():
            said[f"{name} {dimension}"] = expect
        groups |= {f"{name} {dimension}": group for dimension, group in named(mesh).items()}
    able, refused = _able(groups, said, world)
    done = talk.at_once(able, said, world.rank, device)
    what = "wrong values with all groups busy at once"
    return _judged(label or ", ".join(meshes), done, refused, world, what)


def slices(mesh: DeviceMesh, world: World, device: torch.device, *, label: str = "") -> list[Wrong]:
    """Are slices of a mesh by two names, and what they are flattened to, made of the right ranks?

    Where this torch cannot flatten, slices alone are judged. Raises ValueError for a mesh of one
    dimension.
    """
    flat: dict[str, Any] = {}
    said: dict[str, Sequence[Sequence[int]]] = {}
    whole = layout_of(mesh)
    if len(whole.names) < 2:
        raise ValueError(
            f"a mesh of one dimension, {whole.names[0]}, has no slices; give one of two or more"
        )
    for pair in itertools.combinations(whole.names, 2):
        part = mesh[pair]
        text = ", ".join(pair)
        for name in pair:
            flat[f"[{text}] {name}"] = part.get_group(name)
            said[f"[{text}] {name}"] = whole.groups(name)
        flatten = getattr(part, "flatten", None) or getattr(part, "_flatten", None)
        if flatten is not None:
            flat[f"[{text}] flattened"] = flatten("_".join(pair)).get_group()
            said[f"[{text}] flattened"] = whole.groups(*pair)
    text = f"{label or whole}, sliced"
    return [
        *members(flat, world, device, expected=said, label=text),
        collectives(flat, world, device, expected=said, label=text),
    ]


def _label(expected: Expected) -> str:
    """Names with the sizes of their groups, such as "dp 4 × tp 2"."""
    sizes = ((name, max(map(len, groups), default=0)) for name, groups in expected.items())
    return " × ".join(f"{name} {size}" for name, size in sizes)


def _told(groups: DeviceMesh | Groups, world: World) -> tuple[RankGroups, ...]:
    """What torch declares, of every rank."""
    places: dict[str, int] = {}
    if isinstance(groups, DeviceMesh):
        # get_local_rank is the group's word, not the mesh's: new groups sort their ranks.
        places = dict(zip(groups.mesh_dim_names or (), groups.get_coordinate() or (), strict=False))
    mine = {
        name: Membership(
            tuple(dist.get_process_group_ranks(group)),
            dist.get_rank(group),
            places.get(name),
        )
        for name, group in named(groups).items()
    }
    return gathered(RankGroups(world.rank, world.node, socket.gethostname(), mine, _machine()))


def _machine() -> str:
    """What no two machines share, whatever they are called; "" where it cannot be read."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _heard(
    facts: Sequence[RankGroups], groups: Groups, device: torch.device
) -> tuple[RankGroups, ...]:
    """The same with who answered in each group, where its ranks agree on who is in it."""
    mine = next(f for f in facts if f.rank == dist.get_rank())
    heard = dict(mine.groups)
    for name in _all_names(facts):
        if name in groups and agreed(facts, name):
            spoken = torch.tensor([mine.rank], device=device)
            every = [torch.full_like(spoken, -1) for _ in mine.groups[name].declared]
            dist.all_gather(every, spoken, group=groups[name])
            answers = tuple(int(one) for one in every)
            heard[name] = replace(heard[name], heard=answers)
    return gathered(replace(mine, groups=heard))


def _all_names(facts: Sequence[RankGroups]) -> list[str]:
    """Names in one order for all ranks."""
    return list(dict.fromkeys(name for one in facts for name in one.groups))


def _able(
    groups: Groups, expected: Expected, world: World
) -> tuple[dict[str, Any], dict[str, str]]:
    """This rank's groups that collectives can be run in, and why not in others."""
    facts = _told(groups, world)
    able: dict[str, Any] = {}
    refused: dict[str, str] = {}
    for name, right in expected.items():
        if not agreed(facts, name):
            refused[name] = NOT_TRIED
        elif not all(_has_its_ranks(one, name, right) for one in facts):
            refused[name] = "it has wrong ranks"
        elif name in groups:
            able[name] = groups[name]
    return able, refused


def _has_its_ranks(facts: RankGroups, name: str, right: Sequence[Sequence[int]]) -> bool:
    has = facts.groups.get(name)
    ours = next((group for group in right if facts.rank in group), ())
    return sorted(ours) == sorted(has.declared if has else ())


def _judged(
    label: str, done: Sequence[Talked], refused: Mapping[str, str], world: World, what: str
) -> Wrong:
    where = f"rank {world.rank} on {world.node}"
    return judge_talk(label, gathered((where, tuple(done))), refused, what=what)
