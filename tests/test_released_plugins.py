"""Released plugins with tests in ranks, all installed at once: one row of docs/plugins.md each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.inner import InnerRun, released_plugins, run_pytest, write_files

LOCAL = ("--mnode-nodes=2", "--mnode-launcher=local")
PLAIN = """
    import pytest

    def test_passes(world): pass
    def test_fails(world): assert world.rank == 0
    @pytest.mark.skipif("sys.platform == 'linux'", reason="not here")
    def test_skipped(world): raise AssertionError
    @pytest.mark.xfail(raises=ZeroDivisionError)
    def test_expected(rank): 1 / 0
    def test_setup_fails(rank, request): request.getfixturevalue("nobody")
    def test_here(): pass
"""
PLAIN_OUTCOMES = {
    "test_passes": "passed",
    "test_fails": "failure",
    "test_skipped": "skipped",
    "test_expected": "skipped",
    "test_setup_fails": "failure",
    "test_here": "passed",
}
RELEASED = """
    import asyncio, logging, os, random, time
    from pathlib import Path
    import allure, pytest, pytest_html
    import torch.distributed as dist

    HERE = Path(__file__).parent

    @pytest.mark.flaky(reruns=2)
    def test_second_time(world):
        tried = HERE / f"pid{world.rank}"
        if not tried.exists():
            tried.write_text(str(os.getpid()))
            raise ConnectionError("first time")
        assert tried.read_text() != str(os.getpid())

    @pytest.mark.flaky(reruns=1, only_rerun=[OSError])
    def test_not_this_error(world): assert world.rank == 0

    @pytest.mark.timeout(1)
    def test_too_long(rank): time.sleep(60 * rank)

    @pytest.mark.timeout(1, func_only=True)
    def test_body_too_long(rank): time.sleep(60 * rank)

    def test_subtest(world, subtests):
        with subtests.test("first"):
            assert world.rank == 0

    @pytest.mark.asyncio
    async def test_asyncio(process_group, rank):
        await asyncio.sleep(0)
        assert rank == 0

    @pytest.fixture
    def anyio_backend(): return "asyncio"

    @pytest.mark.anyio
    async def test_anyio(rank):
        await asyncio.sleep(0)
        assert rank == 0

    def test_mock(rank, mocker):
        mocker.patch("os.getcwd", return_value=f"rank {rank}")
        assert os.getcwd() == "rank 0"

    @pytest.mark.benchmark(max_time=0.05, min_rounds=3)
    def test_benchmark(process_group, rank, benchmark):
        def body():
            time.sleep(rank / 1000)
            dist.barrier()
        benchmark(body)

    def test_reports(rank, extras, json_metadata):
        extras.append(pytest_html.extras.url(f"http://extra.of.rank{rank}"))
        json_metadata[f"rank {rank}"] = rank
        print(f"printed by rank {rank}")

    @allure.title("a title")
    def test_allure(rank):
        with allure.step(f"step of rank {rank}"):
            allure.attach(f"body {rank}", name=f"file of rank {rank}")
        assert rank == 0

    @pytest.mark.repeat(2)
    def test_repeat(rank): pass

    @pytest.mark.order(2)
    def test_ordered_a(rank): pass

    @pytest.mark.order(1)
    def test_ordered_b(rank): pass

    def test_one_seed(process_group, world):
        seen = [None] * world.size
        dist.all_gather_object(seen, random.random())
        assert len(set(seen)) == 1
"""
COUNT = """
    calls = 0

    def body():
        global calls
        calls += 1

    def test_count(rank, benchmark):
        benchmark(body)
        assert calls == 1
"""
PASS = {
    *("test_second_time", "test_benchmark", "test_reports", "test_repeat[1-2]"),
    *("test_repeat[2-2]", "test_ordered_a", "test_ordered_b", "test_one_seed"),
}
FAIL = {
    *("test_not_this_error", "test_too_long", "test_body_too_long", "test_subtest"),
    *("test_asyncio", "test_anyio", "test_mock", "test_allure"),
}
IN_A_TERMINAL = """
    import sys, pytest

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(config):  # ranks have none
        there = not config.pluginmanager.has_plugin("mnode-rank-session")
        sys.stdout.isatty = lambda: there
"""
ENV = {"COLUMNS": "200"}


def project(directory: Path) -> dict[str, str]:
    """Files of the inner project, and an environment with all plugins."""
    write_files(directory, test_it=RELEASED, test_plain=PLAIN)
    (directory / "pytest.ini").write_text("[pytest]\ntimeout = 90\n")
    return {"PYTHONPATH": str(released_plugins()), **ENV}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> InnerRun:
    directory = tmp_path_factory.mktemp("released")
    return run_pytest(
        directory,
        *LOCAL,
        *("--strict-markers", "-p", "no:subtests", "-p", "pytest_subtests.plugin"),
        *("--html=report.html", "--self-contained-html", "--json-report", "--alluredir=allure"),
        *("--benchmark-json=benchmark.json", "--json-report-file=report.json", "-rfER"),
        env=project(directory),
        limit_s=150,
    )


def of_test(report: Path, name: str) -> dict[str, Any]:
    """A test of pytest-json-report's file."""
    tests = json.loads(report.read_text())["tests"]
    [test] = [t for t in tests if t["nodeid"].endswith(f"::{name}")]
    return dict(test)


