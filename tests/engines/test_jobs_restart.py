"""acceptance/test_restart.py with submitted jobs: Slurm itself restarts a killed job."""

from __future__ import annotations

from pathlib import Path

from tests.acceptance.certified import ACCEPTANCE, certificate_of, promised
from tests.engines.inside import own_temporary, run_pytest, spec_for
from tests.engines.slurm import SlurmOnRack
from tests.engines.test_jobs import SHARED

KILL = "test_a_killed_job_comes_back_and_loses_nothing"


def test_slurm_requeues_preempted_jobs_and_jobs_that_lost_a_node(
    slurm: SlurmOnRack, tmp_path: Path
) -> None:
    requeued = {"preemption": "preempted", "node": "node1 is gone"}
    changes = {"kills": list(requeued), "within": "120 s", "pause": "0.3 s"}
    restart = promised("restart") | changes
    spec = spec_for(slurm, tmp_path, "jobs are submitted", criteria={"restart": restart})
    slurm.set_down_after(5)
    option, env = own_temporary(tmp_path)
    run = run_pytest(
        slurm,
        tmp_path,
        "--mnode-launcher=slurm",
        "--mnode-nodes=3",
        SHARED,
        spec,
        option,
        *("-k", KILL, "-rA", f"--mnode-report={tmp_path}/report"),
        str(ACCEPTANCE / "test_restart.py"),
        env=env,
        limit_s=420,
    )
    cases = certificate_of(run, tmp_path / "report").cases("restart")
    for kill, why in requeued.items():
        case = cases[f"{KILL}[{kill}]"]
        assert case["verdict"] == "pass", run.output
        notes = [m["note"] for m in case["measurements"]]
        assert any(f"requeued: {why}; on node0" in note for note in notes), notes
    assert "submitted: job " in run.output, run.output
    assert "as steps of allocation" not in run.output
    slurm.await_that(lambda: not slurm.queue(), 30, "nothing of it is queued")
    assert not list(tmp_path.glob(".mnode-*"))
