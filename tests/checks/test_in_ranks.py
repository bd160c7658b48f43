"""Checks of a test's own groups, sampler, loop and metrics, and those in the docs, in one run."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.inner import InnerRun, need_rack, run_pytest

SCENARIOS = Path(__file__).with_name("scenarios")
DOCS = Path(__file__).parents[2] / "docs"
SHOWN = ("groups", "data")
YOURS = """
import pytest
import random
import numpy
import torch._dynamo
from torch.utils.data import DataLoader, DistributedSampler
from pytest_mnode.checks.data import mean_over_ranks
from pytest_mnode.checks.data.checks import train

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

def make_loader(rank, size):
    samples = [{"index": i} for i in range(8 * size + 1)]
    return DataLoader(samples, 4, sampler=DistributedSampler(samples, size, rank))

def reduced(values):
    return mean_over_ranks(values, torch.device("cpu"))

def seed(number):
    random.seed(number)
    numpy.random.seed(number)
    torch.manual_seed(number)
"""


def shown(name: str) -> str:
    """The code shown on a page of the docs."""
    text = (DOCS / f"{name}.md").read_text()
    return "\n\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))


def names_in(*sources: str) -> list[str]:
    return [
        one.name
        for source in sources
        for one in ast.parse(source).body
        if isinstance(one, ast.FunctionDef) and one.name.startswith("test_")
    ]


NAMES = names_in(*(path.read_text() for path in SCENARIOS.glob("*.py")), *map(shown, SHOWN))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> InnerRun:
    need_rack()
    directory = tmp_path_factory.mktemp("own")
    for path in SCENARIOS.glob("*.py"):
        shutil.copy(path, directory / f"test_{path.name}")
    for name in SHOWN:
        (directory / f"test_{name}.py").write_text(f"{YOURS}\n\n{shown(name)}")
    done = run_pytest(directory, "--mnode-nodes=2")
    assert done.outcomes(), done.output
    return done


@pytest.mark.parametrize("name", NAMES)
def test_in_ranks(run: InnerRun, name: str) -> None:
    found = {n: o for n, o in run.outcomes().items() if n.partition("[")[0] == name}
    assert found, run.output
    assert set(found.values()) == {"passed"}, run.output


def test_nothing_else_ran(run: InnerRun) -> None:
    assert {name.partition("[")[0] for name in run.outcomes()} == set(NAMES)
    assert len(NAMES) == len(set(NAMES))


def test_importing_the_checks_takes_no_torch() -> None:
    code = (
        "import sys; from pytest_mnode.checks import data, groups; groups.Layout, groups.layouts; "
        "data.judge_shards, data.seeds_of_two_runs, data.judge_mean, data.judge_files; "
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