def test_outcomes_are_those_of_the_plugins(run: InnerRun) -> None:
    assert run.outcomes() == {
        **dict.fromkeys(PASS, "passed"),
        **dict.fromkeys(FAIL, "failure"),
        **PLAIN_OUTCOMES,
    }, run.output
    assert run.returncode == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize(
    "line",
    [
        "RERUN test_it.py::test_second_time",
        "1 rerun",
        "test_it.py::test_too_long - rank 1 of 2 on local1: no end within 1 s",
        "test_it.py::test_body_too_long - rank 1 of 2 on local1: no end within 1 s",
        "test_it.py::test_asyncio - rank 1 of 2 on local1: assert 1 == 0",
        "test_it.py::test_anyio - rank 1 of 2 on local1: assert 1 == 0",
        "test_it.py::test_mock - rank 1 of 2 on local1: AssertionError: assert 'rank 1' ==",
    ],
)
def test_ranks_are_named(run: InnerRun, line: str) -> None:
    assert line in run.output, run.output


def test_order_is_that_of_the_plugins(run: InnerRun) -> None:
    names = [name for name in run.cases() if "ordered" in name]
    assert names == ["test_ordered_b", "test_ordered_a"]


def test_html_has_what_ranks_added(run: InnerRun) -> None:
    page = (run.junit.parent / "report.html").read_text()
    assert "http://extra.of.rank0" in page
    assert "http://extra.of.rank1" in page


def test_json_report_has_what_ranks_added(run: InnerRun) -> None:
    test = of_test(run.junit.parent / "report.json", "test_reports")
    assert test["outcome"] == "passed"
    assert test["metadata"] == {"rank 0": 0, "rank 1": 1}
    assert test["call"]["stdout"] == "printed by rank 0\nprinted by rank 1\n"
    assert of_test(run.junit.parent / "report.json", "test_passes")["call"]["outcome"] == "passed"


def test_benchmark_keeps_each_rank_with_equal_rounds(run: InnerRun) -> None:
    kept = json.loads((run.junit.parent / "benchmark.json").read_text())["benchmarks"]
    assert [one["name"] for one in kept] == ["test_benchmark[rank 0]", "test_benchmark[rank 1]"]
    assert [one["extra_info"]["node"] for one in kept] == ["local0", "local1"]
    rounds = {(one["stats"]["rounds"], one["stats"]["iterations"]) for one in kept}
    assert len(rounds) == 1, rounds
    assert "test_benchmark[rank 1]" in run.output


def test_allure_has_one_result_with_a_step_per_rank(run: InnerRun) -> None:
    results = [
        json.loads(path.read_text()) for path in (run.junit.parent / "allure").glob("*-result.json")
    ]
    assert len(results) == len(run.outcomes()) + 1  # a rerun has its own result
    [result] = [r for r in results if r["name"] == "a title"]
    assert result["status"] == "failed"
    assert "rank 1 of 2 on local1" in result["statusDetails"]["trace"]
    assert [(s["name"], s["status"]) for s in result["steps"]] == [
        ("rank 0 on local0", "passed"),
        ("rank 1 on local1", "failed"),
    ]
    for rank, step in enumerate(result["steps"]):
        [inner] = step["steps"]
        assert inner["name"] == f"step of rank {rank}"
        [attached] = inner["attachments"]
        body = (run.junit.parent / "allure" / attached["source"]).read_text()
        assert body == f"body {rank}"
    assert result["start"] <= result["steps"][0]["start"] <= result["stop"]


def test_workers_of_xdist_rerun_and_sugar_shows_it(tmp_path: Path) -> None:
    """Benchmarks are disabled in them, and in their ranks too."""
    env = project(tmp_path)
    write_files(tmp_path, test_count=COUNT)
    run = run_pytest(
        tmp_path,
        *LOCAL,
        *("-n1", "--force-sugar", "--timeout-method=thread", "--json-report"),
        *("-k", "second_time or test_too_long or benchmark or repeat or count"),
        *("--benchmark-enable",),
        env=env,
        limit_s=150,
    )
    expected = {
        name: "passed" if name in PASS else "failure"
        for name in PASS | FAIL
        if any(word in name for word in ("second_time", "test_too_long", "benchmark", "repeat"))
    }
    assert run.outcomes() == expected | {"test_count": "passed"}, run.output
    assert "Benchmarks are automatically disabled because xdist plugin is active" in run.output
    assert "1 rerun" in run.output
    assert "✓" in run.output
    tests = json.loads((tmp_path / ".report.json").read_text())["tests"]
    assert len(tests) == len(run.outcomes())


def test_rich_shows_ranks_and_split_takes_its_group(tmp_path: Path) -> None:
    env = project(tmp_path)
    write_files(tmp_path, conftest=IN_A_TERMINAL)
    args = (*LOCAL, "--rich", "--splits=2", "--group=1", "-p", "no:randomly", "test_plain.py")
    run = run_pytest(tmp_path, *args, env=env, limit_s=100)
    first = list(PLAIN_OUTCOMES)[:3]
    assert run.outcomes() == {name: PLAIN_OUTCOMES[name] for name in first}, run.output
    assert "rank 1 of 2 on local1" in run.output
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, run.output
