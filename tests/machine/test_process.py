"""Placement of processes: status, stat, numa_maps, threads and control groups."""

from __future__ import annotations

import math
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mnode.machine.cgroup import OomKills, read_cpu_limits, read_memory_rooms, read_oom_kills
from pytest_mnode.machine.cpus import parse_cpulist as listed
from pytest_mnode.machine.process import AreaKind as Kind
from pytest_mnode.machine.process import bytes_by_node, parse_numa_maps, parse_status, read_process
from tests.recorded import Recorded
from tests.trees import Tree

_PAGE = 4096


def test_a_bound_process_has_all_its_own_memory_on_its_node(recorded: Recorded) -> None:
    text = (recorded("numa2-e1000e-rxe-up") / "cmd/numa_maps-bound.txt").read_text()
    status = parse_status(text)
    assert (status.name, status.cpus, status.mems) == ("cat", listed("2-3"), listed("0-1"))
    areas = parse_numa_maps(text)
    assert len(areas) == 36
    own = bytes_by_node(areas)
    # anon, heap and stack, and pages of files that were copied: 1+1+3+1+2+4+2+5+1+2+2+2 by hand.
    assert own == {1: 26 * _PAGE}
    files = bytes_by_node(areas, [Kind.FILE])
    assert files[0] == (2 + 5 + 3 + 8) * _PAGE
    # Pages of libc loaded by other processes are on both nodes within one area.
    mixed = next(area for area in areas if len(area.bytes_by_node) == 2)
    assert mixed.bytes_by_node == {0: 8 * _PAGE, 1: 179 * _PAGE}


def test_a_process_recorded_unbound(recorded: Recorded) -> None:
    process = read_process(root=recorded("numa2-e1000e-aligned"))
    assert process is not None
    assert (process.cpus_allowed, process.mems_allowed) == (listed("0-3"), listed("0-1"))
    assert process.threads is None  # task/ was not recorded
    assert process.memory


@pytest.mark.parametrize(
    ("line", "kind", "memory"),
    [
        ("7f00 default anon=3 N0=1 N1=2 kernelpagesize_kB=4", Kind.ANON, {0: 1, 1: 2}),
        ("7f00 prefer:0 heap anon=1 N0=1 kernelpagesize_kB=4", Kind.HEAP, {0: 1}),
        ("7f00 interleave:0-1 anon=2 N0=1 N1=1", Kind.ANON, {0: 1, 1: 1}),
        ("7f00 prefer (many):0-1 stack anon=1 N1=1", Kind.STACK, {1: 1}),
        ("7f00 weighted interleave:0-1 N1=1", Kind.ANON, {1: 1}),
        ("7f00 bind=static:1 anon=1 N1=1", Kind.ANON, {1: 1}),
        ("7f00 bind=static|balancing:1 N1=1", Kind.ANON, {1: 1}),
        ("7f00 local", Kind.ANON, {}),
        (
            "7f00 bind:1 file=/anon_hugepage\\040(deleted) huge anon=2 N1=2 kernelpagesize_kB=2048",
            Kind.ANON,
            {1: 2 * 512},
        ),
        ("7f00 default file=/dev/shm/nccl-x\\040y mapped=4 N0=4", Kind.SHARED, {0: 4}),
        ("7f00 default file=/memfd:x mapped=1 N0=1", Kind.SHARED, {0: 1}),
        ("7f00 default file=/lib/a.so anon=2 mapped=3 N0=3", Kind.FILE, {0: 3}),
        ("7f00 default file=/lib/a.so anon=2 dirty=2 N0=2", Kind.ANON, {0: 2}),
    ],
)
def test_areas_of_every_sort(line: str, kind: Kind, memory: dict[int, int]) -> None:
    (area,) = parse_numa_maps(line)
    assert (area.start, area.kind) == (0x7F00, kind)
    assert area.bytes_by_node == {node: pages * _PAGE for node, pages in memory.items()}


_WORDS = st.sampled_from(
    ["7f00", "default", "bind:1", "N0=1", "N0=", "anon=x", "file=/a", "huge", "prefer (many)", "="]
)


@settings(deadline=None, max_examples=60)
@given(st.text() | st.lists(_WORDS).map(" ".join))
def test_any_numa_maps_text_is_read(text: str) -> None:
    parse_numa_maps(text)
    parse_status(text)


