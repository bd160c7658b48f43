"""The environment that torchrun sets in a rank, checked against torchrun's contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from pytest_mnode.errors import EnvironmentContractError


@dataclass(frozen=True, slots=True)
class World:
    """The ranks that run this test together, from the view of one of them.

    rank: 0 … size-1, counted over all nodes; local_rank: 0 … local_size-1, on this node.
    node: name of this node; nodes: names of all nodes of the world, by group rank.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    node: str
    nodes: tuple[str, ...]

    @classmethod
    def from_env(cls, env: Mapping[str, str], nodes: Sequence[str]) -> Self:
        """Read torchrun's variables. Raises EnvironmentContractError that names the wrong one."""
        size = _number(env, "WORLD_SIZE", lowest=1)
        rank = _number(env, "RANK", below=("WORLD_SIZE", size))
        local_size = _number(env, "LOCAL_WORLD_SIZE", lowest=1)
        local_rank = _number(env, "LOCAL_RANK", below=("LOCAL_WORLD_SIZE", local_size))
        group = _number(env, "GROUP_RANK", below=("the number of nodes", len(nodes)))
        if rank // local_size != group:
            raise EnvironmentContractError(
                f"RANK={rank} with LOCAL_WORLD_SIZE={local_size} is not on node GROUP_RANK={group}"
            )
        return cls(rank, size, local_rank, local_size, nodes[group], tuple(nodes))


def _number(
    env: Mapping[str, str], name: str, *, lowest: int = 0, below: tuple[str, int] | None = None
) -> int:
    text = env.get(name)
    if text is None:
        raise EnvironmentContractError(f"{name} is not set; torchrun sets it in every rank")
    try:
        value = int(text)
    except ValueError:
        raise EnvironmentContractError(f"{name}={text!r} is not a number") from None
    if value < lowest:
        raise EnvironmentContractError(f"{name}={value} is below {lowest}")
    if below is not None and value >= below[1]:
        raise EnvironmentContractError(f"{name}={value} is outside {below[0]}={below[1]}")
    return value
