"""Waits before the first test, printed once on a terminal, and not in a log."""

from __future__ import annotations

import os
import signal
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.controller import live_line
from pytest_mnode.controller.live_plugin import LivePlugin
from pytest_mnode.progress import progress
from tests.inner import run_here, write_files


@pytest.mark.parametrize("isatty", [True, False])
def test_nodes_waited_for_before_the_first_test_are_named(isatty: bool) -> None:
    lines: list[str] = []
    terminal = SimpleNamespace(isatty=isatty, write_line=lines.append)
    plugins = SimpleNamespace(getplugin={"terminalreporter": terminal}.get)
    run: Any = SimpleNamespace(config=SimpleNamespace(pluginmanager=plugins))
    plugin = LivePlugin(run)
    try:
        for _ in range(2):
            progress("allocation 7 waits in the queue (Resources)")
        progress("allocation 7 waits in the queue (Priority)")
    finally:
        plugin.pytest_unconfigure()
    progress("nobody listens any more")
    waits = [f"mnode: allocation 7 waits in the queue ({why})" for why in ("Resources", "Priority")]
    assert lines == (waits if isatty else [])


def test_a_limit_function_that_raises_fails_only_its_test(pytester: pytest.Pytester) -> None:
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
    write_files(pytester.path, test_it=tests)
    run = run_here(pytester, "--mnode-nodes=2", "--mnode-launcher=local")
    failed = dict.fromkeys(("test_a", "test_b"), "error")
    assert run.outcomes() == failed | {"test_c": "passed"}, run.output
    assert "INTERNALERROR" not in run.output


def test_a_guard_of_the_terminal_that_stays_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_line, "_GUARD_END_S", 0.1)
    plugin = SimpleNamespace(suspend_global_capture=lambda: None)
    config: Any = SimpleNamespace(pluginmanager=SimpleNamespace(getplugin=lambda _: plugin))
    reads, writes = os.pipe()
    guard = subprocess.Popen(["sleep", "300"], stdin=subprocess.PIPE)
    with live_line.LiveLine(writes, config, lambda _: "") as line:
        line._guard = guard
    os.close(reads)
    assert guard.returncode == -signal.SIGKILL
