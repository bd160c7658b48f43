"""The subnet behind InfiniBand ports, from made trees of /sys and stand-ins of its tools."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_mnode.checks.node import infiniband
from pytest_mnode.errors import SpecError
from pytest_mnode.evidence.check import Check
from pytest_mnode.evidence.reading import CheckRows
from pytest_mnode.spec import load_spec
from tests.checks.node.judged import blamed, judged, rows_of, verdicts
from tests.programs import write_program
from tests.spec.conftest import Page, page  # noqa: F401  a fixture
from tests.trees import Tree

PORT = "sys/class/infiniband/{}/ports/1/{}"
MASTER = "sminfo: sm lid 1 sm guid {}, activity count 26389 priority 15 state 3 SMINFO_MASTER"
OTHER = "0x7cfe900300a5a2a0"
LINK = (
    '0x248a0703002e6152 "   node1 mlx5_0"    91    1[  ] ==( 4X  {}  Active/  LinkUp)==>  '
    '0x7cfe900300a5a2a0   37   12[  ] "MF0;leaf1:MQM9790/U1" ( {})'
)


def machine(
    root: Path, *devices: str, programs: Mapping[str, str] | None = None, **port: str
) -> Path:
    """A node whose ports have these attributes, beside programs that print a text or fail."""
    tree = Tree(root)
    gid, keys = port.pop("gid", "fe80:0000:0000:0000:1"), port.pop("pkeys", "0xffff").split()
    for at, name in enumerate(devices or ("mlx5_0",)):
        on = f"pci0000:1{at}/0000:1{at}:00.0"
        tree.rdma(name, on, gids=[(gid, "", "")], sys_image_guid=f"{root.name}:{at}")
        folder = f"sys/devices/{on}/infiniband/{name}/ports/1"
        files = port | {f"pkeys/{number}": key for number, key in enumerate(keys)}
        for file, text in files.items():
            tree.write(f"{folder}/{file}", text)
    for name, text in (programs or {}).items():
        says = "exec cat" if not text.startswith("!") else "cat >&2"
        end = "" if not text.startswith("!") else "exit 1\n"
        write_program(root / name, f"#!/bin/sh\n{says} <<'E'\n{text.removeprefix('!')}\nE\n{end}")
    return root


def read(check: type[Check], promise: str, root: Path, patch: pytest.MonkeyPatch) -> CheckRows:
    patch.setenv("PATH", f"{root}:/usr/bin:/bin")
    return rows_of(check, promise, root)


@pytest.mark.parametrize(
    ("port", "sminfo", "verdict", "words"),
    [
        ({}, MASTER.format("0x1"), "pppp", ""),
        ({"lid": "0x0"}, MASTER.format("0x1"), "fppp", "mlx5_0:1 (0)"),
        ({"sm_lid": "0x0", "state": "2: INIT"}, MASTER.format("0x1"), "pfpp", "mlx5_0:1 (0)"),
        ({"sm_lid": "0xffff"}, MASTER.format("0x1"), "pppp", ""),
        (
            {},
            MASTER.format("0x1").replace("state 3 SMINFO_MASTER", "state 2 SMINFO_STANDBY"),
            "ppfp",
            "STANDBY",
        ),
        ({}, MASTER.format(OTHER), "pppf", OTHER),
        (
            {},
            "sminfo: sm lid 1 lmc 0 guid 0x1, activity count 5 priority 14 state 3 MASTER",
            "pppp",
            "",
        ),
        (
            {},
            "!ibwarn: [7] can't open UMAD port\nsminfo: iberror: failed: Failed to open port",
            "ppi",
            "sminfo: iberror: failed",
        ),
        ({}, "ibwarn: [7] _do_madrpc: recv failed: Connection timed out", "ppi", "sminfo answered"),
    ],
)
def test_a_port_without_its_subnet_manager_is_named(  # noqa: PLR0917
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    port: dict[str, str],
    sminfo: str,
    verdict: str,
    words: str,
) -> None:
    check, promise = infiniband.SubnetManagerIsThere, "{subnet_manager: answers}"
    usual = {"sminfo": MASTER.format("0x1")}
    roots = [machine(tmp_path / name, programs=usual) for name in "ab"]
    roots.append(machine(tmp_path / "c", programs={"sminfo": sminfo}, **port))
    nodes = {root.name: read(check, promise, root, monkeypatch) for root in roots}
    found = judged(check, promise, nodes, ("mlx5_*",))
    assert verdicts(found) == f"pppp pppp {verdict}"
    assert blamed(found) == ({"c"} if "f" in verdict else set())
    assert words in " ".join(map(str, found["c"]))


def test_a_missing_sminfo_names_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check, promise = infiniband.SubnetManagerIsThere, "{subnet_manager: answers}"
    rows = read(check, promise, machine(tmp_path), monkeypatch)
    found = judged(check, promise, {"a": rows}, ("mlx5_*",))
    assert verdicts(found) == "ppi"
    assert "sminfo is not installed: install infiniband-diags" in str(found["a"][2])
    assert verdicts(judged(check, "{subnet_manager: known}", {"a": tmp_path}, ("mlx5_*",))) == "pp"


@pytest.mark.parametrize(
    ("port", "name", "expected"),
    [
        ({"lid": "0x1b"}, "mlx5_0", "p p"),
        ({"lid": "0x1a"}, "mlx5_0", "f f"),
        ({"lid": "0x18", "lid_mask_count": "2"}, "mlx5_0", "f f"),  # 0x18 to 0x1b
        ({"lid": "0x1a"}, "mlx5_1", "p p"),  # perhaps a rail with a subnet of its own
        ({"lid": "0x1a", "gid": "fec0:0000:0000:0001:2"}, "mlx5_0", "p p"),
        ({"lid": "0x0"}, "mlx5_0", "p i"),
    ],
)
def test_a_lid_of_two_ports_is_found(
    tmp_path: Path, port: dict[str, str], name: str, expected: str
) -> None:
    nodes = {"a": machine(tmp_path / "a"), "b": machine(tmp_path / "b", name, programs={}, **port)}
    found = judged(infiniband.LidsAreUnique, "{lids: unique}", nodes, ("mlx5_*",))
    assert verdicts(found) == expected
    suspect = {
        group
        for every in found.values()
        for one in every
        if one.culprit
        for group in one.culprit.either
    }
    assert suspect == ({frozenset("ab")} if "f" in expected else set())


@pytest.mark.parametrize("prefix", ["fec0:0000:0000:0001", "fe80:0000:0000:0000"])
def test_ports_of_one_node_share_a_lid_only_on_several_subnets(tmp_path: Path, prefix: str) -> None:
    root = machine(tmp_path / "a", "mlx5_0", "mlx5_1", gid=f"{prefix}:1")
    found = judged(infiniband.LidsAreUnique, "{lids: unique}", {"a": root}, ("mlx5_*",))
    assert verdicts(found) == ("f" if prefix.startswith("fec0") else "p")


@pytest.mark.parametrize(
    ("promise", "keys", "verdict", "words"),
    [
        ("[0x7fff, 0x8001]", "0xffff 0x8001 0x0000", "pp", ""),
        ("[0x8001]", "0x7fff 0x0001", "f", "0x7fff 0x0001"),  # a limited member
        ("[0x0001]", "0x8001", "p", ""),
        ("['0x8001']", "0x0000", "f", "mlx5_0:1 (none)"),
    ],
)
def test_lacking_partitions_are_named(
    tmp_path: Path, promise: str, keys: str, verdict: str, words: str
) -> None:
    root = machine(tmp_path, pkeys=keys)
    check = infiniband.PartitionsAreAsPromised
    found = judged(check, f"{{pkeys: {promise}}}", {"a": root}, ("mlx5_*",))
    assert verdicts(found) == verdict
    assert words in str(found["a"][-1].culprit)


@pytest.mark.parametrize(
    ("speed", "could", "verdict", "words"),
    [
        ("106.25 Gbps", "", "p", ""),
        (
            "25.78125 Gbps",
            "Could be 106.25 Gbps",
            "f",
            "25.78125 Gbps, could be 106.25 Gbps, at MF0;leaf1:MQM9790/U1 port 12",
        ),
    ],
)
def test_a_slow_cable_names_the_port_of_the_switch(  # noqa: PLR0917
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    speed: str,
    could: str,
    verdict: str,
    words: str,
) -> None:
    check, promise = infiniband.CablesAreFull, "{links: full}"
    root = machine(tmp_path, programs={"iblinkinfo": LINK.format(speed, could)})
    found = judged(check, promise, {"a": read(check, promise, root, monkeypatch)}, ("mlx5_*",))
    assert verdicts(found) == verdict
    assert words in str(found["a"][0])


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        (
            "[n1:0:15042 - context.c:581] INFO job (ID: 12) resource request quota\nTest Passed.",
            "p",
        ),
        ("!ERROR Failed to connect to Aggregation Manager (sharp_am)", "f"),
        ("Test Failed", "f"),
    ],
)
def test_switches_that_do_not_reduce_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, verdict: str
) -> None:
    check, promise = infiniband.SharpWorks, "{sharp: works}"
    root = machine(tmp_path, programs={"sharp_hello": said})
    found = judged(check, promise, {"a": read(check, promise, root, monkeypatch)}, ("mlx5_*",))
    assert verdicts(found) == verdict


def test_other_ports_do_not_count(tmp_path: Path) -> None:
    check = infiniband.SubnetManagerIsThere
    roce = machine(tmp_path / "a", link_layer="Ethernet")
    down = machine(tmp_path / "b", state="1: DOWN")
    found = judged(check, "{subnet_manager: known}", {"a": roce, "b": down}, ("mlx5_*",))
    assert verdicts(found) == "ii ii"
    storage = machine(tmp_path / "c", "mlx5_9", sm_lid="0x0")
    assert verdicts(judged(check, "{subnet_manager: known}", {"c": storage}, ("mlx5_0",))) == "ii"


@pytest.mark.parametrize("key", ["0", "'0x8000'", "65536", "all", "true", "'0x10001'"])
def test_a_pkey_is_a_number_of_16_bits(page: Page, key: str) -> None:  # noqa: F811
    path = page("  preflight:\n", f"  preflight:\n    infiniband: {{pkeys: [{key}]}}\n")
    with pytest.raises(SpecError, match='accepted: a PKey in quotes, such as "0x8001"'):
        load_spec(path)
