"""Engines of tests/engines start as seldom as can be, on any number of workers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.engines.conftest import pytest_xdist_make_scheduler

TESTS_OF_A_FILE = 3


class Worker:
    """A worker that is told which tests to run, by index."""

    shutting_down = False

    def __init__(self) -> None:
        self.told: list[int] = []
        self.gateway = SimpleNamespace(id="gw")

    def send_runtest_some(self, indices: list[int]) -> None:
        self.told += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def files_of_workers(directory: Path, engines: list[str], workers: int) -> list[list[str]]:
    """Engine of each file that each worker gets, of workers that are equally fast.

    engines: of each file, in the order of collection; "" for none.
    """
    tests = []
    for index, engine in enumerate(engines):
        name = f"test_{index}.py"
        (directory / name).write_text(f"def test_it({engine}: object): ..." if engine else "")
        tests += [f"{name}::test_{n}" for n in range(TESTS_OF_A_FILE)]
    option = SimpleNamespace(loadscopereorder=False)
    config: Any = SimpleNamespace(
        getvalue={"tx": ["popen"] * workers}.get, option=option, rootpath=directory
    )
    log = SimpleNamespace(loadscopesched=print, loadfilesched=print)
    scheduler: Any = pytest_xdist_make_scheduler(config, log)
    nodes = [Worker() for _ in range(workers)]
    for node in nodes:
        scheduler.add_node(node)
    for node in nodes:
        scheduler.add_node_collection(node, tests)
    scheduler.schedule()
    for step in range(len(tests)):
        for node in nodes:
            if step < len(node.told):
                scheduler.mark_test_complete(node, node.told[step])
    assert sorted(index for node in nodes for index in node.told) == list(range(len(tests)))
    return [[engines[index // TESTS_OF_A_FILE] for index in node.told[::3]] for node in nodes]


@pytest.mark.parametrize(
    ("collected", "expected"),
    [
        ("bed slurm bed slurm bed slurm", ["bed bed bed", "slurm slurm slurm"]),
        ("bed slurm ssh bed slurm ssh", ["bed bed", "slurm slurm", "ssh ssh"]),
        ("bed bed slurm slurm", ["bed bed", "slurm slurm"]),
        ("bed slurm bed slurm", ["bed bed slurm slurm"]),
    ],
)
def test_a_worker_goes_on_with_its_engine(
    tmp_path: Path, collected: str, expected: list[str]
) -> None:
    given = files_of_workers(tmp_path, collected.split(), len(expected))
    assert [" ".join(engines) for engines in given] == expected


def test_a_second_engine_of_a_kind_starts_only_when_nothing_else_is_left(tmp_path: Path) -> None:
    engines = ["bed"] * 6 + ["slurm"]
    first, second = files_of_workers(tmp_path, engines, 2)
    assert set(first) == {"bed"}
    assert second[0] == "slurm"
    assert set(second[1:]) == {"bed"}


def test_a_file_without_an_engine_starts_none(tmp_path: Path) -> None:
    assert files_of_workers(tmp_path, ["bed", "", "bed"], 2)[1] == [""]
