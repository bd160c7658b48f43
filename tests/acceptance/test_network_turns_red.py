"""The network behind the NIC: what nodes read of their switches, with a fault in each part."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance import hardware
from tests.acceptance.certified import certify, spec_edited
from tests.inner import need_rack
from tests.programs import write_program
from tests.red import turns_red

SAYS = '#!/bin/sh\nexec cat "{}/$(hostname)/{}"\n'
LINK = (
    '0x1 "{0} mlx5_1" 91 1[  ] ==( 4X {1} Gbps Active/  LinkUp)==>  0x2 37 12[  ] "leaf1" ({2})\n'
)
QOS = (
    "Priority trust state: dscp\nPFC configuration:\n"
    "\tpriority    0   1   2   3   4   5   6   7\n\tenabled     0   0   0   {}   0   0   0   0\n"
)
CHECKS = (
    *("test_subnet_manager_is_there", "test_lids_are_unique", "test_partitions_are_as_promised"),
    *("test_cables_are_full", "test_sharp_works", "test_roce_is_as_promised"),
    "test_cables_are_as_declared",
)


def _node(root: Path) -> None:
    """A node with a RoCE port and an InfiniBand port, both of fab0, and what its tools say."""
    number, is_bad = int(root.name[-1]), root.name == "node2"
    tree = hardware.server(root, "0")
    on = "pci0000:10/0000:10:01.0/0000:11:00.0"  # the accelerator's place serves
    shared = "0x10" if number in {0, 1} else f"0x1{number}"  # node0 and node1 have one LID
    gids = [("fe80:0000:0000:0000:1", "IB", "fab0")]
    tree.rdma("mlx5_1", on, gids=gids, lid=shared, sm_lid="0x0" if is_bad else "0x1")
    ports = f"sys/devices/{on}/infiniband/mlx5_1/ports/1"
    tree.write(f"{ports}/pkeys/0", "0x7fff" if is_bad else "0xffff")
    port = {"id": {"type": "ifname", "value": f"swp{number}"}}
    chassis = {"leaf9" if is_bad else "leaf1": {"id": {"type": "mac", "value": "1"}}}
    said = {
        "sminfo": "sminfo: sm lid 1 guid 0x1, activity count 7 priority 9 state 3 SMINFO_MASTER",
        "iblinkinfo": LINK.format(root.name, *(("25", "Could be 50") if is_bad else ("50", " "))),
        "sharp_hello": "no trees are left" if is_bad else "Test Passed.",
        "mlnx_qos": QOS.format(int(not is_bad)),
        "lldpctl": json.dumps(
            {"lldp": {"interface": {"fab0": {"chassis": chassis, "port": port}}}}
        ),
    }
    for name, text in said.items():
        (root / name).write_text(text + "\n")


@turns_red("preflight", *CHECKS)
def test_each_fault_behind_a_nic_is_named(tmp_path: Path) -> None:
    need_rack()
    roots = [tmp_path / f"node{number}" for number in range(4)]
    for root in roots:
        _node(root)
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("sminfo", "iblinkinfo", "sharp_hello", "mlnx_qos", "lldpctl"):
        write_program(programs / name, SAYS.format(tmp_path, name))
    infiniband = {"subnet_manager": "answers", "lids": "unique", "pkeys": ["0xffff"]}
    infiniband |= {"links": "full", "sharp": "works"}
    cabling = [{"switch": "leaf1", "nodes": "node[0-3]", "nics": ["fab0"]}]

    def edit(page: dict[str, Any]) -> None:
        page["criteria"] = {
            "preflight": {
                "infiniband": infiniband,
                "roce": {"pfc": [3], "trust": "dscp"},
                "topology": {"switches": cabling},
            }
        }

    done = certify(
        tmp_path,
        spec_edited(tmp_path, edit),
        *("-p", "tests.acceptance.hardware_faults", "-k", " or ".join(CHECKS)),
        f"--mnode-fault={','.join(f'machine_shown:{root.name}:{root}' for root in roots)}",
        env={"PATH": f"{programs}:{os.environ['PATH']}"},
        files=["test_preflight.py"],
        cold=False,
    )
    both = {
        f"{a} mlx5_1:1 and {b} mlx5_1:1 both have LID 16"
        for a, b in (("node0", "node1"), ("node1", "node0"))
    }
    assert done.culprits("preflight") == both | {
        "node2 mlx5_1:1 (0)",
        "node2 mlx5_1:1 (0x7fff)",
        "node2 mlx5_1:1 (4X 25 Gbps, could be 50, at leaf1 port 12)",
        "node2 mlx5_1:1 (no trees are left)",
        "node2 mlx5_0:1 (none)",
        "node2 fab0 is on leaf9 port swp2, declared leaf1 port (any)",
    }, done.run.output


TWICE = """\
#!/bin/sh
[ -e {0}/{1}.seen ] && exec cat {0}/{1}.after
: >{0}/{1}.seen
exec cat {0}/{1}.before
"""
COUNTED = """\
Errors for 0x2 "leaf1"
   GUID 0x2 port 12: [SymbolErrorCounter == {}] [LinkDownedCounter == 3] [PortXmitWait == {}]
