"""Fault specifications: parsing, and errors for invalid ones."""

from __future__ import annotations

import re

import pytest

from pytest_mnode.errors import UsageError
from pytest_mnode.faults import FAULTS, Fault, files, inject, listing, parse
from pytest_mnode.faults.registry import Schedule
from pytest_mnode.launchers.rack import Rack


@pytest.mark.parametrize(
    ("text", "nodes", "values"),
    [
        ("slow_link:node1", ("node1",), (None, None)),
        ("slow_link:node1:12.5", ("node1",), (12.5, None)),
        ("slow_link:node1::mgmt0", ("node1",), (None, "mgmt0")),
        ("slow_pair:node1+node3:20", ("node1", "node3"), (20.0, None)),
        ("small_shm:node1:1.5 MiB", ("node1",), (3 << 19,)),
        ("read_only_path:node1:/a:b", ("node1",), ("/a:b",)),
        ("skewed_clock:node1:-0.5", ("node1",), (-0.5,)),
        ("powered_off:node1", ("node1",), ()),
    ],
)
def test_a_text_is_read(text: str, nodes: tuple[str, ...], values: tuple[object, ...]) -> None:
    (injection,) = parse(text)
    assert injection.fault is FAULTS[text.partition(":")[0]]
    assert (injection.nodes, injection.values, injection.text) == (nodes, values, text)


@pytest.mark.parametrize(
    ("text", "values", "when"),
    [
        ("cpu_quota:node2:30@15min", (30.0,), Schedule(900)),
        ("slow_link:node1@3 s+2s", (None, None), Schedule(3, 2)),
        ("link_down:node2@3s+200ms/10s", (None,), Schedule(3, 0.2, 10)),
    ],
)
def test_a_schedule_is_read(text: str, values: tuple[object, ...], when: Schedule) -> None:
    (injection,) = parse(text)
    assert (injection.values, injection.when, injection.text) == (values, when, text)


def test_several_are_read_in_order() -> None:
    found = [injection.text for injection in parse("slow_tx:node0, link_down:node1")]
    assert found == ["slow_tx:node0", "link_down:node1"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("link_down:node1@3s+2s/2s", "comes every 2 s and lasts 2 s; accepted: @AFTER"),
        ("link_down:node1@3lightyears", "'3lightyears' has the unknown unit"),
        ("", f"no fault ''; accepted: {', '.join(sorted(FAULTS))}"),
        ("slow_lnk:node1", "no fault 'slow_lnk'; accepted: busy_neighbour, "),
        ("slow_link:node1,", "no fault ''"),
        ("slow_link", "needs one node; accepted: slow_link:NODE[:MBIT_S[:LINK]]"),
        ("slow_link:", "needs one node"),
        ("slow_link:node1+node2", "needs one node"),
        ("slow_pair:node1", "needs 2 different nodes joined by +; accepted: slow_pair:NODE+NODE["),
        ("slow_pair:node1+node1", "needs 2 different nodes"),
        ("slow_link:node1:fast", "MBIT_S='fast': accepted: a number above 0, at most 34000"),
        ("slow_link:node1:0", "MBIT_S='0'"),
        ("slow_link:node1:nan", "MBIT_S='nan'"),
        ("lossy_link:node1:101", "PERCENT='101': accepted: a number above 0, at most 100"),
        ("slow_link:node1:5:fab0:x", "LINK='fab0:x'"),
        ("mtu_hole:node1:-1", "BYTES='-1': accepted: a whole number, at least 68, at most 9216"),
        ("small_shm:node1:64", "SIZE='64': accepted: bytes, such as '1 MiB'"),
        ("read_only_path:node1", "PATH='': accepted: an absolute path"),
        ("full_disk:node1:data", "PATH='data': accepted: an absolute path"),
        ("other_package:node1", "NAME='': accepted: the name of an installed distribution"),
        ("skewed_clock:node1:inf", "SECONDS='inf'"),
        ("powered_off:node1:now", "too many values; accepted: powered_off:NODE"),
    ],
)
def test_a_bad_text_is_one_line(text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        parse(text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_every_fault_has_a_description_and_a_form() -> None:
    lines = listing()
    assert len(lines) == len(FAULTS)
    for name, line in zip(sorted(FAULTS), lines, strict=True):
        assert FAULTS[name].name == name
        assert line.startswith(f"{name}:NODE")
        assert FAULTS[name].about.endswith((".", ":")), name
    assert FAULTS["slow_tx"].default == "MBIT_S a quarter of the link's rate, LINK the fabric"


@pytest.mark.parametrize("fault", [f for f in FAULTS.values() if f.program], ids=lambda f: f.name)
def test_without_its_program_a_fault_names_the_package(
    fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    monkeypatch.setattr("platform.machine", lambda: "none")
    monkeypatch.setattr(files, "FAKETIME_DIRS", ())
    text = f"{fault.name}:" + "+".join(("node1", "node2")[: fault.nodes])
    package = fault.program.package if fault.program else ""
    with pytest.raises(UsageError, match=rf"^fault '{re.escape(text)}': .*Debian: {package}\)$"):
        inject(Rack(3), f"slow_link:node1,{text}")  # not started: no link can be made slow
