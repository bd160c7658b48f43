"""Wrong results of one rank are found in every repeat and attributed to that rank."""

from __future__ import annotations

from pathlib import Path

from tests.inner import run_pytest

SCENARIO = Path(__file__).with_name("scenarios") / "faulty.py"


def test_every_injected_fault_is_found(tmp_path: Path) -> None:
    (tmp_path / "test_faulty.py").write_text(SCENARIO.read_text())
    done = run_pytest(tmp_path, "--mnode-nodes=3", "--mnode-launcher=local", "--mnode-timeout=20")
    outcomes = done.outcomes()
    assert len(outcomes) == 16, done.output
    assert set(outcomes.values()) == {"passed"}, done.output
