"""Devices, interfaces and ranks of NCCL logs as real machines print them: grouped, cut, blanked."""

from __future__ import annotations

import pytest

from pytest_mnode.logs.nccl_log import NcclLog, Use, read_nccl_log

WHO = "birch7:311:340 [1] NCCL INFO "


def read(*messages: str) -> NcclLog:
    return read_nccl_log("".join(f"{WHO}{message}\n" for message in messages))


@pytest.mark.parametrize("network", ["AWS Libfabric", "Libfabric"])
@pytest.mark.parametrize(("groups", "size"), [(8, 1), (8, 2), (8, 4), (4, 2), (1, 4)])
def test_each_nic_of_a_libfabric_group_is_a_rail(network: str, groups: int, size: int) -> None:
    nics = {(g, n): f"0000:{16 * g + n:02x}:00.0" for g in range(groups) for n in range(size)}
    listed = [f"NET/OFI NIC group {g} device #{n} {name}" for (g, n), name in nics.items()]
    used = [
        f"Channel {g:02d}/0 : 0[0] -> 8[0] [send] via NET/{network}/{g}/GDRDMA"
        for g in range(groups)
    ]
    # A second communicator of the process lists them again.
    log = read(*listed, *used, *listed)
    assert log.adapters_used() == tuple(nics.values())
    assert log.devices_unnamed() == ()


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
    assert log.adapters_used() == ("mlx5_0", "mlx5_1")


LISTS = [
    "NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [2]mlx5_10:1/RoCE [3]mlx5_11:1/RoCE [RO]; "
    "OOB eno1:10.4.0.1<0>",
    "NET/IB : Using [0]={[0] mlx5_0:1/RoCE, [1] mlx5_10:1/RoCE} [1]={[2] mlx5_2:1/IB/SHARP, "
    "[3] mlx5_12:1/IB/SHARP} ; OOB eno1:10.4.0.1<0>",
    "NET/Socket : Using [0]eth0:10.0.0.12<0> [1]eth1:10.0.1.12<0> [2]eth10:fe80::12%eth10<0>",
]


@pytest.mark.parametrize("listed", LISTS)
def test_a_list_that_is_cut_anywhere_invents_no_device(listed: str) -> None:
    whole = {(d.index, d.name): d for d in read(listed).devices}
    assert read(listed).truncated == ()
    for end in range(listed.index("Using") + len("Using"), len(listed)):
        log = read(listed[:end])
        for device in log.devices:
            full = whole[(device.index, device.name)]
            assert device.port in (None, full.port)
            assert device.address in (None, full.address)
            assert device.link_layer in (None, full.link_layer)
        if "OOB" in listed and end < listed.index("; OOB"):
            assert len(log.truncated) == 1


def test_a_rail_is_not_missed_for_a_list_that_is_cut() -> None:
    log = read(LISTS[0][:70], "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/3/GDRDMA")
    assert log.adapters_used() == ()
    assert len(log.devices_unnamed()) == 1
    assert log.truncated[0].startswith("a list of devices has no end")


def test_hcas_that_only_sharp_names() -> None:
    log = read(
        "Sharp rank 1/2 initialized on mlx5_5:1",
        "CollNet 00/0 : 3 [receive] via COLLNET/SHARP/0/GDRDMA",
    )
    assert log.adapters_used() == ("mlx5_5",)


@pytest.mark.parametrize("bootstrap", ["Bootstrap : Using ", "Bootstrap: Using "])
@pytest.mark.parametrize(
    ("used", "expected"),
    [
        ("eth0:10.1.2.3<0>", [("eth0", "10.1.2.3")]),
        (
            "[0]eth0:10.1.2.3<0> [1]ib0:fe80::1%ib0<0>",
            [("eth0", "10.1.2.3"), ("ib0", "fe80::1%ib0")],
        ),
        ("eth0:<0>", [("eth0", None)]),
        ("eth0:x.x.x.x<0>", [("eth0", None)]),
        ("eth0:xxx.xxx.xxx.xxx<0>", [("eth0", None)]),
        ("[0]eth0:***<0> [1]eth1:<IP><0>", [("eth0", None), ("eth1", None)]),
        ("[0]eth0:[REDACTED]<0> [1]eth1:10.0.0.1<0>", [("eth0", None), ("eth1", "10.0.0.1")]),
        ("eno1:", [("eno1", None)]),
        ("eno1:label:10.0.0.1<0>", [("eno1", None)]),
    ],
)
def test_every_interface_of_the_bootstrap(
    bootstrap: str, used: str, expected: list[tuple[str, str | None]]
) -> None:
    assert [(i.name, i.address) for i in read(bootstrap + used).interfaces] == expected


