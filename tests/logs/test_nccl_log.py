"""Whole NCCL logs: what a judge must be able to tell apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mnode.logs.nccl_log import (
    Absence,
    NcclLog,
    Network,
    Process,
    RankLog,
    Transport,
    read_nccl_log,
)

LOGS = Path(__file__).parents[2] / "fixtures" / "logs"
RAILS = ("mlx5_0", "mlx5_3")


def log_of(name: str) -> NcclLog:
    return read_nccl_log((LOGS / name).read_bytes())


def rank(log: NcclLog, number: int) -> RankLog:
    (found,) = (r for r in log.ranks if r.rank == number)
    return found


def kinds(log: NcclLog) -> set[Network]:
    return {kind for r in log.ranks for kind in log.kinds_of(r)}


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.log")), ids=lambda path: path.name)
def test_every_example_is_read_to_the_last_channel_line(path: Path) -> None:
    log = read_nccl_log(path.read_bytes())
    assert log.unknown_lines == ()
    # Each line of a channel is a channel of its own in these logs.
    assert len(log.channels) == path.read_text().count(" via ")
    assert bool(log.truncated) == path.name.startswith("cut")


def test_a_healthy_log_over_infiniband() -> None:
    log = log_of("ib-gdr-2.21.log")
    assert log.nccl_version == "2.21.5+cuda12.4"
    assert log.hosts == ("larch01", "larch02")
    assert [(r.rank, r.size, r.complete, r.process.host) for r in log.ranks] == [
        (0, 4, True, "larch01"),
        (1, 4, True, "larch01"),
        (2, 4, True, "larch02"),
        (3, 4, True, "larch02"),
    ]
    assert log.complete is True
    assert kinds(log) == {Network.RDMA}
    assert [r.gdr for r in log.ranks] == [True] * 4
    assert log.transports_of(rank(log, 0)) == ("P2P", "NET/IB")
    assert [(c.sender, c.receiver) for c in rank(log, 1).net_channels] == [(1, 2), (1, 2)]
    assert log.networks_of(rank(log, 0).process) == ("IB",)
    rails = log.rails(RAILS)
    assert (rails.used, rails.missing, rails.stray) == (RAILS, (), ())
    (comm,) = rank(log, 2).comms
    assert (comm.nodes, comm.local_rank, comm.local_size, comm.cuda_device) == (2, 0, 2, 0)
    assert {c.comm for c in rank(log, 2).channels} == {comm.address}


def test_old_versions_print_bus_ids_and_no_beginning() -> None:
    log = log_of("ib-gdr-2.10.log")
    assert [(r.rank, r.size, r.complete, r.gdr) for r in log.ranks] == [
        (0, 2, True, True),
        (1, 2, True, True),
    ]
    assert [c.receiver_device for c in rank(log, 0).channels] == ["3b000", "af000"]
    assert log.rails(RAILS).missing == ()


def test_staged_through_the_host_is_rdma_without_gpudirect() -> None:
    log = log_of("ib-staged-2.18.log")
    assert kinds(log) == {Network.RDMA}
    assert [r.gdr for r in log.ranks] == [False] * 4
    assert [fact.enabled for fact in log.gpu_direct] == [False] * 8


def test_roce_version_2_shows_its_gid_and_speed() -> None:
    log = log_of("roce-v2-2.26.log")
    assert {(d.link_layer, d.speed_mbits_s) for d in log.devices} == {("RoCE", 400000)}
    assert {(g.index, g.local, g.device) for g in log.gids} == {(3, "::ffff:10.45.0.200", "mlx5_2")}
    assert {(s.name, s.value) for s in log.settings} == {
        ("NCCL_IB_HCA", "=mlx5_2:1,mlx5_4:1"),
        ("NCCL_IB_GID_INDEX", "3"),
    }


def test_roce_with_the_wrong_gid_never_completes() -> None:
    log = log_of("roce-wrong-gid-2.19.log")
    assert log.complete is False
    assert [warning.recovered for warning in log.warnings] == [False, False]
    assert {(g.index, g.error) for g in log.gids} == {(1, "Connection timed out")}
    assert all(g.local is not None and g.local.startswith("fe80::") for g in log.gids)


def test_efa_is_rdma_by_its_provider() -> None:
    log = log_of("efa-2.27.log")
    assert kinds(log) == {Network.RDMA}
    assert log.providers_of(rank(log, 0).process) == ("efa",)
    assert log.adapters_used() == ("0000:53:00.0", "0000:6c:00.0")
    assert all(channel.shared for channel in log.net_channels)
    without = "\n".join(
        line
        for line in (LOGS / "efa-2.27.log").read_text().splitlines()
        if "Selected provider" not in line
    )
    assert kinds(read_nccl_log(without + "\n")) == {Network.UNKNOWN}


def test_a_plugin_that_reduces_and_merges() -> None:
    log = log_of("sharp-merged-2.20.log")
    assert kinds(log) == {Network.RDMA}
    assert log.adapters_used() == ("mlx5_0", "mlx5_1", "mlx5_4")
    assert {c.proxy_rank for c in log.net_channels if c.transport is Transport.NET} == {1}
    assert all(device.in_network_reduction for device in log.devices)
    assert "COLLNET/SHARP" in log.transports_of(rank(log, 3))


def test_rccl_names_the_communicator_of_each_channel() -> None:
    log = log_of("rccl-roce-2.18.log")
    assert log.nccl_version == "RCCL 2.18.6+hip6.1"
    assert {c.comm for c in log.channels} == {"0x7f3008000e90", "0x7f3018000e90"}
    assert log.rails(("bnxt_re0", "bnxt_re1")).missing == ()


def test_an_unknown_plugin_is_unknown() -> None:
    log = log_of("unknown-plugin-2.30.log")
    assert kinds(log) == {Network.UNKNOWN}
    assert log.networks_of(rank(log, 0).process) == ("Quillon",)
    assert log.adapters_used() == ("qn0", "qn1")


def test_sockets_for_want_of_a_device() -> None:
    log = log_of("socket-no-device-2.27.log")
    assert kinds(log) == {Network.SOCKETS}
    assert [r.gdr for r in log.ranks] == [False] * 4
    assert {fact.absence for fact in log.no_device} == {Absence.NO_DEVICE}
    assert len(log.no_device) == 4
    assert log.settings == ()
    assert {device.network for device in log.devices} == {"Socket"}


def test_sockets_by_setting() -> None:
    log = log_of("socket-ib-disabled-2.20.log")
    assert kinds(log) == {Network.SOCKETS}
    assert log.no_device == ()
    assert {(s.name, s.value) for s in log.settings} >= {("NCCL_IB_DISABLE", "1")}
    assert log.rails(("eno1",)).stray == ()


def test_sockets_over_a_wrong_interface() -> None:
    rails = log_of("socket-wrong-interface-2.22.log").rails(("fab0",))
    assert (rails.used, rails.missing, rails.stray) == (("docker0",), ("fab0",), ("docker0",))


def test_sockets_over_ipoib_are_sockets() -> None:
    log = log_of("socket-ipoib-2.19.log")
    assert kinds(log) == {Network.SOCKETS}
    assert log.adapters_used() == ("ib0", "ib1")


def test_a_rail_missing_on_one_node() -> None:
    log = log_of("rail-down-2.23.log")
    missing = {
        r.process.host: log.rails(RAILS, r.process).missing for r in (log.ranks[1], log.ranks[3])
    }
    assert missing == {"larch01": (), "larch02": ("mlx5_3",)}
    assert log.rails(RAILS).missing == ()


def test_one_node_alone_on_tcp() -> None:
    log = log_of("one-node-on-tcp-2.24.log")
    found = {
        host: {kind for r in log.ranks_on(host) for kind in log.kinds_of(r)} for host in log.hosts
    }
    assert found == {
        "larch01": {Network.RDMA},
        "larch02": {Network.RDMA},
        "larch03": {Network.SOCKETS},
    }
    assert {(fact.process.host, fact.absence) for fact in log.no_device} == {
        ("larch03", Absence.NO_LIBRARY)
    }


def test_a_warning_that_recovered() -> None:
    log = log_of("ib-recovered-2.28.log")
    (warning,) = log.warnings
    assert warning.recovered is True
    assert (warning.process, warning.where) == (Process("larch01", 41200), "misc/socket.cc:508")
    assert log.complete is True


def test_a_connection_that_died_after_a_good_start() -> None:
    log = log_of("ib-aborted-2.29.log")
    (warning,) = log.warnings
    assert (warning.recovered, warning.process) == (False, Process("larch02", 42101))
    assert warning.where == "transport/net_ib/p2p.cc:212 (ncclIbTest)"
    assert log.complete is True
    assert [comm.aborted for comm in rank(log, 3).comms] == [True]
    (gid,) = log.gids
    assert (gid.device, gid.error) == ("mlx5_3", "status=12 opcode=1 len=0 vendor err 129")


def test_a_log_that_is_cut_says_so_and_adds_nothing() -> None:
    log = log_of("cut-2.21.log")
    assert log.complete is False
    assert rank(log, 3).gdr is None
    last = log.channels[-1]
    assert (last.sender, last.receiver, last.network) == (3, 0, "IB")
    assert (last.device, last.gdr) == (None, None)
    assert log.devices_unnamed() == (last,)
    assert [entry[:25] for entry in log.truncated] == ["the last line has no end:"]


def test_a_log_stripped_of_its_last_newline_is_not_cut() -> None:
    whole = (LOGS / "ib-staged-2.18.log").read_text()
    stripped = whole[: whole.rindex(" via NET/IB/1") + len(" via NET/IB/1")]
    assert stripped[-1] != "\n"
    last = read_nccl_log(stripped).channels[-1]
    assert (last.device, last.gdr) == (1, False)


def test_nothing_is_nothing() -> None:
    log = log_of("empty.log")
    assert (log.ranks, log.channels, log.truncated, log.complete) == ((), (), (), None)
    assert log.nccl_version is None


def test_two_communicators_of_one_process_are_kept_apart() -> None:
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


def test_several_ranks_of_one_process_are_told_apart_by_device() -> None:
    lines = []
    for number in range(2):
        who = f"fir1:7:{40 + number} [{number}] NCCL INFO "
        comm = (
            f"ncclCommInitAll comm 0xa{number} rank {number} nranks 4 cudaDev {number} busId 1000"
        )
        lines += [
            f"{who}{comm} commId 0x9 - Init START",
            f"{who}Channel 00/0 : {number}[{number}] -> {number + 2}[0] [send] via NET/IB/{number}",
            f"{who}{comm} commId 0x9 - Init COMPLETE",
        ]
    log = read_nccl_log("\n".join(lines) + "\n")
    assert [(r.rank, r.cuda_device) for r in log.ranks] == [(0, 0), (1, 1)]
    assert [[c.device for c in r.channels] for r in log.ranks] == [[0], [1]]


def test_lines_without_any_prefix_tell_ranks_by_their_channels() -> None:
    log = read_nccl_log(
        "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA\n"
        "Channel 00/0 : 0[0] -> 8[0] [receive] via NET/Socket/0\n"
    )
    found = {r.rank: log.transports_of(r) for r in log.ranks}
    assert found == {0: ("NET/IB",), 8: ("NET/Socket",)}


def test_two_messages_on_one_line_are_two() -> None:
    log = read_nccl_log(
        "fir1:7:8 [0] NCCL INFO Using network IB | 2026-01-02T03:04:05Z "
        "fir2:9:9 [0] NCCL INFO Using network Socket\n"
    )
    assert [(use.process.host, use.name) for use in log.networks] == [
        ("fir1", "IB"),
        ("fir2", "Socket"),
    ]


def test_lines_of_two_writers_that_ran_into_each_other_are_not_believed() -> None:
    log = read_nccl_log(
        "fir1:7:8 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMAfir2:9:9 [0] "
        "NCCL INFO Using network IB\n"
    )
    assert log.channels == ()
    assert len(log.unknown_lines) == 1


def test_zero_bytes_are_evidence_of_a_cut() -> None:
    log = read_nccl_log(b"\0\0\0fir1:7:8 [0] NCCL INFO Using network IB\n")
    assert [use.name for use in log.networks] == ["IB"]
    assert log.truncated == ("3 zero bytes between the text",)


def test_a_beginning_that_is_cut_off_makes_no_host() -> None:
    text = (LOGS / "ib-gdr-2.21.log").read_text()
    begin = text.index("larch01:41200:41240") + 3
    log = read_nccl_log(text[begin:])
    assert log.hosts == ("larch01", "larch02")
    assert [entry[:31] for entry in log.truncated] == ["the first line has no beginning"]


def test_warnings_are_counted_once_each() -> None:
    warn = "fir1:7:8 [0] misc/socket.cc:9 NCCL WARN Connect failed\n"
    other = "fir1:7:8 [0] NCCL INFO something else\n"
    (warning,) = read_nccl_log(warn + other + warn).warnings
    assert (warning.count, warning.recovered) == (2, None)


def test_lines_that_name_a_host_or_a_device_only() -> None:
    log = read_nccl_log(
        "node [3] NCCL INFO Using network Socket\n"
        " [2] NCCL INFO Ring 00 : 15[41000] -> 0[1b000] [receive] via NET/IB/0\n"
    )
    assert [use.process for use in log.networks] == [Process("node", None)]
    assert [(channel.rank, channel.cuda_device) for channel in log.channels] == [(0, 2)]


def test_a_communicator_whose_beginning_is_missing_is_of_the_same_rank() -> None:
    who = "fir1:7:8 [2] NCCL INFO "
    log = read_nccl_log(
        f"{who}comm 0xa1 rank 5 nRanks 8 nNodes 2 localRanks 4 localRank 1 MNNVL 0\n"
        f"{who}comm 0xb2 rank 1 nranks 2 cudaDev 2 busId 1000 commId 0x9 - Init COMPLETE\n"
    )
    (only,) = log.ranks
    assert (only.rank, only.size, only.complete) == (5, 8, False)


def test_a_warning_printed_twice_by_a_scheduler_is_one() -> None:
    warn = "fir1:7:8 [0] misc/socket.cc:9 NCCL WARN Connect failed\n"
    (warning,) = read_nccl_log(warn + "3: " + warn).warnings
    assert warning.count == 1


def test_wide_characters_without_a_mark_are_read() -> None:
    log = read_nccl_log((LOGS / "ib-gdr-2.21.log").read_text().encode("utf-16-le"))
    assert log.channels == log_of("ib-gdr-2.21.log").channels


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


def test_a_time_of_day_is_no_host() -> None:
    log = read_nccl_log("08:11:12 NCCL INFO Using network IB\n")
    assert [use.process for use in log.networks] == [Process(None, None)]
    assert log.hosts == ()
