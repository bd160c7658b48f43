"""What docs/groups.md and docs/data.md show of one's own checks runs, in ranks; one run."""

from __future__ import annotations

import re
from pathlib import Path

from tests.inner import need_rack, run_pytest

DOCS = Path(__file__).parents[3] / "docs"
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


def test_what_is_shown_runs(tmp_path: Path) -> None:
    need_rack()
    for name in ("groups", "data"):
        text = (DOCS / f"{name}.md").read_text()
        blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        (tmp_path / f"test_{name}.py").write_text("\n\n".join([YOURS, *blocks]))
    done = run_pytest(tmp_path, "--mnode-nodes=2")
    assert done.outcomes() == dict.fromkeys(
        (
            *("test_my_mesh", "test_my_groups"),
            *("test_my_sampler", "test_my_loop", "test_my_metrics_and_seeds"),
        ),
        "passed",
    ), done.output
