"""Allocations: found, or requested and released however the owner ends. salloc is a fake."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from pytest_mnode import processes
from pytest_mnode.errors import ClusterError, UsageError
from pytest_mnode.launchers.cleanup import salloc
from pytest_mnode.launchers.slurm import Slurm
from pytest_mnode.launchers.slurm import allocation as module
from pytest_mnode.launchers.slurm.allocation import (
    CurrentAllocation,
    Granted,
    OwnAllocation,
    on_first,
)
from tests.programs import write_program
from tests.waiting import until

# Grants at once, or after its "--begin" of a million years; records how it ended.
SALLOC = f"""#!{sys.executable}
import os, signal, subprocess, sys, time
words = sys.argv[1:]
at = next(i for i, word in enumerate(words) if word.startswith("/") and "python" in word)
def note(text):
    with open(os.environ["NOTES"], "a") as file:
        file.write(text + "\\n")
def say(text):
    print("salloc: " + text, file=sys.stderr, flush=True)
def withdraw(*_):
    note("withdrawn")
    sys.exit(1)
note(" ".join(words[:at]))
if "--bad" in words:
    say("error: Job submit/allocate failed: Invalid account"); sys.exit(1)
say("Pending job allocation 7")
if "--begin" in words:
    signal.signal(signal.SIGTERM, withdraw)
    note("waits")
    time.sleep(60)
say("Granted job allocation 7")
env = dict(os.environ, SLURM_JOB_ID="7", SLURM_JOB_NODELIST="n[0-1]")
code = subprocess.run(words[at:], env=env).returncode
note(f"given back after {{code}}")
"""
SCONTROL = """#!/bin/sh
case "$*" in
*job*) echo JobId=7 JobName=x JobState=PENDING Reason=Resources Partition=all;;
*) echo NodeName=n0 State=IDLE Partitions=all; echo NodeName=n1 State=DOWN Partitions=all;;
esac
"""


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that the fake salloc writes to."""
    directory = tmp_path / "bin"
    directory.mkdir()
    scancel = '#!/bin/sh\necho "cancelled $*$SCANCEL_STATE" >>"$NOTES"\n'
    for name, text in (("salloc", SALLOC), ("scontrol", SCONTROL), ("scancel", scancel)):
        write_program(directory / name, text)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    return tmp_path / "notes"


Make = Callable[..., OwnAllocation]


@pytest.fixture
def make() -> Iterator[Make]:
    """make(arguments, gpus): an allocation with a running daemon."""
    made: list[OwnAllocation] = []

    def make(arguments: Sequence[str] = (), gpus_per_node: int = 0) -> OwnAllocation:
        made.append(OwnAllocation(Slurm(), arguments, gpus_per_node))
        made[-1].daemon.start([])
        return made[-1]

    yield make
    for held in made:
        held.daemon.close()


def lines(notes: Path) -> list[str]:
    return notes.read_text().splitlines() if notes.exists() else []


def test_chosen_nodes_of_an_allocation_come_before_the_others() -> None:
    granted = Granted(7, ("n0", "n1", "n2", "n3"))
    assert on_first(granted, ("n3", "n1")).names == ("n1", "n3", "n0", "n2")
    assert on_first(granted, ()) == granted


def test_the_surrounding_allocation_is_read() -> None:
    environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[0-1]"}
    assert CurrentAllocation(environ).get(2) == Granted(7, ("n0", "n1"))
    with pytest.raises(ClusterError) as error:
        CurrentAllocation(environ).get(4)
    assert str(error.value) == (
        "slurm: 4 nodes requested, but allocation 7 has 2: n0, n1; missing: 2; "
        "allocate them with --nodes=4"
    )


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({}, "SLURM_JOB_ID=: accepted: the number of an allocation"),
        ({"SLURM_JOB_ID": "x"}, "SLURM_JOB_ID=x: accepted: the number"),
        ({"SLURM_JOB_ID": "7"}, "no SLURM_JOB_NODELIST"),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n["}, "brackets do not match"),
    ],
)
def test_wrong_slurm_variables_are_named(environ: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("[", r"\[")):
        CurrentAllocation(environ).get(1)


