"""The observer: what ranks of a job note that knows nothing of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import pytest

from pytest_mnode.criteria.goodput import read_notes, where
from pytest_mnode.errors import TimeLimitError
from pytest_mnode.jobs import observer
from pytest_mnode.jobs.observed import Notes, StalledError, notes
from tests.waiting import until

TRAINING = """
    import importlib.util, subprocess, sys, time
    assert importlib.util.find_spec("torch")  # as some programs do first
    import torch
    from torch.utils.data import DataLoader

    assert sys.argv.pop() == "hidden"  # by the sitecustomize of the site
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    other = torch.optim.SGD([torch.ones(1, requires_grad=True)], 0.001)

    def train(stop):
        for step, batch in enumerate(DataLoader([torch.ones(8)] * 20, 2), 1):
            model(batch).sum().backward()
            optimizer.step()
            other.step()
            if step == stop:
                break

    train(8)
    torch.save(model, sys.argv[1] + "/model.pt")
    {then}
"""
OWN_PROFILER = """
subprocess.run([sys.executable, "-c", "import torch"], check=True)
for _ in range(2):
    train(8)
with torch.profiler.profile() as own:
    train(3)
assert own.key_averages()
"""
"""It begins at step 25, at which the observer begins a trace too, and has written it first."""


def observed(tmp_path: Path, then: str = "pass", rank: str = "3") -> subprocess.Popen[str]:
    """A started rank; its notes are in tmp_path/notes."""
    for name in ("notes", "site", "job"):
        (tmp_path / name).mkdir()
    source = Path(observer.__file__).read_text()
    (tmp_path / "notes/sitecustomize.py").write_text(source)
    (tmp_path / "site/sitecustomize.py").write_text("import sys; sys.argv.append('hidden')")
    script = tmp_path / "train.py"
    script.write_text(dedent(TRAINING).replace("{then}", dedent(then).strip()))
    env = {**os.environ, "MNODE_JOB_NODE": "node1", "RANK": rank}
    env["PYTHONPATH"] = str(tmp_path / "site")
    env |= Notes(tmp_path / "notes").env(env)
    argv = [sys.executable, str(script), str(tmp_path / "job")]
    return subprocess.Popen(argv, env=env, text=True, stderr=subprocess.PIPE)


def test_what_a_rank_notes(tmp_path: Path) -> None:
    program = observed(tmp_path, OWN_PROFILER)
    _, said = program.communicate(timeout=60)
    assert program.returncode == 0, said
    [[noted]] = read_notes(Notes(tmp_path / "notes").files())
    assert (noted.rank, noted.node, len(noted.steps)) == (3, "node1", 27)
    assert {kind: len(some) for kind, some in noted.spans.items()} == {
        "input": 27,
        "save": 1,
        "observing": 3,
    }
    assert noted.forward is not None
    assert noted.began is not None
    assert noted.began < noted.forward < noted.steps[0]
    [traced] = noted.traces.items()
    assert traced[0] == 7
    assert traced[1].computing > 0


class Endless:
    """A job that never ends."""

    def wait(self, timeout: float) -> None:
        time.sleep(timeout)
        raise TimeLimitError(f"the job still runs on node1 after {timeout:g} s")


@pytest.mark.parametrize("stalls", [True, False])
def test_a_rank_that_hangs_says_where_it_is(tmp_path: Path, stalls: bool) -> None:
    program = observed(tmp_path, "def load():\n    time.sleep(100)\nload()")
    try:
        job, there = Endless(), Notes(tmp_path / "notes")
        until(lambda: any(b'["step"' in one for one in there.files().values()), limit_s=60)
        with pytest.raises(StalledError if stalls else TimeLimitError) as ended:
            there.wait(job, 60 if stalls else 3, 2 if stalls else None)  # type: ignore[arg-type]
        assert ("no step for 2 s" in str(ended.value)) is stalls
        assert ("after 3 s" in str(ended.value)) is not stalls
        files = there.files()
        assert where(files["stack_rank_3.txt"].decode()).endswith(" in load")
        assert "flight_recorder_rank_3" in files
    finally:
        program.kill()
        program.communicate()


def test_the_folder_of_the_notes_is_removed(tmp_path: Path) -> None:
    with notes(SimpleNamespace(scratch=tmp_path)) as there:  # type: ignore[arg-type]
        assert [one.name for one in tmp_path.rglob("*.py")] == ["sitecustomize.py"]
        assert there.env({"PYTHONPATH": "/x"})["PYTHONPATH"] == f"{there.folder}:/x"
    assert list(tmp_path.iterdir()) == []


def test_ranks_that_say_nothing_are_not_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_mnode.jobs.observed._DUMPED_S", 0.3)
    (tmp_path / "rank0.7.jsonl").write_text('["step", 1.0]\n')
    with pytest.raises(StalledError):
        Notes(tmp_path).wait(Endless(), 60, 0.1)  # type: ignore[arg-type]
    assert (tmp_path / "DUMP").exists()
