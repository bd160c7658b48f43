"""The acceptance suite over ssh and inside an allocation, one after the other."""

from __future__ import annotations

from pathlib import Path

from tests.engines.slurm import SlurmOnRack
from tests.engines.ssh import SshOnRack
from tests.engines.whole import assert_certified, certify_whole, short_page

# A failed node must not end the allocation: the suite reports its state.
ALLOCATION = ["salloc", "--nodes=4", "--exclusive", "--no-kill", "--quiet"]
OF_RANKS = ("data", "devices", "groups", "scaling")
"""Criteria of what ranks do once they have met: in pods and on the rack all of the suite runs."""


def test_nodes_reached_only_by_ssh_are_certified(ssh: SshOnRack, tmp_path: Path) -> None:
    page = short_page(ssh, "over ssh", without=(*OF_RANKS, "launch"))
    done = certify_whole(ssh, tmp_path, page, ssh.hostfile(tmp_path))
    assert_certified(done, page, "ssh", ssh.names)
    assert not list(tmp_path.glob(".mnode-*"))


def test_nodes_of_an_allocation_are_certified(slurm: SlurmOnRack, tmp_path: Path) -> None:
    # A node that is off for longer leaves the allocation; Slurm's default is 5 minutes.
    slurm.set_down_after(600)
    page = short_page(slurm, "inside of an allocation", without=OF_RANKS)
    done = certify_whole(slurm, tmp_path, page, before=ALLOCATION)
    assert_certified(done, page, "slurm", slurm.names)
    assert not list(tmp_path.glob(".mnode-*"))
    slurm.await_that(lambda: not slurm.queue(), 30, "nothing of it is queued")
