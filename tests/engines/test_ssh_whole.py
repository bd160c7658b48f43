"""The acceptance suite, unchanged, on four nodes that only ssh leads to."""

from __future__ import annotations

from pathlib import Path

from tests.engines.ssh import SshOnRack
from tests.engines.whole import assert_certified, certify_whole, short_page


def test_nodes_that_are_well_are_certified(ssh: SshOnRack, tmp_path: Path) -> None:
    page = short_page(ssh, "over ssh")
    done = certify_whole(ssh, tmp_path, page, ssh.hostfile(tmp_path))
    assert_certified(done, page, "ssh", ssh.names)
    assert not list(tmp_path.glob(".mnode-*"))
