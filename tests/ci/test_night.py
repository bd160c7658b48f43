"""The nightly job: the next one follows it, and it ends with pytest's status."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.ci.running import READY, place, program, run

__all__ = ["place"]


@pytest.mark.parametrize("code", [0, 1, 143])
def test_the_night_ends_with_the_status_of_pytest(place: Path, code: int) -> None:
    allocation = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "4", "SLURM_SUBMIT_DIR": "/nowhere"}
    ran = run(place, "nightly.sbatch", f"exit {code}", MNODE_SPEC="the spec.yaml", **allocation)
    assert ran.status == code
    [call] = ran.calls
    assert f"-m pytest {place}/acceptance --mnode-nodes=4 --mnode-spec=the spec.yaml" in call
    [report] = (place / "mnode-reports").iterdir()
    assert report.name.endswith("-7")
    assert f"--mnode-report={report}" in call


def test_a_night_that_ends_at_once_has_its_own_status(place: Path) -> None:
    """bash may have reaped it before it is asked for."""
    missing = {**NIGHT, "MNODE_PYTHON": "/no/such/python", "MNODE_AGAIN": ""}
    statuses = [run(place, "nightly.sbatch", "", **missing).status for _ in range(12)]
    assert statuses == [127] * 12


NIGHT = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_SUBMIT_DIR": "/nowhere",
    "SLURM_JOB_PARTITION": "big gpus",
    "SLURM_JOB_QOS": "night",
    "SLURM_GPUS_PER_NODE": "8",
    "MNODE_SPEC": "spec.yaml",
    "MNODE_AGAIN": "yes",
}


def test_the_next_night_is_submitted_before_anything_can_end_this_one(place: Path) -> None:
    ran = run(place, "nightly.sbatch", "kill -9 $PPID", **NIGHT)
    assert ran.status == -9
    again = ran.calls[0]
    assert re.match(r"sbatch --begin=\d{4}-\d\d-\d\dT01:00:00 --nodes=4 ", again)
    assert " --comment=mnode: the night after 7 --partition=big gpus --qos=night " in again
    assert again.endswith(f"--gpus-per-node=8 {READY / 'nightly.sbatch'}")
    assert "--account" not in again


@pytest.mark.parametrize(
    ("shown", "follows"),
    [
        ("printf '(null)\nmnode: the night after 7\n'", False),
        # It was restarted before its script had run: by a failed Prolog, or a lost node.
        ("true", True),
        ("printf '(null)\nmnode: the night after 70\n'", True),
        ("printf 'mnode: the night after 6\n'", True),  # of another chain, on other nodes
        ("exit 1", True),  # two followers become one; without one the chain would end
    ],
)
def test_a_night_that_slurm_starts_again_is_followed_by_one(
    place: Path, shown: str, follows: bool
) -> None:
    ran = run(
        place, "nightly.sbatch", "exit 0", {"squeue": shown}, **NIGHT, SLURM_RESTART_COUNT="1"
    )
    assert ran.status == 0
    assert any(call.startswith("sbatch") for call in ran.calls) is follows
    assert "squeue --me --noheader --format=%k" in ran.calls


def test_a_failed_submission_of_the_next_night_is_reported_and_this_one_runs(place: Path) -> None:
    copy = place / "copy of the night"
    program(copy, f"sbatch() {{ return 1; }}\n{(READY / 'nightly.sbatch').read_text()}")
    ran = run(place, copy, "exit 1", **NIGHT)
    assert ran.status == 1
    assert "the next night was not submitted" in ran.stderr
    assert len(ran.calls) == 1


def test_the_night_keeps_its_other_nodes_if_one_is_lost() -> None:
    assert "\n#SBATCH --no-kill\n" in (READY / "nightly.sbatch").read_text()


def test_a_night_without_a_spec_names_the_missing_variable(place: Path) -> None:
    ran = run(place, "nightly.sbatch", "exit 0", **NIGHT | {"MNODE_SPEC": ""})
    assert ran.status != 0
    assert "set MNODE_SPEC to the page" in ran.stderr
    assert ran.calls == ()


def test_sigterm_is_for_pytest_which_ends_the_night(place: Path) -> None:
    """Of scancel, or of --signal before the time limit; a shell that died would leave pytest."""
    script = (READY / "nightly.sbatch").read_text()
    assert "\n#SBATCH --signal=B:TERM@" in script
    ends = "trap 'sleep 0.5; echo ended >>ended; exit 2' TERM; kill -TERM $PPID; sleep 9 & wait"
    ran = run(place, "nightly.sbatch", f"cd {shlex.quote(str(place))}; {ends}", **NIGHT)
    assert ran.status == 2
    assert (place / "ended").read_text() == "ended\n"
