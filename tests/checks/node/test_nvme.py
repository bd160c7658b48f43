"""Health of NVMe drives, from stand-ins that print what nvme-cli and smartctl do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.checks.node.nvme import NvmeDrivesAreHealthy, rows_of
from pytest_mnode.evidence.reading import CheckRows
from tests.checks.node import judged as judging
from tests.checks.node.judged import blamed, judged, verdicts
from tests.programs import write_program

OLD = {
    "critical_warning": 0,
    "temperature": 310,
    "avail_spare": 100,
    "spare_thresh": 10,
    "percent_used": 3,
    "media_errors": 0,
    "num_err_log_entries": 12,
}
NEW = {
    "critical_warning": {"value": 0, "available_spare": 0, "temp_threshold": 0},
    "temperature": 310,
    "avail_spare": 100,
    "spare_thresh": 10,
    "percent_used": 3,
    "endurance_grp_critical_warning_summary": 0,
    "media_errors": "0",
}
SMARTCTL = {
    "critical_warning": 0,
    "available_spare": 100,
    "available_spare_threshold": 10,
    "percentage_used": 3,
    "media_errors": 0,
}


def logged(log: dict[str, Any]) -> CheckRows:
    return CheckRows("", tuple(rows_of("nvme0", log)))


@pytest.mark.parametrize("log", [OLD, NEW, SMARTCTL])
@pytest.mark.parametrize(
    ("change", "expected", "words"),
    [
        ({}, "pppp", ""),
        ({"critical_warning": 4}, "fppp", "nvme0: reliability degraded"),
        ({"critical_warning": {"value": 9}}, "fppp", "spare below its threshold, read-only"),
        ({"critical_warning": "0x40"}, "fppp", "bit 6"),
        ({"avail_spare": 9, "available_spare": 9}, "pfpp", "9 % of 10 %"),
        ({"percent_used": 101, "percentage_used": 101}, "ppfp", "nvme0: 101 %"),
        ({"media_errors": 2}, "pppf", "nvme0: 2"),
        ({"media_errors": "1,204"}, "pppf", "nvme0: 1204"),
        ({"media_errors": None}, "pppi", "nvme0"),
        ({"critical_warning": "?"}, "ippp", "critical_warning reads '?'"),
    ],
)
def test_what_a_log_means(
    log: dict[str, Any], change: dict[str, Any], expected: str, words: str
) -> None:
    nodes = {"a": logged(log), "b": logged({**log, **change})}
    found = judged(NvmeDrivesAreHealthy, "{}", nodes)
    assert verdicts(found) == f"pppp {expected}"
    assert words in " ".join(one.note for one in found["b"])
    assert blamed(found) == ({"b"} if "f" in expected else set())


def test_wear_may_be_promised() -> None:
    nodes = {"a": logged({**OLD, "percent_used": 80})}
    assert verdicts(judged(NvmeDrivesAreHealthy, "{used_percent_at_most: 70}", nodes)) == "ppfp"


FLAT = {"Devices": [{"NameSpace": 1, "DevicePath": "/dev/nvme1n1", "ModelNumber": "X"}]}
NESTED = {
    "Devices": [
        {
            "HostNQN": "nqn.2014-08.org",
            "Subsystems": [
                {
                    "Subsystem": "nvme-subsys1",
                    "Controllers": [
                        {
                            "Controller": "nvme1",
                            "Transport": "pcie",
                            "Namespaces": [{"NameSpace": "nvme1n1", "NSID": 1}],
                        }
                    ],
                },
                {"Controllers": [{"Controller": "nvme7", "Transport": "rdma"}]},
            ],
        }
    ]
}


def drives(monkeypatch: pytest.MonkeyPatch, folder: Path, **programs: str) -> CheckRows:
    """What a node reads on which these scripts are installed."""
    for name, text in programs.items():
        write_program(folder / name, f"#!/bin/sh\n{text}\n")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr("pytest_mnode.machine.sysfs.entries", lambda _: ())
    return judging.rows_of(NvmeDrivesAreHealthy, "{}")


@pytest.mark.parametrize("listed", [FLAT, NESTED])
def test_drives_are_listed_by_nvme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: Any
) -> None:
    lists = f"cat <<'E'\n{json.dumps(listed)}\nE\n"
    logs = f"echo 'warning: old library' && cat <<'E'\n{json.dumps(OLD)}\nE\n"
    text = f"if [ $1 = list ]; then {lists}elif [ $2 = /dev/nvme1 ]; then {logs}fi"
    found = drives(monkeypatch, tmp_path, nvme=text)
    assert {one.device for one in found.rows} == {"nvme1"}
    assert verdicts(judged(NvmeDrivesAreHealthy, "{}", {"a": found})) == "pppp"


REFUSED = {"smartctl": {"messages": [{"string": "open: /dev/nvme1: Permission denied"}]}}


@pytest.mark.parametrize(
    ("log", "smartctl", "expected", "words"),
    [
        ("exit 1", {"nvme_smart_health_information_log": SMARTCTL}, "pppp", ""),
        ("exit 1", REFUSED, "iiii", "Permission denied; rerun as root"),
        ("echo /dev/nvme1: Permission denied >&2; exit 1", {}, "iiii", "rerun as root"),
        ("echo '[]'", [], "iiii", "no SMART log"),
        ("echo '{\"critical_warning\":'", {}, "iiii", "nvme: no JSON"),
    ],
)
def test_smartctl_where_nvme_tells_nothing(  # noqa: PLR0917  what is varied
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    log: str,
    smartctl: Any,
    expected: str,
    words: str,
) -> None:
    lists = f"cat <<'E'\n{json.dumps(FLAT)}\nE\n"
    read = drives(
        monkeypatch,
        tmp_path,
        nvme=f"if [ $1 = list ]; then {lists}else {log}\nfi",
        smartctl=f"cat <<'E'\n{json.dumps(smartctl)}\nE\nexit 4",  # a bit of its status
    )
    found = judged(NvmeDrivesAreHealthy, "{}", {"a": read})
    assert verdicts(found) == expected
    assert words in " ".join(one.note for one in found["a"])


def test_without_a_program_its_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = judged(NvmeDrivesAreHealthy, "{}", {"a": drives(monkeypatch, tmp_path)})
    assert verdicts(found) == "iiii"
    assert "install nvme-cli" in found["a"][0].note
