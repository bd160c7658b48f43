"""Memory, CPUs and NVMe drives, from made trees of /proc and /sys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from pytest_mnode.checks.node.hardware import Hardware, HardwareIsComplete, parse_modules
from pytest_mnode.criteria.preflight.survey_check import promised_checks
from pytest_mnode.evidence.rules import Rows
from pytest_mnode.measurement import Verdict
from tests.checks.node.judged import blamed, judged, rows_of, tree, verdicts
from tests.criteria.preflight.made import promising
from tests.programs import write_program

GIB, TB = 1 << 20, 10**12 // 512  # in kB; in sectors


def machine(
    root: Path,
    *drives: str | int,
    kb: int = 1000 * GIB,
    online: str = "0-3",
    files: Mapping[str, str] = MappingProxyType({}),
) -> Path:
    """Two sockets with two CPUs each; drives: sectors, or the state of a broken one."""
    found = {"proc/meminfo": f"MemTotal:       {kb} kB\nMemFree: 5 kB", "sys/class": ""}
    found["sys/devices/system/cpu/online"] = online
    for cpu in range(4):
        found[f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"] = str(cpu // 2)
    for i, drive in enumerate(drives):
        folder = f"sys/class/nvme/nvme{i}"
        found[f"{folder}/transport"] = "pcie"
        found[f"{folder}/state"] = drive if isinstance(drive, str) else "live"
        found[f"{folder}/nvme{i}n1/size"] = str(drive if isinstance(drive, int) else TB)
        found[f"{folder}/nvme{i}n1/nvme{i}n1p1/size"] = str(TB)  # a partition is no namespace
    return tree(root, found | dict(files))


@pytest.mark.parametrize(
    ("promise", "kb", "verdict"),
    [
        ("1000 GiB", 1000 * GIB, "p"),
        ("1000 GiB", 970 * GIB, "p"),
        ("1000 GiB", 969 * GIB, "f"),  # as with one DIMM of 32 missing
        ("1000 GiB", 2000 * GIB, "p"),
    ],
)
def test_memory_may_lack_what_the_kernel_keeps(
    tmp_path: Path, promise: str, kb: int, verdict: str
) -> None:
    found = judged(HardwareIsComplete, f"{{memory: {promise}}}", {"a": machine(tmp_path, kb=kb)})
    assert verdicts(found) == verdict
    [one] = found["a"]
    assert one.value == kb * 1024
    assert "preflight.hardware.memory 1000 GiB, less 3%" in one.source
    assert one.expected is not None
    [term] = one.expected.terms
    assert (term.key, term.value) == ("criteria.preflight.hardware.memory", 1000 << 30)


@pytest.mark.parametrize(
    ("promise", "online", "expected"),
    [
        ("{cpus: 4, sockets: 2}", "0-3", "pp"),
        ("{cpus: 4, sockets: 2}", "0-2", "fp"),
        ("{cpus: 2, sockets: 2}", "0-1", "pf"),  # the second socket's CPUs are offline
        ("{cpus: 2}", "garbage", "i"),
    ],
)
def test_cpus_that_are_online_count(
    tmp_path: Path, promise: str, online: str, expected: str
) -> None:
    found = judged(HardwareIsComplete, promise, {"a": machine(tmp_path, online=online)})
    assert verdicts(found) == expected
    assert blamed(found) == ({"a"} if "f" in expected else set())


@pytest.mark.parametrize(
    ("promise", "drives", "verdict", "count"),
    [
        ("{nvme: 2}", (TB, TB), "p", 2),
        ("{nvme: 2}", (TB,), "f", 1),
        ("{nvme: 1}", (), "f", 0),
        ("{nvme: 2}", (TB, "dead"), "f", 1),
        ("{nvme: 2, nvme_size: 3 TB}", (4 * TB, 4 * TB, TB), "p", 2),
        ("{nvme: 3, nvme_size: 3 TB}", (4 * TB, 4 * TB, TB), "f", 2),
    ],
)
def test_drives_that_work_and_are_large_count(
    tmp_path: Path, promise: str, drives: tuple[int | str, ...], verdict: str, count: int
) -> None:
    found = judged(HardwareIsComplete, promise, {"a": machine(tmp_path, *drives)})
    assert verdicts(found) == verdict
    [one] = found["a"]
    assert one.value == count
    assert blamed(found) == ({"a"} if verdict == "f" else set())


def test_a_drive_without_a_size_may_be_the_one_that_lacks(tmp_path: Path) -> None:
    unsized = {"sys/class/nvme/nvme1/state": "live"}
    root = machine(tmp_path, TB, files=unsized)
    assert verdicts(judged(HardwareIsComplete, "{nvme: 2}", {"a": root})) == "i"
    assert verdicts(judged(HardwareIsComplete, "{nvme: 1}", {"a": root})) == "p"
    assert verdicts(judged(HardwareIsComplete, "{nvme: 3}", {"a": root})) == "f"


def test_drives_over_a_network_are_no_drives_of_the_node(tmp_path: Path) -> None:
    remote = {"sys/class/nvme/nvme1/transport": "rdma", "sys/class/nvme/nvme1/nvme1n1/size": "9999"}
    found = judged(HardwareIsComplete, "{nvme: 2}", {"a": machine(tmp_path, TB, files=remote)})
    assert found["a"][0].value == 1


def test_what_cannot_be_read_is_inconclusive(tmp_path: Path) -> None:
    promise = "{memory: 1 GiB, cpus: 1, sockets: 1, nvme: 1}"
    assert verdicts(judged(HardwareIsComplete, promise, {"a": tmp_path})) == "iiii"


def test_what_is_drafted_is_kept_by_the_node_that_has_least(tmp_path: Path) -> None:
    roots = {
        "a": machine(tmp_path / "a", TB, TB, kb=1003 * GIB + 7),
        "b": machine(tmp_path / "b", TB, kb=1001 * GIB + 7, online="0-1"),
    }
    rows = {
        name: rows_of(HardwareIsComplete, "{cpus: 1}", root).rows for name, root in roots.items()
    }
    drafted = HardwareIsComplete.draft(rows)
    assert drafted == {"memory": "1001 GiB", "cpus": 2, "sockets": 1, "nvme": 1}
    assert HardwareIsComplete.draft({**rows, "c": ()}) is None


MODULE = """Handle 0x0026, DMI type 17, 92 bytes
Memory Device
\tArray Handle: 0x0025
\tSize: 64 GB
\tLocator: {slot}
\tBank Locator: P0_Node0_Channel0
\tType: DDR5
\tSpeed: 5600 MT/s
\tManufacturer: Samsung
\tConfigured Memory Speed: {speed} MT/s

