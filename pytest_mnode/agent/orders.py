"""What an agent makes of its order: paths of this machine, a directory of its own.

An agent holds a lock in its directory for as long as it lives. What one leaves whose machine loses
its power, the next there removes. The lock's file names the machine, because directories for
temporary files may be shared, and locks there need not be.
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

from pytest_mnode.protocol.agent_messages import AgentOrder, NodeEntry

_PREFIX = "mnode-"
_HOLDER = "agent"
_held: list[int] = []
"""Descriptors of locks; closed by the end of this process only."""


def read_order(text: str) -> AgentOrder:
    """An AgentOrder from the JSON line on standard input."""
    data = json.loads(text)
    nodes = tuple(NodeEntry(**entry) for entry in data.pop("nodes"))
    lists = {name: tuple(data[name]) for name in ("sys_path", "prefixes", "own_sys_path")}
    return AgentOrder(**{**data, **lists, "nodes": nodes})


def sys_path_here(given: Sequence[str], order: AgentOrder) -> list[str]:
    """The controller's sys.path on this machine: the agent's own in place of its Python's part."""
    if not order.prefixes:
        return list(given)

    def of_its_python(entry: str) -> bool:
        return any(Path(entry).is_relative_to(prefix) for prefix in order.prefixes)

    kept = [entry for entry in given if not of_its_python(entry)]
    return [*kept, *(entry for entry in order.own_sys_path if entry not in kept)]


def settled(order: AgentOrder) -> AgentOrder:
    """The order of an agent on another machine, with a directory of its own there."""
    if not order.remote:
        return order
    run_dir = private_directory()
    log_dir = order.log_dir or f"{run_dir}/logs"
    Path(log_dir).mkdir(parents=True, exist_ok=True)
    return replace(order, run_dir=run_dir, log_dir=log_dir, own_sys_path=tuple(sys.path))


def private_directory() -> str:
    """A new directory for temporary files, held by this process.

    Directories of agents that were killed on this machine before they could tidy up are removed.
    """
    remove_leftovers()
    made = tempfile.mkdtemp(prefix=_PREFIX)
    unnamed = Path(made, f".{_HOLDER}")
    lock = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.write(lock, os.uname().nodename.encode())
    if _locked(lock):
        _held.append(lock)
        unnamed.rename(unnamed.with_name(_HOLDER))  # from now on it may be asked who holds it
    else:  # a file system without locks: the holder could not be found
        os.close(lock)
        unnamed.unlink()
    return made


def remove_leftovers() -> None:
    """Remove directories that agents of this user held on this machine and hold no more."""
    for holder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_HOLDER}"):
        try:
            lock = os.open(holder, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:  # another user's, or gone meanwhile
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
