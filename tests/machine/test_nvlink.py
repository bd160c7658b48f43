"""NVLinks and their fabric, from output as nvidia-smi and nvidia-imex-ctl print it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_mnode.machine import nvlink, programs
from pytest_mnode.machine.nvlink import (
    Registration,
    imex_nodes,
    parse_errors,
    parse_fabric,
    parse_imex,
    parse_status,
    read_imex,
    read_nvlinks,
    service,
)
from tests.programs import write_program
from tests.trees import Tree

HEAD = "GPU {}: NVIDIA H100 80GB HBM3 (UUID: GPU-abcdefab-cdef-abdc-abcd-abababababab)"
ALL_DOWN = "Unable to retrieve {} information as all links are inActive"
STATUS = f"{HEAD.format(0)}\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n"
ERRORS = f"""{HEAD.format(0)}
\t Link 0: Replay Errors: 3
\t Link 0: Recovery Errors: 1
\t Link 0: CRC Errors: 4

\t Link 1: Replay Errors: N/A
\t Link 1: Recovery Errors: 0
\t Link 1: CRC Errors: 0
"""
BLACKWELL = """GPU 0: NVIDIA B300 SXM6 AC (UUID: GPU-bce5282f)
\t Link 0: Tx packets: 88213
\t Link 0: Malformed packet Errors: 0
\t Link 0: Buffer overrun Errors: 0
\t Link 0: Rx Errors: 2
\t Link 0: Local link integrity Errors: 0
\t Link 0: Tx discards: 1
\t Link 0: Link recovery successful events: 4
\t Link 0: Link recovery failed events: 1
\t Link 0: Total link recovery events: 5
\t Link 0: Link recovery total events: 5
\t Link 0: Effective Errors: 0
\t Link 0: Effective BER: 15e-255
\t Link 0: Symbol Errors: 0
\t Link 0: Symbol BER: 2e-13
\t Link 0: FEC Errors - 0: 36140749276
\t Link 0: FEC Errors - 1: 17
"""


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        (STATUS, {0: [26.562, 0.0]}),
        (STATUS + f"{HEAD.format(1)}\n Link 0: 50 GB/s", {0: [26.562, 0.0], 1: [50]}),
        ("WARNING: infoROM is corrupted\n" + STATUS, {0: [26.562, 0.0]}),
        (STATUS.replace("26.562", "26,562"), {0: [26.562, 0.0]}),
        (f"{HEAD.format(0)}\n\t Link 0: (Not supported)\n", {0: [None]}),
        (f"{HEAD.format(0)}\nNVML: {ALL_DOWN.format('NVLink')}", {0: [0.0]}),
        (f"{HEAD.format(0)} NVML: {ALL_DOWN.format('Nvlink')}", {0: [0.0]}),
        (f"{HEAD.format(0)}\n", {0: []}),
        (f"{HEAD.format(0)} Device does not have or support Nvlink", {0: []}),
        ("", {}),
        (STATUS[:-8], {0: [26.562, None]}),  # cut
    ],
)
def test_links_are_up_or_not(text: str, rates: dict[int, list[float | None]]) -> None:
    found = parse_status(text)
    shown = {
        gpu: [one.gbytes_s for one in links.values()]
        for gpu, links in found.items()
        if not isinstance(links, str)
    }
    assert shown == rates


def test_a_gpu_that_does_not_answer_says_why() -> None:
    text = f"{HEAD.format(0)}\nUnable to retrieve NVLink information: GPU is lost\n"
    assert "GPU is lost" in str(parse_status(text)[0])


def test_errors_are_told_from_recoveries_and_from_what_is_none() -> None:
    found = parse_errors(ERRORS)
    assert (found[0, 0].errors, found[0, 0].recoveries) == (7, 1)
    assert (found[0, 1].errors, found[0, 1].recoveries) == (0, 0)
    one = parse_errors(BLACKWELL)[0, 0]
    assert (one.errors, one.recoveries, one.bit_error_rate) == (2, 6, 2e-13)
    assert parse_errors(STATUS) == {}
    assert nvlink.NvLink().errors is None


def test_nvml_takes_the_place_of_nvidia_smi(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def state(_: int, link: int) -> int:
        if link > 1:
            raise OSError("Invalid Argument")
        return 1 - link

    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetNvLinkState=state,
        nvmlDeviceGetFieldValues=lambda *_: [SimpleNamespace(value=SimpleNamespace(uiVal=26562))],
        nvmlDeviceGetNvLinkErrorCounter=lambda _, link, code: link * code,
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    [links] = read_nvlinks(nvml).values()
    assert not isinstance(links, str)
    assert [one.gbytes_s for one in links.values()] == [26.562, 0.0]
    assert [(one.errors, one.recoveries) for one in links.values()] == [(0, 0), (5, 1)]
    with pytest.raises(OSError, match=r"nvidia-smi is not on the PATH \(nvidia-utils\), and NVML"):
        read_nvlinks(SimpleNamespace())


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo Failed to initialize NVML: Driver/library version mismatch; exit 18", "mismatch"),
        ("exec sleep 60", "no answer within 0.2 s"),
        ("exit 3", "status 3"),
        ("echo No devices were found", "No devices were found"),
    ],
)
def test_a_program_that_fails_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, words: str
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(programs, "LIMIT_S", 0.2)
    write_program(tmp_path / "nvidia-smi", f"#!/bin/sh\n{script}\n")
    with pytest.raises(OSError, match=words):
        nvlink.nvidia_smi("nvlink", "-s")


UUID = "dc6e40c4-d722-4357-9ba6-5291dd461278"
QUERY = """
==============NVSMI LOG==============

