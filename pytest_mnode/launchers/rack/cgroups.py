"""Control groups of a rack: each made for one node, found again by name, removed with the rack.

Only the standard library. The name of a group contains the pid of the cleanup daemon and the name
of the node, so that the daemon finds it. A group is at the root of its hierarchy, the only place
where every version of cgroups allows it.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from pytest_mnode.machine.namespaces import GROUP_PREFIX

ROOT = "/sys/fs/cgroup"
EMPTY_LIMIT_S = 2.0


def hierarchies(root: str = ROOT) -> list[Path]:
    """All hierarchies: those of version 1, or that of version 2."""
    base = Path(root)
    if (base / "cgroup.controllers").exists():
        return [base]
    with contextlib.suppress(OSError):
        return sorted(path for path in base.iterdir() if (path / "cgroup.procs").exists())
    return []


def hierarchy_of(controller: str, root: str = ROOT) -> tuple[Path, int] | None:
    """Directory and version of the hierarchy with this controller; None if there is none."""
    for path in hierarchies(root):
        listed = path / "cgroup.controllers"
        if listed.exists():
            if controller in listed.read_text(encoding="ascii").split():
                return path, 2
        elif (path / f"{controller}.shares").exists() or controller in path.name.split(","):
            return path, 1
    return None


def group_of(hierarchy: Path, daemon_pid: int, node: str) -> Path:
    """The directory of a node's group, which may not exist yet."""
    return hierarchy / f"{GROUP_PREFIX}{daemon_pid}-{node}"


def remove_all(daemon_pid: int, root: str = ROOT) -> None:
    """Remove the groups of a rack whose processes are dead; a group in use stays."""
    for hierarchy in hierarchies(root):
        with contextlib.suppress(OSError):
            for group in hierarchy.glob(f"{GROUP_PREFIX}{daemon_pid}-*"):
                remove(group)


def remove(group: Path) -> None:
    """Remove a group and its subgroups; waits EMPTY_LIMIT_S for the last process to end.

    Raises OSError if a process stays in it.
    """
    deadline = time.monotonic() + EMPTY_LIMIT_S
    while True:
        try:
            for each, _, _ in os.walk(group, topdown=False):
                Path(each).rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)
        else:
            return


def home_of(pid: int, hierarchy: Path, version: int) -> Path:
    """The group that a process is in now; the root of the hierarchy if that is not visible."""
    for line in Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines():
        _, names, group = line.split(":", 2)
        if names == "" if version == 2 else hierarchy.name in (names, *names.split(",")):
            home = hierarchy / group.lstrip("/")
            return home if (home / "cgroup.procs").exists() else hierarchy
    return hierarchy


def members(group: Path) -> list[int]:
    """Pids in a group; [] if it does not exist."""
    with contextlib.suppress(FileNotFoundError):
        return [int(pid) for pid in (group / "cgroup.procs").read_text(encoding="ascii").split()]
    return []


def move(pid: int, group: Path) -> None:
    """Move a process into a group, if the process still exists."""
    with contextlib.suppress(ProcessLookupError):
        (group / "cgroup.procs").write_text(str(pid), encoding="ascii")


def set_quota(group: Path, version: int, quota_us: int, period_us: int) -> None:
    """Let a group's processes run for `quota_us` of every `period_us`, all CPUs together."""
    if version == 2:
        enabled = group.parent / "cgroup.subtree_control"
        if "cpu" not in enabled.read_text(encoding="ascii").split():
            enabled.write_text("+cpu", encoding="ascii")
        (group / "cpu.max").write_text(f"{quota_us} {period_us}", encoding="ascii")
    else:
        (group / "cpu.cfs_period_us").write_text(str(period_us), encoding="ascii")
        (group / "cpu.cfs_quota_us").write_text(str(quota_us), encoding="ascii")
