"""The model of a machine: read from recordings and this machine, to JSON and back."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_mnode.machine import __main__ as program
from pytest_mnode.machine import model
from pytest_mnode.machine.encoding import decode, encode
from pytest_mnode.machine.model import PARTS, Machine, parse_active_mtus
from pytest_mnode.machine.process import Limits, read_limits
from tests.recorded import NAMES, Recorded
from tests.trees import NIC, Tree, gpu_server


@pytest.mark.parametrize("name", NAMES)
def test_any_recorded_machine_goes_to_json_and_back(recorded: Recorded, name: str) -> None:
    machine = Machine.read(recorded(name))
    assert decode(Machine, encode(machine)) == machine
    assert machine.interfaces
    assert machine.cpus.online
    assert len(machine.numa.with_cpus) == int(name[4])


def test_a_server_with_accelerators_goes_to_json_and_back(tmp_path: Path) -> None:
    machine = Machine.read(gpu_server(tmp_path).root)
    assert decode(Machine, encode(machine)) == machine
    assert len(machine.pci.accelerators) == 8
    assert [port.name for port in machine.ports][:2] == ["mlx5_0:1", "mlx5_1:1"]


@pytest.mark.parametrize(
    ("devices", "speed", "rate"),
    [
        (["mlx5_bond_0"], 200_000, 200_000),
        (["mlx5_bond_0"], -1, None),
        (["bnxt_re0", "bnxt_re1"], 200_000, 100_000),  # each has the rate of its own NIC
    ],
)
def test_a_port_that_stands_for_a_bond_has_its_rate(
    devices: list[str], speed: int, rate: float | None, tmp_path: Path
) -> None:
    tree = Tree(tmp_path)
    for i in (0, 1):
        path = f"pci0000:00/0000:00:0{i + 1}.0"
        tree.pci(path, NIC, "0x15b3")
        tree.interface(f"ens{i}", path, speed=100_000)
    tree.interface("bond0", speed=speed)
    tree.write("sys/devices/virtual/net/bond0/bonding/slaves", "ens0 ens1")
    for i, name in enumerate(devices):
        gids = [("0000:0000:0000:0000:0000:ffff:0a02:0001", "RoCE v2", "bond0")]
        on = f"pci0000:00/0000:00:0{i + 1}.0"
        tree.rdma(name, on, gids=gids, link_layer="Ethernet", rate="100 Gb/sec (4X EDR)")
    machine = Machine.read(tree.root)
    assert {machine.port_rate_mbits_s(port) for port in machine.ports} == {rate}


def test_what_is_not_a_machine_is_refused() -> None:
    line = encode(Machine())
    for wrong in ("", "[]", line.replace('"rdma":null', '"rdma":3')):
        with pytest.raises(ValueError, match="validation error"):
            decode(Machine, wrong)
    with pytest.raises(ValueError, match="Unexpected"):
        decode(Machine, line[:-1] + ',"more":1}')


def test_an_empty_root_names_unreadable_parts(tmp_path: Path) -> None:
    unread = Machine.read(tmp_path).unread
    assert unread["interfaces"] == "/sys/class/net cannot be listed"
    assert unread["accelerators"] == "not part of a recorded machine"
    assert unread["mounts"].startswith("FileNotFoundError: ")
    assert {"rdma", "limits"} <= set(unread)


def test_a_part_that_hangs_is_named_and_the_others_are_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    readers = {**model._READERS, "software": lambda _: time.sleep(60)}
    monkeypatch.setattr(model, "_READERS", readers)
    machine = Machine.read(tmp_path, ("software", "cpus"), limit_s=0.2)
    assert machine == Machine(unread={"software": "no answer within 0.2 s"})


def test_soft_limits_of_a_process(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/limits").write_text(
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max open files            1024                 524288               files     \n"
        "Max locked memory         unlimited            unlimited            bytes     \n"
    )
    assert read_limits(tmp_path) == Limits(memlock_bytes=None, open_files=1024)


@pytest.mark.parametrize(
    "value", ["", "Max locked memory     \n", "Max locked memory      x  x  b\n"]
)
def test_limits_that_are_cut_off_are_not_read(tmp_path: Path, value: str) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/limits").write_text(f"Max open files      9  9  files\n{value}")
    assert Machine.read(tmp_path, ("limits",)).unread == {
        "limits": "/proc/self/limits: no Max locked memory"
    }


@pytest.mark.parametrize(
    ("capabilities", "users", "found"),
    [
        ("00000000a80425fb", "0 0 4294967295", (False, False)),  # a container's, as by default
        ("00000000a80465fb", "0 0 4294967295", (True, False)),
        ("000001ffffffffff", "0 0 4294967295", (True, True)),
        ("000001ffffffffff", "0 1000 1", (False, False)),  # root of a user namespace
        ("none", "0 0 4294967295", (None, None)),
        ("000001ffffffffff", "", (None, None)),
    ],
)
def test_capabilities_and_cpus_of_a_process(
    tmp_path: Path, capabilities: str, users: str, found: tuple[bool | None, bool | None]
) -> None:
    tree = Tree(tmp_path)
    limits = "Max open files            9  9  files\nMax locked memory         9  9  bytes"
    tree.write("proc/self/limits", limits)
    tree.write("proc/self/status", f"CapEff:\t{capabilities}\nCpus_allowed_list:\t0-2,8")
    tree.write("proc/self/uid_map", users)
    read = read_limits(tmp_path)
    assert (read.ipc_lock, read.admin) == found
    assert read.cpus == frozenset({0, 1, 2, 8})


@pytest.mark.parametrize(
    ("printed", "found"),
    [
        ("", {}),
        ("No IB devices found\n", {}),
        ("hca_id:\tmlx5_0\n\tport:\t1\n\t\tactive_mtu:\t\t4096 (5)\n", {"mlx5_0:1": 4096}),
        ("\tport:\t1\n\t\tactive_mtu:\t\t4096 (5)\n", {}),
        ("hca_id:\tmlx5_0\n\t\tactive_mtu:\t\t4096 (5)\n", {}),
        ("hca_id: a\n port: 1\n active_mtu: invalid MTU (0)\nhca_id: b\n active_mtu: 256 (1)", {}),
        ("hca_id: a\n port: 2\n max_mtu: 4096 (5)\n active_mtu: 256 (1)", {"a:2": 256}),
    ],
)
def test_active_mtus(printed: str, found: dict[str, int]) -> None:
    assert parse_active_mtus(printed) == found


def test_recorded_active_mtus(recorded: Recorded) -> None:
    printed = (recorded("numa2-e1000e-rxe-up") / "cmd/ibv_devinfo-v.txt").read_text()
    assert parse_active_mtus(printed) == {"rxe0:1": 1024, "rxe1:1": 1024}


def test_the_program_prints_this_machine_in_one_line_and_imports_little() -> None:
    code = (
        "import os, sys\n"
        "import pytest_mnode.machine.__main__ as program\n"
        "heavy = {'torch', 'pytest', 'pydantic', 'pyroute2', 'zmq'} & sys.modules.keys()\n"
        "sys.stderr.write(''.join(heavy))\n"
        "program.main([])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""
    [line] = done.stdout.splitlines()
    machine = decode(Machine, line)
    assert all((machine.cpus.online, machine.hostname, machine.boot_id, machine.limits))
    assert machine.software
    assert machine.software.packages
    assert any("127.0.0.1" in one.addresses for one in machine.interfaces or ())


def test_the_program_refuses_an_unknown_part() -> None:
    with pytest.raises(SystemExit, match="no part of a machine: cpu; accepted: hostname, "):
        program.main(["cpu"])
    assert len(PARTS) > 10
