"""Single lines of an NCCL log, by version and by the program that printed them."""

from __future__ import annotations

import pytest

from pytest_mnode.logs.nccl_log.model import (
    Absence,
    Channel,
    Direction,
    NcclLog,
    NcclProcess,
    NetworkKind,
    Transport,
    network_of,
    provider_network,
)
from pytest_mnode.logs.nccl_log.read import read_nccl_log

WHO = "birch7:311:340 [1] NCCL INFO "


def read(*messages: str) -> NcclLog:
    return read_nccl_log("".join(f"{WHO}{message}\n" for message in messages))


def adapters(log: NcclLog) -> tuple[str, ...]:
    return tuple(log.adapters(log.channels)[0])


def shown(channel: Channel) -> tuple[object, ...]:
    """All fields of a channel except its process and the printed text."""
    ends = channel.sender, channel.receiver, channel.direction, channel.rank
    path = channel.transport, channel.network, channel.device, channel.gdr
    return (channel.number, channel.connection, *ends, *path, channel.comm)


SEND, RECEIVE = Direction.SEND, Direction.RECEIVE
NET, COLLNET = Transport.NET, Transport.COLLNET
P2P, SHM, OTHER = Transport.P2P, Transport.SHM, Transport.OTHER
CHANNELS: dict[str, tuple[str, tuple[object, ...]]] = {
    "2.10": (
        "Channel 00 : 0[3b000] -> 8[af000] [send] via NET/IB/1/GDRDMA",
        (0, None, 0, 8, SEND, 0, NET, "IB", 1, True, None),
    ),
    "2.18 sockets": (
        "Channel 03/0 : 15[7] -> 6[6] [receive] via NET/Socket/3",
        (3, 0, 15, 6, RECEIVE, 6, NET, "Socket", 3, False, None),
    ),
    "2.24 through another rank's adapter": (
        "Channel 11/1 : 9[1] -> 2[2] [send] via NET/IB/4(10)/GDRDMA(PCI)/Shared",
        (11, 1, 9, 2, SEND, 9, NET, "IB", 4, True, None),
    ),
    "a network with a blank in its name": (
        "Channel 100/0 : 1023[7] -> 1031[7] [send] via NET/AWS Libfabric/12/GDRDMA",
        (100, 0, 1023, 1031, SEND, 1023, NET, "AWS Libfabric", 12, True, None),
    ),
    "2.31 how a receiver flushes": (
        "Channel 00/0 : 9[1] -> 0[0] [receive] via NET/IB/0/GDRDMA/flush=None",
        (0, 0, 9, 0, RECEIVE, 0, NET, "IB", 0, True, None),
    ),
    "RCCL": (
        "Channel 00/0 : 1[c1] -> 0[c1] [receive] via NET/IB/0/GDRDMA comm 0x7f3e nRanks 02",
        (0, 0, 1, 0, RECEIVE, 0, NET, "IB", 0, True, "0x7f3e"),
    ),
    "2.4": (
        "Ring 00 : 7 -> 8 [send] via NET/AWS Libfabric/0",
        (0, None, 7, 8, SEND, 7, NET, "AWS Libfabric", 0, False, None),
    ),
    "P2P CUMEM": (
        "Channel 02/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
        (2, 0, 0, 1, None, 0, P2P, None, None, None, None),
    ),
    "P2P between nodes over NVLink": (
        "Channel 02/0 : 4[4] -> 0[0] via P2P/MNNVL",
        (2, 0, 4, 0, None, 4, P2P, None, None, None, None),
    ),
    "P2P direct pointer": (
        "Channel 02 : 1[b000] -> 0[7000] via P2P/direct pointer/read",
        (2, None, 1, 0, None, 1, P2P, None, None, None, None),
    ),
    "P2P through a third": (
        "Channel 02/1 : 1[1] -> 0[0] via P2P/indirect/3[3]",
        (2, 1, 1, 0, None, 1, P2P, None, None, None, None),
    ),
    "shared memory": (
        "Channel 00 : 2[2] -> 3[3] via SHM/direct/direct",
        (0, None, 2, 3, None, 2, SHM, None, None, None, None),
    ),
    "shared memory before 2.12": (
        "Channel 01 : 0[1b000] -> 7[41000] via direct shared memory",
        (1, None, 0, 7, None, 0, SHM, None, None, None, None),
    ),
    "reduction in the network, 2.10": (
        "Coll 02 : 3 [send] via COLLNET/SHARP/0/GDRDMA",
        (2, None, 3, None, SEND, 3, COLLNET, "SHARP", 0, True, None),
    ),
    "reduction in the network": (
        "CollNet 00/0 : 3 [receive] via COLLNET/SHARP/1/GDRDMA",
        (0, 0, None, 3, RECEIVE, 3, COLLNET, "SHARP", 1, True, None),
    ),
    "a transport of the future": (
        "Channel 00/0 : 0[0] -> 1[1] via WARP/fold",
        (0, 0, 0, 1, None, 0, OTHER, None, None, None, None),
    ),
    "a flag of the future: GPUDirect is not known": (
        "Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0/Novel",
        (0, 0, 0, 1, SEND, 0, NET, "IB", 0, None, None),
    ),
}