def test_an_allocation_is_held_and_released(make: Make, notes: Path) -> None:
    held = make(["--partition=gpu"])
    granted = held.get(2)
    assert granted == Granted(7, ("n0", "n1"))
    assert "--nodes=2" in lines(notes)[0]
    assert "--partition=gpu" in lines(notes)[0]
    assert held.gone() is None
    held.close()
    assert lines(notes)[1:] == ["given back after 0"]
    held.close()


def test_an_allocation_with_too_few_nodes_is_released(make: Make, notes: Path) -> None:
    message = "^slurm: 3 nodes requested, but Slurm allocated 2: n0, n1;"
    with pytest.raises(ClusterError, match=message):
        make().get(3)
    assert lines(notes)[1:] == ["given back after 0"]


@pytest.mark.parametrize("counted", [False, True])
def test_a_refusal_has_its_reason_and_explains_why_gpus_were_requested(
    make: Make, notes: Path, counted: bool
) -> None:
    if counted:
        scontrol = notes.parent / "bin" / "scontrol"
        scontrol.write_text("#!/bin/sh\necho NodeName=n0 State=IDLE Gres=gpu:8 Partitions=all\n")
    with pytest.raises(ClusterError) as error:
        make(["--bad"], 8).get(2)
    refusal = "slurm: 2 nodes not allocated: Job submit/allocate failed: Invalid account"
    why = (
        " (--gpus-per-node=8 is requested because the spec sets accelerators.per_node; set --gpus "
        "or --gres in --mnode-slurm-args to override it)"
    )
    assert str(error.value) == refusal + why * counted
    assert ("--gpus-per-node=8" in lines(notes)[0]) is counted


def test_a_request_that_waits_too_long_is_withdrawn(
    make: Make, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "queue_limit_s", lambda _: 2.0)
    with pytest.raises(ClusterError, match=r"within 2 s: job 7 is PENDING \(Resources\); set "):
        make(["--begin"]).get(2)
    assert lines(notes)[1:] == ["waits", "withdrawn"]


