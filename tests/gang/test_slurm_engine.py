"""Counting of nodes and submission by the engine, with fake commands of Slurm."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_mnode.backends.slurm import SlurmBackend
from pytest_mnode.errors import UsageError
from pytest_mnode.gang import slurm
from pytest_mnode.gang.engine import GangRequest
from pytest_mnode.gang.slurm import SlurmEngine
from tests.programs import write_program

NODES = (
    ("n0", "State=IDLE CPUTot=8 RealMemory=2000 Gres=gpu:a100:4(S:0-1),nic:1 ActiveFeatures=a100 "
           "Partitions=gpu"),
    ("n1", "State=ALLOCATED CPUAlloc=8 ActiveFeatures=a100 Partitions=gpu"),
    ("n2", "State=IDLE CPUTot=16 RealMemory=8000 MemSpecLimit=1000 Gres=gpu:h100:8,gpu:t4:1 "
           "ActiveFeatures=h100 Partitions=all,gpu"),
    ("n3", "State=IDLE Partitions=all"),
    ("n4", "State=IDLE+RESERVED ActiveFeatures=a100 Partitions=gpu"),
    ("n5", "State=INVAL Partitions=gpu"),
)  # fmt: skip
SCONTROL = f"""#!/bin/sh
case "$*" in
*reservation*) echo "ReservationName=cert Nodes=n[4-5] State=ACTIVE";;
*) echo "{chr(10).join(f"NodeName={name} {facts}" for name, facts in NODES)}";;
esac
"""
LEFT = SlurmBackend().leftovers("mnode-gang-1")
FAKES = {
    "scontrol": SCONTROL,
    "sinfo": "#!/bin/sh\necho 'gpu*'; echo all\n",
    "squeue": """#!/bin/sh
case "$*" in *nodelist=*) echo "$*" >"$MNODE_RECORD.asked"; cat "$MNODE_RECORD.jobs";; esac
""",
    "scancel": "#!/bin/sh\nexit 0\n",
    "sbatch": """#!/bin/sh
env >"$MNODE_RECORD"
printf "%s\\n" "$@" >"$MNODE_RECORD.argv"
echo 17
""",
}


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake commands, first in PATH, and no process that ends jobs."""
    monkeypatch.setattr(slurm, "Cleanup", lambda *_: SimpleNamespace(end=lambda _: ""))
    for name, text in FAKES.items():
        write_program(tmp_path / name, text)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("MNODE_RECORD", str(tmp_path / "record"))
    (tmp_path / "record.jobs").write_text("")


@pytest.mark.parametrize(
    ("names", "nodes", "free"),
    [
        ({}, ("n0", "n1", "n2"), ("n0", "n2")),
        ({"partition": "gpu,all"}, ("n0", "n1", "n2", "n3"), ("n0", "n2", "n3")),
        ({"constraint": "a100"}, ("n0", "n1"), ("n0",)),
        ({"reservation": "cert"}, ("n4",), ("n4",)),
    ],
)
def test_nodes_that_jobs_may_get(
    tmp_path: Path, names: Mapping[str, str], nodes: tuple[str, ...], free: tuple[str, ...]
) -> None:
    with engine_of(tmp_path, **names) as engine:
        found = engine.capacity()
        assert (found.nodes, found.free) == (nodes, free)
        assert ("n4" in engine.others(["n0", "n4"])) is ("reservation" not in names)


def test_a_constraint_that_cannot_be_counted_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="its nodes cannot be counted; accepted: features"):
        SlurmEngine(tmp_path, LEFT, names={"constraint": "[rack1|rack2]"})
    assert not list(tmp_path.glob(".mnode-gang-*"))


def test_jobs_are_submitted_to_the_counted_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBATCH_PARTITION", "all")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    with engine_of(tmp_path) as engine:
        assert engine.submit(GangRequest("A", nodes=1, runs_s=1.0, limit_s=60.0)) == ("17",)
    given = (tmp_path / "record").read_text()
    assert "SLURM_CONF=/etc/slurm.conf\n" in given
    assert "SBATCH_PARTITION=" not in given
    assert "SLURM_JOB_ID=" not in given


