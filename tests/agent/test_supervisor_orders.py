"""What a gate makes of its order, here and on another machine."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from pytest_mnode.agent.supervisor import read_order, settled, sys_path_here
from pytest_mnode.protocol.messages import GateOrder, NodeEntry

ORDER = GateOrder(
    gate=1,
    endpoint="tcp://10.0.0.9:4000",
    keys={"server_public": "a", "client_public": "b", "client_secret": "c"},
    run_dir="/run/x",
    log_dir="/run/x/logs",
    nodes=(NodeEntry("n1", 1, "10.0.0.1", "fab0", None),),
    sys_path=("/work", "/usr/lib/python3.11"),
    life=2,
)


def test_an_order_survives_its_journey() -> None:
    order = replace(ORDER, remote=True, prefixes=("/usr",), own_sys_path=("/opt/lib",))
    assert read_order(json.dumps(asdict(order))) == order
    assert order.peer == "gate/1.2"


def test_here_everything_is_as_ordered() -> None:
    assert settled(ORDER) is ORDER
    assert sys_path_here(["/work", "/usr/lib/x"], ORDER) == ["/work", "/usr/lib/x"]


def test_elsewhere_a_gate_makes_a_directory_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    order = settled(replace(ORDER, remote=True, run_dir="", log_dir=""))
    assert Path(order.run_dir).parent == tmp_path
    assert order.log_dir == f"{order.run_dir}/logs"
    assert order.logs_are_temporary
    assert order.remove_run_dir
    assert order.own_sys_path == tuple(sys.path)
    shutil.rmtree(order.run_dir)
    kept = settled(replace(ORDER, remote=True, run_dir="", log_dir=f"{tmp_path}/kept"))
    assert kept.log_dir == f"{tmp_path}/kept"
    assert not kept.logs_are_temporary


def test_another_python_keeps_its_own_packages() -> None:
    order = replace(
        ORDER,
        prefixes=("/home/me/venv", "/usr"),
        own_sys_path=("/opt/python/lib", "/opt/venv/site-packages", "/work"),
    )
    given = [
        "/work",
        "/usr/lib/python3.11",
        "/home/me/venv/lib/site-packages",
        "/usrlocal",
        "/home/me",
    ]
    assert sys_path_here(given, order) == [
        "/work",
        "/usrlocal",
        "/home/me",
        "/opt/python/lib",
        "/opt/venv/site-packages",
    ]
