"""RoCE settings of NICs, from made trees of /sys and stand-ins of mlnx_qos, dcb and others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.checks.node.roce import RoceIsAsPromised
from pytest_mnode.evidence.reading import CheckRows
from pytest_mnode.logs import nic_qos
from tests.checks.node.judged import blamed, judged, rows_of, verdicts
from tests.programs import write_program
from tests.trees import Tree

NICS = ("mlx5_*",)
QOS = """\
DCBX mode: OS controlled
Priority trust state: dscp
dscp2prio mapping:
        prio:0 dscp:07,06,05,04,03,02,01,00,
        prio:3 dscp:31,30,29,28,27,26,25,24,
        prio:5 dscp:59,
Receive buffer size (bytes): 20016,156096,0,0,0,0,0,0,total_size=1027728
Cable len: 7
PFC configuration:
        priority    0   1   2   3   4   5   6   7
        enabled     0   0   0   1   0   0   0   0
        buffer      0   0   0   1   0   0   0   0
tc: 0 ratelimit: unlimited, tsa: vendor
         priority:  1
"""
OFF = QOS.replace("enabled     0   0   0   1", "enabled     0   0   0   0")
DCB = {
    "pfc-cap": 8,
    "macsec-bypass": False,
    "delay": 0,
    "prio_pfc": [False] * 3 + [True] + [False] * 4,
}
APP = {"dscp_prio": [[26, 3], [48, 6]], "default_prio": [0]}
DCB_PROGRAM = """\
#!/bin/sh
case "$*" in *pfc*) echo '{}' ;; *) echo '{}' ;; esac
"""
REGISTER = """\
Sending access register...

