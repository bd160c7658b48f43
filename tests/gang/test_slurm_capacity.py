"""What the engine counts and submits, beside commands that say what they are told."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_mnode.errors import UsageError
from pytest_mnode.gang.engine import Ask
from pytest_mnode.gang.slurm import SlurmEngine

NODES = (
    ("n0", "State=IDLE ActiveFeatures=a100 Partitions=gpu"),
    ("n1", "State=ALLOCATED CPUAlloc=8 ActiveFeatures=a100 Partitions=gpu"),
    ("n2", "State=IDLE ActiveFeatures=h100 Partitions=all,gpu"),
    ("n3", "State=IDLE Partitions=all"),
    ("n4", "State=IDLE+RESERVED ActiveFeatures=a100 Partitions=gpu"),
    ("n5", "State=INVAL Partitions=gpu"),
)
SCONTROL = f"""#!/bin/sh
case "$*" in
*reservation*) echo "ReservationName=cert Nodes=n[4-5] State=ACTIVE";;
*) echo "{chr(10).join(f"NodeName={name} {told}" for name, told in NODES)}";;
esac
"""
FAKES = {
    "scontrol": SCONTROL,
    "sinfo": "#!/bin/sh\necho 'gpu*'; echo all\n",
    "squeue": "#!/bin/sh\nexit 0\n",
    "scancel": "#!/bin/sh\nexit 0\n",
    "sbatch": '#!/bin/sh\nenv >"$TOLD"\necho 17\n',
}


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First in PATH."""
    for name, text in FAKES.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))


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
    engine = SlurmEngine(tmp_path, names=names)
    try:
        found = engine.capacity()
        assert (found.nodes, found.free) == (nodes, free)
        assert ("n4" in engine.others(["n0", "n4"])) is ("reservation" not in names)
    finally:
        engine.close()


def test_a_constraint_that_cannot_be_counted_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="which nodes have it cannot be told here"):
        SlurmEngine(tmp_path, names={"constraint": "[rack1|rack2]"})
    assert not list(tmp_path.glob(".mnode-gang-*"))


def test_jobs_go_where_nodes_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBATCH_PARTITION", "all")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    engine = SlurmEngine(tmp_path)
    try:
        assert engine.submit(Ask("A", nodes=1, runs_s=1.0, limit_s=60.0)) == ("17",)
    finally:
        engine.close()
    told = dict(line.partition("=")[::2] for line in (tmp_path / "told").read_text().splitlines())
    assert told["SLURM_CONF"] == "/etc/slurm.conf"
    assert not {"SBATCH_PARTITION", "SLURM_JOB_ID"} & set(told)
