"""Answers of placement's checks for processes bound by numactl: `python placed.py CASES`.

Runs in a guest. CASES are JSON: a list of lists, of a NIC and the arguments of numactl. One line
for each, with a list of verdict and note for each check; and a line with what is beside rxe0.
"""

from __future__ import annotations

import json
import subprocess
import sys

from pytest_mnode.checks.placement.cpus import RanksRunBesideTheirAccelerator
from pytest_mnode.checks.placement.memory import MemoryIsBesideTheAccelerator
from pytest_mnode.criteria.placement.near import PARTS, Home, RankReading
from pytest_mnode.evidence.row import of_rank
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.process import bytes_by_node, read_process
from pytest_mnode.measuring.tools.beside_nic import locate
from pytest_mnode.spec import profile_spec

_SPEC = profile_spec("rack")
_CHECKS = (
    RanksRunBesideTheirAccelerator("near", _SPEC),
    MemoryIsBesideTheAccelerator(0.9, _SPEC),
)
_PROGRAM = "x = bytearray(32 << 20); x[::4096] = b'x' * 8192; print(flush=True); input()"


def answers(machine: Machine, nic: str, how: list[str]) -> list[tuple[str, str]]:
    """Verdict and note of each check, for a process that numactl started."""
    argv = [*(["numactl", *how] if how else []), "/usr/bin/python3", "-c", _PROGRAM]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        program.stdout.readline()
        seen = read_process(program.pid)
        program.communicate(b"\n")
    assert seen is not None
    here = RankReading(
        machine=machine,
        other=Home.nic(machine, [nic], 0, 1, seen.cpus_allowed),
        cpus=seen.cpus_allowed,
        threads=seen.threads or (),
        memory_bytes=bytes_by_node(seen.memory or ()),
    )
    found = []
    for check in _CHECKS:
        rows = of_rank(check.rows_of_rank(here, first=True), 0, "node0")
        found += [(str(one.verdict), one.note) for one in check.answers(rows)[1]]
    return found


def main(cases: str) -> None:
    machine = Machine.read(parts=PARTS, limit_s=120)
    for nic, *how in json.loads(cases):
        print(json.dumps(answers(machine, nic, how)))
    placed, _ = locate(machine, "rxe0")
    assert placed.near_cpus is not None
    assert placed.near_memory is not None
    print(json.dumps([placed.place, sorted(placed.near_cpus), sorted(placed.near_memory)]))


if __name__ == "__main__":
    main(sys.argv[1])
