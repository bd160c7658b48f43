"""Variables of the controller that nodes get."""

from __future__ import annotations

from pytest_mnode.launchers.node_env import node_env


def test_slurm_task_variables_of_the_controller_are_removed() -> None:
    kept = {"HOME": "/home/ada", "MASTER_ADDR": "n0", "SLURM_JOB_ID": "7", "SLURM_CONF": "/etc/s"}
    task = {"SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_NTASKS": "1", "SLURMD_NODENAME": "n0"}
    other = {"PMI_RANK": "0", "OMPI_COMM_WORLD_RANK": "0", "OMPI_UNIVERSE_SIZE": "1"}
    assert node_env(kept | task | other | {"HOSTNAME": "n0"}) == kept


def test_variables_chosen_by_the_user_are_kept() -> None:
    chosen = {"CUDA_VISIBLE_DEVICES": "0,1", "TMPDIR": "/scratch", "OMPI_MCA_btl": "tcp"}
    assert node_env(chosen) == chosen
