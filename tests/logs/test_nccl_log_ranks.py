"""The rank and communicator of each line, and the outcome of warnings."""

from __future__ import annotations

import pytest

from pytest_mnode.logs.nccl_log.model import NcclProcess
from pytest_mnode.logs.nccl_log.read import read_nccl_log

WARN = "fir1:7:8 [0] misc/socket.cc:9 NCCL WARN Connect failed\n"


def test_two_communicators_of_one_process_are_separate() -> None:
    lines = []
    for address, thread in (("0xa1", 40), ("0xb2", 41)):
        who = f"fir1:7:{thread} [0] NCCL INFO "
        comm = f"ncclCommInitRank comm {address} rank 0 nranks 2 cudaDev 0 commId {address}9"
        channel = "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0"
        lines += [f"{who}{comm} - Init START", f"{who}{channel}", f"{who}{comm} - Init COMPLETE"]
    log = read_nccl_log("\n".join(lines) + "\n")
    assert [channel.comm for channel in log.channels] == ["0xa1", "0xb2"]
    (only,) = log.ranks
    assert len(only.channels) == 2
    assert [comm.address for comm in only.comms] == ["0xa1", "0xb2"]


@pytest.mark.parametrize("device", ["[{}] ", "[0] ", ""])
@pytest.mark.parametrize("comm_id", [" commId 0x9", ""])
def test_two_ranks_of_one_process_are_two(device: str, comm_id: str) -> None:
    text = ""
    for rank in range(2):
        who = f"fir1:7:{40 + rank} {device.format(rank)}NCCL INFO "
        comm = f"ncclCommInitAll comm 0xa{rank} rank {rank} nranks 4{comm_id}"
        text += (
            f"{who}{comm} - Init START\n"
            f"{who}Channel 00/0 : {rank}[{rank}] -> {rank + 2}[0] [send] via NET/IB/{rank}\n"
            f"{who}{comm} - Init COMPLETE\n"
        )
    log = read_nccl_log(text)
    assert [(r.rank, r.size, r.complete) for r in log.ranks] == [(0, 4, True), (1, 4, True)]
    assert [[c.device for c in r.channels] for r in log.ranks] == [[0], [1]]
    if "{" in device:
        assert [r.cuda_device for r in log.ranks] == [0, 1]


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


def test_lines_without_a_prefix_belong_to_ranks_by_their_channels() -> None:
    log = read_nccl_log(
        "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA\n"
        "Channel 00/0 : 0[0] -> 8[0] [receive] via NET/Socket/0\n"
    )
    assert {r.rank: [c.network for c in r.channels] for r in log.ranks} == {
        0: ["IB"],
        8: ["Socket"],
    }


def test_a_communicator_without_its_beginning_belongs_to_the_same_rank() -> None:
    who = "fir1:7:8 [2] NCCL INFO "
    log = read_nccl_log(
        f"{who}comm 0xa1 rank 5 nRanks 8 nNodes 2 localRanks 4 localRank 1 MNNVL 0\n"
        f"{who}comm 0xb2 rank 1 nranks 2 cudaDev 2 busId 1000 commId 0x9 - Init COMPLETE\n"
    )
    (only,) = log.ranks
    assert (only.rank, only.size, only.complete) == (5, 8, False)


def test_a_communicator_that_begins_with_its_rank_and_does_not_complete() -> None:
    """As NCCL prints it since 2.29."""
    (only,) = read_nccl_log(
        "fir1:7:8 [0] NCCL INFO [Rank 3] ncclCommInitRank comm 0xa1 rank 3 nranks 4 cudaDev 0 "
        "nvmlDev 0 busId 30000 commId 0x11 - Init START\n"
    ).ranks
    assert (only.rank, only.size, only.complete) == (3, 4, False)


def test_an_address_used_again_is_another_communicator() -> None:
    who = "fir1:7:8 [0] NCCL INFO "
    lines = [
        f"{who}ncclCommInitRank comm 0xa1 rank 0 nranks {size} cudaDev 0 commId {name} - Init {how}"
        for size, name in ((4, "0x11"), (2, "0x22"))
        for how in ("START", "COMPLETE")
    ]
    (only,) = read_nccl_log("\n".join(lines) + "\n").ranks
    assert [(comm.id, comm.size) for comm in only.comms] == [("0x11", 4), ("0x22", 2)]
    assert (only.rank, only.size, only.complete) == (0, 4, True)


