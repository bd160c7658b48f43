"""Recorded calls, and the text of the arguments that must be equal in all ranks."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from pytest_mnode.machine.cpus import format_cpulist

COLLECTIVES = {
    "all_gather": "tensor_list",
    "all_gather_into_tensor": "input_tensor",
    "all_gather_object": "",
    "all_gather_single": "input_tensor",
    "all_reduce": "tensor",
    "all_to_all": "input_tensor_list",
    "all_to_all_single": "input",
    "barrier": "",
    "broadcast": "tensor",
    "broadcast_object_list": "object_list",
    "gather": "tensor",
    "gather_object": "",
    "monitored_barrier": "",
    "new_group": "",
    "reduce": "tensor",
    "reduce_scatter": "input_list",
    "reduce_scatter_single": "input",
    "reduce_scatter_tensor": "input",
    "scatter": "tensor",
    "scatter_object_list": "",
}
"""Recorded collectives, and the argument that must be equal in all ranks of the group."""
MESSAGES = {"send": "dst", "isend": "dst", "recv": "src", "irecv": "src"}
"""Recorded sends and receives, and the argument that is the rank at the other end."""
_LIST_ITEMS = 16
"""How many tensors of a list are recorded."""


def arguments(op: str, named: Mapping[str, Any]) -> str:
    """The arguments that must be equal in all ranks, as text; "(here …)" may differ."""
    words = []
    if op in MESSAGES:
        return f"of {_tensor(named['tensor'])}"
    if op == "new_group":
        ranks = named.get("ranks")
        return "of all ranks" if ranks is None else f"of ranks {format_cpulist(ranks)}"
    if (value := named.get(COLLECTIVES[op])) is not None:
        words.append(f"of {_values(op, value)}")
    if "reduce" in op:
        reduce_op = named.get("op", dist.ReduceOp.SUM)
        kind = getattr(reduce_op, "op", reduce_op)  # an operation with a factor has `op`
        words.append(f"with {getattr(kind, 'name', kind)}")
    if op in ("broadcast", "broadcast_object_list", "scatter", "scatter_object_list"):
        words.append(f"from rank {_root(named, 'src')}")
    elif op in ("reduce", "gather", "gather_object"):
        words.append(f"to rank {_root(named, 'dst')}")
    return " ".join(words)


def _values(op: str, value: Any) -> str:
    if op == "broadcast_object_list":
        return f"{len(value)} objects"
    if op.startswith("all_to_all"):  # the number of elements may differ between ranks
        tensors = value if isinstance(value, list | tuple) else [value]
        dtype = str(tensors[0].dtype).removeprefix("torch.")
        return f"{dtype} (here {' '.join(map(_tensor, tensors[:_LIST_ITEMS]))})"
    if isinstance(value, list | tuple):
        texts = list(dict.fromkeys(_tensor(tensor) for tensor in value[:_LIST_ITEMS]))
        return f"{len(value)} × {texts[0]}" if len(texts) == 1 else f"{len(value)}: {texts}"
    return _tensor(value)


def _tensor(tensor: torch.Tensor) -> str:
    return _tensor_text(tensor.shape, tensor.dtype)


@functools.lru_cache
def _tensor_text(shape: torch.Size, dtype: torch.dtype) -> str:
    return f"[{','.join(map(str, shape))}] {str(dtype).removeprefix('torch.')}"


def _root(named: Mapping[str, Any], name: str) -> int:
    """The root's rank in the world; 0 if none was given, as in torch."""
    return rank_of(named, name) or 0


def rank_of(named: Mapping[str, Any], name: str) -> int | None:
    """The rank in the world that one of two arguments gives, by world or by group; else None."""
    in_group = named.get(f"group_{name}")
    if in_group is None:
        return None if (rank := named.get(name)) is None else int(rank)
    group = named.get("group") or dist.group.WORLD
    assert group is not None
    return int(dist.get_global_rank(group, in_group))