@pytest.mark.parametrize(("message", "expected"), CHANNELS.values(), ids=CHANNELS)
def test_channel_lines(message: str, expected: tuple[object, ...]) -> None:
    log = read(message)
    (channel,) = log.channels
    assert shown(channel) == expected
    assert channel.process == NcclProcess(host="birch7", pid=311)
    assert channel.detail == message.partition(" via ")[2].partition(" comm ")[0]
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
def test_an_unreadable_channel_line_is_reported(message: str) -> None:
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
def test_lines_of_no_known_kind(message: str) -> None:
    log = read(message)
    assert (log.channels, log.unknown_lines, log.warnings, log.no_device) == ((), (), (), ())
    assert (log.networks, log.settings, log.devices, log.truncated) == ((), (), (), ())


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_bond_0:2/RoCE [RO]; OOB eno1:10.4.0.1<0>",
            [("IB", 0, "mlx5_0", "IB"), ("IB", 1, "mlx5_bond_0", "RoCE")],
        ),
        (
            "NET/IB : Using [0]={[0] mlx5_0:1/RoCE, [1] mlx5_1:1/RoCE} [2]mlx5_2:1/RoCE ; "
            "OOB a:1.2.3.4<0>",
            [("IB", 0, "mlx5_0+mlx5_1", "RoCE"), ("IB", 1, "mlx5_2", "RoCE")],
        ),
        ("NET/IB : Using [RO]; OOB eth0:10.0.4.51<0>", []),
        ("NET/IB : Using ; OOB eth0:10.0.4.51<0>", []),
        (
            "NET/Socket : Using [0]eth0:10.0.0.1<0> [1]veth3f:fe80::8dd:f1ff:fed6:944c%veth3f<0>",
            [("Socket", 0, "eth0", None), ("Socket", 1, "veth3f", None)],
        ),
        (
            "NET/gIB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.4.51<0>",
            [("gIB", 0, "mlx5_0", "RoCE")],
        ),
        ("NET/OFI NIC group 3 device #1 0000:70:00.0", [("OFI", 3, "0000:70:00.0", None)]),
        ("NET/FasTrak : GPU Direct RDMA Enabled for HCA 2 'eth3'", [("FasTrak", 2, "eth3", None)]),
        ("Sharp rank 1/2 initialized on mlx5_5:1", [("SHARP", None, "mlx5_5", None)]),
        *(
            (f"NET/Socket : Using [0]eth0:{redacted}<0>", [("Socket", 0, "eth0", None)])
            for redacted in ("", "x.x.x.x", "***", "<IP>", "10.x.x.x", "XXX.XXX.XXX.XXX")
        ),
    ],
)
def test_devices(message: str, expected: list[tuple[object, ...]]) -> None:
    log = read(message)
    assert [(d.network, d.index, d.name, d.link_layer) for d in log.devices] == expected
    assert log.truncated == ()


