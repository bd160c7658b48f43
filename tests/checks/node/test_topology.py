"""Cables against what is declared, from what switches say of themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.checks.node.topology import CablesAreAsDeclared
from pytest_mnode.errors import SpecError
from pytest_mnode.evidence.reading import CheckRows
from pytest_mnode.launchers.slurm.topology import leaves
from pytest_mnode.logs.lldp import Neighbour, neighbours
from pytest_mnode.spec import load_spec
from tests.checks.node.judged import blamed, judged, rows_of, verdicts
from tests.logs.test_subnet import DISCOVERED
from tests.programs import write_program
from tests.spec.conftest import Page, page  # noqa: F401  a fixture
from tests.trees import Tree


def heard(switch: str, port: str) -> dict[str, Any]:
    return {
        "via": "LLDP",
        "rid": "1",
        "age": "0 day, 02:33:10",
        "chassis": {
            switch: {"id": {"type": "mac", "value": "44:38:39:00:00:01"}, "descr": "SONiC"}
        },
        "port": {"id": {"type": "ifname", "value": port}, "descr": port, "ttl": "120"},
    }


JSON0 = {
    "lldp": [
        {
            "interface": [
                {
                    "name": "eth0",
                    "via": "LLDP",
                    "chassis": [
                        {"id": [{"type": "mac", "value": "1"}], "name": [{"value": "leaf1"}]}
                    ],
                    "port": [
                        {"id": [{"type": "local", "value": "7"}], "descr": [{"value": "swp7"}]}
                    ],
                }
            ]
        }
    ]
}
NAMELESS = {
    "id": {"type": "mac", "value": "44:38"},
    "capability": [{"type": "Bridge", "enabled": True}],
}


@pytest.mark.parametrize(
    ("interface", "expected"),
    [
        ({"eth0": heard("leaf1", "swp1")}, [("eth0", "leaf1", "swp1")]),
        (
            [{"eth0": heard("leaf1", "swp1")}, {"eth1": heard("leaf2", "swp1")}],
            [("eth0", "leaf1", "swp1"), ("eth1", "leaf2", "swp1")],
        ),
        (
            [{"eth0": heard("leaf1", "swp1")}, {"eth0": heard("nic", "p0")}],
            [("eth0", "leaf1", "swp1"), ("eth0", "nic", "p0")],
        ),
        ({"eth0": heard("x", "y") | {"chassis": NAMELESS}}, [("eth0", "44:38", "y")]),
        ({"eth0": {"chassis": {"leaf1": {}}}}, [("eth0", "leaf1", "")]),
        ([], []),
    ],
)
def test_both_forms_of_json(interface: Any, expected: list[tuple[str, ...]]) -> None:
    found = [
        (one.interface, one.switch, one.port)
        for one in neighbours({"lldp": {"interface": interface}})
    ]
    assert found == expected


def test_the_long_form_and_no_neighbours() -> None:
    assert [*neighbours(JSON0)] == [Neighbour("eth0", "leaf1", "7", "swp7")]
    assert [*neighbours({"lldp": {}})] == [] == [*neighbours({"lldp": [{}]})]
    with pytest.raises(ValueError, match="no lldp"):
        [*neighbours({"error": "x"})]


TREE = """\
# a comment
SwitchName=spine Switches=leaf[1-2]
switchname=leaf1 nodes=a,b LinkSpeed=400
SwitchName=leaf2 \\
   Nodes=c[1-2]
"""
YAML = """\
- topology: blocks
  block: {block_sizes: [4], blocks: [{block: b1, nodes: "a,b"}]}
- topology: tree
  cluster_default: true
  tree:
    switches:
      - {switch: root, children: "leaf[1-2]"}
      - {switch: leaf1, nodes: "a,b"}
      - {switch: leaf2, nodes: "c[1-2]"}