Field Name                                     | Data
============================================================
roce_tx_window_en                              | 0x00000001
adaptive_routing_forced_en                     | 0x0000000{}
============================================================
"""
ALL = "{pfc: [3], trust: dscp, ecn: on, traffic_class: 106, tos: 106, adaptive_routing: on}"


def machine(  # noqa: PLR0917
    root: Path,
    qos: str | None = QOS,
    ecn: str | None = "3",
    traffic_class: str | None = "Global tclass=106",
    tos: str = "106",
    routing: int = 1,
) -> CheckRows:
    """What a node with one NIC shows, of all that can be promised. ecn: priorities that have it."""
    tree, on = Tree(root), "pci0000:10/0000:10:00.0"
    tree.interface("eth2", on)
    tree.rdma("mlx5_0", on, gids=[("fe80::1", "RoCE v2", "eth2")], link_layer="Ethernet")
    for number in range(8) if ecn is not None else ():
        for end in ("np", "rp"):
            state = int(str(number) in (ecn or "").split())
            tree.write(f"sys/devices/{on}/net/eth2/ecn/roce_{end}/enable/{number}", state)
    if traffic_class is not None:
        tree.write(f"sys/devices/{on}/infiniband/mlx5_0/tc/1/traffic_class", traffic_class)
    for name, text in (
        ("mlnx_qos", qos),
        ("cma_roce_tos", tos),
        ("mlxreg", REGISTER.format(routing)),
    ):
        if text is not None:
            write_program(root / name, f"#!/bin/sh\ncat <<'E'\n{text}\nE\n")
    return read(root)


def read(root: Path, promise: str = ALL) -> CheckRows:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{root}:/usr/bin:/bin")
        patch.setattr("pytest_mnode.machine.programs._PLACES", ("/bin",))
        return rows_of(RoceIsAsPromised, promise, root)


@pytest.mark.parametrize(
    ("changed", "promise", "verdict", "words"),
    [
        ({}, ALL, "ppppppp", ""),
        ({"qos": OFF}, "{pfc: [3]}", "f", "mlx5_0:1 (none)"),
        ({}, "{pfc: [3, 4]}", "f", "mlx5_0:1 (3)"),
        ({}, "{pfc: []}", "f", "mlx5_0:1 (3)"),
        ({"qos": QOS.replace("dscp\n", "pcp\n", 1)}, "{trust: dscp}", "f", "mlx5_0:1 (pcp)"),
        ({"qos": "Priority trust mode: n/a"}, "{trust: dscp}", "i", "mlnx_qos shows nothing"),
        ({"ecn": ""}, "{ecn: on}", "f", "mlx5_0:1 (none)"),
        ({"ecn": "5"}, "{ecn: on}", "p", ""),
        ({"ecn": "5"}, "{pfc: [3], ecn: on}", "pf", "mlx5_0:1 (5)"),
        ({"ecn": "3"}, "{ecn: off}", "f", "mlx5_0:1 (3)"),
        ({"ecn": None}, "{ecn: on}", "i", "no /sys/class/net/eth2/ecn"),
        ({"traffic_class": ""}, "{traffic_class: 106}", "f", "mlx5_0:1 (none)"),
        ({"traffic_class": "Global tclass=236\ntclass=3"}, "{traffic_class: 106}", "f", "(236)"),
        ({"traffic_class": None}, "{traffic_class: 106}", "i", "no /sys/class/infiniband/"),
        ({"tos": "0"}, "{tos: 106}", "f", "mlx5_0:1 (0)"),
        ({"routing": 0}, "{adaptive_routing: on}", "f", "mlx5_0:1 (off)"),
    ],
)  # fmt: skip
def test_settings_that_are_not_as_promised_are_named(
    tmp_path: Path, changed: dict[str, Any], promise: str, verdict: str, words: str
) -> None:
    found = judged(RoceIsAsPromised, promise, {"a": machine(tmp_path, **changed)}, NICS)
    assert verdicts(found) == verdict
    assert blamed(found) == ({"a"} if "f" in verdict else set())
    assert words in " ".join(map(str, found["a"]))


def test_a_traffic_class_without_flow_control_is_found(tmp_path: Path) -> None:
    """As where switches expect DSCP 26 on priority 3, and the NIC has it on another."""
    promise = "{pfc: [3], traffic_class: 106}"
    moved = QOS.replace("26,", "").replace("dscp:59,", "dscp:59,26,")
    for name, qos, verdict in (
        ("a", QOS, "ppp"),
        ("b", moved, "pfp"),
        ("c", QOS.replace("26,", ""), "pip"),
    ):
        machine(tmp_path / name, qos=qos)
        found = judged(RoceIsAsPromised, promise, {name: read(tmp_path / name, promise)}, NICS)
        assert verdicts(found) == verdict, name


@pytest.mark.parametrize(
    ("pfc", "app", "verdict"),
    [
        (json.dumps(DCB), json.dumps(APP), "pp"),
        (json.dumps([DCB]).replace("prio_pfc", "prio-pfc"), json.dumps(APP), "pp"),
        ("pfc-cap 8 macsec-bypass off delay 0\nprio-pfc 0:off 1:off 2:off 3:on 4:off", "", "pi"),
        (json.dumps(DCB), "{}", "pf"),  # no DSCP has a priority
        ("{}", json.dumps(APP), "ip"),
    ],
)
def test_dcb_serves_where_mlnx_qos_is_missing(
    tmp_path: Path, pfc: str, app: str, verdict: str
) -> None:
    machine(tmp_path, qos=None)
    write_program(tmp_path / "dcb", DCB_PROGRAM.format(pfc, app))
    promise = "{pfc: [3], trust: dscp}"
    found = judged(RoceIsAsPromised, promise, {"a": read(tmp_path, promise)}, NICS)
    assert verdicts(found) == verdict


def test_missing_programs_name_their_packages(tmp_path: Path) -> None:
    machine(tmp_path, qos=None)
    write_program(
        tmp_path / "dcb",
        "#!/bin/sh\necho 'Attribute not found: Operation not supported' >&2\nexit 1\n",
    )
    found = judged(RoceIsAsPromised, "{pfc: [3]}", {"a": read(tmp_path)}, NICS)
    assert verdicts(found) == "i"
    assert "install mlnx-tools; dcb: Attribute not found" in str(found["a"][0])


def test_the_node_that_differs_is_found(tmp_path: Path) -> None:
    nodes = {name: machine(tmp_path / name) for name in "ab"}
    nodes["c"] = machine(tmp_path / "c", ecn="3 5", tos="0")
    found = judged(RoceIsAsPromised, "{same: true}", nodes, NICS)
    assert verdicts(found) == "p p f"
    assert blamed(found) == {"c"}
    words = "priorities with ECN mlx5_0:1: 3 5, 3 on 2 of 3 nodes"
    assert words in str(found["c"][0])
    alike = {name: machine(tmp_path / f"{name}0", ecn=None) for name in "ab"}
    assert verdicts(judged(RoceIsAsPromised, "{same: true}", alike, NICS)) == "p p"


def test_what_is_drafted_is_kept(tmp_path: Path) -> None:
    rows = machine(tmp_path).rows
    drafted = RoceIsAsPromised.draft({"a": rows, "b": rows})
    assert drafted == {"pfc": [3], "trust": "dscp", "traffic_class": 106}


def test_texts_that_show_nothing() -> None:
    assert nic_qos.mlnx_qos("") == nic_qos.Qos()
    assert nic_qos.dcb_pfc([]) is None
    assert nic_qos.dcb_app([]) == {}
    assert nic_qos.register_field("-E- Failed to open device", "adaptive_routing_forced_en") is None
