"""Allocations: found, or requested and released however the owner ends. salloc is a fake."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest.mock import Mock

import pytest

from pytest_mnode import processes
from pytest_mnode.backends.slurm import SlurmBackend
from pytest_mnode.errors import ClusterError, UsageError
from pytest_mnode.launchers.cleanup import leftovers
from pytest_mnode.launchers.slurm import Slurm
from pytest_mnode.launchers.slurm import allocation as module
from pytest_mnode.launchers.slurm.allocation import (
    Granted,
    OwnAllocation,
    on_first,
    surrounding,
)
from tests.programs import write_program
from tests.waiting import until

# Grants at once, or after its "--begin" of a million years; records how it ended.
SALLOC = f"""#!{sys.executable}
import os, signal, sys, time
def note(text):
    with open(os.environ["NOTES"], "a") as file:
        file.write(text + "\\n")
def withdraw(*_):
    note("withdrawn")
    sys.exit(1)
note(" ".join(sys.argv[1:]))
if "--bad" in sys.argv:
    sys.exit("salloc: error: Job submit/allocate failed: Invalid account")
if "--begin" in sys.argv:
    signal.signal(signal.SIGTERM, withdraw)
    note("waits")
    time.sleep(60)
"""
SCONTROL = """#!/bin/sh
state="JobState=RUNNING NodeList=n[0-1]"
if grep -q waits "$NOTES"; then state=JobState=PENDING; fi
case "$*" in
*job*) echo "JobId=7 JobName=mnode-1 $state Reason=Resources Partition=all";;
*) echo NodeName=n0 State=IDLE Partitions=all; echo NodeName=n1 State=DOWN Partitions=all;;
esac
"""
SCANCEL = """#!/bin/sh
echo "cancelled $*$SCANCEL_STATE" >>"$NOTES"
touch "$NOTES.over"
"""
SQUEUE = """#!/bin/sh
case "$*" in *--me*) echo "squeue: unrecognized option '--me'" >&2; exit 1;; esac
test -e "$NOTES.over" || echo 7 RUNNING
"""
CANCELLED = "cancelled --full --name=mnode-1"


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that the fake salloc writes to."""
    directory = tmp_path / "bin"
    directory.mkdir()
    texts = {"salloc": SALLOC, "scontrol": SCONTROL, "scancel": SCANCEL, "squeue": SQUEUE}
    for name, text in texts.items():
        write_program(directory / name, text)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    return tmp_path / "notes"


Make = Callable[..., OwnAllocation]
LEFT = SlurmBackend().leftovers("mnode-1")


@pytest.fixture
def make() -> Iterator[Make]:
    """make(arguments, gpus): an allocation, which is released at the end."""
    made: list[OwnAllocation] = []

    def make(arguments: Sequence[str] = (), gpus_per_node: int = 0) -> OwnAllocation:
        made.append(OwnAllocation(Slurm(), LEFT, arguments, gpus_per_node))
        return made[-1]

    yield make
    for held in made:
        held.close()


def lines(notes: Path) -> list[str]:
    return notes.read_text().splitlines() if notes.exists() else []


def test_chosen_nodes_of_an_allocation_come_before_the_others() -> None:
    granted = Granted(7, ("n0", "n1", "n2", "n3"))
    assert on_first(granted, ("n3", "n1")).names == ("n1", "n3", "n0", "n2")
    assert on_first(granted, ()) == granted


def test_the_surrounding_allocation_is_read() -> None:
    environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[0-1]"}
    assert surrounding(environ, 2) == Granted(7, ("n0", "n1"))
    with pytest.raises(ClusterError) as error:
        surrounding(environ, 4)
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
        surrounding(environ, 1)


def test_an_allocation_is_held_and_released(make: Make, notes: Path) -> None:
    held = make(["--partition=gpu"])
    granted = held.get(2)
    assert granted == Granted(7, ("n0", "n1"))
    assert "--nodes=2" in lines(notes)[0]
    assert "--partition=gpu" in lines(notes)[0]
    assert lines(notes)[1:] == []
    held.close()
    assert set(lines(notes)[1:]) == {CANCELLED}
    held.close()


def test_an_allocation_with_too_few_nodes_is_released(make: Make, notes: Path) -> None:
    message = "^slurm: 3 nodes requested, but Slurm allocated 2: n0, n1;"
    with pytest.raises(ClusterError, match=message):
        make().get(3)
    assert set(lines(notes)[1:]) == {CANCELLED}


