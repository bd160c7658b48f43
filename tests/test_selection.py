"""-k, -x, --lf, --collect-only, -p no:mnode and similar options work as usual."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode import options
from pytest_mnode.controller.session import Run
from pytest_mnode.marks import WorldRequest
from tests.inner import InnerRun, clean_env, run_here, run_pytest, write_files

LOCAL = ("--mnode-nodes=2", "--mnode-launcher=local")
BREAKS = """
    import threading
    if threading.current_thread() is threading.main_thread():
        import sys
        if "torch.distributed.launcher.api" in sys.modules:
            raise RuntimeError("only here")
    def test_breaks(world): pass
"""
SKIPPED = """
    import sys
    import pytest
    if "torch.distributed.launcher.api" in sys.modules:
        pytest.skip("a library is missing", allow_module_level=True)
    def test_skipped(world): pass
"""


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> InnerRun:
    """Controller tests and rank tests alternately, with fixtures of their modules."""
    module = """
        import pytest

        @pytest.fixture(scope="module")
        def kept(request):
            yield
            with open("ended", "a") as file:
                print(request.node.name, file=file)
            {end}

        def test_here(kept): pass
        def test_in_ranks(world): assert {last}
    """
    directory = tmp_path_factory.mktemp("mixed")
    write_files(
        directory,
        test_1=module.format(last=True, end=""),
        test_2=module.format(last=True, end=""),
        test_3=module.format(last="world.rank != 1", end=""),
        test_4=module.format(last=True, end="raise OSError('could not be ended')"),
        test_5=BREAKS,
        test_6=SKIPPED,
    )
    return run_pytest(directory, *LOCAL)


def test_controller_tests_and_rank_tests_run_in_any_order(mixed: InnerRun) -> None:
    assert "1 failed, 7 passed, 3 errors" in mixed.output, mixed.output
    ended = mixed.junit.with_name("ended").read_text()
    assert ended.split()[:4] == [f"test_{n}.py" for n in range(1, 5)]


def test_a_failed_teardown_after_rank_tests_is_an_error(mixed: InnerRun) -> None:
    assert "ERROR test_4.py::test_in_ranks - OSError: could not be ended" in mixed.output


def test_hook_wrappers_are_hidden_in_the_controller(pytester: pytest.Pytester) -> None:
    """pytest itself cuts them off, but not from errors of a fixture in a conftest.py."""
    pytester.makeconftest("""
        import pytest

        @pytest.fixture
        def torn():
            yield
            raise OSError("no such share")
    """)
    pytester.makepyfile("def test_it(torn): pass")
    output = pytester.runpytest().stdout.str()
    assert "OSError: no such share" in output
    assert "pytest_mnode" not in output


def test_a_module_that_only_breaks_where_ranks_collect(mixed: InnerRun) -> None:
    assert mixed.outcomes()["test_breaks"] == "error"
    assert "collected by the controller but not in the ranks" in mixed.output
    assert "only here" in mixed.output


def test_a_module_that_is_only_skipped_where_ranks_collect(mixed: InnerRun) -> None:
    assert mixed.outcomes()["test_skipped"] == "error"
    assert "test_6.py:\na library is missing" in mixed.output


def test_the_first_failure_stops_and_lf_repeats_what_failed(mixed: InnerRun) -> None:
    again = run_pytest(mixed.junit.parent, *LOCAL, "--lf", "-x", "-v")
    assert "rerun previous 4 failures" in again.output, again.output
    assert again.outcomes() == {"test_in_ranks": "failure"}
    assert "test_3.py::test_in_ranks FAILED" in again.output
    assert "stopping after 1 failures" in again.output
    assert again.returncode == pytest.ExitCode.TESTS_FAILED


def test_collect_only_starts_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.mnode(nodes=[1, 2])\ndef test_it(world): pass")
    result = pytester.runpytest("--collect-only", "--mnode-nodes=2", "-q")
    result.stdout.fnmatch_lines(["*::test_it[[]nodes1]", "*::test_it[[]nodes2]"])
    assert not any("launcher" in line for line in result.outlines)


def test_the_innermost_mark_with_nodes_makes_the_variants(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest
        pytestmark = pytest.mark.mnode(nodes=[1, 2])
        @pytest.mark.mnode(timeout=9)
        def test_outer(world): pass
        @pytest.mark.mnode(nodes=[2])
        def test_inner(world): pass
        @pytest.mark.mnode(nodes=2)
        def test_one(world): pass
    """)
    result = pytester.runpytest("--collect-only", "--mnode-nodes=2", "-q")
    collected = [line.partition("::")[2] for line in result.outlines if "::" in line]
    assert collected == [
        "test_outer[nodes1]",
        "test_outer[nodes2]",
        "test_inner[nodes2]",
        "test_one",
    ]