def test_channels_of_a_group_are_not_those_of_the_world_that_has_its_address_later() -> None:
    who = "fir2:7:8 [0] NCCL INFO "
    group = "comm 0xa1 rank 0 nranks 2 cudaDev 0 busId 1000"
    world = "ncclCommInitRank comm 0xa1 rank 2 nranks 4 cudaDev 0 commId 0x11"
    lines = [
        f"ncclCommSplit {group} parent 0x1 splitCount 1 color 5 key 0- Init START",
        "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",
        f"ncclCommSplit {group} parent 0x1 splitCount 1 color 5 key 0- Init COMPLETE",
        f"{group} - Destroy COMPLETE",
        f"{world} - Init START",
        "Channel 00/0 : 2[0] -> 0[0] [send] via NET/IB/0",
        f"{world} - Init COMPLETE",
        "Channel 01/0 : 2[0] -> 0[0] [send] via NET/IB/0",
        "Channel 02/0 : 2[0] -> 0[0] [send] via NET/IB/0 comm 0xa1 nRanks 04",  # RCCL
    ]
    log = read_nccl_log("".join(f"{who}{line}\n" for line in lines))
    (only,) = log.ranks
    assert [(comm.address, comm.size) for comm in only.comms] == [("0xa1", 2), ("0xa1#2", 4)]
    assert [channel.comm for channel in log.channels] == ["0xa1", *["0xa1#2"] * 3]
    assert (only.rank, only.size) == (2, 4)


def test_channels_connected_later_belong_to_the_only_communicator_they_fit() -> None:
    who = "fir1:7:8 [0] NCCL INFO "
    comms = [
        f"{who}comm 0xa1 rank 3 nranks 8 cudaDev 0 commId 0x11 - Init COMPLETE",
        f"{who}comm 0xb2 rank 1 nranks 2 cudaDev 0 commId 0x22 - Init COMPLETE",
        f"{who}comm 0xc3 rank 1 nranks 4 cudaDev 0 commId 0x33 - Init COMPLETE",
    ]
    later = [
        f"fir1:7:99 [0] NCCL INFO Channel 00/0 : {ends} [send] via NET/IB/0"
        for ends in ("3[0] -> 4[0]", "1[0] -> 3[0]", "1[0] -> 0[0]")
    ]
    log = read_nccl_log("\n".join(comms + later) + "\n")
    assert [channel.comm for channel in log.channels] == ["0xa1", "0xc3", None]


@pytest.mark.parametrize(
    ("line", "process"),
    [
        ("node [3] NCCL INFO Using network Socket", NcclProcess("node", None)),
        ("08:11:12 NCCL INFO Using network IB", NcclProcess(None, None)),
        *(
            (f"birch7:{pid} [2] NCCL INFO Using network IB", NcclProcess("birch7", None))
            for pid in ("XXXXXX", "***", "xxx:xxx", "####:####")
        ),
    ],
)
def test_the_process_that_printed_a_line(line: str, process: NcclProcess) -> None:
    assert [use.process for use in read_nccl_log(line + "\n").networks] == [process]


def test_lines_that_name_a_device_only() -> None:
    log = read_nccl_log(" [2] NCCL INFO Ring 00 : 15[41000] -> 0[1b000] [receive] via NET/IB/0\n")
    assert [(channel.rank, channel.cuda_device) for channel in log.channels] == [(0, 2)]


def test_two_messages_on_one_line_are_separate() -> None:
    log = read_nccl_log(
        "fir1:7:8 [0] NCCL INFO Using network IB | 2026-01-02T03:04:05Z "
        "fir2:9:9 [0] NCCL INFO Using network Socket\n"
    )
    uses = [(use.process.host, use.name) for use in log.networks]
    assert uses == [("fir1", "IB"), ("fir2", "Socket")]


def test_interleaved_lines_of_two_writers_are_ignored() -> None:
    log = read_nccl_log(
        "fir1:7:8 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMAfir2:9:9 [0] "
        "NCCL INFO Using network IB\n"
    )
    assert log.channels == ()
    assert len(log.unknown_lines) == 1


def test_zero_bytes_show_a_truncated_log() -> None:
    log = read_nccl_log(b"\0\0\0fir1:7:8 [0] NCCL INFO Using network IB\n")
    assert [use.name for use in log.networks] == ["IB"]
    assert log.truncated == ("3 zero bytes between the text",)