@contextmanager
def engine_of(directory: Path, *args: str, **names: str) -> Iterator[SlurmEngine]:
    engine = SlurmEngine(directory, LEFT, args=args, names=names)
    try:
        yield engine
    finally:
        engine.close()


def submitted(directory: Path, among: tuple[str, ...], *args: str) -> list[str]:
    with engine_of(directory, *args) as engine:
        engine.submit(GangRequest("A", 1, 1.0, 60.0, among))
    return (directory / "record.argv").read_text().splitlines()


@pytest.mark.parametrize(
    ("args", "nodes"),
    [
        ([], ["n0", "n1", "n2"]),
        (["--exclude=n1"], ["n0", "n2"]),
        (["-x", "n[0-1]"], ["n2"]),
        (["-xn0,n1"], ["n2"]),
        (["--nodelist=n[0,2]"], ["n0", "n2"]),
        (["-w", "n2"], ["n2"]),
        (["--nodelist=n[0-2]", "--exclude", "n2"], ["n0", "n1"]),
        # The last option counts, as in sbatch.
        (["--exclude=n1", "--exclude=n0"], ["n1", "n2"]),
        # A property that only some nodes have.
        (["--gpus-per-node=4"], ["n0", "n2"]),
        (["--gpus-per-node=5"], ["n2"]),
        (["--gpus-per-node=a100:4"], ["n0"]),
        (["--gpus-per-node=h100:9"], []),
        (["--gres=gpu"], ["n0", "n2"]),
        (["--gres=gpu:a100"], ["n0"]),
        (["--gres=gpu:2,nic:1"], ["n0"]),
        (["--gres=gpu:a100:4"], ["n0"]),
        (["--gres=none"], ["n0", "n1", "n2"]),
        (["--mem=0"], ["n0", "n1", "n2"]),
        (["--mem=2000"], ["n0", "n2"]),
        (["--mem=6G"], ["n2"]),
        (["--mem=7001M"], []),
        (["--cpus-per-task=9"], ["n2"]),
        (["-c8"], ["n0", "n2"]),
    ],
)
def test_options_that_exclude_nodes(tmp_path: Path, args: list[str], nodes: list[str]) -> None:
    with engine_of(tmp_path, *args) as engine:
        found = engine.capacity()
    assert list(found.nodes) == nodes
    assert set(found.free) <= set(nodes)


@pytest.mark.parametrize(
    ("args", "among", "out"),
    [
        ([], ("n0",), "--exclude=n[1-5]"),
        (["--exclude=n1"], ("n0", "n2"), "--exclude=n[1,3-5]"),
        (["-x", "n1"], (), "--exclude=n1"),
        (["--nodelist=n0,n2"], ("n0", "n2"), "--exclude=n[1,3-5]"),
        # Also for a gang larger than the cluster.
        (["-wn0,n2", "--exclude=n3"], (), "--exclude=n[1,3-5]"),
        ([], (), None),
    ],
)
def test_excluded_nodes_are_excluded_in_sbatch_too(
    tmp_path: Path, args: list[str], among: tuple[str, ...], out: str | None
) -> None:
    words = submitted(tmp_path, among, *args)
    assert [w for w in words if w.startswith(("--exclude", "-x"))] == ([out] if out else [])
    assert not [w for w in words if w.startswith(("-x", "-w", "--nodelist")) or w == "n1"]


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--exclude=/home/x", "--exclude=/home/x: a file of names is not supported; accepted: n"),
        ("--nodefile=x", "--nodefile: its nodes cannot be counted"),
        ("-G8", "-G: its nodes cannot be counted"),
        ("--gpus=8", "--gpus: its nodes cannot be counted"),
        ("--gpus-per-task=1", "--gpus-per-task: its nodes cannot"),
        ("--mem-per-cpu=4G", "--mem-per-cpu: its nodes cannot"),
        ("--tres-per-node=gres/gpu:4", "--tres-per-node: its nodes cannot"),
        ("--contiguous", "--contiguous: its nodes cannot"),
        ("--mem=much", "--mem=much: invalid; accepted: 64G, 512000M"),
        ("--gres=gpu:a:b:c", "--gres=gpu:a:b:c: invalid; accepted: gpu:4, gpu:a100:4"),
        ("--gpus-per-node=x:y", "--gpus-per-node=x:y: invalid; accepted: 4, a100:4"),
        ("--cpus-per-task=x", "--cpus-per-task=x: invalid; accepted: 16"),
    ],
)
def test_options_that_cannot_be_counted_are_refused(tmp_path: Path, option: str, text: str) -> None:
    with pytest.raises(UsageError) as error:
        SlurmEngine(tmp_path, LEFT, args=[option])
    assert str(error.value).startswith(f"--mnode-slurm-args: {text}")
    assert "\n" not in str(error.value)
    assert not list(tmp_path.glob(".mnode-gang-*"))


