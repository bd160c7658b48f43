"""A node that no longer reaches another one: the report names the connection and both nodes."""

from __future__ import annotations

import pytest

from tests.inner import InnerRun, need_program, need_rack, run_pytest, write_files

WRONG_NEIGHBOUR = """
    import subprocess
    import torch.distributed as dist

    def test_in_a_collective(world, process_group):
        dist.barrier()
        if world.rank == 2:  # the operator's mistake: a MAC address that no node has
            wrong = "10.78.0.1 lladdr 02:00:00:00:00:99 dev fab0 nud permanent"
            subprocess.run(["ip", "neigh", "replace", *wrong.split()], check=True)
        for _ in range(3):
            dist.barrier()

    def test_at_init(world, process_group):
        dist.barrier()

    def test_without_a_group(world): ...
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> InnerRun:
    need_rack()
    need_program("ip", "iproute2")
    directory = tmp_path_factory.mktemp("cut_off")
    write_files(directory, test_it=WRONG_NEIGHBOUR)
    return run_pytest(directory, "--mnode-nodes=4", "--mnode-timeout=5")


@pytest.mark.parametrize(
    ("name", "call"), [("in_a_collective", "barrier"), ("at_init", "init_process_group")]
)
def test_both_nodes_and_the_address_are_named(ran: InnerRun, name: str, call: str) -> None:
    parts = {part.tag: part.text for part in ran.cases()[f"test_{name}"]}
    lines = (parts.get("failure") or parts.get("error") or "").splitlines()
    assert lines[0].startswith("[ranks 0,2 of 4 on node0,node2"), ran.output
    assert lines[1].startswith("no end within 5 s: rank "), ran.output
    assert "rank 2 on node2 gets no TCP acknowledgement from 10.78.0.1:" in lines[1], ran.output
    assert f"wait in {call} at " in lines[1], ran.output


def test_other_tests_pass(ran: InnerRun) -> None:
    assert ran.outcomes()["test_without_a_group"] == "passed", ran.output