@pytest.mark.parametrize("blank", ["", "x.x.x.x", "***", "<IP>", "10.x.x.x", "XXX.XXX.XXX.XXX"])
def test_devices_with_blanked_addresses_keep_their_names(blank: str) -> None:
    log = read(
        f"NET/Socket : Using [0]eth0:{blank}<0> [1]eth1:{blank}<0>",
        f"NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:{blank}<0>",
    )
    assert [(d.network, d.name, d.address) for d in log.devices] == [
        ("Socket", "eth0", None),
        ("Socket", "eth1", None),
        ("IB", "mlx5_0", None),
    ]
    assert log.truncated == ()


@pytest.mark.parametrize("pid", ["XXXXXX", "***", "xxx:xxx", "####:####"])
def test_lines_with_blanked_processes_keep_their_host(pid: str) -> None:
    log = read_nccl_log(f"birch7:{pid} [2] NCCL INFO Using network IB\n")
    assert [(use.process.host, use.process.pid) for use in log.networks] == [("birch7", None)]


def test_blanked_gids_are_no_addresses() -> None:
    (gid,) = read(
        "Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx_x:1, curr state "
        "INIT, next state RTR, local GID index 3, local GID ::ffff:xxx.x.x.x, remote GID ***"
    ).gids
    assert (gid.index, gid.local, gid.remote) == (3, None, None)


def test_one_process_with_several_gpus_is_as_many_ranks_without_lines_of_communicators() -> None:
    log = read_nccl_log(
        "".join(
            f"birch7:311:{340 + gpu} [{gpu}] NCCL INFO Channel 00/0 : {8 + gpu}[{gpu}] -> "
            f"{gpu}[{gpu}] [send] via NET/IB/{gpu}/GDRDMA\n"
            for gpu in range(4)
        )
    )
    assert [(r.rank, r.cuda_device, len(r.channels)) for r in log.ranks] == [
        (8 + gpu, gpu, 1) for gpu in range(4)
    ]


@pytest.mark.parametrize(
    "text",
    [
        "socketPollConnect: connect to 10.0.0.9<4242> returned Connection timed out, retrying "
        "(3/34) after sleep for 300 msec",
        "Connect to 10.0.0.9<4242> failed : Connection timed out, retrying",
        "NET/IB : timeout, will be retrying on another path",
    ],
)
def test_retrying_is_no_giving_up(text: str) -> None:
    warn = f"birch7:311:340 [1] misc/socket.cc:551 NCCL WARN {text}\n"
    (warning,) = read_nccl_log(warn).warnings
    assert warning.recovered is None
    (warning,) = read_nccl_log(warn + f"{WHO}misc/socket.cc:47 -> 3\n").warnings
    assert warning.recovered is None


@pytest.mark.parametrize(
    ("trail", "gave_up"),
    [
        ("transport/net.cc:1298 -> 6", True),
        ("proxy.cc:736 -> 6 [Progress Thread]", True),
        ("[Service thread] proxy.cc:736 -> 6", True),
        ("transport/net.cc:1298 (sendProxyProgress) -> 6", True),
        ("src/transport/net_ib/connect.cc:88 (ncclIbConnect(int, void*)) -> 2", True),
        ("init.cc:1298 -> 0", False),
        ("init.cc:1298 (ncclCommGetAsyncError) -> 7", False),
        ("10 -> 6", False),
    ],
)
def test_the_trail_of_an_error(trail: str, gave_up: bool) -> None:
    warn = "birch7:311:340 [1] a.cc:7 NCCL WARN something is amiss\n"
    (warning,) = read_nccl_log(f"{warn}{WHO}{trail}\n").warnings
    assert warning.recovered is (False if gave_up else None)


@pytest.mark.parametrize("name", ["IBext", "IBext_v8", "IBext_v11", "UCX", "UCX-RMA"])
@pytest.mark.parametrize("before", ["P2P plugin ", "P2P plugin v8 "])
def test_the_plugin_for_point_to_point_is_no_channel(before: str, name: str) -> None:
    log = read(before + name)
    assert [(use.name, use.use) for use in log.networks] == [(name, Use.LOADED)]
    assert log.unknown_lines == ()


def test_errors_count_as_warnings() -> None:
    (warning,) = read_nccl_log("birch7:311:340 [1] a.cc:7 NCCL ERROR gone\n").warnings
    assert warning.text == "gone"
