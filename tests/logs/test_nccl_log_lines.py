"""Single lines of an NCCL log, by version and by what printed them."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_mnode.logs.nccl_log import (
    Absence,
    Channel,
    Device,
    Direction,
    NcclLog,
    Network,
    Process,
    Purpose,
    Transport,
    Use,
    network_of,
    provider_network,
    read_nccl_log,
)

WHO = "birch7:311:340 [1] NCCL INFO "


def read(message: str) -> NcclLog:
    return read_nccl_log(f"{WHO}{message}\n")


def channel_of(message: str) -> Channel:
    (channel,) = read(message).channels
    return channel


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        pytest.param(
            "Channel 00 : 0[3b000] -> 8[af000] [send] via NET/IB/1/GDRDMA",
            {
                "number": 0,
                "connection": None,
                "sender": 0,
                "receiver": 8,
                "sender_device": "3b000",
                "receiver_device": "af000",
                "direction": Direction.SEND,
                "transport": Transport.NET,
                "network": "IB",
                "device": 1,
                "gdr": True,
                "rank": 0,
            },
            id="2.10",
        ),
        pytest.param(
            "Channel 03/0 : 15[7] -> 6[6] [receive] via NET/Socket/3",
            {
                "number": 3,
                "connection": 0,
                "direction": Direction.RECEIVE,
                "network": "Socket",
                "device": 3,
                "gdr": False,
                "rank": 6,
            },
            id="2.18 sockets",
        ),
        pytest.param(
            "Channel 11/1 : 9[1] -> 2[2] [send] via NET/IB/4(10)/GDRDMA(PCI)/Shared",
            {
                "connection": 1,
                "device": 4,
                "proxy_rank": 10,
                "gdr": True,
                "gdr_through_pci": True,
                "shared": True,
            },
            id="2.24 through another rank's adapter",
        ),
        pytest.param(
            "Channel 100/0 : 1023[7] -> 1031[7] [send] via NET/AWS Libfabric/12/GDRDMA",
            {"number": 100, "network": "AWS Libfabric", "device": 12, "sender": 1023},
            id="a network with a blank in its name",
        ),
        pytest.param(
            "Channel 00/0 : 1[c1] -> 0[c1] [receive] via NET/IB/0/GDRDMA comm 0x7f3e nRanks 02",
            {"comm": "0x7f3e", "gdr": True, "detail": "NET/IB/0/GDRDMA"},
            id="RCCL",
        ),
        pytest.param(
            "Ring 00 : 7 -> 8 [send] via NET/AWS Libfabric/0",
            {"sender": 7, "receiver": 8, "sender_device": None, "gdr": False},
            id="2.4",
        ),
        pytest.param(
            "Channel 02/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
            {"transport": Transport.P2P, "network": None, "direction": None, "gdr": None},
            id="P2P CUMEM",
        ),
        pytest.param(
            "Channel 02/0 : 4[4] -> 0[0] via P2P/MNNVL",
            {"transport": Transport.P2P, "detail": "P2P/MNNVL"},
            id="P2P between nodes over NVLink",
        ),
        pytest.param(
            "Channel 02 : 1[b000] -> 0[7000] via P2P/direct pointer/read",
            {"transport": Transport.P2P, "detail": "P2P/direct pointer/read"},
            id="P2P direct pointer",
        ),
        pytest.param(
            "Channel 02/1 : 1[1] -> 0[0] via P2P/indirect/3[3]",
            {"transport": Transport.P2P},
            id="P2P through a third",
        ),
        pytest.param(
            "Channel 00 : 2[2] -> 3[3] via SHM/direct/direct",
            {"transport": Transport.SHM, "connection": None},
            id="shared memory",
        ),
        pytest.param(
            "Channel 01 : 0[1b000] -> 7[41000] via direct shared memory",
            {"transport": Transport.SHM, "gdr": None},
            id="shared memory before 2.12",
        ),
        pytest.param(
            "Coll 02 : 3 [send] via COLLNET/SHARP/0/GDRDMA",
            {"transport": Transport.COLLNET, "connection": None, "rank": 3, "receiver": None},
            id="reduction in the network, 2.10",
        ),
        pytest.param(
            "CollNet 00/0 : 3 [receive] via COLLNET/SHARP/1/GDRDMA",
            {
                "transport": Transport.COLLNET,
                "network": "SHARP",
                "sender": None,
                "receiver": 3,
                "rank": 3,
                "gdr": True,
            },
            id="reduction in the network",
        ),
        pytest.param(
            "Channel 00/0 : 0[0] -> 1[1] via WARP/fold",
            {"transport": Transport.OTHER, "detail": "WARP/fold", "network": None},
            id="a transport of the future",
        ),
        pytest.param(
            "Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0/Novel",
            {"gdr": None, "device": 0},
            id="a flag of the future: GPUDirect cannot be told",
        ),
    ],
)
def test_channel_lines(message: str, expected: dict[str, Any]) -> None:
    log = read(message)
    (channel,) = log.channels
    assert {name: getattr(channel, name) for name in expected} == expected
    assert channel.process == Process(host="birch7", pid=311)
    assert log.unknown_lines == ()


@pytest.mark.parametrize(
    "message",
    [
        "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/",
        "Channel 00/0 : 0[0] -> 8[0] [send] via NET/",
        "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/x/GDRDMA",
        "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/",
        "Channel 00/0 : 0[0] -> 8[0] [send]",
        "Channel 00/0 : 0[0] -> 8[0] via P2P/",
        "CollNet 00/0 : 3 [receive] via COLLNET/SHARP",
        "hannel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0",
    ],
)
def test_a_channel_line_that_cannot_be_read_is_told(message: str) -> None:
    log = read(message)
    assert log.channels == ()
    assert log.unknown_lines == (message,)


@pytest.mark.parametrize(
    "message",
    [
        "Channel 00/02 :    0   1   2   3",
        "Channel 07/16 : 0 7 6 5 4 3 2 1",
        "Ring 00 : 3 -> 0 -> 1",
        "Tree 0 : -1 -> 0 -> 1/-1/-1",
        "Trees [0] 1/-1/-1->0->-1 [1] -1/-1/-1->0->1",
        "NET/Plugin: Could not find: libnccl-net.so.",
        "NET/Plugin : No plugin found (libnccl-net.so), using internal implementation",
        "NET/Plugin: Failed to find ncclCollNetPlugin_v8 symbol.",
        "P2P Chunksize set to 131072",
        "Assigned GIN plugin GIN_IB_PROXY to comm",
        "New proxy send connection 31 from local rank 0, transport 2",
    ],
)
def test_lines_that_are_none_of_all_this(message: str) -> None:
    log = read(message)
    assert (log.channels, log.unknown_lines, log.warnings, log.no_device) == ((), (), (), ())
    assert (log.networks, log.settings, log.devices, log.truncated) == ((), (), (), ())


def shown(devices: tuple[Device, ...]) -> list[tuple[object, ...]]:
    return [(d.network, d.index, d.name, d.port, d.link_layer, d.address) for d in devices]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_bond_0:2/RoCE [RO]; OOB eno1:10.4.0.1<0>",
            [("IB", 0, "mlx5_0", 1, "IB", None), ("IB", 1, "mlx5_bond_0", 2, "RoCE", None)],
        ),
        (
            "NET/IB : Using [0]={[0] mlx5_0:1/RoCE, [1] mlx5_1:1/RoCE} [2]mlx5_2:1/RoCE ; "
            "OOB a:1.2.3.4<0>",
            [("IB", 0, "mlx5_0+mlx5_1", 1, "RoCE", None), ("IB", 1, "mlx5_2", 1, "RoCE", None)],
        ),
        ("NET/IB : Using [RO]; OOB eth0:10.0.4.51<0>", []),
        ("NET/IB : Using ; OOB eth0:10.0.4.51<0>", []),
        (
            "NET/Socket : Using [0]eth0:10.0.0.1<0> [1]veth3f:fe80::8dd:f1ff:fed6:944c%veth3f<0>",
            [
                ("Socket", 0, "eth0", None, None, "10.0.0.1"),
                ("Socket", 1, "veth3f", None, None, "fe80::8dd:f1ff:fed6:944c%veth3f"),
            ],
        ),
        (
            "NET/gIB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.4.51<0>",
            [("gIB", 0, "mlx5_0", 1, "RoCE", None)],
        ),
        (
            "NET/OFI NIC group 3 device #1 0000:70:00.0",
            [("OFI", 3, "0000:70:00.0", None, None, None)],
        ),
        (
            "NET/FasTrak : GPU Direct RDMA Enabled for HCA 2 'eth3'",
            [("FasTrak", 2, "eth3", None, None, None)],
        ),
    ],
)
def test_devices(message: str, expected: list[tuple[object, ...]]) -> None:
    assert shown(read(message).devices) == expected


def test_merged_devices_are_their_parts_and_speed_comes_from_another_line() -> None:
    log = read_nccl_log(
        f"{WHO}NET/IB : Made virtual device [0] name=mlx5_0 speed=400000 ndevs=1\n"
        f"{WHO}NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eno1:10.4.0.1<0>\n"
        f"{WHO}NET/IB : Made virtual device [2] name=mlx5_0+mlx5_1 speed=800000 ndevs=2\n"
        f"{WHO}Channel 00/0 : 0[1] -> 8[1] [send] via NET/IB/2/GDRDMA\n"
    )
    first, _, both = log.devices
    assert (first.speed_mbits_s, first.link_layer, first.relaxed_ordering) == (400000, "RoCE", True)
    assert (both.speed_mbits_s, both.members) == (800000, ("mlx5_0", "mlx5_1"))
    assert log.adapters_used() == ("mlx5_0", "mlx5_1")


@pytest.mark.parametrize(
    ("message", "purpose", "name", "address"),
    [
        ("Bootstrap : Using eth0:10.1.2.3<0>", Purpose.BOOTSTRAP, "eth0", "10.1.2.3"),
        ("Bootstrap: Using bond0.7:10.1.2.3<0>", Purpose.BOOTSTRAP, "bond0.7", "10.1.2.3"),
        ("Bootstrap : Using [0]eth0:10.1.2.3<0>", Purpose.BOOTSTRAP, "eth0", "10.1.2.3"),
        (
            "NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB ib0:fe80::1%ib0<0>",
            Purpose.OUT_OF_BAND,
            "ib0",
            "fe80::1%ib0",
        ),
    ],
)
def test_interfaces(message: str, purpose: Purpose, name: str, address: str) -> None:
    (interface,) = read(message).interfaces
    assert (interface.purpose, interface.name, interface.address) == (purpose, name, address)


@pytest.mark.parametrize(
    ("message", "name", "use"),
    [
        ("Using network IBext_v8", "IBext_v8", Use.USING),
        ("Using network AWS Libfabric", "AWS Libfabric", Use.USING),
        ("Initialized NET plugin Socket", "Socket", Use.INITIALIZED),
        ("Assigned NET plugin IB to comm", "IB", Use.ASSIGNED),
        ("Failed to initialize NET plugin SPCX", "SPCX", Use.FAILED),
        ("NET/Plugin: Loaded net plugin SPCX (v12)", "SPCX", Use.LOADED),
    ],
)
def test_networks(message: str, name: str, use: Use) -> None:
    (found,) = read(message).networks
    assert (found.name, found.use) == (name, use)


@pytest.mark.parametrize(
    ("message", "name", "value", "source"),
    [
        ("NCCL_IB_DISABLE set by environment to 1.", "NCCL_IB_DISABLE", "1", "environment"),
        ("NCCL_IB_HCA set to ^mlx5_2,mlx5_3", "NCCL_IB_HCA", "^mlx5_2,mlx5_3", None),
        ("NCCL_ALGO set by environment to Ring", "NCCL_ALGO", "Ring", "environment"),
        ("NCCL_NET set by environment to ", "NCCL_NET", "", "environment"),
        (
            "NCCL_TOPO_FILE set by environment to /etc/t.xml.",
            "NCCL_TOPO_FILE",
            "/etc/t.xml.",
            "environment",
        ),
        ("NCCL_P2P_LEVEL set by config file to PIX", "NCCL_P2P_LEVEL", "PIX", "config file"),
    ],
)
def test_settings(message: str, name: str, value: str, source: str | None) -> None:
    (setting,) = read(message).settings
    assert (setting.name, setting.value, setting.source) == (name, value, source)


@pytest.mark.parametrize(
    ("message", "enabled", "gpu", "device", "reason"),
    [
        (
            "GPU Direct RDMA Enabled for GPU 26000 / HCA 1 (distance 4 <= 4), read 0",
            True,
            "26000",
            1,
            "distance 4 <= 4",
        ),
        (
            "GPU Direct RDMA Disabled for GPU 7 / HCA 3 (distance 9 > 8)",
            False,
            "7",
            3,
            "distance 9 > 8",
        ),
        ("NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'", False, None, 0, None),
    ],
)
def test_gpu_direct(
    message: str, enabled: bool, gpu: str | None, device: int, reason: str | None
) -> None:
    (fact,) = read(message).gpu_direct
    assert (fact.enabled, fact.gpu, fact.device, fact.reason) == (enabled, gpu, device, reason)


@pytest.mark.parametrize(
    ("message", "absence"),
    [
        ("NET/IB : No device found.", Absence.NO_DEVICE),
        ("Failed to open libibverbs.so[.1]", Absence.NO_LIBRARY),
        ("NET/OFI OFI fi_getinfo() call failed: No data available", Absence.NO_PROVIDER),
        ("NET/Socket : no interface found", Absence.NO_INTERFACE),
    ],
)
def test_absent_devices(message: str, absence: Absence) -> None:
    assert [fact.absence for fact in read(message).no_device] == [absence]


@pytest.mark.parametrize(
    ("message", "name", "adapters"),
    [
        ("NET/OFI Selected Provider is efa (found 16 nics)", "efa", 16),
        ("NET/OFI Selected provider is efa, fabric is efa-direct (found 4 nics)", "efa", 4),
        ("NET/OFI Selected Provider is verbs;ofi_rxm (found 8 nics)", "verbs;ofi_rxm", 8),
        ("NET/OFI Selected Provider is tcp", "tcp", None),
    ],
)
def test_providers(message: str, name: str, adapters: int | None) -> None:
    (provider,) = read(message).providers
    assert (provider.name, provider.adapters) == (name, adapters)


@pytest.mark.parametrize(
    ("name", "providers", "expected"),
    [
        ("IB", (), Network.RDMA),
        ("IBext_v10", (), Network.RDMA),
        ("IBext", (), Network.RDMA),
        ("gIB", (), Network.RDMA),
        ("SHARP", (), Network.RDMA),
        ("UCX", (), Network.RDMA),
        ("SPCX", (), Network.RDMA),
        ("AWS Libfabric", ("efa",), Network.RDMA),
        ("Libfabric", ("verbs;ofi_rxm",), Network.RDMA),
        ("AWS Libfabric", ("tcp;ofi_rxm",), Network.SOCKETS),
        ("AWS Libfabric", (), Network.UNKNOWN),
        ("AWS Libfabric", ("efa", "tcp"), Network.UNKNOWN),
        ("Socket", (), Network.SOCKETS),
        ("FastSocket", (), Network.SOCKETS),
        ("GPUDirectTCPX_v7", (), Network.GPUDIRECT_TCP),
        ("FasTrak", (), Network.GPUDIRECT_TCP),
        ("Quillon", (), Network.UNKNOWN),
        ("NotIB", (), Network.UNKNOWN),
        ("", (), Network.UNKNOWN),
    ],
)
def test_what_carries_a_network(name: str, providers: tuple[str, ...], expected: Network) -> None:
    assert network_of(name, providers) is expected


def test_an_unknown_provider_is_unknown() -> None:
    assert provider_network("carrier-pigeon") is Network.UNKNOWN


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NCCL version 2.18.5+cuda12.0", "2.18.5+cuda12.0"),
        ("[2026-05-05 06:16:47] NCCL version 2.30.3+cuda13.0", "2.30.3+cuda13.0"),
        (f"{WHO}NCCL version 2.27.5+cuda12.9", "2.27.5+cuda12.9"),
        (f"{WHO}RCCL version : 2.27.7-HEAD:0d2c4fd", "RCCL 2.27.7-HEAD"),
    ],
)
def test_versions(line: str, version: str) -> None:
    assert read_nccl_log(line).nccl_version == version


def test_several_versions_are_none() -> None:
    log = read_nccl_log("NCCL version 2.18.5+cuda12.0\nNCCL version 2.19.3+cuda12.3\n")
    assert log.nccl_version is None
    assert len(log.versions) == 2


def test_a_gid_in_halves_is_an_address() -> None:
    (gid,) = read(
        "NET/IB: NCCL Dev 0 IbDev 0 Port 1 qpn 576 mtu 3 GID 3 (0/C8002D0AFFFF0000) fifoRkey=0x1"
    ).gids
    assert (gid.index, gid.port, gid.local, gid.error) == (3, 1, "::ffff:10.45.0.200", None)


def test_a_failed_connection_tells_its_addresses() -> None:
    (gid,) = read_nccl_log(
        "birch7:311:340 [1] misc/ibvwrap.cc:309 NCCL WARN Call to ibv_modify_qp failed with 101 "
        "Network is unreachable, on dev mlx5_3:1, curr state INIT, next state RTR, "
        "local GID index 2, local GID fd5a::1, remote GID ::ffff:10.9.0.2\n"
    ).gids
    assert (gid.device, gid.port, gid.index) == ("mlx5_3", 1, 2)
    assert (gid.local, gid.remote) == ("fd5a::1", "::ffff:10.9.0.2")
    assert gid.error == "101 Network is unreachable"


@pytest.mark.parametrize(
    ("message", "algorithm", "protocol"),
    [
        ("AllReduce: 4 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0}", "TREE", "LL"),
        ("AllReduce: 104 Bytes -> Algo 1 proto 2 time 12.300000", "RING", "SIMPLE"),
    ],
)
def test_tuning(message: str, algorithm: str, protocol: str) -> None:
    (tuning,) = read(message).tunings
    assert (tuning.algorithm, tuning.protocol) == (algorithm, protocol)


def test_channels_rings_and_trees_are_counted() -> None:
    (plan,) = read_nccl_log(
        f"{WHO}Ring 00 : 1 -> 0 -> 1\n{WHO}Ring 01 : 1 -> 0 -> 1\n"
        f"{WHO}Trees [0] 1/-1/-1->0->-1 [1] -1/-1/-1->0->1\n"
        f"{WHO}Connected all rings, use ring PXN 0 GDR 1\n"
        f"{WHO}16 coll channels, 8 collnet channels, 4 nvls channels, 32 p2p channels, "
        "2 p2p channels per peer\n"
    ).plans
    assert (plan.coll_channels, plan.collnet_channels) == (16, 8)
    assert (plan.nvls_channels, plan.p2p_channels) == (4, 32)
    assert (plan.rings, plan.trees, plan.gdr, plan.pxn) == (2, 2, True, False)


@pytest.mark.parametrize(
    ("before", "where"),
    [
        ("birch7:311:340 [1] transport/net_ib.cc:77 NCCL WARN ", "transport/net_ib.cc:77"),
        ("\n[2026-03-01 10:00:00] birch7:311:340 [1] a.cc:7 (fn) NCCL WARN ", "a.cc:7 (fn)"),
        ("birch7:311:340 [1] create_component:459 NCCL WARN ", "create_component:459"),
        (
            "birch7:311:340 [0] int make(plugin_t**):352 NCCL WARN ",
            "int make(plugin_t**):352",
        ),
    ],
)
def test_warnings_say_where(before: str, where: str) -> None:
    (warning,) = read_nccl_log(f"{before}something is amiss\n").warnings
    assert (warning.text, warning.where) == ("something is amiss", where)
    assert warning.process == Process(host="birch7", pid=311)
    assert (warning.count, warning.recovered) == (1, None)
