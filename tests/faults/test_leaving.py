"""Nothing of a fault is left once the rack has ended, however it ended."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from pytest_mnode import processes
from tests.faults.talk import quotas
from tests.inner import need_programs_of, need_rack
from tests.waiting import until

CONTROLLER = """
import sys, time
from pytest_mnode import faults
from pytest_mnode.launchers.rack import Rack
rack = Rack(3)
rack.start()
faults.inject(rack, sys.argv[1])
print("injected", rack.daemon_pid, flush=True)
input()
if sys.argv[2] == "close":
    rack.close()
    print("closed", flush=True)
time.sleep(60)
"""


def groups(daemon_pid: int) -> set[object]:
    """Control groups of one rack: other racks may have some at the same time."""
    root, name = Path("/sys/fs/cgroup"), f"mnode-{daemon_pid}-*"
    return {str(p) for p in (*root.glob(name), *root.glob(f"*/{name}")) if p.is_dir()}


@pytest.mark.parametrize("end", ["kill", "close"])
def test_faults_end_with_the_rack(end: str, tmp_path: Path) -> None:
    need_rack()
    texts = [
        "slow_link:node1,slow_pair:node0+node2,lossy_link:node1,delay:node2,small_shm:node1:1 MiB",
        f"full_disk:node1:{tmp_path},read_only_path:node2:{tmp_path},busy_neighbour:node1:1",
        "wrong_hosts:node1,low_nofile:node1,interface_missing:node0,stopped:node2",
        *(["cpu_quota:node0,cpu_quota:node1"] if quotas() else []),
    ]
    need_programs_of(",".join(texts))
    tag = uuid.uuid4().hex
    mounts = Path("/proc/self/mountinfo").read_text()
    with subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, ",".join(texts), end],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "MNODE_TEST_TAG": tag},
    ) as controller:

        def left() -> set[object]:
            """Processes other than the controller, and control groups of its rack."""
            carriers = set(processes.started_with("MNODE_TEST_TAG", tag)) - {controller.pid}
            return carriers | groups(int(pid))

        assert controller.stdout is not None
        assert controller.stdin is not None
        try:
            word, pid = controller.stdout.readline().split()
            assert word == "injected"
            assert len(groups(int(pid))) == (2 if quotas() else 0)
            assert len(left() - groups(int(pid))) > 5
            controller.stdin.write("\n")
            controller.stdin.flush()
            if end == "close":
                assert controller.stdout.readline() == "closed\n"
                assert groups(int(pid)) == set()
            else:
                controller.kill()
            until(lambda: not left(), left, 60.0)
        finally:
            controller.kill()
    assert list(tmp_path.iterdir()) == []
    assert Path("/proc/self/mountinfo").read_text() == mounts
