"""The last test of each criterion notices a link that went down meanwhile."""

from __future__ import annotations

from pathlib import Path

from tests.acceptance.certified import PORTS, certify
from tests.red import turns_red

UNPLUGGED = f"""
    from pytest_mnode import faults
    from pytest_mnode.options import RUN

    def pytest_runtest_setup(item):
        run = item.config.stash.get(RUN, None)
        if item.name == "{PORTS}" and run:
            faults.inject(run.pool.launcher, "link_down:node1")()
"""


@turns_red("data", PORTS)
@turns_red("devices", PORTS)
@turns_red("fabric", PORTS)
@turns_red("groups", PORTS)
@turns_red("launch", PORTS)
@turns_red("mesh", PORTS)
@turns_red("numa", PORTS)
@turns_red("restart", PORTS)
@turns_red("scaling", PORTS)
def test_a_link_that_went_down_during_a_criterion_is_named(tmp_path: Path) -> None:
    done = certify(tmp_path, "--mnode-nodes=2", "-k", PORTS, fault=UNPLUGGED)
    criteria = [c for c in done.certificate["criteria"] if c["verdict"] == "fail"]
    assert len(criteria) == 9, done.run.output
    for criterion in criteria:
        culprits = done.culprits(criterion["name"])
        assert any(c.startswith("node1 fab0 carrier_changes +") for c in culprits), culprits
