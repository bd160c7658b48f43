"""Gangs on a real Slurm: passed as it is, failed with faults."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.acceptance.certified import ACCEPTANCE, Certified, certificate_of
from tests.engines.inside import page_for, run_pytest, running_pytest
from tests.engines.slurm import SlurmOnRack
from tests.inner import write_files
from tests.red import turns_red

TIMES = {"rounds": 1, "runs": "4 s", "waits": "3 s", "next_within": "20 s", "together": "3 s"}
FILLED = "test_a_gang_waits_until_there_is_room_for_all_of_it"
RACE = "test_of_two_gangs_at_once_one_waits"
OVERSIZE = "test_a_gang_larger_than_the_cluster_is_in_nobodys_way"
LOSS = "test_a_gang_whose_node_dies_goes_whole"
PART = "longest time that a gang held a part of its nodes"
FATE = "gangs neither requeued nor cancelled whole when a node had died"


def arguments(
    slurm: SlurmOnRack, directory: Path, files: Sequence[str] = ("gang",), **promised: Any
) -> list[str]:
    assert slurm.switch is not None
    switch = slurm.switch

    def power(what: str, then: str) -> str:
        update = f"scontrol update nodename={{node}} state={then} reason=test"
        return shlex.join(["sh", "-c", f"{switch.command(what)} && {update}"])

    page = page_for(
        slurm,
        "slurm on the rack",
        scheduler={"kind": "slurm", **({"names": {"partition": "all"}} if "mesh" in files else {})},
        criteria={"gang": {**TIMES, **promised}, **({"mesh": {}} if "mesh" in files else {})},
        not_promised=None,
        # Slurm gets the state at once; by itself it would notice after SlurmdTimeout.
        power={"switch_off": power("off", "down"), "switch_on": power("on", "resume")},
    )
    spec = directory / "spec.yaml"
    spec.write_text(yaml.safe_dump(page))
    return [
        *(str(ACCEPTANCE / f"test_{name}.py") for name in files),
        *(f"--mnode-spec={spec}", f"--mnode-shared-dir={directory}"),
        *(f"--mnode-report={directory / 'report'}", "-rA"),
    ]


def certify(
    slurm: SlurmOnRack,
    directory: Path,
    *more: str,
    files: Sequence[str] = ("gang",),
    fault: str | None = None,
    **promised: Any,
) -> Certified:
    """Run acceptance/test_gang.py on the login node; fault: a plugin that injects faults."""
    args = [*arguments(slurm, directory, files, **promised), *more]
    if fault is not None:
        write_files(directory, fault=fault)
        args += ["-p", "fault"]
    run = run_pytest(slurm, directory, *args, env={"PYTHONPATH": str(directory)}, limit_s=300)
    return certificate_of(run, directory / "report")


def left_over(slurm: SlurmOnRack, directory: Path) -> list[Any]:
    return [*slurm.queue(), *directory.glob(".mnode-gang-*")]


def test_slurm_keeps_gangs_whole(slurm: SlurmOnRack, tmp_path: Path) -> None:
    # With a test that needs nodes: nodes are requested only after the gang tests.
    launcher = ("--mnode-launcher=slurm", "--mnode-nodes=4")
    files = ("mesh", "gang")
    done = certify(
        slurm, tmp_path, *launcher, files=files, node_loss="requeued", lost_within="90 s"
    )
    output = done.run.output
    assert done.certificate["verdict"] == "certified", output
    assert done.criterion("mesh")["verdict"] == "pass"
    verdicts = {test: case["verdict"] for test, case in done.cases("gang").items()}
    assert verdicts == dict.fromkeys((FILLED, RACE, OVERSIZE, LOSS), "pass"), output
    slurm.await_that(lambda: not left_over(slurm, tmp_path), 30, "jobs and files are gone")

    # Each state with its duration, in Slurm's own words.
    _, filled = done.case("gang", FILLED)
    waited = filled["filled 1: B: waiting"]
    assert waited["value"] > 0  # it waits for 3 s, less the time until it is first seen
    assert "PENDING (" in waited["note"]
    assert filled["filled 1: B: 3 of 3 ranks ran"]["value"] == pytest.approx(4, abs=3)
    assert filled["longest time from room for a gang to its start"]["value"] < 20
    _, race = done.case("gang", RACE)
    assert {"race 1: A: whole", "race 1: B: whole"} <= race.keys()
    _, oversize = done.case("gang", OVERSIZE)
    large = oversize["gangs larger than the cluster without a refusal or a reason"]
    assert large["note"].startswith(("refused: ", "waits: PENDING (")), large
    _, loss = done.case("gang", LOSS)
    assert loss[FATE]["note"].endswith(" dead: requeued)"), output
    off = loss["time from the death of a node until its gang is off all nodes"]
    assert 0 < off["value"] < 60, output
    assert loss["loss: B, start 2: whole"]["note"].startswith("3 of 3: "), output


# Without gang scheduling: N jobs of one node. Faults of a scheduler: it starts a rank of a waiting
# gang, or a part of a gang, as Slurm does if the job allows it, and requeues what must not be.
# Leftovers of scripts. Common disturbances: heartbeats are lost, the scheduler does not answer.
WRONG = """
    import os, subprocess, sys, threading
    from dataclasses import replace
    from pytest_mnode.gang import heartbeat_rank
    from pytest_mnode.gang.heartbeats import HeartbeatFiles
    from pytest_mnode.gang.slurm import SlurmEngine
    from pytest_mnode.gang.watch import Watch
    from pytest_mnode.launchers.slurm import Slurm, SlurmError

    class Silent(Slurm):
        def run(self, program, *_, **__):
            raise SlurmError(program, None, "no answer in 0 s")

    submit, watch, beats = SlurmEngine.submit, Watch.submit, HeartbeatFiles.read
    title, gangs, unheard = [""], [], []

    def submit_wrongly(self, request):
        if title[0] == "filled 1" and request.nodes > 1:
            return tuple(self._sbatch(request, 1) for _ in range(request.nodes))
        if request.name == "too large":
            return (self._sbatch(request, f"1-{request.nodes}"),)
        jobs = submit(self, replace(request, requeue=True))
        if title[0] == "race 1" and request.nodes > 1:
            gangs.append(request.name)
            if len(gangs) == 1:
                unheard.append(jobs[0])
            else:
                place = {"JOB": jobs[0], "LIFE": "0", "RANK": "1", "NODE": "node3"}
                argv = [sys.executable, heartbeat_rank.__file__, str(self.directory), "1", *place]
                subprocess.Popen(argv, env={**os.environ, **place})
        if title[0] == "too large" and request.nodes == 1:
            self._sbatch(replace(request, runs_s=100.0), 4)
            threading.Timer(1.5, lose_sight, [self, self._slurm]).start()
        return jobs

    def lose_sight(engine, slurm):
        engine._slurm = Silent()
        threading.Timer(6.0, setattr, [engine, "_slurm", slurm]).start()

    def lose_heartbeats(self):
        read, unreadable = beats(self)
        return tuple(b for b in read if (b.job, b.rank) != (*unheard, 2)), unreadable

    def watched(self, request):
        title[0] = self._title
        return watch(self, request)

    SlurmEngine.submit, Watch.submit = submit_wrongly, watched
    HeartbeatFiles.read = lose_heartbeats
