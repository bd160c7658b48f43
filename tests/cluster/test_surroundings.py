"""What of the controller's environment goes to nodes."""

from __future__ import annotations

from pytest_mnode.cluster.surroundings import for_nodes


def test_which_task_the_controller_is_stays_with_it() -> None:
    kept = {"HOME": "/home/ada", "MASTER_ADDR": "n0", "SLURM_JOB_ID": "7", "SLURM_CONF": "/etc/s"}
    task = {"SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_NTASKS": "1", "SLURMD_NODENAME": "n0"}
    assert for_nodes(kept | task | {"PMI_RANK": "0"}) == kept
