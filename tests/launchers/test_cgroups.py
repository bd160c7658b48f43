"""Cgroups of a rack's nodes, on trees like version 1, version 2 and both."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from pytest_mnode.launchers.rack import cgroups


@pytest.fixture
def one(tmp_path: Path) -> Path:
    """Version 1, with version 2 beside it."""
    for folder, files in {
        "cpu,cpuacct": ("cgroup.procs", "cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us"),
        "memory": ("cgroup.procs",),
        "unified": ("cgroup.procs", "cgroup.controllers"),
    }.items():
        (tmp_path / folder).mkdir()
        for name in files:
            (tmp_path / folder / name).touch()
    return tmp_path


@pytest.fixture
def two(tmp_path: Path) -> Path:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu memory\n")
    (tmp_path / "cgroup.subtree_control").write_text("memory\n")
    (tmp_path / "cgroup.procs").touch()
    return tmp_path


def test_the_hierarchy_of_cpus_is_found(one: Path) -> None:
    assert cgroups.hierarchy_of("cpu", str(one)) == (one / "cpu,cpuacct", 1)
    assert cgroups.hierarchy_of("freezer", str(one)) is None


def test_version_2_has_a_single_hierarchy(two: Path) -> None:
    assert cgroups.hierarchy_of("cpu", str(two)) == (two, 2)
    assert cgroups.hierarchy_of("hugetlb", str(two)) is None


def test_without_cgroups_there_is_no_hierarchy(tmp_path: Path) -> None:
    assert cgroups.hierarchy_of("cpu", str(tmp_path)) is None
    assert cgroups.hierarchy_of("cpu", str(tmp_path / "missing")) is None


def test_quotas_of_both_versions(one: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    group = cgroups.group_of(one / "cpu,cpuacct", 77, "node1")
    assert group.name == "mnode-77-node1"
    group.mkdir()
    cgroups.set_quota(group, 1, 3000, 10_000)
    assert (group / "cpu.cfs_quota_us").read_text() == "3000"
    assert (group / "cpu.cfs_period_us").read_text() == "10000"
    other = tmp_path_factory.mktemp("two")
    (other / "cgroup.subtree_control").write_text("memory\n")
    (other / "mnode-77-node1").mkdir()
    cgroups.set_quota(other / "mnode-77-node1", 2, 3000, 10_000)
    assert (other / "mnode-77-node1" / "cpu.max").read_text() == "3000 10000"
    assert (other / "cgroup.subtree_control").read_text() == "+cpu"


def test_only_cgroups_of_one_rack_are_removed(one: Path) -> None:
    for name in ("mnode-77-node1", "mnode-77-node2", "mnode-770-node1", "other"):
        (one / "cpu,cpuacct" / name).mkdir()
    cgroups.remove_all(77, str(one))
    left = sorted(p.name for p in (one / "cpu,cpuacct").iterdir() if p.is_dir())
    assert left == ["mnode-770-node1", "other"]


def test_members_of_a_cgroup_and_moving_a_process(one: Path) -> None:
    group = one / "unified" / "mnode-77-node1"
    assert cgroups.members(group) == []
    group.mkdir()
    (group / "cgroup.procs").write_text("12\n34\n")
    assert cgroups.members(group) == [12, 34]
    cgroups.move(56, group)
    assert cgroups.members(group) == [56]


def test_a_cgroup_is_removed_once_its_last_process_has_ended(
    one: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = one / "cpu,cpuacct" / "mnode-77-node1"
    group.mkdir()
    (group / "cgroup.procs").write_text("12\n")
    monkeypatch.setattr(time, "sleep", lambda _: (group / "cgroup.procs").unlink())
    cgroups.remove(group)
    assert not group.exists()


def test_a_cgroup_that_stays_in_use_is_left(one: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "EMPTY_LIMIT_S", 0.1)
    group = one / "cpu,cpuacct" / "mnode-77-node1"
    group.mkdir()
    (group / "cgroup.procs").write_text("12\n")  # here it keeps rmdir from its work
    with pytest.raises(OSError, match="not empty"):
        cgroups.remove(group)
