"""The Slurm launcher by itself: nodes, commands of steps, named losses. No rank is started."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from tests.engines.controller import Controller
from tests.engines.inside import spec_for
from tests.engines.slurm import SlurmOnRack

FIRST_2 = "--nodelist=node[0-1]"


def test_a_new_allocation_runs_commands_on_its_nodes(slurm: SlurmOnRack, tmp_path: Path) -> None:
    """Nodes have their own names and addresses; commands have streams, environment and status."""
    controller = Controller(slurm, tmp_path, 2, (["--time=5", FIRST_2], []))
    assert controller.report.get("held") is True, controller.report
    assert controller.report["nodes"] == [
        ["node0", "10.77.0.1", "10.78.0.1", "fab0"],
        ["node1", "10.77.0.2", "10.78.0.2", "fab0"],
    ]
    [job] = slurm.queue()
    assert (job.job_id, job.state, job.nodes) == (
        controller.report["job"],
        "RUNNING",
        ("node0", "node1"),
    )
    assert job.name.startswith("pytest-mnode-")
    assert Path(controller.report["shared"]).parent == tmp_path

    script = "hostname; pwd; echo $MNODE_MARK; cat; echo bad >&2; exit 3"
    status, out, err = controller(f'run(["sh", "-c", {script!r}], 1, input="in")')
    assert (status, err) == (3, "bad\n")
    assert out == f"node1\n{tmp_path}\na b'c\nin"
    assert controller('run(["sh", "-c", "kill -9 $$"])')[0] == 137
    # The TaskProlog's value counts, and TMPDIR is the node's; nothing else of the shell is sent.
    shown = "$MNODE_SITE,$TMPDIR,$CI_JOB_TOKEN,$MINE,$SLURM_PROCID,$HOME"
    home = pwd.getpwuid(os.getuid()).pw_dir
    assert controller(f'run(["sh", "-c", "echo {shown}"], 1)')[1] == f"node1,/tmp,,,,{home}\n"
    assert controller('run(["no-such-program"])')[0] == 127
    # All that the job has of the node, not one CPU.
    assert controller('run(["nproc"])')[1] == controller("str(os.cpu_count()) + chr(10)")

    controller.close()
    slurm.await_that(lambda: not slurm.queue(), 30, "the allocation is given back")
    assert not Path(controller.report["shared"]).exists()
    slurm.await_idle()


def test_a_node_set_down_by_slurm_is_named(slurm: SlurmOnRack, tmp_path: Path) -> None:
    controller = Controller(slurm, tmp_path, 3, (["--nodelist=node[0-2]"], []))
    slurm.down("node1", "broken fan")
    slurm.await_that(lambda: bool(controller("lost")), 30, "the loss is reported")
    assert controller("lost") == [["node1", "Slurm says DOWN: broken fan"]]
    assert controller('run(["hostname"], 2)') == [0, "node2\n", ""]
    assert controller('run(["true"], 1)') == (
        "NodeLostError: node1 is unavailable: Slurm says DOWN: broken fan"
    )
    slurm.run("scancel", str(controller.report["job"]))
    slurm.await_that(lambda: len(controller("lost")) == 3, 30, "the loss of all is reported")
    assert "ended" in controller("lost")[-1][1]
    controller.close()


def test_a_node_is_switched_off_and_on(slurm: SlurmOnRack, tmp_path: Path) -> None:
    """It is used again unless Slurm has set it DOWN meanwhile."""
    spec_for(slurm, tmp_path, "slurm")
    controller = Controller(slurm, tmp_path, 2, ([FIRST_2], []), spec=tmp_path / "spec.yaml")
    node1 = "launcher.nodes[1]"
    assert controller(f"launcher.ask(PowerOff({node1}.name))") is None
    assert controller('run(["true"], 1)') == "NodeLostError: node1 is unavailable: powered off"
    assert controller(f"launcher.ask(PowerOn({node1}.name))") is None
    assert controller('run(["hostname"], 1)') == [0, "node1\n", ""]
    assert controller("lost") == []

    controller(f"launcher.ask(PowerOff({node1}.name))")
    slurm.down("node1", "it was away for long")
    error = controller(f"launcher.ask(PowerOn({node1}.name))")
    assert error.startswith(
        "ClusterError: node1 was down for so long that Slurm removed it from "
    ), error
    controller.close()


def test_a_node_whose_slurmd_is_killed_keeps_its_commands(
    slurm: SlurmOnRack, tmp_path: Path
) -> None:
    """Running commands go on, and new ones start: the run's step needs no slurmd."""
    controller = Controller(slurm, tmp_path, 2, ([FIRST_2], []))
    step = "touch up; until test -e over; do sleep 0.1; done; exit 7"
    controller(f'begin(["sh", "-c", "{step}"], 1)')
    slurm.await_that((tmp_path / "up").exists, 30, "a step runs on node1")
    slurm.kill_daemon("node1")
    assert controller('run(["hostname"], 1)') == [0, "node1\n", ""]
    assert controller('run(["hostname"], 0)') == [0, "node0\n", ""]
    assert controller("begun[0].poll()") is None
    (tmp_path / "over").touch()
    assert controller("begun[0].wait(20)") == 7
    assert controller("lost") == []
    controller.close()
    # Slurm keeps a node allocated until it learns that all processes of the job have ended.
    slurm.await_that(
        lambda: [job.state for job in slurm.queue()] in ([], ["COMPLETING"]), 30, "it is given back"
    )