"""
SAME = {"leaf1": ("a", "b"), "leaf2": ("c1", "c2")}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TREE, SAME),
        (YAML, SAME),
        ("BlockName=b1 Nodes=n[08-10]\nBlockSizes=4\n", {"b1": ("n08", "n09", "n10")}),
    ],
)
def test_what_slurm_declares(text: str, expected: dict[str, tuple[str, ...]]) -> None:
    assert leaves(text) == expected


@pytest.mark.parametrize(
    "text", ["", "SwitchName=s Switches=t", "- flat: true", "SwitchName=s Nodes=n[3-1]"]
)
def test_what_declares_no_node(text: str) -> None:
    with pytest.raises(ValueError, match=r"declares no switch|n\[3-1\]"):
        leaves(text)


def node(root: Path, cables: Mapping[str, str] | str, promise: str, conf: str = "") -> CheckRows:
    """What a node with eth0 and eth1 reads. cables: "SWITCH PORT" by NIC, or an error."""
    tree = Tree(root)
    tree.write("proc/sys/kernel/hostname", root.name)
    if conf:
        tree.write("etc/topology.conf", conf)
    for number in (0, 1):
        tree.interface(f"eth{number}", f"pci0000:1{number}/0000:1{number}:00.0")
    if isinstance(cables, str):
        text = f"#!/bin/sh\necho '{cables}' >&2\nexit 1\n"
    else:
        listed = [{nic: heard(*cable.split())} for nic, cable in cables.items()]
        found = json.dumps({"lldp": {"interface": listed}})
        text = f"#!/bin/sh\necho '2026-11-28T21:30:00 [WARN/lldpctl] old daemon'\necho '{found}'\n"
    write_program(root / "lldpctl", text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{root}:/usr/bin:/bin")
        return rows_of(CablesAreAsDeclared, promise, root)


RAILS = """{switches: [
  {switch: leaf1, nodes: 'a,b', nics: [eth0]},
  {switch: '*-leaf2', nodes: 'a,b', nics: [eth1], port: 'Eth*/7'}]}"""
GOOD = {"eth0": "leaf1.dc.example swp1", "eth1": "su1-leaf2 Ethernet1/7"}


@pytest.mark.parametrize(
    ("cables", "verdict", "words"),
    [
        (GOOD, "p", ""),
        ({**GOOD, "eth0": "leaf3 swp1"}, "f", "eth0 is on leaf3 port swp1, declared leaf1"),
        ({**GOOD, "eth1": "su1-leaf2 Eth1/8"}, "f", "port Eth1/8, declared *-leaf2 port Eth*/7"),
        ({"eth0": GOOD["eth1"], "eth1": GOOD["eth0"]}, "f", "eth1 is on leaf1.dc.example port"),
        ({"eth0": GOOD["eth0"]}, "i", "eth1: hears no switch by LLDP"),
        ({"eth0": "leaf3 swp1"}, "f", "eth0 is on leaf3"),  # and eth1 hears nothing
        ("[ERROR/lldpctl] unable to connect to socket /run/lldpd.socket", "i", "unable to connect"),
    ],
)  # fmt: skip
def test_a_wrong_cable_names_nic_and_ports(
    tmp_path: Path, cables: dict[str, str] | str, verdict: str, words: str
) -> None:
    nodes = {"a": node(tmp_path / "a", GOOD, RAILS), "b": node(tmp_path / "b", cables, RAILS)}
    found = judged(CablesAreAsDeclared, RAILS, nodes, ("eth*",))
    assert verdicts(found) == f"p {verdict}"
    assert blamed(found) == ({"b"} if verdict == "f" else set())
    assert words in str(found["b"][0])


@pytest.mark.parametrize(
    ("promise", "words"),
    [
        (RAILS.replace("eth1", "eth2"), "eth2, which is not there, or has no link"),
        (RAILS.replace("a,b", "node[1-9]"), "no node of the run is declared"),
    ],
)
def test_a_declared_cable_without_a_nic_has_not_passed(
    tmp_path: Path, promise: str, words: str
) -> None:
    nodes = {name: node(tmp_path / name, GOOD, promise) for name in ("a", "b")}
    found = judged(CablesAreAsDeclared, promise, nodes, ("eth*",))
    assert verdicts(found) == "i i"
    assert words in str(found["b"][0])


FILE = "{file: /etc/topology.conf}"
CONF = "SwitchName=s1 Nodes=a,b,c\nSwitchName=s2 Nodes=d"


@pytest.mark.parametrize(
    ("switches", "expected", "guilty"),
    [
        ({"a": "x", "b": "x", "c": "x", "d": "y"}, "p p p i", set()),  # other names than Slurm's
        ({"a": "x", "b": "x", "c": "y", "d": "y"}, "p p f i", {"c"}),
        ({"a": "s1", "b": "s1", "c": "s1", "d": "s2"}, "p p p p", set()),
        ({"a": "s1", "b": "S1", "c": "s2", "d": "s1"}, "p p f f", {"c", "d"}),
    ],
)
def test_nodes_of_a_leaf_see_one_switch(
    tmp_path: Path, switches: dict[str, str], expected: str, guilty: set[str]
) -> None:
    nodes = {
        name: node(tmp_path / name, {"eth0": f"{switch} p1", "eth1": f"{switch} p2"}, FILE, CONF)
        for name, switch in switches.items()
    }
    found = judged(CablesAreAsDeclared, FILE, nodes, ("eth*",))
    assert (verdicts(found), blamed(found)) == (expected, guilty)


def test_a_node_that_the_file_lacks_is_inconclusive(tmp_path: Path) -> None:
    rows = node(tmp_path / "z", GOOD, FILE, CONF)
    [found] = judged(CablesAreAsDeclared, FILE, {"z": rows}, ("eth*",))["z"]
    assert (found.verdict, "has no node z" in str(found)) == ("inconclusive", True)
    both = f"{RAILS[:-1]}, file: /etc/topology.conf}}"
    rows = node(tmp_path / "a", GOOD, both)
    cables, leaf = judged(CablesAreAsDeclared, both, {"a": rows}, ("eth*",))["a"]
    assert (cables.verdict, leaf.verdict) == ("pass", "inconclusive")
    assert "/etc/topology.conf: no such file" in str(leaf)


@pytest.mark.parametrize(("switch", "verdict"), [("leaf1", "p"), ("leaf2", "f")])
def test_infiniband_is_known_from_a_file(tmp_path: Path, switch: str, verdict: str) -> None:
    tree, on = Tree(tmp_path), "pci0000:10/0000:10:00.0"
    tree.interface("ib0", on, type=32)
    tree.rdma("mlx5_0", on)
    tree.write(f"sys/devices/{on}/infiniband/mlx5_0/node_guid", "248a:0703:002e:6152")
    tree.write("srv/net.txt", DISCOVERED)
    promise = (
        f"{{switches: [{{switch: {switch}, nodes: n1, port: '12'}}], ibnetdiscover: /srv/net.txt}}"
    )
    rows = rows_of(CablesAreAsDeclared, promise, tmp_path)
    found = judged(CablesAreAsDeclared, promise, {"n1": rows}, ("mlx5_*",))
    assert verdicts(found) == verdict


def test_a_promise_declares_something(page: Page) -> None:  # noqa: F811
    path = page("  preflight:\n", "  preflight:\n    topology: {ibnetdiscover: /a}\n")
    with pytest.raises(SpecError, match="declares nothing; accepted: switches, file"):
        load_spec(path)
