"""The acceptance suite, unchanged, on four nodes that only ssh leads to."""

from __future__ import annotations

from pathlib import Path

from tests.engines.ssh import SshOnRack
from tests.engines.whole import certify_whole, short_page


def test_nodes_that_are_well_are_certified(ssh: SshOnRack, tmp_path: Path) -> None:
    page = short_page(ssh, "over ssh")
    done = certify_whole(ssh, tmp_path, page, ssh.hostfile(tmp_path))
    certificate = done.certificate
    others = {c["name"]: c["verdict"] for c in certificate["criteria"] if c["verdict"] != "pass"}
    # How fast two cores train as four nodes is not known well enough while others use them.
    assert others in ({}, {"scaling": "inconclusive"}), done.run.output
    if not others:
        assert certificate["verdict"] == "certified", done.run.output
    assert certificate["run"]["launcher"] == "ssh"
    assert certificate["run"]["nodes"] == list(ssh.names)
    assert set(page["criteria"]) == {c["name"] for c in certificate["criteria"]}
    kills = done.measurements("restart")
    assert any("power-off" in name or "node" in name for name in kills)
    assert not list(tmp_path.glob(".mnode-*"))