@pytest.mark.parametrize("counted", [False, True])
def test_a_refusal_has_its_reason_and_explains_why_gpus_were_requested(
    make: Make, notes: Path, counted: bool
) -> None:
    if counted:
        scontrol = notes.parent / "bin" / "scontrol"
        write_program(
            scontrol, "#!/bin/sh\necho NodeName=n0 State=IDLE Gres=gpu:8 Partitions=all\n"
        )
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
    assert lines(notes)[1:3] == ["waits", "withdrawn"]


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
    assert lines(notes)[1:3] == ["waits", "withdrawn"]


def test_a_request_that_is_broken_off_is_withdrawn(
    make: Make, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        until(lambda: "waits" in lines(notes))
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_POLL_S", 0.1)
    monkeypatch.setattr(module, "hopeless", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make(["--begin"]).get(2)
    assert lines(notes)[1:3] == ["waits", "withdrawn"]


OWNER = """
import sys, time
from pytest_mnode.backends.slurm import SlurmBackend
from pytest_mnode.launchers.slurm import Slurm
from pytest_mnode.launchers.slurm.allocation import OwnAllocation
held = OwnAllocation(Slurm(), SlurmBackend().leftovers("mnode-1"), sys.argv[1:])
held.get(2)
print("granted", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("arguments", [[], ["--begin"]], ids=["granted", "waiting"])
def test_the_allocation_of_a_killed_owner_is_released(
    notes: Path, arguments: Sequence[str]
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
            after = {CANCELLED, "withdrawn"} if arguments else {CANCELLED}
            until(lambda: after <= set(lines(notes)), lambda: lines(notes))
        finally:
            owner.kill()


@pytest.mark.parametrize("guarded", [True, False], ids=["meanwhile", "at the end"])
def test_a_killed_clean_up_is_started_again(make: Make, notes: Path, guarded: bool) -> None:
    held = make()
    held.get(2)
    assert held._cleanup is not None
    before = held._cleanup._process
    before.kill()
    until(lambda: processes.has_ended(before.pid))
    if guarded:
        held.guard()
        assert held._cleanup._process.poll() is None
    held.close()
    held.guard()
    assert set(lines(notes)[1:]) == {CANCELLED}


def test_a_clean_up_that_cannot_be_started_is_tried_again(make: Make, notes: Path) -> None:
    """An error would end the thread that watches the nodes."""
    held = make()
    held.get(2)
    assert held._cleanup is not None
    before = held._cleanup._process
    before.kill()
    until(lambda: processes.has_ended(before.pid))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leftovers.Cleanup, "_started", Mock(side_effect=BlockingIOError))
        held.guard()
    held.guard()
    assert held._cleanup._process.poll() is None
    held.close()
    assert set(lines(notes)[1:]) == {CANCELLED}


DEAF = SALLOC.replace(
    "signal.signal(signal.SIGTERM, withdraw)", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
)
NEVER = '#!/bin/sh\necho "cancelled $*" >>"$NOTES"\nexit 1\n'


def test_an_allocation_that_does_not_end_is_cancelled_again(
    notes: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """salloc ignores SIGTERM, and Slurm takes no scancel."""
    for limit in ("_WITHDRAWN_S", "_RELEASED_S"):
        monkeypatch.setattr(module, limit, 2.0)
    monkeypatch.setattr(module, "queue_limit_s", lambda _: 2.0)
    for name, text in (("salloc", DEAF), ("scancel", NEVER)):
        write_program(notes.parent / "bin" / name, text)
    held = make(["--begin"])
    try:
        with pytest.raises(ClusterError, match="within 2 s: job 7 is PENDING") as error:
            held.get(2)
        assert held._salloc is not None
        assert held._salloc.returncode == -signal.SIGKILL
        assert lines(notes).count(CANCELLED) > 1
        assert "the allocation was not released: jobs named mnode-1 may be left" in str(error.value)
        assert "retried for an hour; or run scancel --name=mnode-1" in str(error.value)
    finally:
        (notes.parent / "notes.over").touch()  # ends what goes on retrying
        write_program(notes.parent / "bin" / "scancel", "#!/bin/sh\nexit 0\n")


def test_an_allocation_that_is_left_at_the_end_is_said(
    notes: Path,
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(module, "_RELEASED_S", 0.1)
    held = make()
    held.get(2)
    held.close()
    assert capsys.readouterr().err.startswith(
        "mnode: slurm: the allocation was not released: jobs named mnode-1 may be left; "
    )
    until(lambda: CANCELLED in lines(notes))


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