Attached GPUs                             : 1
GPU 00000000:1B:00.0
    Product Name                          : NVIDIA GB200
    GPU Virtualization Mode
        Virtualization Mode               : None
{fabric}
    Processes                             : None
    Capabilities
        EGM                               : disabled
"""
NEW = """    Fabric
        State                                          : Completed
        Status                                         : Success
        CliqueId                                       : 2
        ClusterUUID                                    : dc6e40c4-d722-4357-9ba6-5291dd461278
        Health
            Summary                                    : {}
            Bandwidth                                  : {}
            Route Recovery in progress                 : False
            Route Unhealthy                            : False
            Access Timeout Recovery                    : N/A
            Incorrect Configuration                    : None
            Partition Assigned                         : True"""


@pytest.mark.parametrize(
    ("fabric", "found"),
    [
        (NEW.format("Healthy", "Full"), Registration("Completed", "Success", UUID, 2)),
        (NEW.format("N/A", "N/A"), Registration("Completed", "Success", UUID, 2)),
        (
            NEW.format("Unhealthy", "Degraded"),
            Registration(
                "Completed", "Success", UUID, 2, ("Summary Unhealthy", "Bandwidth Degraded")
            ),
        ),
        (
            "    Fabric\n        State   : In Progress\n        Status  : N/A",
            Registration("In Progress"),
        ),
        ("    Fabric\n        State   : N/A\n        Status  : N/A", Registration()),
        ("    Fabric\n        State   : Not Supported", Registration()),
        ("", None),  # of an old driver
    ],
)
def test_a_gpu_is_registered_or_not(fabric: str, found: Registration | None) -> None:
    assert parse_fabric(QUERY.format(fabric=fabric)) == [found]
    two = QUERY.format(fabric=fabric) + QUERY.format(fabric=NEW)[QUERY.index("GPU 0") :]
    assert len(parse_fabric(two)) == 2
    assert parse_fabric("") == []


IMEX = """Connectivity Table Legend:
I - Invalid - Node wasn't reachable, no connection status available
N - Never Connected
C - Connected - Ready for operation

5/12/2025 06:08:10.580
Nodes:
Node #0   * 172.31.48.81 *  - READY                - Version: 570.172
Node #1   - 172.31.48.98    - {}          - Version: 570.172

 Nodes From\\To  0   1
       0        C   C
       1        C   C
Domain State: {}
"""


def test_imex_says_who_is_ready(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = parse_imex(IMEX.format("UNAVAILABLE", "DEGRADED"))
    assert found.state == "DEGRADED"
    assert found.nodes == {"172.31.48.81": "READY", "172.31.48.98": "UNAVAILABLE"}
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(OSError, match="install nvidia-imex"):
        read_imex()
    for script, words in (
        ("echo 'Error: could not connect to the IMEX daemon' >&2; exit 1", "could not connect"),
        ("exec sleep 60", "no answer within 0.2 s"),
    ):
        monkeypatch.setattr(programs, "LIMIT_S", 0.2)
        write_program(tmp_path / "nvidia-imex-ctl", f"#!/bin/sh\n{script}\n")
        with pytest.raises(OSError, match=words):
            read_imex()


def test_services_and_files_of_a_machine(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    assert service("nv-fabricmanager", "nvidia-fabricmanager", tmp_path) == "not running"
    tree.write("proc/77/comm", "nv-fabricmanage")
    assert service("nv-fabricmanager", "nvidia-fabricmanager", tmp_path) == "running"
    assert imex_nodes(tmp_path) is None
    tree.write("etc/nvidia-imex/nodes_config.cfg", "# nodes\n10.0.0.1\n\n10.0.0.2  # second\n")
    assert imex_nodes(tmp_path) == ("10.0.0.1", "10.0.0.2")
    tree.write("etc/nvidia-imex/config.cfg", "LOG_LEVEL=4\nIMEX_NODE_CONFIG_FILE=/etc/nodes.cfg\n")
    tree.write("etc/nodes.cfg", "10.0.0.9\n")
    assert imex_nodes(tmp_path) == ("10.0.0.9",)
