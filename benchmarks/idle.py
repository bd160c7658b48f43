"""Cost of the plugin in a pytest run that needs no rank.

pytest runs one test that passes immediately, with the plugin and without it (`-p no:mnode`), in
turns; the cost is the median of the differences within a turn. The module time is that of
`pytest_mnode.plugin` in `python -X importtime` after pytest is imported, the median of as many
runs.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import table


def measure(repeats: int) -> str:
    """The table, for a terminal."""
    with tempfile.TemporaryDirectory(prefix="mnode-bench-") as folder:
        (Path(folder) / "test_nothing.py").write_text("def test_nothing():\n    pass\n")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        with_plugin, without = [], []
        for turn in range(repeats + 1):
            pair = [_seconds(command, folder), _seconds([*command, "-p", "no:mnode"], folder)]
            if turn:
                with_plugin.append(pair[0])
                without.append(pair[1])
        imports = [_import_seconds(folder) for _ in range(repeats)]
    cost = statistics.median(a - b for a, b in zip(with_plugin, without, strict=True))
    rows = [
        ("pytest, plugin on", table.ms(with_plugin), table.spread_ms(with_plugin)),
        ("pytest, plugin off", table.ms(without), table.spread_ms(without)),
        ("cost of the plugin", table.number(cost * 1e3), ""),
        ("import of pytest_mnode.plugin", table.ms(imports), table.spread_ms(imports)),
    ]
    return table.terminal("A run that needs no rank", ("what", "ms", "10–90 % ms"), rows)


def _seconds(command: list[str], folder: str) -> float:
    start = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return time.perf_counter() - start


def _import_seconds(folder: str) -> float:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import pytest, pytest_mnode.plugin"],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    line = next(x for x in done.stderr.splitlines() if x.rstrip().endswith("| pytest_mnode.plugin"))
    return int(line.split("|")[1]) / 1e6