@pytest.mark.parametrize(
    "before",
    [
        "birch7:311:340 [1] transport/net_ib.cc:77 NCCL WARN ",
        "\n[2026-03-01 10:00:00] birch7:311:340 [1] a.cc:7 (fn) NCCL WARN ",
        "birch7:311:340 [1] create_component:459 NCCL WARN ",
        "birch7:311:340 [0] int make(plugin_t**):352 NCCL WARN ",
        "birch7:311:340 [1] a.cc:7 NCCL ERROR ",
    ],
)
def test_the_place_in_the_source_is_no_part_of_a_warning(before: str) -> None:
    (warning,) = read_nccl_log(f"{before}something is amiss\n").warnings
    assert warning.text == "something is amiss"
    assert warning.process == NcclProcess(host="birch7", pid=311)
    assert warning.recovered is None


def test_what_only_the_monitor_of_nccl_misses_is_no_warning() -> None:
    warn = "birch7:311:340 [1] {}client_support.cc:181 NCCL WARN Call to bind failed\n"
    assert read_nccl_log(warn.format("ras/")).warnings == ()
    assert len(read_nccl_log(warn.format("misc/")).warnings) == 1


POLL = (
    "fir1:7:8 [0] misc/socket.cc:540 NCCL WARN socketPollConnect poll() failed with error "
    "Connection timed out\n"
)
RETRY = (
    "fir1:7:8 [0] NCCL INFO socketPollConnect: connect to 10.0.0.9<42> returned Connection timed "
    "out, retrying ({}/34) after sleep for 100 msec\n"
)
PASSED_ON = "fir1:7:8 [0] NCCL INFO misc/socket.cc:611 -> 6\n"


NET_IB = "fir1:7:8 [0] transport/net_ib.cc:209 NCCL WARN NET/IB : mlx5_0:1 "
ERROR = "fir1:7:8 [0] a.cc:7 NCCL WARN something is amiss\n"
INFO = "fir1:7:8 [0] NCCL INFO "


@pytest.mark.parametrize(
    ("text", "recovered"),
    [
        # A connection that is tried again has not failed.
        (POLL, False),
        (POLL + RETRY.format(1), None),
        (POLL + PASSED_ON + RETRY.format(1), None),
        (POLL + RETRY.format(1) + PASSED_ON, False),
        (POLL + RETRY.format(1).replace("fir1:7", "fir1:9"), False),
        (POLL + RETRY.format(1) + f"{INFO}Connected all rings\n", True),
        ("fir1:7:8 [0] x.cc:1 NCCL WARN Duplicate GPU detected\n" + RETRY.format(1), False),
        *((f"{WARN[:-1]} : timed out, retrying\n{after}", None) for after in ("", PASSED_ON)),
        *((f"{NET_IB}timeout, will be retrying\n{after}", None) for after in ("", PASSED_ON)),
        (RETRY.format(3).replace("INFO", "WARN"), None),
        # After an event of a port NCCL may go on.
        (f"{NET_IB}Got async error event: client reregistration\n", None),
        (f"{NET_IB}Got non-fatal async event: port active(9)\n", None),
        (f"{NET_IB}Got non-fatal async event: GID table change(18)\n", None),
        (f"{NET_IB}Got non-fatal async event: port error(10)\n", False),
        (f"{NET_IB}async fatal event on QP (qpn 71): catastrophic error(1)\n", False),
        # The trace of calls that pass an error on.
        (f"{ERROR}{INFO}transport/net.cc:1298 -> 6\n", False),
        (f"{ERROR}{INFO}proxy.cc:736 -> 6 [Progress Thread]\n", False),
        (f"{ERROR}{INFO}[Service thread] proxy.cc:736 -> 6\n", False),
        (f"{ERROR}{INFO}transport/net.cc:1298 (sendProxyProgress) -> 6\n", False),
        (f"{ERROR}{INFO}src/net_ib/connect.cc:88 (ncclIbConnect(int, void*)) -> 2\n", False),
        (f"{ERROR}{INFO}init.cc:1298 -> 0\n", None),
        (f"{ERROR}{INFO}init.cc:1298 (ncclCommGetAsyncError) -> 7\n", None),
        (f"{ERROR}{INFO}10 -> 6\n", None),
        # A process that connects later has recovered.
        (f"{WARN}{INFO}Connected all rings\n", True),
        (f"{WARN}{INFO}Connected all trees\n", True),
        (f"{WARN}{INFO}Ring 00 : 1 -> 0 -> 1\n", None),
        # Equal warnings are one.
        (f"{WARN}{INFO}something else\n{WARN}", None),
        (f"{WARN}3: {WARN}", None),
    ],
)
def test_the_outcome_of_a_warning(text: str, recovered: bool | None) -> None:
    (warning,) = read_nccl_log(text).warnings
    assert warning.recovered is recovered
