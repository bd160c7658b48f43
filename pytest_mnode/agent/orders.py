"""Adapts an agent's order to its machine: paths of this machine, a private directory.

An agent holds a lock in its directory for as long as it lives. If its machine loses power, the next
agent there removes the directory. The lock's file names the machine, because directories for
temporary files may be shared between machines without sharing locks.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pytest_mnode.protocol.channel import new_token
from pytest_mnode.protocol.messages import AgentOrder, NodeEntry

_PREFIX = "mnode-"
_HOLDER = "agent"
_held: list[int] = []
"""Descriptors of locks; only the end of this process closes them."""


def read_order(text: str) -> AgentOrder:
    """An AgentOrder from the JSON line on standard input."""
    data = json.loads(text)
    nodes = tuple(NodeEntry(**entry) for entry in data.pop("nodes"))
    lists = {name: tuple(data[name]) for name in ("sys_path", "prefixes", "own_sys_path")}
    return AgentOrder(**{**data, **lists, "nodes": nodes})


def sys_path_here(given: Sequence[str], order: AgentOrder) -> list[str]:
    """The controller's sys.path, with the entries of its Python replaced by those of the agent's.

    It stays as it is if both run the same Python.
    """
    if not order.prefixes:
        return list(given)
    prefixes = order.prefixes
    kept = [one for one in given if not any(Path(one).is_relative_to(p) for p in prefixes)]
    return [*kept, *(entry for entry in order.own_sys_path if entry not in kept)]


def settled(order: AgentOrder) -> AgentOrder:
    """The order; on a machine other than the controller's, with a private directory there, and a
    socket in it for the ranks."""
    if not order.remote:
        return order
    run_dir = private_directory()
    log_dir = order.log_dir or f"{run_dir}/logs"
    Path(log_dir).mkdir(parents=True, exist_ok=True)
    return replace(
        order,
        run_dir=run_dir,
        log_dir=log_dir,
        own_sys_path=tuple(sys.path),
        path=f"{run_dir}/ranks",
        token=new_token(),
    )


def private_directory() -> str:
    """A new directory for temporary files, locked by this process.

    Also removes directories of agents that were killed on this machine before they could clean up.
    """
    remove_leftovers()
    made = tempfile.mkdtemp(prefix=_PREFIX)
    unnamed = Path(made, f".{_HOLDER}")
    lock = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.write(lock, os.uname().nodename.encode())
    if _locked(lock):
        _held.append(lock)
        unnamed.rename(unnamed.with_name(_HOLDER))  # now visible to remove_leftovers
    else:  # a file system without locks cannot show whether the holder lives
        os.close(lock)
        unnamed.unlink()
    return made


def remove_leftovers() -> None:
    """Remove directories whose agents, of this user on this machine, no longer hold them."""
    for holder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_HOLDER}"):
        try:
            lock = os.open(holder, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:  # another user's file, or removed meanwhile
            continue
        try:
            ours = os.fstat(lock).st_uid == os.geteuid()
            here = os.read(lock, 300) == os.uname().nodename.encode()
            if ours and here and _locked(lock):
                shutil.rmtree(holder.parent, ignore_errors=True)
        finally:
            os.close(lock)


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
