"""Job files: what is read, and one-line errors for what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mnode.criteria.launching.styles import LaunchJob, read_job
from pytest_mnode.errors import UsageError

JOBS = Path(__file__).parents[3] / "fixtures" / "jobs"
MINIMAL = "name: a\nnodes: 2\naccelerators_per_node: 0\ncommand: [python, train.py]\n"


def job(directory: Path, text: str) -> LaunchJob:
    path = directory / "job.yaml"
    path.write_text(text)
    return read_job(path)


def test_a_short_job_is_torchrun_with_one_rank_per_node(tmp_path: Path) -> None:
    read = job(tmp_path, MINIMAL)
    assert (read.style, read.image, read.env) == ("torchrun", None, {})
    placed = read.placed(4, 8)
    assert (placed.node_count, placed.accelerators_per_node, placed.rank_count) == (2, 0, 1)


@pytest.mark.parametrize(
    ("more", "has", "every", "placed"),
    [
        ("ranks_per_node: 2", 8, None, (16, 8, 8)),
        ("ranks_per_node: 2", 0, None, (16, 0, 2)),
        ("ranks_per_node: 2\nstyle: plain", 0, None, (16, 0, 1)),
        ("", 0, 2, (2, 0, 1)),  # fewer nodes than the cluster has
    ],
)
def test_all_means_all_nodes_and_one_rank_per_accelerator(
    tmp_path: Path, more: str, has: int, every: int | None, placed: tuple[int, int, int]
) -> None:
    text = MINIMAL.replace("nodes: 2", "nodes: all").replace("_node: 0", "_node: all")
    made = job(tmp_path, f"{text}{more}\n").placed(16, has, every=every)
    assert (made.node_count, made.accelerators_per_node, made.rank_count) == placed


def test_a_number_of_nodes_is_kept_whatever_all_means(tmp_path: Path) -> None:
    three = job(tmp_path, MINIMAL.replace("nodes: 2", "nodes: 3"))
    assert three.placed(4, 0, every=2).node_count == 3


def test_ranks_per_node_is_filled_into_the_command(tmp_path: Path) -> None:
    text = MINIMAL.replace("_node: 0", "_node: all").replace("train.py", '"-x={ranks_per_node}"')
    read = job(tmp_path, text + "ranks_per_node: 3\n")
    assert read.placed(2, 0).command == ("python", "-x=3")
    assert read.placed(2, 8).command == ("python", "-x=8")


def test_one_rank_per_accelerator_or_no_accelerators(tmp_path: Path) -> None:
    two = MINIMAL.replace("_node: 0", "_node: 2")
    line = r"job.yaml: ranks_per_node: 5 with accelerators_per_node 2; accepted: 2, one per acc"
    with pytest.raises(UsageError, match=line) as caught:
        job(tmp_path, two + "ranks_per_node: 5\n")
    assert "\n" not in str(caught.value)
    assert job(tmp_path, two + "ranks_per_node: 2\n").placed(2, 8).rank_count == 2


def test_here_is_replaced_by_the_folder_of_the_file(tmp_path: Path) -> None:
    read = job(tmp_path, MINIMAL.replace("train.py", '"{here}/train.py"'))
    assert read.command == ("python", f"{tmp_path}/train.py")


@pytest.mark.parametrize("name", ["torchrun", "deepspeed", "megatron"])
def test_the_programs_of_our_job_files_exist(name: str) -> None:
    read = read_job(JOBS / f"{name}.yaml")
    assert (read.name, read.style) == (name, name)
    assert all(Path(word).exists() for word in read.command if word.startswith("/"))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (("nodes: 2", "nodes: 0"), "nodes: 0; accepted: a whole number of 1 or more, or all"),
        (("nodes: 2", "nodes: some"), "nodes: 'some'; accepted: a whole number of 1 or"),
        (("nodes: 2\n", ""), "nodes: missing; needed: Number of nodes"),
        (("name: a", "name: a\nimages: b"), "images: unknown key; did you mean image"),
        (("command: [python, train.py]", "command: []"), "command: []; accepted: a list of 1"),
        (("command: [python, train.py]", "command: python"), "command: 'python'; accepted: a list"),
        (("name: a", "name: a\nstyle: mpi"), "style: 'mpi'; accepted: 'torchrun', 'deepspeed'"),
        (("name: a", "name: a\nenv: {RANK: '0'}"), "env: RANK would be the same in every process"),
        (("name: a", "name: a\nenv: {A-B: '0'}"), "env: 'A-B'; accepted: names of variables"),
        (("name: a", "name: a\nenv: {A: 1}"), "env.A: 1; accepted: text"),
        (("_node: 0", "_node: -1"), "accelerators_per_node: -1; accepted: a whole number of 0"),
        (("name: a", "name: a\nname: b"), "name: key given twice"),
    ],
)
def test_errors_are_one_line(tmp_path: Path, change: tuple[str, str], line: str) -> None:
    with pytest.raises(UsageError) as caught:
        job(tmp_path, MINIMAL.replace(*change))
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(f"{tmp_path}/job.yaml: ")
    assert line in text


@pytest.mark.parametrize(
    ("nodes", "has", "line"),
    [
        (1, 8, "nodes 2; accepted: up to 1"),
        (2, 4, "accelerators_per_node 8; the spec has 4 per node"),
    ],
)
def test_more_nodes_or_accelerators_than_exist_are_refused(
    tmp_path: Path, nodes: int, has: int, line: str
) -> None:
    wants = job(tmp_path, MINIMAL.replace("_node: 0", "_node: 8"))
    with pytest.raises(UsageError, match=f"^job a: {line}$"):
        wants.placed(nodes, has)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no such file or directory; accepted: a YAML file"):
        read_job(tmp_path / "none.yaml")
