"""Guests are separate machines, and end with the process that started them."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil

from tests.machines.bed import Machines, need_machines
from tests.waiting import until

HOLDER = """
import time
from tests.machines.bed import Machines

machines = Machines()
machines._write()
machines.rack.start()
for name in machines.names:
    machines.start_daemon_of(name)
print(machines.directory, flush=True)
time.sleep(600)
"""
LIMIT_S = 60.0
LOOK = """
cat /proc/sys/kernel/random/boot_id
cat /sys/devices/system/node/online
cat /sys/class/net/mgmt0/device/../numa_node /sys/class/net/fab0/device/../numa_node
cat /sys/class/infiniband/rxe0/ports/1/state
uname -r
"""


def test_guests_are_machines_with_two_numa_nodes(machines: Machines) -> None:
    found = [machines.guest(name, LOOK).splitlines() for name in machines.names]
    boots = {lines[0] for lines in found}
    assert len(boots) == 2
    for lines in found:
        assert lines[1:5] == ["0-1", "0", "1", "4: ACTIVE"]
        assert lines[5] != Path("/proc/sys/kernel/osrelease").read_text().strip()


def test_a_killed_run_leaves_nothing() -> None:
    need_machines()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        directory = holder.stdout.readline().strip()
        assert directory
        until(lambda: len(guests(directory)) == 2, "both guests run", LIMIT_S)
        holder.send_signal(signal.SIGKILL)
    until(lambda: not guests(directory), "no guest runs", LIMIT_S)
    until(lambda: not Path(directory).exists(), "the directory is gone", LIMIT_S)


def guests(directory: str) -> list[psutil.Process]:
    """QEMU processes with a file in this directory."""
    return [
        process
        for process in psutil.process_iter(["name", "cmdline"])
        if process.info["name"].startswith("qemu") and directory in str(process.info["cmdline"])
    ]
