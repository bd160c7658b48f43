"""Faults within a node: visible there, not on its neighbour, and gone after the undo."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import pytest

from pytest_mnode import faults
from pytest_mnode.errors import ClusterError, UsageError
from pytest_mnode.faults.tools import inside
from pytest_mnode.launchers.rack import Link, Rack
from pytest_mnode.protocol.launcher_requests import PowerOff, PowerOn
from tests.faults.talk import PYTHON, injected, need_quotas, output_of, shell
from tests.inner import need, need_programs_of, need_rack

WRITABLE = "touch '{dir}/x' && rm '{dir}/x' && echo written"
VERSION = "import sys; sys.path[:0] = {path!r}; from importlib.metadata import version; "
SHARE = """
import time
start, spent = time.perf_counter(), time.process_time()
while time.perf_counter() - start < 0.3: pass
print((time.process_time() - spent) / 0.3)
"""


def test_shared_memory_is_small(rack: Rack) -> None:
    with injected(rack, "small_shm:node1:1 MiB"):
        assert "No space left" in shell(rack, 1, "head -c 2M /dev/zero >/dev/shm/x; rm /dev/shm/x")


def test_a_directory_is_read_only(rack: Rack, tmp_path: Path) -> None:
    write = WRITABLE.format(dir=tmp_path)
    with injected(rack, f"read_only_path:node1:{tmp_path}"):
        assert "Read-only file system" in shell(rack, 1, write)
        assert shell(rack, 0, write) == "written"
    assert shell(rack, 1, write) == "written"


def test_a_disk_is_full(rack: Rack, tmp_path: Path) -> None:
    (tmp_path / "kept").touch()
    undo = faults.inject(rack, f"full_disk:node1:{tmp_path}")
    assert "No space left" in shell(rack, 1, f"head -c 9 /dev/zero > '{tmp_path}/x'")
    assert shell(rack, 0, WRITABLE.format(dir=tmp_path)) == "written"
    undo()
    assert shell(rack, 1, f"ls '{tmp_path}'") == "kept"


def test_a_node_has_a_view_of_its_own(rack: Rack, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("old\n")
    before = shell(rack, 1, "cat /proc/self/mounts").splitlines()
    undo = faults.inject(rack, f"own_view:node1:{tmp_path}")
    write = f"cd '{tmp_path}'; cat kept; echo new >kept; touch own; ls"
    assert shell(rack, 1, write).split() == ["old", "kept", "own"]
    assert shell(rack, 0, f"cd '{tmp_path}'; cat kept; ls").split() == ["old", "kept"]
    assert len(shell(rack, 1, "cat /proc/self/mounts").splitlines()) == len(before) + 1
    undo()
    assert shell(rack, 1, f"cat '{tmp_path}/kept'") == "old"


def test_a_package_has_another_version(rack: Rack) -> None:
    code = VERSION.format(path=sys.path) + "print(version('pytest'), version('pluggy'))"
    mine, pluggy = output_of(rack, 1, [*PYTHON, code]).split()
    undo = faults.inject(rack, "other_package:node1:pytest,other_package:node1:pluggy:0.1")
    assert output_of(rack, 1, [*PYTHON, code]) == f"{mine}+other 0.1"
    assert output_of(rack, 0, [*PYTHON, code]) == f"{mine} {pluggy}"
    undo()
    assert output_of(rack, 1, [*PYTHON, code]) == f"{mine} {pluggy}"


def test_a_file_of_the_code_differs(rack: Rack, tmp_path: Path) -> None:
    file = tmp_path / "code of mine.py"
    file.write_text("x = 1\n")
    file.chmod(0o640)
    with injected(rack, f"other_code:node1:{file}"):
        there = shell(rack, 1, f"cat '{file}'; stat -c %a '{file}'")
        assert there == "x = 1\n\n# Another version.\n640"
        assert shell(rack, 0, f"cat '{file}'") == "x = 1"
    assert shell(rack, 1, f"cat '{file}'") == "x = 1"
    assert file.read_text() == "x = 1\n"


@pytest.mark.parametrize(
    "file",
    [
        "/sys/kernel/mm/transparent_hugepage/enabled",
        "/sys/devices/system/cpu/no such/file",
        "/sys/no-such",  # over which the node has mounts of its own
    ],
)
def test_a_file_that_is_there_or_not_has_another_text(rack: Rack, file: str) -> None:
    ask = f"cat '{file}' 2>/dev/null; cut -d' ' -f5 /proc/self/mountinfo | sort"
    before = shell(rack, 1, ask)
    undo = faults.inject(rack, f"other_text:node1:{file}:one,other_text:node1:{file}2:two")
    assert shell(rack, 1, f"cat '{file}' '{file}2'") == "one\ntwo"
    assert set(before.splitlines()[1:]) <= set(shell(rack, 1, ask).splitlines())
    assert shell(rack, 0, ask) == before
    undo()
    assert shell(rack, 1, ask) == before


def test_a_program_is_on_the_path_of_one_node(rack: Rack) -> None:
    path = map(Path, os.environ["PATH"].split(os.pathsep))
    folders = {one.resolve() for one in path if one.is_dir() and not one.is_mount()}
    need(None if len(folders) > 1 else "PATH has one folder, and each program takes one")
    ask = "mnode-one -s; mnode-two"
    with injected(rack, "other_program:node1:mnode-one:a: b\\n c,other_program:node1:mnode-two:d"):
        assert shell(rack, 1, ask) == "a: b\n c\nd"
        assert shell(rack, 0, f"({ask}) 2>/dev/null || echo none") == "none"
    assert shell(rack, 1, f"({ask}) 2>/dev/null || echo none") == "none"


@pytest.mark.parametrize(
    ("how", "path", "mount"),
    [("add", "/etc/mnode-test", "/etc"), ("replace", "/etc/hostname", "/etc/hostname")],
)
def test_a_private_file_leaves_no_mount_beside_it(
    rack: Rack, how: str, path: str, mount: str
) -> None:
    """It is made in a file system that is mounted meanwhile."""
    mounts = "cut -d' ' -f5 /proc/self/mountinfo"
    before = set(shell(rack, 1, mounts).split())
    inside(rack, rack.nodes[1], how, path, data=b"x")
    try:
        assert shell(rack, 1, f"cat {path}") == "x"
        assert set(shell(rack, 1, mounts).split()) - before == {mount}
    finally:
        inside(rack, rack.nodes[1], "unmount", mount)
    assert set(shell(rack, 1, mounts).split()) == before


def test_a_disk_that_all_nodes_share_is_never_filled(rack: Rack) -> None:
    with pytest.raises(ClusterError, match="all nodes share; it is not filled"):
        inside(rack, rack.nodes[2], "full", "/", "4096")
    assert not Path("/filler").exists()
    rack.ask(PowerOff("node2"))
    rack.ask(PowerOn("node2"))


@pytest.mark.parametrize(
    ("first", "second"), [("numa_unbound", "numa_unbound"), ("stale_results", "wrong_layers")]
)
def test_two_that_exclude_each_other_are_refused(rack: Rack, first: str, second: str) -> None:
    with pytest.raises(UsageError, match=f"^fault '{second}:node1': node1 .*already"):
        faults.inject(rack, f"{first}:node1,{second}:node1")
    start = rack.rank_start(rack.nodes[1])
    assert (start.first, start.cpus) == ((), None)


def test_two_of_one_kind_are_both_undone(rack: Rack) -> None:
    faults.inject(rack, "slow_device:node1:2,slow_device:node1:3")()
    assert shell(rack, 1, "ls /dev/shm") == ""


TCP_BUFFERS = "cat /proc/sys/net/ipv4/tcp_rmem /proc/sys/net/ipv4/tcp_wmem"


@pytest.mark.parametrize(
    ("fault", "ask", "low"),
    [
        ("low_memlock:node1:32 KiB", "ulimit -l", "32"),
        ("low_nofile:node1:99", "ulimit -n", "99"),
        ("small_buffers:node1:8 KiB", TCP_BUFFERS, "4096 8192 8192 4096 8192 8192"),
        ("small_shm:node1:1 MiB", "df -k --output=size /dev/shm | tail -1", "1024"),
    ],
)
def test_a_limit_is_low(rack: Rack, fault: str, ask: str, low: str) -> None:
    before = shell(rack, 0, ask)
    with injected(rack, fault):
        assert shell(rack, 1, ask).split() == low.split()
        assert shell(rack, 0, ask) == before
    assert shell(rack, 1, ask) == before


def test_a_clock_is_wrong(rack: Rack) -> None:
    fault = "skewed_clock:node1:-1000"
    need_programs_of(fault)
    now, names = "date +%s", "getent hosts node2"
    listed = shell(rack, 1, "ls /etc; cat /etc/hosts")
    undo = faults.inject(rack, fault)
    behind = [int(shell(rack, i, now)) for i in (0, 1, 0)]
    assert behind[0] - 1000 <= behind[1] <= behind[2] - 1000
    assert shell(rack, 1, names) == shell(rack, 0, names)
    undo()
    after = [int(shell(rack, i, now)) for i in (0, 1, 0)]
    assert after == sorted(after)
    assert shell(rack, 1, "ls /etc; cat /etc/hosts") == listed


@pytest.mark.parametrize(
    ("fault", "other", "wrong"),
    [
        ("wrong_hosts:node1", 2, {"10.77.0.2", "10.78.0.2"}),
        ("wrong_hosts:node1:node0", 0, {"10.77.0.2", "10.78.0.2"}),
        ("wrong_hosts:node1:node1", 1, {"127.0.1.1"}),
    ],
)
def test_a_name_resolves_to_another_node(
    rack: Rack, fault: str, other: int, wrong: set[str]
) -> None:
    look_up = f"getent ahostsv4 node{other}; getent ahostsv4 node{other}-fab"
    right = {rack.nodes[other].address, rack.nodes[other].fabric_address}
    undo = faults.inject(rack, fault)
    assert _addresses(shell(rack, 1, look_up)) == wrong
    assert _addresses(shell(rack, 2, look_up)) == right
    unharmed = rack.nodes[2 - other if other != 1 else 0]
    assert _addresses(shell(rack, 1, f"getent ahostsv4 {unharmed.name}")) == {unharmed.address}
    undo()
    assert _addresses(shell(rack, 1, look_up)) == right


def _addresses(text: str) -> set[str]:
    return {line.split()[0] for line in text.splitlines()}


def test_lookups_of_names_and_addresses_are_slow(rack: Rack) -> None:
    code = (
        "import socket, time; start = time.monotonic(); "
        "print(socket.getnameinfo(('10.77.0.3', 0), 0)[0], time.monotonic() - start)"
    )
    with injected(rack, "slow_names:node1:1"):
        name, took_s = output_of(rack, 1, [*PYTHON, code]).split()
        assert name == "node2"
        assert 0.9 <= float(took_s) < 10
        assert float(output_of(rack, 0, [*PYTHON, code]).split()[1]) < 0.9
    assert float(output_of(rack, 1, [*PYTHON, code]).split()[1]) < 0.9


def test_cpus_have_a_quota(rack: Rack) -> None:
    need_quotas()
    undo = faults.inject(rack, "cpu_quota:node1:20")
    assert float(output_of(rack, 1, [*PYTHON, SHARE])) < 0.3
    assert "mnode-" not in shell(rack, 0, "cat /proc/self/cgroup")
    with pytest.raises(UsageError, match="node1 has a quota already"):
        faults.inject(rack, "cpu_quota:node1")
    undo()
    assert "mnode-" not in shell(rack, 1, "cat /proc/self/cgroup /proc/1/cgroup")
    assert _groups(rack) == []


def test_what_binds_the_first_process_of_a_node_binds_all_that_enter_it() -> None:
    """As on a machine, where every process is a child of the first."""
    with Rack(2) as rack:
        pid = rack.pid_of(rack.nodes[1])
        nice = os.getpriority(os.PRIO_PROCESS, pid) + 1
        cpus = os.sched_getaffinity(pid)
        os.sched_setaffinity(pid, {min(cpus)})
        os.setpriority(os.PRIO_PROCESS, pid, nice)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        seen = "nproc; nice; ulimit -f"
        assert shell(rack, 1, seen).split()[:2] == ["1", str(nice)]
        assert shell(rack, 1, seen).split()[2] != shell(rack, 0, seen).split()[2]
        try:  # of a process that may use none of them
            os.sched_setaffinity(0, cpus - {min(cpus)} or cpus)
            assert shell(rack, 1, "nproc").strip() == "1"
        finally:
            os.sched_setaffinity(0, cpus)


def _groups(rack: Rack) -> list[str]:
    root, name = Path("/sys/fs/cgroup"), f"mnode-{rack.daemon_pid}-*"
    return [str(path) for path in (*root.glob(name), *root.glob(f"*/{name}"))]


def test_other_processes_use_the_cpus(rack: Rack) -> None:
    cpus = len(os.sched_getaffinity(0))
    count = "grep -l '[w]hile True: pass' /proc/[0-9]*/cmdline 2>/dev/null | wc -l"
    with injected(rack, "busy_neighbour:node1:1"):
        assert int(shell(rack, 1, count)) == cpus
        assert int(shell(rack, 0, count)) == 0
    assert int(shell(rack, 1, count)) == 0


def test_a_node_is_stopped(rack: Rack) -> None:
    state = "grep State: /proc/1/status"
    with injected(rack, "stopped:node1"):
        assert "T (stopped)" in shell(rack, 1, state)
        assert "T (stopped)" not in shell(rack, 0, state)
    assert "S (sleeping)" in shell(rack, 1, state)


def test_an_undo_may_come_twice_late_or_after_a_reboot(rack: Rack, tmp_path: Path) -> None:
    undo = faults.inject(rack, f"read_only_path:node1:{tmp_path},small_shm:node1:1 MiB")
    rack.ask(PowerOff("node1"))
    rack.ask(PowerOn("node1"))
    assert shell(rack, 1, WRITABLE.format(dir=tmp_path)) == "written"
    undo()
    undo()
    assert shell(rack, 1, WRITABLE.format(dir=tmp_path)) == "written"
    faults.inject(rack, "slow_link:node1:10")()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("read_only_path:node1:/no/such", "no such path: /no/such"),
        ("full_disk:node1:/no/such", "no directory /no/such"),
        ("own_view:node1:/no/such", "no directory /no/such"),
        ("own_view:node1:/tmp/..", "nothing can be mounted over the root directory"),
        ("full_disk:node1:/tmp/..", "has /.*, without which nothing runs on the node"),
        (f"full_disk:node1:{Path(sys.executable).parent}", "without which nothing runs"),
        ("read_only_path:node1:/", "nothing can be mounted over the root directory"),
        ("other_package:node1:no-such", "no distribution 'no-such' is installed"),
        ("other_code:node1:/no/such.py", "no file /no/such.py"),
        ("other_text:node1:/sys:mine", "/sys is no file; accepted: an absolute path of a file"),
        ("wrong_hosts:node1:node7", "no node 'node7'; accepted: node0 to node2"),
        ("low_nofile:node1:1048576", "does not lower the limit"),
    ],
)
def test_missing_files_and_interfaces_cannot_be_broken(
    rack: Rack, fault: str, message: str
) -> None:
    with pytest.raises(UsageError, match=f"^fault '{fault}': .*{message}"):
        faults.inject(rack, fault)


def test_without_root_all_but_quotas(tmp_path: Path) -> None:
    need_rack()
    if reason := Rack.unavailable("rootless"):
        pytest.skip(reason)
    with Rack(2, Link("fab0", 80), mode="rootless") as rack:
        undo = faults.inject(
            rack,
            f"low_nofile:node1:99,read_only_path:node1:{tmp_path},slow_names:node1:1,"
            "slow_pair:node0+node1:10,delay:node1:1,interface_missing:node0,small_shm:node1:1 MiB,"
            "other_text:node1:/sys/no-such:mine",
        )
        assert "Read-only" in shell(rack, 1, f"ulimit -n; touch '{tmp_path}/x'")
        assert shell(rack, 1, "cat /sys/no-such") == "mine"
        undo()
        faults.inject(rack, "full_disk:node1:/var/tmp")
    undo()  # the rack has ended, and all its processes


@pytest.mark.parametrize(
    ("fault", "file", "value"),
    [
        ("slow_device:node1:2.5", "mnode-slow-device", "2.5"),
        ("slow_device:node1", "mnode-slow-device", "1.4"),
        ("slow_input:node1:20", "mnode-slow-input", "0.02"),
    ],
)
def test_emulated_computing_is_slow(rack: Rack, fault: str, file: str, value: str) -> None:
    look = f"cat /dev/shm/{file} 2>/dev/null || echo healthy"
    undo = faults.inject(rack, fault)
    assert (shell(rack, 1, look), shell(rack, 0, look)) == (value, "healthy")
    undo()
    assert shell(rack, 1, look) == "healthy"
    assert not Path("/dev/shm", file).exists()