"""
EMPTY = """Handle 0x0027, DMI type 17, 92 bytes
Memory Device
\tSize: No Module Installed
\tLocator: {slot}
\tConfigured Memory Speed: Unknown

"""
OLD = """Memory Device
\tSize: 32768 MB
\tLocator: A1
\tSpeed: 2666 MHz
\tConfigured Clock Speed: 2400 MHz
"""
HEAD = "# dmidecode 3.3\nGetting SMBIOS data from sysfs.\nSMBIOS 3.3.0 present.\n\n"


def modules(*speeds: int) -> str:
    """What dmidecode prints of slots with modules of these speeds, 0 for an empty slot."""
    texts = (
        (MODULE if speed else EMPTY).format(slot=f"DIMM_{i}", speed=speed)
        for i, speed in enumerate(speeds)
    )
    return HEAD + "".join(texts)


def test_modules_in_the_words_of_several_releases() -> None:
    assert parse_modules(modules(4800, 0)) == {
        "DIMM_0": ("64 GB", 4800),
        "DIMM_1": ("empty slot", None),
    }
    assert parse_modules(OLD) == {"A1": ("32768 MB", 2400)}
    twice = MODULE.format(slot="DIMM 0", speed=4800)
    other = twice.replace("Channel0", "Channel1")
    assert list(parse_modules(twice + other)) == [
        "P0_Node0_Channel0 DIMM 0",
        "P0_Node0_Channel1 DIMM 0",
    ]
    assert parse_modules("") == parse_modules(HEAD) == {}


@pytest.mark.parametrize(
    ("script", "expected", "words"),
    [
        (modules(4800, 4800), "pp", ""),
        (modules(4800, 0), "fp", "DIMM_1 (empty slot)"),  # one is missing
        (modules(4800, 4400), "pf", "DIMM_1: 4400 MT/s"),
        (HEAD, "ii", "a virtual machine?"),
        ("", "ii", "a virtual machine?"),
        ("/dev/mem: Permission denied", "ii", "rerun as root"),
    ],
)
def test_modules_are_counted_and_their_speed_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, expected: str, words: str
) -> None:
    status = 1 if "denied" in script else 0
    out = "&2" if status else "&1"
    write_program(
        tmp_path / "dmidecode", f"#!/bin/sh\ncat >{out} <<'E'\n{script}\nE\nexit {status}\n"
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = judged(HardwareIsComplete, "{dimms: 2, dimm_speed: 4800}", {"a": Path("/")})
    assert verdicts(found) == expected
    assert words in " ".join(one.note for one in found["a"])
    assert blamed(found) == ({"a"} if "f" in expected else set())


def test_modules_that_were_not_read_are_not_missing(tmp_path: Path) -> None:
    """As where `judge` has the rows of a run whose spec promised none."""
    [check] = promised_checks(promising("{hardware: {dimms: 2}}"), [HardwareIsComplete])
    read = [*HardwareIsComplete(Hardware.model_validate({"cpus": 4})).read(machine(tmp_path))]
    [one] = check.rule(Rows("a", check.key, check.promise, {"a": read}))
    assert one.verdict is Verdict.INCONCLUSIVE
    assert one.note == "a: no memory module was found"
