"""pytest-benchmark with tests in ranks: ranks agree on rounds, and keep their world."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from tests.inner import released_plugins, run_pytest, write_files

NOTED = """
    import os, time
    from pathlib import Path
    import pytest
    from hypothesis import given, settings, strategies as st

    quick = pytest.mark.benchmark(max_time=0.01, min_rounds=2, calibration_precision=2)
    HERE = Path(__file__).parent

    @pytest.fixture(autouse=True)
    def noted(request, world):
        yield
        with (HERE / f"rank{world.rank}").open("a") as file:
            file.write(f"{os.getpid()}\\n")
"""
TESTS = {
    "alone": """
    @quick
    def test_alone(rank, benchmark): benchmark(time.sleep, rank / 1000)
    """,
    "grouped": """
    @quick
    def test_grouped(process_group, rank, benchmark): benchmark(time.sleep, rank / 1000)
    """,
    "examples": """
    @settings(max_examples=5)
    @given(n=st.integers(0, 1000))
    def test_examples(rank, n): pass
    """,
    "pedantic": """
    def test_pedantic(rank, benchmark): benchmark.pedantic(time.sleep, (0.001,), rounds=2)
    """,
    "plain": """
    def test_plain(rank): pass
    """,
}
ORDER = (
    *("alone", "plain", "alone", "grouped", "alone", "examples"),
    *("pedantic", "grouped", "examples", "alone"),
)


def test_ranks_are_kept_across_benchmarks(tmp_path: Path) -> None:
    """For any order of tests that vote, tests in a group, and tests in none."""
    tests = {f"test_{number}_{name}": NOTED + TESTS[name] for number, name in enumerate(ORDER)}
    write_files(tmp_path, **tests)
    run = run_pytest(
        tmp_path,
        *("--mnode-nodes=2", "--mnode-launcher=local", "-p", "no:randomly"),
        env={"PYTHONPATH": str(released_plugins())},
        limit_s=100,
    )
    assert set(run.outcomes().values()) == {"passed"}, run.output
    for rank in range(2):
        pids = (tmp_path / f"rank{rank}").read_text().split()
        assert len(pids) == len(ORDER)
        renewed = [after for after, (a, b) in enumerate(pairwise(pids)) if a != b]
        assert not renewed, f"new ranks after {[ORDER[number] for number in renewed]}"