def test_a_request_larger_than_the_cluster_is_not_waited_for(
    make: Make, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_POLL_S", 0.1)
    texts: list[str] = []
    monkeypatch.setattr(module, "progress", texts.append)
    with pytest.raises(ClusterError) as error:
        make(["--begin"]).get(2)
    assert texts == ["allocation 7 waits in the queue (Resources)"]
    assert str(error.value) == (
        "slurm: 2 nodes requested: partition all has 1 usable of 2 nodes; missing: n1 (DOWN)"
    )
    assert lines(notes)[1:] == ["waits", "withdrawn"]


def test_a_request_that_is_broken_off_is_withdrawn(
    make: Make, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_POLL_S", 0.1)
    monkeypatch.setattr(module, "hopeless", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        make(["--begin"]).get(2)
    assert lines(notes)[1:] == ["waits", "withdrawn"]


def test_no_salloc(make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match=r"2 nodes not allocated: No such file or directory$"):
        make().get(2)


OWNER = """
import sys, time
from pytest_mnode.launchers.slurm import Slurm
from pytest_mnode.launchers.slurm.allocation import OwnAllocation
held = OwnAllocation(Slurm(), sys.argv[1:])
held.daemon.start([])
held.get(2)
print("granted", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("arguments", "after"),
    [([], "given back after 0"), (["--begin"], "withdrawn")],
    ids=["granted", "waiting"],
)
def test_the_allocation_of_a_killed_owner_is_released(
    notes: Path, arguments: Sequence[str], after: str
) -> None:
    argv = [sys.executable, "-c", OWNER, *arguments]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout is not None
            if arguments:
                until(lambda: "waits" in lines(notes), lambda: lines(notes))
            else:
                assert owner.stdout.readline() == "granted\n"
            owner.kill()
            until(lambda: after in lines(notes), lambda: lines(notes))
        finally:
            owner.kill()


def test_the_end_of_an_allocation_is_reported(
    make: Make, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCANCEL_STATE", "PENDING")  # scancel would skip jobs that still run
    held = make()
    held.get(2)
    assert held.daemon.pid is not None
    [program] = processes.children(held.daemon.pid)
    processes.kill(program)
    until(held.gone)
    held.close()
    assert lines(notes)[1:] == ["cancelled 7"]


DEAF = SALLOC.replace(
    "import os, signal, subprocess, sys, time\n",
    "import os, signal, subprocess, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n",
).replace('note(f"given back', 'time.sleep(60)\nnote(f"given back')
FAILS_ONCE = """#!/bin/sh
echo "cancelled $*" >>"$NOTES"
test -e "$NOTES.once" && touch "$NOTES.over" && exit 0
touch "$NOTES.once"
exit 1
"""
SQUEUE = '#!/bin/sh\ntest -e "$NOTES.over" || echo 7 RUNNING\n'
NEVER = '#!/bin/sh\necho "cancelled $*" >>"$NOTES"\nexit 1\n'


@pytest.mark.parametrize("scancel", [FAILS_ONCE, NEVER], ids=["fails once", "fails"])
def test_an_allocation_that_does_not_end_is_cancelled_again(
    notes: Path, make: Make, capsys: pytest.CaptureFixture[str], scancel: str
) -> None:
    """salloc ignores SIGTERM and holds it, and Slurm does not take the first scancel."""
    for name, text in (("salloc", DEAF), ("scancel", scancel), ("squeue", SQUEUE)):
        write_program(notes.parent / "bin" / name, text)
    held = make()
    held.get(2)
    assert held.daemon.pid is not None
    [program] = processes.children(held.daemon.pid)
    try:
        held.close()
        assert processes.has_ended(program)
        cancelled = [line for line in lines(notes) if line.startswith("cancelled")]
        assert cancelled[0] == "cancelled 7"
        assert cancelled[1] == f"cancelled --full --name={held.name}"
        said = [one for one in capsys.readouterr().err.splitlines() if one.startswith("mnode: ")]
        if scancel == FAILS_ONCE:
            assert not said
        else:
            assert said[0].startswith("mnode: slurm: allocation 7 may be left: neither salloc nor ")
            assert f"retried for an hour (look for it by squeue --name={held.name})" in said[0]
    finally:
        (notes.parent / "notes.over").touch()  # ends what goes on retrying
        (notes.parent / "bin" / "scancel").write_text("#!/bin/sh\nexit 0\n")


def test_a_daemon_that_never_releases_an_allocation_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "_CLOSE_S", 0.1)
    held = OwnAllocation(Slurm())
    monkeypatch.setattr(held.daemon, "order", lambda **_: None)
    held._start(2)
    held.close()
    assert f"allocation named {held.name} may be left" in capsys.readouterr().err


def test_a_scancel_that_never_ends_is_given_up(
    notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """salloc was killed, so that the allocation has to be cancelled; that is tried again later."""
    (notes.parent / "bin" / "scancel").write_text("#!/bin/sh\nexec sleep 60\n")
    (notes.parent / "bin" / "salloc").write_text("#!/bin/sh\nkill -9 $$\n")
    later: list[bytes] = []
    monkeypatch.setattr(salloc, "SCANCEL_S", 0.2)
    monkeypatch.setattr(
        salloc, "SlurmCleanup", lambda _: SimpleNamespace(finish=later.append, wait=lambda _: None)
    )
    told: dict[str, object] = {}
    salloc.Salloc(["salloc"], "mnode-1", told.update).end()
    assert (later, told["left"]) == ([b""], "")


@pytest.mark.parametrize("kind", ["HET", "PACK"])
def test_a_heterogeneous_job_is_refused_with_its_groups(kind: str) -> None:
    environ = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "n[0-1]",
        f"SLURM_{kind}_SIZE": "2",
        f"SLURM_JOB_NODELIST_{kind}_GROUP_0": "n[0-1]",
        f"SLURM_JOB_NODELIST_{kind}_GROUP_1": "big[3-9]",
    }
    groups = r"group 0: n\[0-1\]; group 1: big\[3-9\]"
    message = rf"^allocation 7 is a heterogeneous job of 2 components \({groups}\), and a run uses"
    with pytest.raises(UsageError, match=message):
        Granted.read(environ)
    environ[f"SLURM_{kind}_SIZE"] = "1"
    assert Granted.read(environ).names == ("n0", "n1")