def test_one_device_of_two_lines() -> None:
    log = read(
        "NET/IB : Made virtual device [0] name=mlx5_0 speed=400000 ndevs=1",
        "NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eno1:10.4.0.1<0>",
        "NET/IB : Made virtual device [2] name=mlx5_0+mlx5_1 speed=800000 ndevs=2",
        "Channel 00/0 : 0[1] -> 8[1] [send] via NET/IB/2/GDRDMA",
    )
    first, _, both = log.devices
    assert (first.link_layer, both.members) == ("RoCE", ("mlx5_0", "mlx5_1"))
    assert adapters(log) == ("mlx5_0", "mlx5_1")


@pytest.mark.parametrize(
    ("network", "groups", "size"),
    [("AWS Libfabric", 8, 1), ("AWS Libfabric", 8, 4), ("Libfabric", 4, 2), ("Libfabric", 1, 4)],
)
def test_each_nic_of_a_libfabric_group_is_a_rail(network: str, groups: int, size: int) -> None:
    nics = {(g, n): f"0000:{16 * g + n:02x}:00.0" for g in range(groups) for n in range(size)}
    listed = [f"NET/OFI NIC group {g} device #{n} {name}" for (g, n), name in nics.items()]
    used = [
        f"Channel {g:02d}/0 : 0[0] -> 8[0] [send] via NET/{network}/{g}/GDRDMA"
        for g in range(groups)
    ]
    # A second communicator of the process lists the devices again.
    log = read(*listed, *used, *listed)
    assert adapters(log) == tuple(nics.values())
    assert log.adapters(log.channels)[1]


@pytest.mark.parametrize(
    "listed",
    [
        "NET/IB : Made virtual device [0] name=mlx5_0+mlx5_1 speed=800000 ndevs=2",
        "NET/IB : Using [0]={[0] mlx5_0:1/RoCE, [1] mlx5_1:1/RoCE} [RO]; OOB eno1:10.4.0.1<0>",
        "NET/IB : Using [0]mlx5_0+mlx5_1:1/RoCE [RO]; OOB eno1:10.4.0.1<0>",
        "NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0+mlx5_1'",
        "NET/IB : GPU Direct RDMA (DMABUF) enabled for HCA 0 'mlx5_0+mlx5_1'",
    ],
)
def test_each_part_of_a_merged_device_is_a_rail(listed: str) -> None:
    log = read(listed, "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA")
    assert adapters(log) == ("mlx5_0", "mlx5_1")


def test_a_listed_device_is_not_replaced_by_one_that_is_named_alone() -> None:
    listed = "NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eno1:10.4.0.1<0>"
    [device] = read(listed, "NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'").devices
    assert (device.name, device.link_layer) == ("mlx5_0", "RoCE")


LISTS = [
    "NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [2]mlx5_10:1/RoCE [3]mlx5_11:1/RoCE [RO]; "
    "OOB eno1:10.4.0.1<0>",
    "NET/IB : Using [0]={[0] mlx5_0:1/RoCE, [1] mlx5_10:1/RoCE} [1]={[2] mlx5_2:1/IB/SHARP, "
    "[3] mlx5_12:1/IB/SHARP} ; OOB eno1:10.4.0.1<0>",
    "NET/Socket : Using [0]eth0:10.0.0.12<0> [1]eth1:10.0.1.12<0> [2]eth10:fe80::12%eth10<0>",
]


@pytest.mark.parametrize("listed", LISTS)
def test_a_list_truncated_anywhere_invents_no_device(listed: str) -> None:
    whole = {(d.index, d.name): d for d in read(listed).devices}
    assert read(listed).truncated == ()
    for end in range(listed.index("Using") + len("Using"), len(listed)):
        log = read(listed[:end])
        for device in log.devices:
            full = whole[(device.index, device.name)]
            assert device.link_layer in (None, full.link_layer)
        if "OOB" in listed and end < listed.index("; OOB"):
            assert len(log.truncated) == 1


def test_a_truncated_list_does_not_make_a_rail_missing() -> None:
    log = read(LISTS[0][:70], "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/3/GDRDMA")
    assert log.adapters(log.channels) == ({}, False)
    assert log.truncated[0].startswith("a list of devices has no end")


