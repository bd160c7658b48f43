"""How long and how often storage is asked, by which program, and what is kept of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.criteria.storage import asked, in_ranks
from pytest_mnode.criteria.storage.asked import Asked
from pytest_mnode.errors import RankError
from pytest_mnode.evidence.file import RECORD, rows_from_json
from pytest_mnode.evidence.row import Row, row
from pytest_mnode.measure import Measure
from pytest_mnode.measurement import Measurement, Verdict
from pytest_mnode.spec import load_spec

NODES = ("n0", "n1", "n2")
SPEC = """
name: x
accelerators: {per_node: 8}
fabric: {kind: ethernet, interfaces: [a], line_rate: 1 Gbit/s, nics_per_node: 1, mtu: 1500}
criteria:
  storage:
    give_up_below: 1 GB/s
    paths:
      /shared: PROMISE
certificate: {valid_for: 1 day}
"""


class Cluster:
    """Ranks that answer with the write and read rates of the next repeat, in GB/s."""

    nodes = NODES

    def __init__(self, rates: Iterator[float], tools: list[list[str]]) -> None:
        self.rates, self.tools = rates, tools
        self.timeouts: list[float] = []

    def world(self, **_: Any) -> Any:
        return self

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None: ...

    def run(self, function: Any, *args: Any, timeout: float = 0.0, group: bool = False) -> Any:
        del group
        if function is in_ranks.installed:
            return self.tools
        self.timeouts.append(timeout)
        work, _, repeat = args
        self.tool = work.keywords.get("tool")
        rate = next(self.rates)
        if not rate:
            raise RankError("rank 2 on n2: HungError: no answer")
        return [
            [
                row("write", rate * 1e9, "B/s", node=node, repeat=repeat),
                row("read", rate * 1e9, "B/s", node=node, repeat=repeat),
                row("wrong pages", 0, node=node, size_bytes=1, repeat=repeat),
            ]
            for node in NODES
        ]


def ask(
    tmp_path: Path, promise: str, rates: list[float], tools: list[list[str]] | None = None
) -> tuple[Cluster, list[Measurement], list[Row]]:
    """A checkpoint's findings, and the rows that are kept."""
    page = tmp_path / "spec.yaml"
    page.write_text(SPEC.replace("PROMISE", promise))
    cluster, kept = Cluster(iter(rates), tools or [[]] * 3), list[Row]()
    stash = {RECORD: lambda rows: kept.extend(rows_from_json(one)[1] for one in rows)}
    item: Any = SimpleNamespace(
        name="test", config=SimpleNamespace(stash=stash), session=SimpleNamespace(stash={})
    )
    found: list[Measurement] = []
    storage = Asked(item, lambda: cluster, load_spec(page), Measure(found, ""))  # type: ignore[arg-type, return-value]
    storage("checkpoint", asked.checkpoint)
    return cluster, found, kept


def test_limits_grow_with_what_is_written(tmp_path: Path) -> None:
    promise = "{checkpoint: {size: 100 GB, repeats: 2}}"
    cluster, found, _ = ask(tmp_path, promise, [0.0])
    [timeout] = cluster.timeouts
    assert timeout == pytest.approx(4 * (60 + 100) + 60, rel=1e-3)
    assert {one.verdict for one in found if one.expected} == {Verdict.INCONCLUSIVE}
    assert "no answer" in found[0].note


@pytest.mark.parametrize(
    ("rates", "repeats", "verdict"),
    [
        ([10.0, 10.1, 9.9], 3, Verdict.PASS),
        ([3.0, 3.3, 2.7] * 4, 12, Verdict.INCONCLUSIVE),
        ([1.0, 1.01, 0.99], 3, Verdict.FAIL),
    ],
)
def test_a_repeat_follows_while_a_bound_is_undecided(
    tmp_path: Path, rates: list[float], repeats: int, verdict: Verdict
) -> None:
    promise = "{checkpoint: {model: 70b, write_at_least: 9 GB/s, repeats: 3}}"
    cluster, found, kept = ask(tmp_path, promise, rates)
    assert len(cluster.timeouts) == repeats
    assert found[0].verdict is verdict
    assert len(kept) == 9 * repeats
    assert "/shared: checkpoint of 70b" in found[0].name


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        ([["fio", "elbencho"], ["elbencho"], ["elbencho"]], "elbencho"),
        ([["fio"], [], ["fio"]], "own"),
        ([["fio"], ["fio"], ["fio"]], "fio"),
    ],
)
def test_a_program_that_all_nodes_have_measures(
    tmp_path: Path, tools: list[list[str]], expected: str
) -> None:
    cluster, _, _ = ask(tmp_path, "{checkpoint: {size: 1 GB, repeats: 2}}", [1.0] * 8, tools)
    assert cluster.tool == expected


def test_a_path_without_the_promise_is_not_promised(tmp_path: Path) -> None:
    with pytest.raises(pytest.skip.Exception, match=r"storage\.paths: checkpoint"):
        ask(tmp_path, "{locks: [flock]}", [])
