"""What of a far end's own surroundings a command has."""

from __future__ import annotations

from pytest_mnode.cluster.remote.far import surroundings

SENT = {"HOME": "/home/ada", "CUDA_VISIBLE_DEVICES": "0", "TMPDIR": "/tmp/7"}


def test_gpus_and_temporary_files_are_those_of_the_step() -> None:
    own = {"SLURM_STEP_ID": "3", "SLURM_PROCID": "0", "HOME": "/", "TMPDIR": "/tmp"}
    assert surroundings(SENT, own | {"CUDA_VISIBLE_DEVICES": "4,5"}) == {
        "HOME": "/home/ada",
        "CUDA_VISIBLE_DEVICES": "4,5",
        "TMPDIR": "/tmp",
    }
    # Taken out by Slurm, such as of a step without GPUs: they are not the controller's either.
    assert "CUDA_VISIBLE_DEVICES" not in surroundings(SENT, own)


def test_without_slurm_they_are_as_sent() -> None:
    own = {"CUDA_VISIBLE_DEVICES": "4,5", "TMPDIR": "/tmp", "PATH": "/bin"}
    assert surroundings(SENT, own) == SENT
    assert surroundings(SENT | {"SSH_CONNECTION": "a"}, own | {"SSH_CONNECTION": "b"}) == (
        SENT | {"SSH_CONNECTION": "b"}
    )
