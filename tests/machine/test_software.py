"""Software versions of a node, kernel settings, mounts, queue rates, and routes."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mnode.machine import software
from pytest_mnode.machine.mounts import Mount, mount_of, parse_mounts
from pytest_mnode.machine.netlink import dumped, messages, parse_queues, parse_refusals


@pytest.mark.parametrize(
    ("number", "text"), [(2708, "2.7.8"), (20903, "2.9.3"), (22105, "2.21.5"), (23004, "2.30.4")]
)
def test_nccl_numbers(number: int, text: str) -> None:
    assert software.nccl_text(number) == text


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Mon\nGCC: 12", "535.161.08"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Rel", "570.86.15"),
        (None, None),
        ("something else", None),
    ],
)
def test_driver_versions(text: str | None, version: str | None) -> None:
    assert software.driver_version(text) == version


def test_packages_are_read_from_their_metadata(tmp_path: Path) -> None:
    for place, name, version in (("a", "A_B", "1.0"), ("b", "A_B", "2.0"), ("b", "x", "3")):
        folder = tmp_path / place / f"{name}-0.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}")
    (tmp_path / "b" / "bare-7.1.dist-info").mkdir()
    (tmp_path / "b" / "~are-7.0.dist-info").mkdir()  # left by an interrupted pip
    search = [str(tmp_path / "a"), str(tmp_path / "missing"), str(tmp_path / "b")]
    assert dict(software.packages(search)) == {"a-b": "1.0", "bare": "7.1", "x": "3"}


def test_packages_of_a_distribution_have_metadata_of_setuptools(tmp_path: Path) -> None:
    text = "Metadata-Version: 2.1\nName: x\nVersion: {}\n"
    (tmp_path / "PyYAML-5.4.1.egg-info").mkdir()
    (tmp_path / "PyYAML-5.4.1.egg-info/PKG-INFO").write_text(text.format("5.4.1"))
    (tmp_path / "python_apt-2.4.0+ubuntu3.egg-info").write_text(text.format("2.4.0"))
    (tmp_path / "mine.egg-info").mkdir()
    (tmp_path / "mine.egg-info/PKG-INFO").write_text(text.format("0.1"))
    (tmp_path / "bare-1.2-py3.11.egg-info").mkdir()
    assert dict(software.packages([str(tmp_path)])) == {
        "pyyaml": "5.4.1",
        "python-apt": "2.4.0",
        "mine": "0.1",
        "bare": "1.2",
    }


@pytest.mark.parametrize("place", ["env/lib", "env/site/nvidia/nccl/lib", "usr/lib"])
def test_nccl_is_found_wherever_torch_would_load_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    """Of pip in site-packages, of conda in lib, and of a container's system by the linker."""
    library = tmp_path / place / "libnccl.so.2"
    library.parent.mkdir(parents=True)
    library.touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "env"))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "env/site")])
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    asked = []

    class Library:
        def __init__(self, name: str) -> None:
            asked.append(name)

        def ncclGetVersion(self, number: Any) -> int:
            number._obj.value = 22105
            return 0

    monkeypatch.setattr(ctypes, "CDLL", Library)
    assert software.nccl_version() == "2.21.5"
    assert asked == ["libnccl.so.2" if place == "usr/lib" else str(library)]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("libnccl.so.2: cannot open shared object file: No such file or directory", None),
        ("libcudart.so.12: cannot open shared object file: No such file", "libcudart"),
        ("/usr/lib/libnccl.so.2: file too short", "too short"),
    ],
)
def test_an_nccl_that_cannot_be_loaded_is_an_error(
    monkeypatch: pytest.MonkeyPatch, words: str, why: str | None
) -> None:
    def fails(_: str) -> None:
        raise OSError(words)

    monkeypatch.setattr(software, "_nccl_libraries", tuple)
    monkeypatch.setattr(ctypes, "CDLL", fails)
    if why is None:
        assert software.nccl_version() is None
    else:
        with pytest.raises(OSError, match=why):
            software.nccl_version()


def test_versions_of_this_environment_are_those_that_it_imports() -> None:
    import numpy as np

    found = software.read_software()
    assert found.packages["numpy"] == np.__version__
    assert found.torch is not None
    # The package's metadata may lack the build's suffix, such as +cu130.
    assert found.torch.split()[0].split("+")[0] == found.packages["torch"].split("+")[0]
    assert found.kernel == os.uname().release