def test_hcas_named_only_by_sharp() -> None:
    log = read(
        "Sharp rank 1/2 initialized on mlx5_5:1",
        "CollNet 00/0 : 3 [receive] via COLLNET/SHARP/0/GDRDMA",
    )
    assert adapters(log) == ("mlx5_5",)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Using network IBext_v8", [("IBext_v8", False)]),
        ("Using network AWS Libfabric", [("AWS Libfabric", False)]),
        ("Assigned NET plugin IB to comm", [("IB", False)]),
        ("Failed to initialize NET plugin SPCX", [("SPCX", True)]),
        ("Initialized NET plugin Socket", []),
        ("NET/Plugin: Loaded net plugin SPCX (v12)", []),
        ("P2P plugin IBext", []),
        ("P2P plugin v8 UCX-RMA", []),
    ],
)
def test_networks(message: str, expected: list[tuple[str, bool]]) -> None:
    log = read(message)
    assert [(use.name, use.failed) for use in log.networks] == expected
    assert log.unknown_lines == ()


@pytest.mark.parametrize(
    ("message", "name", "value"),
    [
        ("NCCL_IB_DISABLE set by environment to 1.", "NCCL_IB_DISABLE", "1"),
        ("NCCL_IB_HCA set to ^mlx5_2,mlx5_3", "NCCL_IB_HCA", "^mlx5_2,mlx5_3"),
        ("NCCL_ALGO set by environment to Ring", "NCCL_ALGO", "Ring"),
        ("NCCL_NET set by environment to ", "NCCL_NET", ""),
        ("NCCL_TOPO_FILE set by environment to /etc/t.xml.", "NCCL_TOPO_FILE", "/etc/t.xml."),
        ("NCCL_P2P_LEVEL set by config file to PIX", "NCCL_P2P_LEVEL", "PIX"),
    ],
)
def test_settings(message: str, name: str, value: str) -> None:
    (setting,) = read(message).settings
    assert (setting.name, setting.value) == (name, value)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "GPU Direct RDMA Enabled for GPU 26000 / HCA 1 (distance 4 <= 4), read 0",
            (True, 1, "distance 4 <= 4"),
        ),
        (
            "GPU Direct RDMA Disabled for GPU 7 / HCA 3 (distance 9 > 8)",
            (False, 3, "distance 9 > 8"),
        ),
        ("NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'", (False, 0, None)),
    ],
)
def test_gpu_direct(message: str, expected: tuple[object, ...]) -> None:
    (fact,) = read(message).gpu_direct
    assert (fact.enabled, fact.device, fact.reason) == expected


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
    ("message", "name"),
    [
        ("NET/OFI Selected Provider is efa (found 16 nics)", "efa"),
        ("NET/OFI Selected provider is efa, fabric is efa-direct (found 4 nics)", "efa"),
        ("NET/OFI Selected Provider is verbs;ofi_rxm (found 8 nics)", "verbs;ofi_rxm"),
        ("NET/OFI Selected Provider is tcp", "tcp"),
    ],
)
def test_providers(message: str, name: str) -> None:
    assert [provider.name for provider in read(message).providers] == [name]


RDMA_NETWORKS = ("IB", "IBext_v10", "IBext", "gIB", "SHARP", "UCX", "SPCX", "IB-CAST")


@pytest.mark.parametrize(
    ("name", "providers", "expected"),
    [
        *((name, (), NetworkKind.RDMA) for name in RDMA_NETWORKS),
        ("AWS Libfabric", ("efa",), NetworkKind.RDMA),
        ("Libfabric", ("verbs;ofi_rxm",), NetworkKind.RDMA),
        ("AWS Libfabric", ("tcp;ofi_rxm",), NetworkKind.SOCKETS),
        ("AWS Libfabric", ("efa", "tcp"), NetworkKind.UNKNOWN),
        *((name, (), NetworkKind.SOCKETS) for name in ("Socket", "FastSocket")),
        *((name, (), NetworkKind.GPUDIRECT_TCP) for name in ("GPUDirectTCPX_v7", "FasTrak")),
        *((name, (), NetworkKind.UNKNOWN) for name in ("AWS Libfabric", "Quillon", "NotIB", "")),
    ],
)
def test_the_transport_of_a_network(
    name: str, providers: tuple[str, ...], expected: NetworkKind
) -> None:
    assert network_of(name, providers) is expected
    assert provider_network("carrier-pigeon") is NetworkKind.UNKNOWN


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