def test_without_the_plugin_its_fixtures_are_unknown(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(world): pass")
    result = pytester.runpytest_subprocess("-p", "no:mnode")
    result.stdout.fnmatch_lines(["*fixture 'world' not found*"])


def test_user_fixtures_of_the_same_name_are_kept(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        @pytest.fixture
        def device(): return "mine"

        def test_it(device): assert device == "mine"
    """)
    pytester.runpytest().assert_outcomes(passed=1)


def test_a_run_without_ranks_imports_and_starts_nothing(tmp_path: Path) -> None:
    code = """
        import sys, pytest
        status = pytest.main(["-q", "-p", "no:cacheprovider", "test_it.py"])
        import os
        from pathlib import Path
        heavy = [m for m in ("torch", "zmq", "pydantic", "yaml", "numpy", "cloudpickle",
                             "pyroute2", "psutil", "rich") if m in sys.modules]
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        print("heavy", heavy, "children", children, "status", int(status))
    """
    write_files(tmp_path, test_it="def test_it(): pass", main=code)
    done = subprocess.run(
        [sys.executable, "main.py"],
        cwd=tmp_path,
        env={**clean_env(), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "", "PYTEST_PLUGINS": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "heavy [] children [] status 0" in done.stdout, done.stdout + done.stderr


def test_every_option_is_documented(pytestconfig: pytest.Config) -> None:
    parser = pytestconfig._parser
    [group] = [group for group in parser._groups if group.name == "mnode"]
    registered = {name for option in group.options for name in option.names()}
    ini_keys = {key for key in parser._inidict if key.startswith("mnode_")}
    page = Path(__file__).parents[1] / "docs/tests.md"
    table = options.documentation()
    assert table in page.read_text(), "out of date; run: python -m pytest_mnode.options"
    rows = re.findall(r"^\| `(--mnode-[a-z0-9-]+)(=?)", table, re.MULTILINE)
    assert {name for name, _ in rows} == registered
    valued = {name.removeprefix("--").replace("-", "_") for name, value in rows if value}
    assert valued == ini_keys


def test_requested_nodes_and_a_minimum_of_ranks_per_node_on_cpus(tmp_path: Path) -> None:
    module = """
        import pytest

        @pytest.mark.mnode(nodes=1)
        def test_usual(world): assert world.size == 1

        @pytest.mark.mnode(nodes=1, min_procs_per_node=2)
        def test_least(world): assert world.size == 2

        @pytest.mark.mnode(nodes=1, min_procs_per_node=2)
        def test_least_of_the_cluster(cluster): assert cluster.world().size == 2

        @pytest.mark.mnode(nodes=3)
        def test_three(world): assert world.size == 3

        def test_all(world): assert world.size == 3
    """
    write_files(tmp_path, test_it=module)
    run = run_pytest(tmp_path, "--mnode-launcher=local")
    names = ("usual", "least", "least_of_the_cluster", "three", "all")
    assert run.outcomes() == {f"test_{name}": "passed" for name in names}, run.output
    assert "launcher local (requested), 3 nodes × 1 = 3 ranks" in run.output


def test_accelerators_are_not_shared_to_have_more_ranks() -> None:
    need = WorldRequest(None, None, "warm", 60.0, False, min_procs_per_node=2)
    spec = SimpleNamespace(accelerators=SimpleNamespace(per_node=1))
    one: Any = SimpleNamespace(backend="nccl", spec=spec, procs_per_node=1)
    assert Run.procs_of(one, need) == 1
    one.spec.accelerators.per_node, one.backend = 0, "gloo"
    assert Run.procs_of(one, need) == 2
    one.procs_per_node = 3
    assert Run.procs_of(one, need) == 3


def test_a_test_per_node_runs_on_all_nodes_beside_smaller_tests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest
        pytestmark = pytest.mark.mnode(nodes=2)
        def test_cables(node): pass
    """)
    result = pytester.runpytest("--collect-only", "-q", "--mnode-nodes=4")
    assert "test_cables[node3]" in str(result.stdout)


def test_a_method_of_unittest_has_no_variants(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import unittest
        import pytest
        class TestIt(unittest.TestCase):
            @pytest.mark.mnode(nodes=[1, 2])
            def test_a(self): pass
    """)
    run = run_here(pytester, *LOCAL)
    assert "nodes=[1, 2]): a method of unittest" in run.output
    assert "INTERNALERROR" not in run.output