"""


@turns_red("gang", FILLED, RACE, OVERSIZE, LOSS)
def test_half_gangs_and_other_faults_are_found(slurm: SlurmOnRack, tmp_path: Path) -> None:
    promised = {"node_loss": "cancelled", "lost_within": "90 s"}
    done = certify(slurm, tmp_path, fault=WRONG, next_within="8 s", **promised)
    output = done.run.output
    assert done.run.returncode == 1
    found = {test: done.case("gang", test)[1] for test in (FILLED, RACE, OVERSIZE, LOSS)}
    ran = "ranks of waiting gangs that ran"
    left = "jobs left in the queue"
    for test, name, culprit in (
        (FILLED, PART, r"filled 1: B (held .* )?held 2 of 3 nodes \(node"),
        (FILLED, ran, r".*filled 1: B: rank 0 on node.* of 3 nodes"),
        (RACE, ran, r"race 1: [AB]: rank 1 on node3, .* while it was waiting$"),
        (OVERSIZE, PART, r"too large: too large held [1-4] of 5 nodes \(node0"),
        (OVERSIZE, left, r"too large: a job whose submission was not answered \("),
        (LOSS, FATE, ""),
    ):
        one = found[test][name]
        assert one["verdict"] == "fail", output
        assert re.match(culprit, one["culprit"] or ""), one
    assert " dead: requeued" in found[LOSS][FATE]["note"]
    assert found[RACE][PART]["verdict"] == "pass", output
    for test, name, note in (
        (
            RACE,
            "longest time that ranks of a gang ran without all others",
            r"race 1: [AB]: no heartbeat from node\d in ",
        ),
        (
            OVERSIZE,
            "nodes held by two jobs at once",
            "too large: the scheduler gave no answer for .*: squeue: no answer in 0 s",
        ),
    ):
        one = found[test][name]
        assert one["verdict"] == "inconclusive", output
        assert re.match(note, one["note"]), one
    assert "NOT certified: gang failed (filled 1: B held " in output
    slurm.await_that(lambda: not left_over(slurm, tmp_path), 30, "jobs and files are gone")


def test_a_killed_controller_leaves_no_job(slurm: SlurmOnRack, tmp_path: Path) -> None:
    with running_pytest(slurm, tmp_path, *arguments(slurm, tmp_path, waits="60 s")):
        slurm.await_that(lambda: len(slurm.queue()) >= 3, 30, "fillers and a gang are queued")
    slurm.await_that(lambda: not left_over(slurm, tmp_path), 30, "jobs and files are gone")
