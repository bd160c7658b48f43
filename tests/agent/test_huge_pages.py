"""Pages are merged into huge pages if the kernel supports it, and keep their content."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
from pathlib import Path
from pytest_mnode.agent.fork_server import joined_one_by_one

def huge_kib():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages:"))

kept = [str(number) * 10 for number in range(200_000)]
before = huge_kib()
steps = sum(1 for _ in joined_one_by_one())
assert kept == [str(number) * 10 for number in range(200_000)]
print(steps, huge_kib() - before)
"""


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="a kernel without huge pages"
)
def test_merged_pages_keep_their_content() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60, check=True
    )
    steps, joined_kib = map(int, done.stdout.split())
    assert 2048 <= joined_kib <= steps * 2048
