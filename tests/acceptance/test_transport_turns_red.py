"""The transport proof on a real rack: passes on the fabric, fails for traffic elsewhere."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from tests.acceptance.certified import spec_with
from tests.inner import need_rack, run_pytest, write_files

ROOT = Path(__file__).parents[2]

INNER = """
    import os
    import socket
    import threading

    import pytest
    import torch.distributed as dist
    from acceptance.test_fabric import test_traffic_runs_on_the_fabric as proven

    pytestmark = pytest.mark.mnode(reuse="fresh")


    @pytest.fixture
    def astray(request, world):
        '''Something on the way of the group that is made next, in these ranks only.'''
        case = request.param
        if case == "all on mgmt0" or (case == "node1 on mgmt0" and world.node == "node1"):
            os.environ["GLOO_SOCKET_IFNAME"] = "mgmt0"
        ended = threading.Event()
        talker = threading.Thread(target=talk, args=(ended,))
        if case == "another program" and world.node == "node2":
            talker.start()
        yield
        ended.set()
        if talker.ident is not None:
            talker.join()


    def talk(ended):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
            out.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"mgmt0")
            while not ended.is_set():
                out.sendto(bytes(1400), ("10.77.0.1", 9))


    @pytest.mark.parametrize(
        "astray",
        ["nothing", "all on mgmt0", "node1 on mgmt0", "another program"],
        indirect=True,
    )
    def test_way(astray, world, device, spec, measure):
        dist.init_process_group("gloo")
        proven(world, device, spec, measure)
        dist.destroy_process_group()
"""


def _text(case: ElementTree.Element) -> str:
    return "\n".join(f"{e.get('message', '')}\n{e.text or ''}" for e in case)


def _short(directory: Path) -> str:
    """--mnode-spec with the rack's spec and a proof that is short even on a slow network."""
    need_rack()
    return spec_with(directory, (r"size: 4 MiB\n      calls: 4", "size: 1 MiB\n      calls: 1"))


def test_each_way_to_bypass_the_fabric_fails(tmp_path: Path) -> None:
    write_files(tmp_path, test_ways=INNER)
    ranks = ("--mnode-nodes=3", "--mnode-procs-per-node=2", "--mnode-timeout=60")
    there = {"PYTHONPATH": str(ROOT)}
    done = run_pytest(tmp_path, _short(tmp_path), *ranks, "test_ways.py", env=there)
    failures = {name[9:-1]: _text(case) for name, case in done.cases().items()}
    ways = ("all on mgmt0", "node1 on mgmt0", "another program")
    assert done.outcomes() == {"test_way[nothing]": "passed"} | {
        f"test_way[{way}]": "failure" for way in ways
    }, done.output

    everywhere = failures["all on mgmt0"]
    for fact in ("pinned", "logged", "counted", "quiet"):
        assert f"transport, {fact}: " in everywhere
    assert "culprit all nodes: GLOO_SOCKET_IFNAME=mgmt0 is not the fabric (fab0)" in everywhere
    assert "connections to other nodes are bound to mgmt0, not to the fabric" in everywhere
    assert "mgmt0 (management) sent " in everywhere

    alone = failures["node1 on mgmt0"]
    assert "ranks 2-3 on node1: GLOO_SOCKET_IFNAME=mgmt0 is not the fabric (fab0)" in alone
    assert "node1: the fabric (fab0) sent " in alone

    program = failures["another program"]
    assert "transport, quiet: " in program
    assert "node2: mgmt0 (management) sent " in program
    for fact in ("pinned", "logged", "counted"):
        assert f"transport, {fact}: " not in program  # these three facts agree


def test_a_node_without_its_link_is_inconclusive(tmp_path: Path) -> None:
    broken = ("--mnode-nodes=2", "--mnode-fault=link_down:node1", "--mnode-timeout=4")
    test = f"{ROOT}/acceptance/test_fabric.py::test_traffic_runs_on_the_fabric"
    done = run_pytest(tmp_path, _short(tmp_path), *broken, test)
    assert done.outcomes() == {"test_traffic_runs_on_the_fabric": "error"}, done.output
    assert "fabric inconclusive" in done.output
