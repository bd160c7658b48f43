"""Waits before the first test, printed once on a terminal, and not in a log; and the text of the
live line, in terminals of any width."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.controller import console
from pytest_mnode.controller.console import Facts, LivePlugin, live_text
from pytest_mnode.progress import progress
from tests.inner import run_pytest, write_files

SWEEP = Facts("fabric", "all_reduce 8 MiB", 34.9, done=3, total=9, expected_s=3725.0)
WAITS = replace(SWEEP, awaited="rank 2 of 4 on node2")


@pytest.mark.parametrize("isatty", [True, False])
def test_nodes_waited_for_before_the_first_test_are_named(isatty: bool) -> None:
    lines: list[str] = []
    terminal = SimpleNamespace(isatty=isatty, write_line=lines.append)
    plugins = SimpleNamespace(getplugin={"terminalreporter": terminal}.get)
    config: Any = SimpleNamespace(pluginmanager=plugins)
    unused: Any = None
    plugin = LivePlugin(config, unused, unused, unused)
    try:
        for _ in range(2):
            progress("allocation 7 waits in the queue (Resources)")
        progress("allocation 7 waits in the queue (Priority)")
    finally:
        plugin.pytest_unconfigure()
    progress("nobody listens any more")
    waits = [f"mnode: allocation 7 waits in the queue ({why})" for why in ("Resources", "Priority")]
    assert lines == (waits if isatty else [])


def test_a_limit_function_that_raises_fails_only_its_test(tmp_path: Path) -> None:
    tests = """
        import pytest

        def limit_of(spec, settings, nodes, procs_per_node):
            return 2.0 * None

        @pytest.mark.mnode(timeout=limit_of)
        def test_a(world): pass

        @pytest.mark.mnode(timeout=limit_of)
        def test_b(cluster): pass

        def test_c(cluster): pass
    """
    write_files(tmp_path, test_it=tests)
    run = run_pytest(tmp_path, "--mnode-nodes=2", "--mnode-launcher=local")
    failed = dict.fromkeys(("test_a", "test_b"), "error")
    assert run.outcomes() == failed | {"test_c": "passed"}, run.output
    assert "INTERNALERROR" not in run.output


def test_a_guard_of_the_terminal_that_stays_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_GUARD_END_S", 0.1)
    plugin = SimpleNamespace(suspend_global_capture=lambda: None)
    config: Any = SimpleNamespace(pluginmanager=SimpleNamespace(getplugin=lambda _: plugin))
    reads, writes = os.pipe()
    guard = subprocess.Popen(["sleep", "300"], stdin=subprocess.PIPE)
    with console.LiveLine(writes, config, lambda _: "") as line:
        line._guard = guard
    os.close(reads)
    assert guard.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("said", "criterion", "text"),
    [
        ((), False, "test_sum, 0:09"),
        (("8 MiB", 3, 9), False, "test_sum: 8 MiB [###.......] 3 of 9, 0:09"),
        ((), True, "fabric: test_sum, 0:09"),
    ],
)
def test_the_line_names_what_runs_now(
    monkeypatch: pytest.MonkeyPatch, said: tuple[Any, ...], criterion: bool, text: str
) -> None:
    shown: Any = SimpleNamespace(awaited=lambda: "")
    config: Any = SimpleNamespace()
    plugin: Any = LivePlugin(config, shown, lambda: "2x1", lambda _: None)
    plugin.pytest_unconfigure()
    plugin._item = SimpleNamespace(
        name="test_sum",
        nodeid="test_fabric.py::test_sum",
        path=Path("test_fabric.py"),
        get_closest_marker=lambda _: criterion or None,
    )
    plugin._started_s = 100.0
    if said:
        plugin._hear(*said)
    monkeypatch.setattr("time.monotonic", lambda: 109.4)
    assert plugin._text(80) == text


@pytest.mark.parametrize(
    ("facts", "width", "text"),
    [
        (SWEEP, 80, "fabric: all_reduce 8 MiB [###.......] 3 of 9, 0:34 of about 1:02:05"),
        (
            WAITS,
            120,
            "fabric: all_reduce 8 MiB [###.......] 3 of 9, 0:34 of about 1:02:05, "
            "waiting for rank 2 of 4 on node2",
        ),
        (
            WAITS,
            90,
            "fabric: all_reduce 8 MiB 3 of 9, 0:34 of about 1:02:05, "
            "waiting for rank 2 of 4 on node2",
        ),
        (
            WAITS,
            80,
            "fabric: all_r... 3 of 9, 0:34 of about 1:02:05, waiting for rank 2 of 4 on node2",
        ),
        (WAITS, 20, "fabric: ... 3 of 9, "),
        (Facts("", "test_x[\x1b[2Jñ]", 3.0, limit_s=300.0), 80, "test_x[?[2J?], 0:03, limit 5:00"),
        (
            Facts("gang", "A runs", 61.0, done=7, total=5),
            80,
            "gang: A runs [##########] 5 of 5, 1:01",
        ),
        (Facts("gang", "A runs", 61.0, done=0, total=0), 80, "gang: A runs, 1:01"),
    ],
)
def test_parts_are_dropped_in_order_of_importance(facts: Facts, width: int, text: str) -> None:
    assert live_text(facts, width) == text