def test_several_versions_give_no_version() -> None:
    log = read_nccl_log("NCCL version 2.18.5+cuda12.0\nNCCL version 2.19.3+cuda12.3\n")
    assert log.nccl_version is None
    assert len(log.versions) == 2


def test_a_gid_printed_in_two_halves_is_an_address() -> None:
    (gid,) = read(
        "NET/IB: NCCL Dev 0 IbDev 0 Port 1 qpn 576 mtu 3 GID 3 (0/C8002D0AFFFF0000) fifoRkey=0x1"
    ).gids
    assert (gid.index, gid.port, gid.local, gid.error) == (3, 1, "::ffff:10.45.0.200", None)


def test_a_failed_connection_has_its_addresses() -> None:
    (gid,) = read_nccl_log(
        "birch7:311:340 [1] misc/ibvwrap.cc:309 NCCL WARN Call to ibv_modify_qp failed with 101 "
        "Network is unreachable, on dev mlx5_3:1, curr state INIT, next state RTR, "
        "local GID index 2, local GID fd5a::1, remote GID ::ffff:10.9.0.2\n"
    ).gids
    assert (gid.device, gid.port, gid.index) == ("mlx5_3", 1, 2)
    assert (gid.local, gid.remote) == ("fd5a::1", "::ffff:10.9.0.2")
    assert gid.error == "101 Network is unreachable"


def test_redacted_gids_are_no_addresses() -> None:
    (gid,) = read(
        "Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx_x:1, curr state "
        "INIT, next state RTR, local GID index 3, local GID ::ffff:xxx.x.x.x, remote GID ***"
    ).gids
    assert (gid.index, gid.local, gid.remote) == (3, None, None)


def test_lines_that_ray_prints_for_repeated_ones() -> None:
    more = " [repeated 7x across cluster]"
    first = " (Ray deduplicates logs by default. Set RAY_DEDUP_LOGS=0 to disable it)"
    comm = "ncclCommInitRank comm 0x5 rank 0 nranks 16 cudaDev 1 busId 1b000 commId 0x9 - Init"
    log = read(
        f"NCCL_IB_DISABLE set by environment to 1.{more}{first}",
        f"NET/Socket : Using [0]eth0:10.0.0.1<0>{more}",
        f"Using network Socket{more}",
        f"{comm} START{more}",
        f"Channel 00/0 : 0[0] -> 8[0] [send] via NET/Socket/0{more}",
        f"{comm} COMPLETE{more}",
    )
    assert [shown(channel)[6:10] for channel in log.channels] == [(NET, "Socket", 0, False)]
    assert [setting.value for setting in log.settings] == ["1"]
    assert [use.name for use in log.networks] == ["Socket"]
    assert log.ranks[0].complete
    assert log.unknown_lines == ()
    assert log.truncated == ("6 lines stand for others, which Ray left out",)


@pytest.mark.parametrize(
    ("via", "transport", "device", "gdr"),
    [
        ("NET/IB/3/GDRDMA", "NET", 3, True),
        ("NET/IB/3", "NET", 3, False),
        ("NET/AWS Libfabric/1/GDRDMA/Shared", "NET", 1, True),
        ("NET/IB/3(5)/GDRDMA", "NET", 3, True),
        ("P2P/direct pointer", "P2P", None, None),
        ("P2P/CUMEM/read", "P2P", None, None),
        ("SHM/direct/direct", "SHM", None, None),
        ("direct shared memory", "SHM", None, None),
    ],
)
def test_text_behind_a_channel_changes_nothing(
    via: str, transport: str, device: int | None, gdr: bool | None
) -> None:
    line = f"fir1:7:8 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via {via}"
    saved = " [2026-02-03 04:05:06] saved"
    for behind in ("", " step 5 loss 0.31", "\tepoch 3/4", saved, " comm 0xa1"):
        log = read_nccl_log(f"{line}{behind}\n")
        [channel] = log.channels
        found = (channel.transport, channel.device, channel.gdr)
        assert found == (transport, device, gdr), behind
        assert channel.detail == via, behind
        assert log.unknown_lines == (), behind