def test_code_is_digested_file_by_file(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a.pyc").write_text("2")
    (tmp_path / "notes.txt").write_text("3")
    before = software.code_digests(tmp_path, "code")
    assert set(before) == {"code/a.py"}
    (tmp_path / "a.py").write_text("2")
    assert software.code_digests(tmp_path, "code") != before
    assert software.code_digests(tmp_path / "missing", "code") == {"code": "not there"}


@pytest.mark.parametrize(
    ("modules", "version"),
    [
        ({"nvidia_peermem": "550.54.15"}, "550.54.15"),
        ({"nvidia_peermem": None}, "loaded"),
        ({"nv_peer_mem": "1.3-0"}, "1.3-0"),
        ({"nvidia": "550.54.15"}, None),
    ],
)
def test_modules_for_gpudirect(
    tmp_path: Path, modules: dict[str, str | None], version: str | None
) -> None:
    for module, content in modules.items():
        folder = tmp_path / "sys/module" / module
        folder.mkdir(parents=True)
        if content is not None:
            (folder / "version").write_text(f"{content}\n")
    assert software.peermem_version(tmp_path) == version


def test_clients_that_are_registered_for_gpudirect(tmp_path: Path) -> None:
    assert software.read_software(tmp_path).peer_clients == ()
    for name in ("nv_mem_nc", "nv_mem"):
        (tmp_path / "sys/kernel/mm/memory_peers" / name).mkdir(parents=True)
    assert software.read_software(tmp_path).peer_clients == ("nv_mem", "nv_mem_nc")


@pytest.mark.parametrize("place", ["boot/config-6.8.0", "lib/modules/6.8.0/config"])
@pytest.mark.parametrize(
    ("text", "has"),
    [
        ("CONFIG_PCI=y\nCONFIG_PCI_P2PDMA=y\nCONFIG_DMABUF_MOVE_NOTIFY=y\n", True),
        ("# CONFIG_DMABUF_MOVE_NOTIFY is not set\nCONFIG_PCI_P2PDMA=y\n", False),
    ],
)
def test_a_kernel_with_dmabuf_for_nics(tmp_path: Path, place: str, text: str, has: bool) -> None:
    for name, written in (("proc/sys/kernel/osrelease", "6.8.0"), (place, text)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(written)
    assert software.read_software(tmp_path).kernel_has_dmabuf is has


def test_settings_of_the_network(tmp_path: Path) -> None:
    for name, text in (
        ("core/rmem_max", "212992"),
        ("ipv4/tcp_rmem", "4096\t131072\t6291456"),
        ("ipv4/tcp_retries2", "15"),
        ("ipv4/conf/all/rp_filter", "1"),
        ("ipv4/conf/all/proxy_arp", "0"),
        ("ipv4/conf/eth0.100/rp_filter", "2"),
    ):
        path = tmp_path / "proc/sys/net" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    assert not any("memory" in name for name in software.kernel_settings(tmp_path))  # unknown
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    assert software.kernel_settings(tmp_path) == {
        "net.core.rmem_max": "212992",
        "net.ipv4.tcp_rmem": "4096 131072 6291456",
        "net.ipv4.tcp_retries2": "15",
        "net.ipv4.conf.all.rp_filter": "1",
        "net.ipv4.conf.all.proxy_arp": "0",
        "net.ipv4.conf.eth0.100.rp_filter": "2",
        "memory limit of its control group": "none",
    }


@pytest.mark.parametrize(("limit", "has"), [("400", "400"), ("1000", "none"), ("max", "none")])
def test_limits_at_which_processes_end_are_settings(tmp_path: Path, limit: str, has: str) -> None:
    for name, text in (
        ("proc/self/limits", "Max file size   4096   unlimited  bytes\nMax processes  9  9  -"),
        ("proc/meminfo", "MemTotal:  1 kB"),
        ("proc/self/cgroup", "0::/job"),
        ("sys/fs/cgroup/cgroup.procs", ""),
        ("sys/fs/cgroup/job/memory.max", limit),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert software.kernel_settings(tmp_path) == {
        "limit of file size": "4096",
        "memory limit of its control group": has,
    }


MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
41 22 0:36 / /data rw,relatime shared:9 - nfs4 filer:/export/data rw,vers=4.2
42 22 0:37 / /a\\040place ro,relatime - lustre 10.0.0.1@tcp:/fs rw
cut short
44 22
"""


def test_mounts() -> None:
    mounts = parse_mounts(MOUNTS)
    assert mounts == (
        Mount("/", "ext4", "/dev/sda1"),
        Mount("/data", "nfs4", "filer:/export/data"),
        Mount("/a place", "lustre", "10.0.0.1@tcp:/fs"),
    )
    assert [mount.of_network for mount in mounts] == [False, True, True]
    found = {path: str(mount_of(path, mounts)) for path in ("/data/x", "/a place/x", "/database")}
    assert found == {
        "/data/x": "nfs4 filer:/export/data",
        "/a place/x": "lustre 10.0.0.1@tcp:/fs",
        "/database": "ext4 /dev/sda1",
    }
    assert mount_of("/x", ()) is None


@pytest.mark.parametrize("kind", ["fuse.ceph-fuse", "fuse.gcsfuse", "smb3", "virtiofs", "beegfs"])
def test_file_systems_of_the_network_by_the_names_that_the_kernel_writes(kind: str) -> None:
    [mount] = parse_mounts(f"36 22 0:36 / /x rw,nosuid shared:9 - {kind} source rw\n")
    assert mount.of_network


def _attribute(kind: int, data: bytes) -> bytes:
    body = struct.pack("=HH", 4 + len(data), kind) + data
    return body + bytes(-len(body) % 4)


def _queue(index: int, kind: bytes, parent: int, rate: int, wide: int | None = None) -> bytes:
    options = _attribute(1, struct.pack("=8xI24x", rate))
    options += _attribute(4, struct.pack("=Q", wide)) if wide is not None else b""
    body = struct.pack("=B3xiIII", 0, index, 0x10000, parent, 0)
    body += _attribute(1, kind + b"\0") + _attribute(2, options)
    return struct.pack("=IHHII", 16 + len(body), 36, 2, 1, 0) + body


def test_rates_of_queues() -> None:
    root, done = 0xFFFFFFFF, struct.pack("=IHHII", 16, 3, 2, 1, 0)
    data = (
        _queue(2, b"tbf", root, 25_000_000)
        + _queue(3, b"noqueue", root, 1)
        + _queue(4, b"tbf", 0x10001, 1)
        + _queue(5, b"tbf", root, 0xFFFFFFFF, 12_500_000_000)
    )
    assert parse_queues(data) == {2: 200.0, 5: 100_000.0}
    assert [messages(packet)[-1][0] for packet in (data, data + done)] == [36, 3]


def _route(message: int, head: bytes, *parts: bytes) -> bytes:
    body = head + b"".join(parts)
    return struct.pack("=IHHII", 16 + len(body), message, 2, 1, 0) + body


def test_routes_and_rules_that_refuse_packets() -> None:
    def head(family: int, bits: int, table: int, kind: int) -> bytes:
        return struct.pack("=BBBBBBBBI", family, bits, 0, 0, table, 0, 0, kind, 0)

    to, wide = _attribute(1, bytes([10, 8, 0, 4])), _attribute(1, bytes([0xFD, *[0] * 15]))
    data = (
        _route(24, head(2, 32, 254, 6), to)
        + _route(24, head(2, 32, 254, 1), to)  # unicast
        + _route(24, head(2, 32, 0, 9), to, _attribute(15, struct.pack("=I", 1000)))
        + _route(24, head(10, 8, 254, 7), wide)
        + _route(32, head(2, 32, 0, 8), to, _attribute(6, struct.pack("=I", 99)))
        + _route(32, head(2, 24, 0, 8), to)
        + _route(32, head(2, 0, 254, 1))  # lookup main
    )
    found = parse_refusals(data)
    assert [str(one) for one in found] == [
        "blackhole route to 10.8.0.4/32 (ip route del blackhole 10.8.0.4/32)",
        "throw route to 10.8.0.4/32 (ip route del throw 10.8.0.4/32 table 1000)",
        "unreachable route to fd00::/8 (ip -6 route del unreachable fd00::/8)",
        "prohibit rule to 10.8.0.4/32 (ip rule del priority 99)",
        "prohibit rule to 10.8.0.0/24 (ip rule del priority 0)",
    ]
    invalid = os.strerror(errno.EINVAL).lower()
    assert found[0].explains("10.8.0.4", invalid)
    assert not found[0].explains("10.8.0.4", "no answer within 2 s")
    assert not found[0].explains("10.8.0.5", invalid)
    assert found[4].explains("10.8.0.9", os.strerror(errno.EACCES).lower())
    assert not found[2].explains("10.8.0.4", os.strerror(errno.EHOSTUNREACH).lower())


@pytest.mark.parametrize("kind", [2, 3], ids=["error", "end"])
def test_a_table_that_the_kernel_refuses_is_not_an_empty_one(
    monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    def end(status: int) -> bytes:
        return struct.pack("=IHHIIi", 20, kind, 2, 1, 0, status)

    def answer(*packets: bytes) -> list[bytes]:
        with monkeypatch.context() as patch:
            ours, kernel = socket.socketpair(type=socket.SOCK_SEQPACKET)
            patch.setattr(socket, "socket", lambda *_: ours)
            for packet in packets:
                kernel.send(packet)
            with kernel:
                return list(dumped(26, b""))

    route = _route(24, struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 254, 0, 0, 1, 0))
    assert answer(route, route + end(0)) == [route, route + end(0)]
    with pytest.raises(PermissionError):
        answer(route + end(-errno.EPERM))


@given(st.binary(max_size=200))
def test_any_bytes_are_queues_or_nothing(data: bytes) -> None:
    assert isinstance(parse_queues(data), dict)
    assert isinstance(parse_refusals(data), list)


XEON = "model name\t: Intel(R) Xeon(R)\nmicrocode\t: 0x2b0005c0\nphysical id\t: {}\n\n"


@pytest.mark.parametrize(
    ("cpuinfo", "found"),
    [
        (XEON.format(0) + XEON.format(1), ("2 × Intel(R) Xeon(R)", "0x2b0005c0")),
        (
            XEON.format(0) + XEON.format(1).replace("5c0", "4d0"),
            ("2 × Intel(R) Xeon(R)", "0x2b0004d0, 0x2b0005c0"),
        ),
        ("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n", ("0xd4f", "none")),
        ("", (None, None)),
        (None, (None, None)),
    ],
)
def test_cpus_and_their_microcode(
    cpuinfo: str | None, found: tuple[str | None, str | None]
) -> None:
    assert software.cpu_and_microcode(cpuinfo) == found
