"""Every limit of a wait has a test that lets it expire."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from pytest_mnode.limits import Limits
from tests.limits import (
    GIVEN,
    JUDGED,
    LIMITS,
    NO_LIMITS,
    PACKAGE,
    ROOT,
    all_constants,
    all_given,
    lengthened,
)


@pytest.mark.parametrize(
    ("tested", "untested", "there"),
    [(LIMITS, NO_LIMITS, all_constants), (GIVEN, JUDGED, all_given)],
    ids=["constants", "given"],
)
def test_each_limit_is_in_one_table(
    tested: Mapping[str, str],
    untested: Mapping[str, tuple[str, ...]],
    there: Callable[[], list[str]],
) -> None:
    """A new one that is in none needs a test, or a reason."""
    listed = [*tested, *(one for some in untested.values() for one in some)]
    assert sorted(listed) == sorted(there())


@cache
def functions(file: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / file).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_test_of_each_limit_exists() -> None:
    missing = []
    for test in sorted({*LIMITS.values(), *GIVEN.values()}):
        file, _, name = test.partition("::")
        if name and name.partition("[")[0] not in functions(file):
            missing.append(test)
    assert missing == []


def test_uses_of_a_limit_are_lengthened() -> None:
    text = (
        "A_S = 1.0\n"
        "def f(limit_s=A_S):\n"
        "    wait(limit_s)\n"
        "def g():\n"
        "    wait(A_S); say(f'{A_S} s'); wait(m.A_S)\n"
    )
    assert lengthened(text, "A_S") == (
        "A_S = 1.0\n"
        "def f(limit_s=A_S):\n"
        "    wait((limit_s + 1000))\n"
        "def g():\n"
        "    wait((A_S + 1000)); say(f'{A_S} s'); wait((m.A_S + 1000))\n"
    )


_WAITS = {"wait", "join", "communicate", "result"}
_RUNS = {"run", "check_output", "call"}


def bare_waits(path: Path) -> Iterator[str]:
    """Calls that wait for ever for a thread, a process or a future, and programs without a limit;
    and limits that are numbers at the place of the wait, where no test can make them short."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        last = node.func.attr
        if last not in _WAITS | _RUNS:
            continue
        called, given = ast.unparse(node.func), {keyword.arg for keyword in node.keywords}
        numbers = [a for a in node.args if isinstance(a, ast.Constant) and type(a.value) is not str]
        awaits = last in _WAITS and not node.args and "timeout" not in given
        runs = called.startswith("subprocess.") and last in _RUNS
        fixed = last in _WAITS and numbers
        if awaits or fixed or (runs and "timeout" not in given):
            yield f"{path.relative_to(PACKAGE)} {called}"


FOR_EVER = {
    "the other end is torch, which has limits of its own": (
        "checks/groups/check.py work.wait",
        "criteria/scaling/program.py running.wait",
        "faults/spoiled.py work.wait",
        "measuring/at_once.py work.wait",
        "measuring/lanes.py thread.join",
        "measuring/lanes.py work.wait",
        "measuring/locating/pairs.py work.wait",
        "measuring/locating/pairs.py work.wait",
        "measuring/ranks.py work.wait",
    ),
    "a run of the suite before its user's eyes, each of whose tests has a limit": (
        "commands/check.py subprocess.run",
    ),
    "the thread copies memory, and ends by itself": (
        "measuring/host_memory.py copy.result",
        "measuring/host_memory.py one.result",
    ),
    "the thread has just been told to end, and waits for nothing else": (
        "controller/console.py self._thread.join",
        "faults/tools.py thread.join",
        "criteria/tuning/in_ranks.py thread.join",
        "machine/load_readings.py self._thread.join",
    ),
    "each thread ends by the limit of its store": ("criteria/launching/rendezvous.py thread.join",),
    "it is done": (
        "controller/hub.py found.result",
        "criteria/preflight/datagrams.py f.result",
        "criteria/preflight/datagrams.py future.result",
        "gang/watch.py doing.result",
    ),
    "awaited with a limit around it, or until the program's own end": (
        "launchers/remote/bridge.py ended.wait",
        "launchers/remote/bridge_server.py ready.wait",
        "launchers/remote/node_streams.py command.room.wait",
        "launchers/remote/remote_exec.py self.wait",
        "launchers/kubernetes/pod_streams.py asyncio.run_coroutine_threadsafe(work, self._loop)"
        ".result",
        "launchers/kubernetes/pod_streams.py ended.wait",
        "launchers/remote/bridge_server.py event.wait",
    ),
    "a pod's main process: its command's end is that of the pod": (
        "jobs/kubernetes/in_pod.py os.wait",
    ),
    "the job's own step: Slurm's limit of the job ends it": (
        "jobs/slurm/on_node.py subprocess.call",
    ),
    "between two looks": ("jobs/slurm/on_node.py torchrun.wait",),
}


def test_waits_have_limits_that_a_test_can_shorten() -> None:
    found = [wait for path in sorted(PACKAGE.rglob("*.py")) for wait in bare_waits(path)]
    assert sorted(found) == sorted(one for some in FOR_EVER.values() for one in some)


def test_starts_have_longer_where_many_nodes_start_at_the_same_time() -> None:
    one = Limits(start_s=60.0, report_s=30.0, connect_s=15.0, silence_s=6.0)
    assert [one.of(nodes) for nodes in (1, 255)] == [one, one]
    many = one.of(512)
    assert (many.start_s, many.reported_s, many.first_word_s) == (180.0, 210.0, 210.0)
    assert (many.imported_s, many.world_s) == (900.0, 900.0 + 360.0 + 30.0)
    assert (many.silence_s, many.connect_s, many.report_s) == (6.0, 15.0, 30.0)
    assert many.world_s > many.imported_s + many.ranks_s(imports=True)
