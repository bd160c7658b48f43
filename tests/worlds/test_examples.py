"""hypothesis tests in ranks: the same examples in all ranks, one outcome each, one report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.inner import InnerRun, run_pytest, write_files

TESTS = """
    import json, os, pathlib, unittest
    import pytest
    from hypothesis import assume, example, given, settings, strategies as st

    HERE = pathlib.Path(__file__).parent
    settings.register_profile("few", max_examples=30)
    settings.load_profile("few")

    @pytest.fixture(scope="module")
    def drawn(world):
        values = []
        yield values
        (HERE / f"drawn.{world.rank}.json").write_text(json.dumps(values))

    def total(n):
        import torch, torch.distributed as dist
        x = torch.tensor([float(n)])
        dist.all_reduce(x)
        return x.item()

    @given(n=st.integers(0, 1000))
    def test_passes(process_group, drawn, n):
        drawn.append(n)
        assert total(n) == 2 * n

    @given(n=st.integers(0, 1000))
    def test_assumes_in_one_rank(process_group, rank, n):
        total(n)
        assume(rank == 0 or n % 2)

    @given(n=st.integers(0, 1000))
    def test_one_rank_fails(process_group, rank, n):
        total(n)
        assert rank == 0 or n < 17

    @given(n=st.integers(0, 1000), values=st.lists(st.integers()))
    def test_all_fail(process_group, n, values):
        total(n)
        assert n < 10 or len(values) < 2

    @given(n=st.integers(0, 1000))
    def test_two_failures(process_group, rank, n):
        total(n)
        assert not (rank == 0 and n > 100), "too large"
        if rank == 1 and n == 0:
            raise ValueError("zero")

    @given(data=st.data())
    def test_draws_by_rank(process_group, rank, data):
        data.draw(st.integers(0, 10 + rank))
        total(1)

    class TestClass:
        @given(data=st.data())
        def test_draws_between_collectives(self, process_group, rank, data):
            a = data.draw(st.integers(0, 10))
            b = data.draw(st.integers(0, int(total(a))))
            assert rank == 0 or a + b < 5

    @pytest.mark.mnode(nodes=2)
    class TestOfUnittest(unittest.TestCase):
        @given(n=st.integers(0, 1000))
        def test_of_unittest(self, n):
            self.assertFalse(n > 16 and os.environ["RANK"] == "1")

    @example(n=5)
    @given(n=st.integers(0, 1000))
    def test_explicit(rank, n):
        assert rank == 0 or n != 5

    @settings(derandomize=True, deadline=1, database=None)
    @given(n=st.integers(0, 1000))
    def test_settings_of_its_own(process_group, n):
        assert total(n) == 2 * n

    @given(n=st.integers(0, 100))
    def test_fails_before_the_collective(process_group, rank, n):
        assert rank == 1 or n < 3
        total(n)

    def test_after_it(process_group):
        assert total(1) == 2

    @pytest.fixture
    def own(rank): return rank

    @given(n=st.integers(0, 1000))
    def test_function_scope(own, n): pass
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("examples")


@pytest.fixture(scope="module")
def run(directory: Path) -> InnerRun:
    write_files(directory, test_it=TESTS)
    options = ("--mnode-nodes=2", "--mnode-launcher=local", "--mnode-timeout=100")
    plugin = ("-p", "_hypothesis_pytestplugin", "--hypothesis-show-statistics")
    return run_pytest(directory, *options, *plugin, env={"COLUMNS": "200"})


def failure(run: InnerRun, name: str) -> str:
    found = run.cases()[name].find("failure")
    assert found is not None, run.output
    return str(found.text)


def test_only_the_intended_tests_fail(run: InnerRun) -> None:
    passed = {name for name, outcome in run.outcomes().items() if outcome == "passed"}
    assert passed == {
        *("test_passes", "test_assumes_in_one_rank", "test_settings_of_its_own", "test_after_it")
    }, run.output


def test_all_ranks_try_the_same_examples(run: InnerRun, directory: Path) -> None:
    first, second = (json.loads((directory / f"drawn.{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    assert len(set(first)) > 10


@pytest.mark.parametrize(
    ("name", "ranks", "example"),
    [
        ("test_one_rank_fails", "rank 1 of 2 on local1", "n=17,"),
        ("test_of_unittest", "rank 1 of 2 on local1", "n=17,"),
        ("test_all_fail", "ranks 0-1 of 2 on local0,local1", "values=[0, 0],"),
        ("test_draws_between_collectives", "rank 1 of 2 on local1", "Draw 1: 2"),
        ("test_explicit", "rank 1 of 2 on local1", "n=5,"),
    ],
)
def test_the_smallest_example_is_reported_once_with_its_ranks(
    run: InnerRun, name: str, ranks: str, example: str
) -> None:
    text = failure(run, name)
    assert f"[{ranks}]" in text
    assert example in text
    assert text.count("Failing") == 1, text


def test_each_of_two_failures_is_shrunk_and_named(run: InnerRun) -> None:
    text = failure(run, "test_two_failures")
    assert "n=101," in text
    assert "ValueError: zero" in text


def test_ranks_that_draw_different_values_are_reported(run: InnerRun) -> None:
    text = failure(run, "test_draws_by_rank")
    assert "[ranks 0-1 of 2 on local0,local1]\nranks drew different values; every rank" in text


def test_an_example_is_not_shrunk_if_other_ranks_wait_in_a_collective(run: InnerRun) -> None:
    text = failure(run, "test_fails_before_the_collective")
    assert "[rank 0 of 2 on local0: first]" in text
    assert "Failing test case (not shrunk: other ranks did not end it within 3 s)" in text
    assert "[rank 1 of 2 on local1: caused by the first failure]" in text


def test_the_plugin_of_hypothesis_works_in_ranks(run: InnerRun) -> None:
    """It reads a test's fixtures, adds a section to an example, and shows statistics."""
    assert "uses a function-scoped fixture 'own'" in failure(run, "test_function_scope")
    assert run.output.count("test_it.py::test_passes:") == 1, run.output
