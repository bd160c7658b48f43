"""Versions against bounds, from texts as kernels and drivers write them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import Mock

import pytest

from pytest_mnode.checks.node import versions
from pytest_mnode.checks.node.versions import Versions, VersionsAreAsPromised, keeps
from pytest_mnode.errors import SpecError
from pytest_mnode.evidence.reading import CheckRows
from pytest_mnode.evidence.row import Row, row
from pytest_mnode.logs.lldp import version_in
from pytest_mnode.machine import switches
from pytest_mnode.machine.nvml import Accelerator
from pytest_mnode.machine.rdma import Port, RdmaDevice
from pytest_mnode.spec import load_spec
from tests.checks.node.judged import blamed, judged, rows_of, tree, verdicts
from tests.programs import write_program
from tests.spec.conftest import Page, page  # noqa: F401  a fixture

DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2024"


@pytest.mark.parametrize(
    ("version", "kept", "broken"),
    [
        ("5.15.0-1057-aws", ">=5.15 <=5.15 ==5.15 >=5.4 <5.16 !=5.14 >=5.15.0-1057", ">5.15 <5.15"),
        ("6.1.0-rc3", ">=5.15 <6.2 ==6", "<=5.15 !=6.1"),
        ("550.90.07", ">=550.90.7 >=550.90 >=550.54.15 <560", ">=550.127 ==550.90.8 >=560"),
        ("28.39.2048", ">=28.39.1002 ==28", ">=28.40"),
        ("2.21", ">=2.21.0 <2.21.5", ">=2.21.5"),
        ("2.9.9", "<2.10", ">=2.10"),  # number by number, not as text
        ("dcgmi  version: 3.3.5", ">=3.3", ">=3.3.6"),
        ("24.10-1.1.4", ">=24.10 >=24.10-1.1 <25", ">=24.10-2"),
    ],
)
def test_numbers_are_compared_one_by_one(version: str, kept: str, broken: str) -> None:
    assert [bound for bound in kept.split() if not keeps(version, bound)] == []
    assert [bound for bound in broken.split() if keeps(version, bound)] == []
    assert keeps(version, ",".join(kept.split()))
    assert not keeps(version, ",".join([*kept.split(), broken.split(maxsplit=1)[0]]))


@pytest.mark.parametrize(
    ("driver", "verdict"), [(DRIVER, "p"), (DRIVER.replace("550.90", "535.54"), "f"), ("", "i")]
)
def test_an_old_driver_is_found(tmp_path: Path, driver: str, verdict: str) -> None:
    root = tree(tmp_path, {"proc/driver/nvidia/version": driver, "sys/class": ""})
    found = judged(VersionsAreAsPromised, '{driver: ">=550.90"}', {"a": root})
    assert verdicts(found) == verdict
    assert blamed(found) == ({"a"} if verdict == "f" else set())
    assert "preflight.versions.driver >=550.90" in found["a"][0].source


def nics(root: Path, **firmware: str) -> Path:
    files = {f"sys/class/infiniband/{name}/fw_ver": text for name, text in firmware.items()}
    devices = {f"sys/class/infiniband/{name}/device/vendor": "0x15b3" for name in firmware}
    return tree(root, files | devices)


@pytest.mark.parametrize(
    ("firmware", "verdict", "words"),
    [
        ({"fab0": "28.39.2048", "fab1": "28.39.2048"}, "f", "fab0 (28.39.2048), fab1 ("),
        ({"fab0": "28.40.1000", "fab1": "28.39.2048"}, "f", "a fab1 (28.39.2048)"),
        ({"fab0": "28.40.1000", "other": "16.35.4030"}, "p", ""),  # no NIC of the fabric
        ({"other": "16.35.4030"}, "i", "no firmware was found"),
        ({"fab0": "unknown"}, "i", "'unknown' is no version"),
        ({"fab0": "unknown", "fab1": "28.39.2048"}, "f", "fab1"),
    ],
)
def test_firmware_is_that_of_each_nic_of_the_fabric(
    tmp_path: Path,
    firmware: dict[str, str],
    verdict: str,
    words: str,
) -> None:
    root = nics(tmp_path, **firmware)
    found = judged(VersionsAreAsPromised, '{firmware: ">=28.40"}', {"a": root}, ("fab*",))
    assert verdicts(found) == verdict
    assert words in str(found["a"][0])


def test_nccl_may_be_promised_as_its_number(tmp_path: Path) -> None:
    nodes = {
        "a": CheckRows("", (row("nccl", "2.21.5"),)),
        "b": CheckRows("", (row("nccl", "2.20.5"),)),
    }
    found = judged(VersionsAreAsPromised, '{nccl: ">=22105"}', nodes)
    assert verdicts(found) == "p f"
    assert blamed(found) == {"b"}


def printing(folder: Path, monkeypatch: pytest.MonkeyPatch, **programs: str) -> None:
    """A PATH with programs that print this."""
    for name, text in programs.items():
        write_program(folder / name, f"#!/bin/sh\ncat <<'E'\n{text}\nE\n")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


PROGRAMS = {
    "dcgm": ("dcgmi", "\ndcgmi  version: 3.3.5\n"),
    "fabric_manager": ("nv-fabricmanager", "Fabric Manager version is : 570.86.15"),
    "container_toolkit": (
        "nvidia-ctk",
        "NVIDIA Container Toolkit CLI version 1.17.6\ncommit: f202b80a9b",
    ),
    "libfabric": ("fi_info", "fi_info: 1.9\nlibfabric: 1.22.0amzn4.0\nlibfabric api: 1.22"),
    "cuda": (
        "nvcc",
        "nvcc: NVIDIA (R) Cuda compiler driver\nCopyright (c) 2005-2024 NVIDIA\n"
        "Cuda compilation tools, release 12.4, V12.4.131\nBuild cuda_12.4.r12.4/c.1",
    ),
}


@pytest.mark.parametrize(
    ("part", "kept", "broken"),
    [
        ("dcgm", ">=3.3.5", ">=4"),
        ("fabric_manager", "==570.86.15", ">=570.124"),
        ("container_toolkit", ">=1.17, <1.18", ">=1.18"),
        ("libfabric", ">=1.22, <1.23", ">=2"),
        ("cuda", "==12.4.131", ">=12.8"),
    ],
)
def test_a_program_tells_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, kept: str, broken: str
) -> None:
    printing(tmp_path, monkeypatch)
    assert "install " in rows_of(VersionsAreAsPromised, f'{{{part}: ">=1"}}').rows[0].why
    name, text = PROGRAMS[part]
    printing(tmp_path, monkeypatch, **{name: text})
    for bound, verdict in ((kept, "p"), (broken, "f")):
        found = judged(VersionsAreAsPromised, f'{{{part}: "{bound}"}}', {"a": Path("/")})
        assert verdicts(found) == verdict
    printing(tmp_path, monkeypatch, **{name: "Segmentation fault"})
    found = judged(VersionsAreAsPromised, f'{{{part}: ">=1"}}', {"a": Path("/")})
    assert verdicts(found) == "i"


def test_ofed_is_known_by_its_program_or_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree(tmp_path / "tree", {"sys/module/mlx5_core/version": "24.04-0.6.6"})
    assert rows_of(VersionsAreAsPromised, '{ofed: ">=24"}', root).rows[0].value == "24.04-0.6.6"
    printing(tmp_path, monkeypatch, ofed_info="")
    write_program(tmp_path / "ofed_info", "#!/bin/sh\necho MLNX_OFED_LINUX-24.10-1.1.4.0:\n")
    for bound, verdict in ((">=24.10-1.1", "p"), (">=24.10-2", "f")):
        found = judged(VersionsAreAsPromised, f'{{ofed: "{bound}"}}', {"a": Path("/")})
        assert verdicts(found) == verdict


FILES = {
    "usr/local/cuda/version.json": '{"cuda": {"name": "CUDA SDK", "version": "12.8.1"}}',
    "sys/module/gdrdrv/version": "2.4.4",
    "opt/amazon/efa_installed_packages": "# EFA installer version: 1.38.0\n"
    "# Packages installed:\nlibfabric-aws_1.22_amd64.deb libnccl-ofi_1.13.2-1_amd64.deb",
    "opt/rocm/.info/version": "6.3.1-48",
}


@pytest.mark.parametrize(
    ("part", "kept", "broken"),
    [
        ("cuda", "==12.8.1", ">=12.9"),
        ("gdrcopy", ">=2.4", ">=2.5"),
        ("efa_installer", ">=1.38", ">=1.39"),
        ("aws_ofi_nccl", ">=1.13.2", ">=1.14"),
        ("rocm", ">=6.3", ">=6.4"),
    ],
)
def test_a_file_tells_a_version(tmp_path: Path, part: str, kept: str, broken: str) -> None:
    good, bare = tree(tmp_path / "good", FILES), tree(tmp_path / "bare", {"sys/class": ""})
    for bound, expected in ((kept, "p i"), (broken, "f i")):
        nodes = {"a": good, "b": bare}
        found = judged(VersionsAreAsPromised, f'{{{part}: "{bound}"}}', nodes)
        assert verdicts(found) == expected
        assert blamed(found) == ({"a"} if expected[0] == "f" else set())


def test_the_plugin_for_libfabric_has_its_version_in_it(tmp_path: Path) -> None:
    library = b"\0NET/OFI Initializing aws-ofi-nccl 1.9.1-aws\0"
    root = tree(tmp_path, {"opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net.so": library})
    rows = rows_of(VersionsAreAsPromised, '{aws_ofi_nccl: ">=1.9"}', root).rows
    assert [one.value for one in rows] == ["1.9.1"]


def of(**values: str) -> CheckRows:
    return CheckRows("", tuple(row(part, value) for part, value in values.items()))


@pytest.mark.parametrize(
    ("promise", "versions", "expected"),
    [
        # One node below, and all below: each is to blame by itself.
        ('{driver: ">=570"}', ("570.86.15", "550.90.07", "570.86.15"), "p f p"),
        ('{driver: ">=580"}', ("570.86.15", "550.90.07", "570.86.15"), "f f f"),
        ("{driver: same}", ("570.86.15", "550.90.07", "570.86.15"), "p f p"),
        ("{driver: same}", ("570.86.15",), ""),
        ('{vbios: ">=96.00.A5"}', ("96.00.A5.00.03", "96.00.89.00.01", "96.00.B0.00.01"), "p f p"),
        ('{vbios: "==96.00.0C"}', ("96.00.0C.00.03", "96.00.0D.00.03"), "p f"),
    ],
)
def test_which_nodes_are_to_blame(promise: str, versions: tuple[str, ...], expected: str) -> None:
    part = promise[1:].partition(":")[0]
    nodes = {name: of(**{part: text}) for name, text in zip("abc", versions, strict=False)}
    found = judged(VersionsAreAsPromised, promise, nodes)
    assert verdicts(found) == expected
    assert len(blamed(found)) == expected.count("f")


@pytest.mark.parametrize(
    ("driver", "manager", "verdict"),
    [
        ("570.86.15", "570.86.15", "p"),
        ("570.86.15", "570.124.06", "f"),
        ("", "570.86.15", "i"),
        ("570.86.15", "", "i"),
    ],
)
def test_the_fabric_manager_has_the_drivers_version(
    driver: str, manager: str, verdict: str
) -> None:
    rows = [row("driver", driver or None), row("fabric_manager", manager or None)]
    found = judged(
        VersionsAreAsPromised, "{fabric_manager: driver}", {"a": CheckRows("", tuple(rows))}
    )
    assert verdicts(found) == verdict


def test_firmware_of_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = (
        Accelerator(index=0, name="H100", vbios="96.00.A5.00.03", gsp="570.86.15"),
        Accelerator(index=1, name="H100", problem="GPU is lost"),
    )
    monkeypatch.setattr(versions, "read_accelerators", lambda _: gpus)
    found = judged(VersionsAreAsPromised, '{vbios: ">=97", gsp: ">=570"}', {"a": Path("/")})
    assert verdicts(found) == "fi"
    assert "accelerator 0" in str(found["a"][0].culprit)
    assert "GPU is lost" in found["a"][1].note


def test_a_program_that_hangs_hides_no_other_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("pytest_mnode.machine.programs.LIMIT_S", 0.2)
    write_program(tmp_path / "dcgmi", "#!/bin/sh\nexec sleep 60\n")
    rows = rows_of(VersionsAreAsPromised, '{dcgm: ">=3", kernel: ">=2"}').rows
    found = {one.metric: one for one in rows}
    assert found["kernel"].value is not None
    assert found["dcgm"].value is None
    assert "dcgmi gave no answer within 0.2 s" in found["dcgm"].why


def test_which_programs_a_promise_needs() -> None:
    promise = Versions(kernel=">=5", cuda=">=12", dcgm=">=4", fabric_manager="driver")
    assert VersionsAreAsPromised.programs(promise) == ["dcgmi", "nv-fabricmanager"]


def test_only_what_is_promised_is_read(tmp_path: Path) -> None:
    root = tree(tmp_path, {"proc/sys/kernel/osrelease": "6.8.0-45-generic"})
    rows = rows_of(VersionsAreAsPromised, '{kernel: ">=5.15"}', root).rows
    assert [(one.metric, one.value) for one in rows] == [("kernel", "6.8.0-45-generic")]


def test_what_is_drafted_is_the_oldest_seen() -> None:
    def of(kernel: str, *firmware: str) -> tuple[Row, ...]:
        return (row("kernel", kernel), *(row("firmware", f, device=f) for f in firmware))

    rows = {"a": of("6.8.0-45", "28.40.1", "28.39.2"), "b": of("5.15.0-1057-aws", "28.40.1")}
    drafted = VersionsAreAsPromised.draft(rows)
    assert drafted == {"kernel": ">=5.15.0", "firmware": ">=28.39.2"}
    rows["b"] = of("6.8.0", "22.1.1")  # another family: no floor fits both
    assert VersionsAreAsPromised.draft(rows) == {"kernel": ">=6.8.0"}


@pytest.mark.parametrize("written", ['"550.90"', "550.90", '">= five"', '">=5.15 <6"', '"~=5.15"'])
def test_what_is_no_bound_is_refused_with_the_form(page: Page, written: str) -> None:  # noqa: F811
    path = page("  preflight:\n", f"  preflight:\n    versions: {{kernel: {written}}}\n")
    with pytest.raises(SpecError) as error:
        load_spec(path)
    [line] = str(error.value).splitlines()
    assert "criteria.preflight.versions.kernel" in line
    assert "accepted" in line


DESCRIBED = {
    "Cumulus Linux version 5.9.1 running on Mellanox Technologies Ltd. MSN4600C": "5.9.1",
    "SONiC Software Version: SONiC.20230531.22 - HwSku: Mellanox-SN5600 - Kernel: 5.10.0": (
        "20230531.22"
    ),
    "MSN2700,Onyx,SWv3.9.2110": "3.9.2110",
    "Arista Networks EOS version 4.30.1F running on an Arista Networks DCS-7060DX5": "4.30.1F",
    "Cisco Nexus Operating System (NX-OS) Software 9.3(9)\nTAC support: http://": "9.3(9)",
    "Juniper Networks, Inc. qfx5240-64od Ethernet Switch, kernel JUNOS 23.4X100-D20.7": (
        "23.4X100-D20.7"
    ),
    "OS10 Enterprise.\r\nOS Version: 10.5.3.4.\r\nSystem Type: Z9432F-ON": "10.5.3.4.",
    "Ubuntu 22.04.4 LTS Linux 5.15.0-1057 #64 SMP x86_64": None,
    "": None,
}


@pytest.mark.parametrize(("system", "version"), DESCRIBED.items())
def test_versions_in_descriptions_of_switches(system: str, version: str | None) -> None:
    assert version_in(system) == version


def test_versions_of_switches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = {
        name: {"chassis": {switch: {"descr": text}}, "port": {"id": {"value": "swp1"}}}
        for name, switch, text in (
            ("eth0", "leaf1", "Cumulus Linux version 5.9.1 running on x"),
            ("eth1", "leaf2", "a switch"),
        )
    }
    ib = RdmaDevice(
        name="mlx5_0",
        ports=(
            Port(
                device="mlx5_0", number=1, state="ACTIVE", link_layer="InfiniBand", node_type="CA"
            ),
        ),
    )
    monkeypatch.setattr(switches, "read_rdma", lambda _: (ib,))
    names = {name: [name, f"bond{name[-1]}"] for name in ("eth0", "eth1", "eth2")}
    monkeypatch.setattr(switches, "ethernet_ports", lambda *_: names)
    link = '0x1 "n1 mlx5_0" 91 1[ ] ==( 4X 53.125 Gbps Active/ LinkUp)==> 0x2 37 12[ ] "leaf9" ( )'
    printing(
        tmp_path,
        monkeypatch,
        lldpctl=json.dumps({"lldp": {"interface": heard}}),
        iblinkinfo=link,
    )
    asked = tmp_path / "asked"
    printed = "Image type: FS4\nFW Version:            31.2012.1024\nPSID: MT_1"
    script = f"#!/bin/sh\necho $* >{asked}\ncat <<'E'\n{printed}\nE\n"
    write_program(tmp_path / "mstflint", script)
    found = {one.names[0]: one for one in switches.switch_versions()}
    assert (found["mlx5_0"].switch, found["mlx5_0"].version) == ("leaf9", "31.2012.1024")
    assert asked.read_text() == "-d lid-37,mlx5_0,1 q\n"
    assert found["eth0"].version == "5.9.1"
    assert found["eth0"].names == ("eth0", "bond0")
    assert "names no version: 'a switch'" in found["eth1"].why
    assert "hears no switch" in found["eth2"].why
    write_program(tmp_path / "mstflint", "#!/bin/sh\necho -E- Cannot open lid-37 >&2; exit 1\n")
    assert "Cannot open lid-37" in next(switches.switch_versions()).why


@pytest.mark.parametrize(
    ("promise", "of_leaves", "verdict", "suspects"),
    [
        ("same", ("5.9.1", "5.9.1", "5.9.1"), "p p p p p p", ""),
        ("same", ("5.9.1", "5.8.0", "5.9.1"), "p p f f p p", "cd"),
        ("same", ("5.9.1", "5.8.0", None), "f f f f i i", "abcd"),  # no majority
        (">=5.9", ("5.9.1", "5.8.0", "5.9.1"), "p p f f p p", "cd"),
    ],
)
def test_nodes_of_an_old_switch_are_only_suspected(
    promise: str, of_leaves: Sequence[str | None], verdict: str, suspects: str
) -> None:
    """Two nodes on each leaf; the management switch's name matches the fabric's interfaces."""
    core = row("switch", "1.0", device="mgmt0", peer="eth-core1")
    nodes = {
        name: CheckRows(
            "",
            (row("switch", of_leaves[n // 2], device="eth0 bond0", peer=f"leaf{n // 2}"), core),
        )
        for n, name in enumerate("abcdef")
    }
    found = judged(VersionsAreAsPromised, f'{{switch: "{promise}"}}', nodes, ("eth*",))
    assert verdicts(found) == verdict
    assert blamed(found) == set()
    culprits = {name: one.culprit for name, [one] in found.items() if one.culprit}
    assert "".join(culprits) == suspects
    assert all(one.either == {frozenset([name])} for name, one in culprits.items())
    assert all("leaf" in one for one in culprits.values())


def test_a_library_that_does_not_load_says_why() -> None:
    read = versions._live("nccl", Mock(side_effect=OSError("libnccl.so.2: no such file")))
    [one] = read(Path("/"))
    assert (one.value, one.why) == (None, "libnccl.so.2: no such file")