@settings(deadline=None, max_examples=60)
@given(st.text(alphabet="CPU_Mems allowedlist:\t0123-,\n"))
def test_any_status_is_read(text: str) -> None:
    parse_status("Cpus_allowed_list:" + text)


def test_threads_of_this_process_with_their_cpus() -> None:
    ready, done = threading.Event(), threading.Event()

    def work() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        ready.set()
        done.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert ready.wait(60)
        process = read_process()
    finally:
        done.set()
        thread.join()
    assert process is not None
    assert process.cpus_allowed == frozenset(os.sched_getaffinity(0))
    by_tid = {t.tid: t for t in process.threads or ()}
    assert by_tid[os.getpid()].cpus_allowed == frozenset(os.sched_getaffinity(0))
    assert thread.native_id is not None
    assert by_tid[thread.native_id].cpus_allowed == frozenset((min(os.sched_getaffinity(0)),))
    assert by_tid[thread.native_id].last_cpu is not None


def test_a_missing_process_is_none(tmp_path: Path) -> None:
    assert read_process(1, tmp_path) is None


def test_quota_of_version_2(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.write("proc/7/cgroup", "0::/pod/rank")
    for folder in ("", "/pod", "/pod/rank"):
        tree.write(f"sys/fs/cgroup{folder}/cgroup.procs", "")
    tree.write("sys/fs/cgroup/pod/cpu.max", "250000 100000")
    tree.write("sys/fs/cgroup/pod/cpu.stat", "usage_usec 5\nnr_periods 9\nnr_throttled 4")
    tree.write("sys/fs/cgroup/pod/rank/cpu.max", "max 100000")
    limits = read_cpu_limits(7, tmp_path)
    assert (limits.quota_cpus, limits.quota_group) == (2.5, "/sys/fs/cgroup/pod")
    tree.write("sys/fs/cgroup/pod/cpu.max", "max 100000")
    assert read_cpu_limits(7, tmp_path).quota_cpus == math.inf
    tree.write("sys/fs/cgroup/pod/cpu.max", "rubbish")
    assert read_cpu_limits(7, tmp_path).quota_cpus is None


def test_quota_of_version_1_as_a_container_sees_them(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.write("proc/7/cgroup", "4:cpuset:/docker/ab\n3:cpu,cpuacct:/docker/ab\n0::/system")
    tree.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000")
    tree.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000")
    assert read_cpu_limits(7, tmp_path).quota_cpus == 0.5
    tree.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1")
    assert read_cpu_limits(7, tmp_path).quota_cpus == math.inf


def test_missing_control_groups_are_unknown_not_unlimited(tmp_path: Path) -> None:
    assert read_cpu_limits(7, tmp_path).quota_cpus is None


def _memory(version: int, limit: str | int, used: int, cached: int) -> dict[str, str | int]:
    """Files of a control group; other fields of memory.stat are larger than the right one."""
    stat = f"inactive_file {cached}\nanon 991\nfile 992\ninactive_anon 993\nactive_file 994"
    if version == 2:
        return {"memory.max": limit, "memory.current": used, "memory.stat": stat}
    stat = stat.replace("inactive_file", "inactive_file 990\ntotal_inactive_file")
    names = "memory.limit_in_bytes", "memory.usage_in_bytes"
    return {names[0]: limit, names[1]: used, "memory.stat": stat}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("groups", "rooms"),
    [
        ({"job": (100, 90, 70), "job/task": (60, 50, 40)}, (50, 80)),
        ({"job": (100, 90, 70), "job/task": ("max", 50, 40)}, (80,)),
        ({"job": (100, 30, 70)}, (100,)),  # the files are read one after the other
        ({"job": (100, 120, 10)}, (0,)),  # the limit was lowered after the use
        ({"job": ("rubbish", 30, 10), "job/task": (60, 50, 0)}, (10,)),
    ],
)
def test_cached_files_count_as_free_memory_of_a_group(
    tmp_path: Path,
    version: int,
    groups: dict[str, tuple[str | int, int, int]],
    rooms: tuple[int, ...],
) -> None:
    tree = Tree(tmp_path)
    tree.write("proc/self/cgroup", "7:memory:/job/task" if version == 1 else "0::/job/task")
    mount = "sys/fs/cgroup/memory" if version == 1 else "sys/fs/cgroup"
    tree.write(f"{mount}/cgroup.procs", "")
    for group, values in groups.items():
        for name, value in _memory(version, *values).items():
            tree.write(f"{mount}/{group}/{name}", value)
    assert read_memory_rooms(tmp_path) == rooms
    for group in groups:
        (tmp_path / mount / group / "memory.stat").unlink()
    assert all(room < 100 for room in read_memory_rooms(tmp_path)), "the cached memory is unknown"


def test_without_memory_groups_the_free_memory_is_unknown(tmp_path: Path) -> None:
    assert read_memory_rooms(tmp_path) == ()


V1, V2 = "memory.oom_control", "memory.events.local"
GROUPS = "sys/fs/cgroup"


@pytest.mark.parametrize(
    ("cgroup", "files", "group"),
    [
        ("4:memory:/job/task\n0::/", (f"memory/job/task/{V1}", f"memory/{V1}"), "memory/job/task"),
        ("4:memory:/docker/ab", (f"memory/{V1}",), "memory"),
        ("4:memory:/docker/ab\n0::/", (f"memory/{V1}", f"unified/{V2}"), "memory"),
        ("4:memory:/", (f"memory/{V1}", "memory/release_agent"), ""),
        ("4:memory:/old", ("memory/old/memory.usage_in_bytes", f"memory/{V1}"), ""),
        ("0::/pod/rank", (f"pod/rank/{V2}", f"pod/{V2}"), "pod/rank"),
        ("0::/pod/rank", (f"pod/{V2}", "pod/rank/cgroup.procs"), "pod"),
        ("0::/pod", ("pod/memory.events",), "pod"),
        ("0::/", (V2,), "."),
        ("0::/", (), ""),
        ("0::/pod", ("pod/cgroup.procs",), ""),
        ("5:cpu:/\n0::/job", (f"unified/job/{V2}", "cpu/cpu.shares"), "unified/job"),
        ("5:cpu:/job", ("cpu/job/cpu.shares",), ""),
        ("", (), ""),
    ],
    ids=[
        *("v1 nested", "v1 container", "hybrid", "v1 root", "v1 before Linux 4.13"),
        *("v2 nested", "v2 counted above", "v2 before Linux 5.2", "v2 container", "v2 root"),
        *("v2 without memory", "hybrid by v2", "v1 without memory", "none"),
    ],
)
def test_kills_are_counted_in_the_groups_of_every_version(
    tmp_path: Path, cgroup: str, files: tuple[str, ...], group: str
) -> None:
    tree = Tree(tmp_path)

    def kills(mine: int, elsewhere: int) -> None:
        """Kill counts; only the right group has the right number."""
        for file in files:
            counts = file in (f"{group}/{V1}", f"{group}/{V2}", f"{group}/memory.events")
            counts = counts or (group == "." and file == V2)
            shown = mine if counts else 77
            tree.write(f"{GROUPS}/{file}", f"low 0\noom 90\noom_kill {shown}\noom_group_kill 91")
        tree.write("proc/vmstat", f"nr_free_pages 5\noom_kill {mine + elsewhere}")

    tree.write("proc/self/cgroup", cgroup)
    tree.write(f"{GROUPS}/{'unified/' if 'unified' in str(files) else ''}cgroup.procs", "")
    if "memory" in cgroup:
        (tmp_path / GROUPS / "cgroup.procs").unlink(missing_ok=True)
    kills(3, 10)
    before = read_oom_kills(tmp_path)
    where = f"/{GROUPS}/{group}".removesuffix("/.") if group else ""
    assert before == OomKills(13, where, 3 if group else None)
    kills(3, 11)
    unrelated = read_oom_kills(tmp_path).since(before)
    assert unrelated == OomKills(1, where, 0 if group else None)
    kills(5, 11)
    assert read_oom_kills(tmp_path).since(before) == OomKills(3, where, 2 if group else None)


def test_kills_after_a_change_of_group_are_those_of_the_machine() -> None:
    before = OomKills(4, "/sys/fs/cgroup/memory/a", 2)
    assert OomKills(5, "/sys/fs/cgroup/memory/b", 9).since(before) == OomKills(1)
    assert OomKills(None, "/a", 1).since(OomKills(3, "/a", 1)) == OomKills(None, "/a", 0)
