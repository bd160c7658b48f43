"""Traffic criteria on racks with one fault each."""

from __future__ import annotations

import re
from pathlib import Path

from tests.acceptance.certified import PORTS, certify, promised, spec_of
from tests.red import turns_red

RATE = "test_collective_reaches_the_line_rate"
TRAFFIC = ("test_mesh.py", "test_fabric.py")
STOPPED_RANK = """
    import os, signal
    import pytest
    from pytest_mnode.measuring import limits

    limits.TRIAL_S = 60.0  # it ends, however busy the cores are

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(item):
        rate = "test_collective_reaches_the_line_rate[all_reduce]"
        hit = item.name in ("test_sum_is_right[4]", rate)
        if hit and os.environ.get("RANK") == "2":
            os.kill(os.getpid(), signal.SIGSTOP)
"""
WRONG_SUM = """
    import os
    import pytest

    @pytest.fixture(autouse=True)
    def one_wrong_value(request, monkeypatch):
        if "process_group" not in request.fixturenames:
            return  # runs in the controller
        world = request.getfixturevalue("world")
        import torch.distributed as dist
        right, both, gather = dist.all_reduce, dist.batch_isend_irecv, dist.all_gather_object

        def all_reduce(tensor, *args, **kwargs):
            right(tensor, *args, **kwargs)
            if world.rank == 1:
                tensor[-1] += 1

        def batch_isend_irecv(operations):
            if world.rank == 2:
                [sent] = [one for one in operations if one.op is dist.isend]
                sent.tensor[-1] += 1
            return both(operations)

        def all_gather_object(into, mine):  # two ranks are on each other's node
            node = world.nodes[{1: 2, 2: 1}.get(world.rank, world.rank)]
            gather(into, (world.rank, node) if mine == (world.rank, world.node) else mine)

        monkeypatch.setattr(dist, "all_reduce", all_reduce)
        if "meets" in request.node.name:
            monkeypatch.setattr(dist, "batch_isend_irecv", batch_isend_irecv)
        if "is_there" in request.node.name:
            monkeypatch.setattr(dist, "all_gather_object", all_gather_object)
"""


def _short(directory: Path) -> str:
    """One collective and the transport of the fabric, in sizes that are short on a slow link."""
    all_reduce = promised("fabric")["all_reduce_busbw"]
    all_reduce |= {"sizes": ["64 KiB", "1 MiB"], "plateau_from": "1 MiB", "repeats": 3}
    fabric = {"all_reduce_busbw": all_reduce, "transport": {"size": "1 MiB", "calls": 1}}
    return spec_of(directory, criteria={"mesh": {}, "fabric": fabric})


@turns_red("fabric", RATE)
def test_a_slow_link_is_found(tmp_path: Path) -> None:
    done = certify(tmp_path, _short(tmp_path), "--mnode-fault=slow_link:node2:50", files=TRAFFIC)
    assert done.run.returncode == 1
    assert done.certificate["verdict"] == "not certified"
    # Sums are correct. A link too slow for its traffic loses some packets.
    mesh = done.cases("mesh").items()
    assert {name for name, case in mesh if case["verdict"] != "pass"} <= {PORTS}
    assert all("node2" in name and "TCP" in name for name in done.culprits("mesh"))
    culprits = {culprit for culprit in done.culprits("fabric") if "TCP" not in culprit}
    assert culprits
    for culprit in culprits:  # of the collective and of the paths, with the partners of each search
        found = re.fullmatch(
            r"node2 fab0 \((\d+) Mbit/s, alone with .*; other nodes (\d+)\)", culprit
        )
        assert found, culprit
        # Of 50; data queued while a receiver waited for a core raises it by up to a third.
        assert 40 <= int(found[1]) <= 75
        assert int(found[2]) > 150
    report = done.run.output.partition("short test summary")[0]
    assert report.count("all_reduce 1 MiB busbw: ") == 1  # one for all ranks
    assert any(f"fabric failed ({culprit}" in done.run.output for culprit in culprits)


@turns_red("mesh", PORTS)
def test_only_a_flapping_link_is_named(tmp_path: Path) -> None:
    done = certify(tmp_path, "--mnode-fault=flapping_link:node2:0.6", files=["test_mesh.py"])
    culprits = done.culprits("mesh")
    [link] = (c for c in culprits if re.fullmatch(r"node2 fab0 carrier_changes \+\d+", c))
    # On a busy machine the link may be down for longer than the limit of a sum.
    assert all("node2" in culprit for culprit in culprits - {link}), culprits
    case = done.cases("mesh")[PORTS]
    assert (case["verdict"], case["measurements"][0]["culprit"]) == ("fail", link)
    assert any(f"mesh failed ({culprit}" in done.run.output for culprit in culprits)


@turns_red("fabric", RATE, "test_traffic_runs_on_the_fabric")
def test_the_management_network_is_recognised(tmp_path: Path) -> None:
    way = "--mnode-env=GLOO_SOCKET_IFNAME=mgmt0"
    done = certify(tmp_path, _short(tmp_path), way, files=["test_fabric.py"])
    assert done.certificate["verdict"] == "not certified"
    measured = done.measurements("fabric")
    culprit = measured["all_reduce 1 MiB busbw"]["culprit"]
    assert culprit.startswith("all nodes sent over mgmt0 instead of fab0; the fabric as a whole: ")
    assert " Mbit/s, the rate of the management network" in culprit
    assert measured["all_reduce 1 MiB busbw"]["verdict"] == "fail"
    assert measured["off-fabric traffic, worst node"]["value"] > 95
    assert "node2 mostly mgmt0" in done.run.output


def test_a_stopped_rank_is_named(tmp_path: Path) -> None:
    # Each test after a hang starts with a trial on fresh ranks: one test of each kind is enough.
    args = ("--mnode-timeout=12", "-k", "mesh or all_reduce or every_path or ports")
    done = certify(tmp_path, _short(tmp_path), *args, fault=STOPPED_RANK, files=TRAFFIC)
    assert done.certificate["verdict"] == "not certified"
    for criterion in ("mesh", "fabric"):
        assert done.criterion(criterion)["verdict"] == "fail"
        assert done.culprits(criterion) == {"rank 2 of 4 on node2"}
    outcomes = done.run.outcomes()
    assert outcomes.pop("test_sum_is_right[4]") == "failure"
    assert outcomes.pop(f"{RATE}[all_reduce]") == "failure"
    # Fresh ranks are not stopped: a small collective ends in them, so the other tests are tried.
    assert set(outcomes.values()) == {"passed", "skipped"}


@turns_red(
    "mesh",
    "test_every_rank_is_there",
    "test_every_rank_meets_every_other",
    "test_sum_is_right",
    "test_sum_is_right_in_every_dtype",
)
def test_a_wrong_sum_fails_and_unpromised_tests_are_not_judged(tmp_path: Path) -> None:
    silent = spec_of(tmp_path, criteria={"mesh": {}})
    done = certify(tmp_path, silent, fault=WRONG_SUM, files=TRAFFIC)
    assert done.certificate["verdict"] == "not certified"
    wrong = done.measurements("mesh")["#wrong"]
    assert (wrong["value"], wrong["verdict"]) == (12, "fail")  # one wrong value per call
    assert wrong["culprit"].startswith("rank 1 on node1: wrong results there, right results on ")
    met = done.measurements("mesh")["messages that came right"]
    assert (met["value"], met["verdict"]) == (9, "fail"), met
    assert "rank 2 on node2" in met["culprit"]
    assert done.criterion("fabric")["verdict"] == "not promised"
    assert done.run.outcomes()[f"{RATE}[all_reduce]"] == "skipped"
