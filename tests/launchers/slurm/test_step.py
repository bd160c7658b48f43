"""The command for one step on one node."""

from __future__ import annotations

from pytest_mnode.launchers.slurm.command_lines import step_command


def test_a_step_has_the_whole_node_and_shares_it() -> None:
    command = step_command(7, "n1", ["python", "-c", "x"])
    at = command.index("srun")
    assert command[0] == "env"
    assert {"--jobid=7", "--nodelist=n1", "--nodes=1", "--ntasks=1", "--overlap", "--mem=0"} <= set(
        command[at:]
    )
    assert command[-4:] == ["--", "python", "-c", "x"]
    # A job script's options would confine the step to a part of the node, or change its streams.
    unset = [command[i + 1] for i in range(at) if command[i] == "-u"]
    assert {"SLURM_CPUS_PER_TASK", "SLURM_EXACT", "SLURM_LABELIO"} <= set(unset)
    assert {"SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_TRES_PER_TASK"} <= set(unset)
    assert "SLURM_CONF" not in unset