## Summary: 2 nodes checked, 1 bad nodes found
"""
MASTER = "sminfo: sm lid 1 sm guid 0x{}, activity count 7 priority 9 state 3 SMINFO_MASTER"
DIAGNOSED = """\
-E- Link: S2/N2/P12<-->node2/U1/P1 - Unexpected actual link speed 25
-I- Stage                     Warnings   Errors     Comment
-I- Speed / Width checks      0          1
Adaptive Routing is enabled on 0 switches
"""


@turns_red("fabric", "test_switches_are_sound")
def test_each_fault_of_switches_is_named(tmp_path: Path) -> None:
    said = {
        "ibqueryerrors": (COUNTED.format(5, 9), COUNTED.format(7, 1000)),
        "sminfo": (MASTER.format("1"), MASTER.format("2")),
        "iblinkinfo": (LINK.format("node2", "25", "Could be 50") + LINK.format("node3", "50", ""),),
        "ibdiagnet": (DIAGNOSED,),
    }
    for name, texts in said.items():
        (tmp_path / f"{name}.before").write_text(texts[0])
        (tmp_path / f"{name}.after").write_text(texts[-1])
        write_program(tmp_path / name, TWICE.format(tmp_path, name))
    promise = {"links": "full", "errors_at_most": 0, "subnet_manager": "stable"}
    promise |= {"ibdiagnet": "clean", "adaptive_routing": "on"}
    done = certify(
        tmp_path,
        spec_edited(tmp_path, lambda page: page.update(criteria={"fabric": {"switches": promise}})),
        *("-k", "switches", "--mnode-nodes=3"),
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        files=["test_fabric.py"],
        cold=False,
    )
    assert set(done.failed("fabric").values()) == {
        "node2 mlx5_1 port 1 – leaf1 port 12 (4X 25 Gbps, could be 50)",
        "leaf1 port 12 (SymbolErrorCounter +2)",
        "subnet manager 0x1 (LID 1, MASTER) then 0x2 (LID 1, MASTER)",
        "Link: S2/N2/P12<-->node2/U1/P1 - Unexpected actual link speed 25",
        "routing engine of the subnet manager",
    }, done.run.output
    [case] = done.cases("fabric").values()
    slow = next(m for m in case["measurements"] if "below their speed" in m["name"])
    assert (slow["culprit_nodes"], slow["culprit_either"]) == ([], [["node2"]])


@turns_red(
    "fabric", "test_halves_exchange_at_full_rate", "test_other_traffic_costs_no_more_than_promised"
)
def test_a_narrow_uplink_is_found(tmp_path: Path) -> None:
    """It is as fast as one NIC, so that each pair alone is fast."""
    promises = {"bisection": {"at_least_fraction": 0.7}, "congestion": {"loss_at_most": 0.15}}
    done = certify(
        tmp_path,
        spec_edited(tmp_path, lambda page: page.update(criteria={"fabric": promises})),
        *("--mnode-fault=narrow_uplink:node2", "-k", "halves or other_traffic"),
        files=["test_fabric.py"],
    )
    assert done.culprits("fabric") == {
        "uplinks between node[0-1] and node[2-3]: each pair alone is fast enough",
        "what node[0,2] and node[1,3] share",
    }, done.run.output


@turns_red("fabric", "test_all_send_to_one_without_losses")
def test_losses_of_an_incast_are_found(tmp_path: Path) -> None:
    promises = {"incast": {"at_least_fraction": 0.7, "pause": "must"}}
    done = certify(
        tmp_path,
        spec_edited(tmp_path, lambda page: page.update(criteria={"fabric": promises})),
        *("--mnode-fault=slow_rx:node1", "-k", "send_to_one"),
        files=["test_fabric.py"],
        cold=False,
    )
    _, found = done.case("fabric", "test_all_send_to_one_without_losses")
    least = found["incast, node that received least"]
    assert (least["verdict"], least["culprit_nodes"]) == ("fail", ["node1"]), done.run.output
    assert found["packets lost, worst fabric port, in an incast"]["verdict"] is None
    assert found["pause frames in an incast"]["verdict"] == "inconclusive"


@turns_red("fabric", "test_other_ports_take_over_from_one_that_goes_down")
@pytest.mark.parametrize(
    ("fault", "failed"),
    [
        ("slow_link:node1:50:fab0b", {"rate while a port is down"}),
        (
            "link_down:node1:fab0b",
            {"rate while a port is down", "longest pause when a port goes down or up"},
        ),
    ],
)
def test_a_spare_port_that_is_slow_or_dead_is_found(
    tmp_path: Path, fault: str, failed: set[str]
) -> None:
    """Two ports of each node, of which the second is used while the first is down."""
    ports = {"ports": ["fab0a", "fab0b"], "within": "1 s", "down_for": "2 s"}
    promises = {"failover": {**ports, "at_least_fraction": 0.8, "after_at_least_fraction": 0.5}}
    done = certify(
        tmp_path,
        spec_edited(tmp_path, lambda page: page.update(criteria={"fabric": promises})),
        *("--mnode-nodes=2", f"--mnode-fault={fault}", "-k", "take_over"),
        files=["test_fabric.py"],
    )
    _, found = done.case("fabric", "test_other_ports_take_over_from_one_that_goes_down")
    bad = {name: one["culprit_nodes"] for name, one in found.items() if one["verdict"] == "fail"}
    assert bad.keys() - {"rate after it is up"} == failed, done.run.output
    assert set(map(tuple, bad.values())) == {("node1",)}