def test_a_name_of_no_node(tmp_path: Path) -> None:
    missing = pytest.raises(
        UsageError, match=r"^--mnode-slurm-args: --nodelist=n0,m9: m9: no such node$"
    )
    with engine_of(tmp_path, "--nodelist=n0,m9") as engine, missing:
        engine.capacity()


def test_options_of_salloc_alone_are_removed(tmp_path: Path) -> None:
    options = "-I -I60 --immediate --immediate=60 --bell --no-bell -K -KTERM --kill-command"
    more = "--kill-command=9 --no-shell --account=lab --no-kill"
    words = submitted(tmp_path, (), *f"{options} {more}".split())
    assert words[:3] == ["--parsable", "--account=lab", "--no-kill"]


@pytest.mark.parametrize("state", ["RESERVED", "MAINT", "IDLE+RESERVED", "IDLE+MAINT"])
def test_nodes_of_a_reservation_in_any_version(tmp_path: Path, state: str) -> None:
    text = SCONTROL.replace("State=IDLE+RESERVED", f"State={state}")
    (tmp_path / "scontrol").write_text(text)
    with engine_of(tmp_path, reservation="cert") as engine:
        found = engine.capacity()
        assert (found.nodes, found.free) == (("n4",), ("n4",))
        assert "n4" not in engine.others(["n0", "n4"])
    with engine_of(tmp_path) as engine:
        expected = "IDLE+MAINT" if "M" in state else "IDLE+RESERVED"
        assert engine.others(["n0", "n4"]) == {"n4": expected}


def test_other_jobs_are_listed_for_these_nodes_only(tmp_path: Path) -> None:
    with engine_of(tmp_path) as engine:
        ours = engine._job_name
        (tmp_path / "record.jobs").write_text(
            f"7|RUNNING|0|None|n0|all||me|{ours}\n8|COMPLETING|0|None|n[1-3]|all||bob|a|b\nc\n"
            "9|PENDING|0|Resources||all||bob|x\n"
        )
        assert engine.others(["n0", "n1", "n2"]) == dict.fromkeys(("n1", "n2"), "job 8 of bob")
        assert "--nodelist=n[0-2]" in (tmp_path / "record.asked").read_text()


def test_heartbeats_that_cannot_be_read_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine_of(tmp_path) as engine:
        (engine.directory / "1.0.0.beats").mkdir()
        (engine.directory / "1.0.1.beats").write_text("beat 1 0 1 n1 1700000000.0\n")
        observation = engine.observe()
        assert ([beat.rank for beat in observation.beats], observation.unreadable) == ([1], 1)
        (engine.directory / "1.0.0.beats").rmdir()
        monkeypatch.setattr(Path, "glob", lambda *_: (tmp_path / "none").read_text())
        assert engine.observe().unreadable == 1
