"""Whole NCCL logs: the facts that a judge must distinguish."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_mnode.logs.nccl_log.model import Absence, NcclLog, NcclProcess, NetworkKind, RankLog
from pytest_mnode.logs.nccl_log.read import read_nccl_log

LOGS = Path(__file__).parents[2] / "fixtures" / "logs"
BOTH_RAILS = ("mlx5_0", "mlx5_3")
RDMA, SOCKETS, UNKNOWN = {NetworkKind.RDMA}, {NetworkKind.SOCKETS}, {NetworkKind.UNKNOWN}


def log_of(name: str) -> NcclLog:
    return read_nccl_log((LOGS / name).read_bytes())


def rank(log: NcclLog, number: int) -> RankLog:
    (found,) = (r for r in log.ranks if r.rank == number)
    return found


def kinds(log: NcclLog, host: str | None = None) -> set[NetworkKind]:
    channels = [c for r in log.ranks for c in r.net_channels if host in (None, c.process.host)]
    return {kind for c in channels if (kind := log.kind_of(c)) is not None}


def adapters(log: NcclLog) -> tuple[str, ...]:
    return tuple(log.adapters([c for c in log.channels if c.crosses_network])[0])


def gdr(log: NcclLog) -> set[bool | None]:
    return {c.gdr for c in log.channels if c.crosses_network}


@dataclass(frozen=True)
class Expected:
    version: str
    kinds: set[NetworkKind]
    adapters: tuple[str, ...]
    complete: bool = True
    gdr: tuple[bool | None, ...] = (True,)
    recovered: tuple[bool | None, ...] = ()
    absences: tuple[Absence, ...] = ()


EXAMPLES = {
    "ib-gdr-2.10.log": Expected("2.10.3+cuda11.4", RDMA, BOTH_RAILS),
    "ib-gdr-2.21.log": Expected("2.21.5+cuda12.4", RDMA, BOTH_RAILS),
    "rack-recorded-2.28.log": Expected(
        "2.28.9+cuda13.0", SOCKETS, ("fab0",), gdr=(False,), absences=2 * (Absence.NO_DEVICE,)
    ),
    "ib-staged-2.18.log": Expected("2.18.5+cuda12.2", RDMA, BOTH_RAILS, gdr=(False,)),
    "roce-v2-2.26.log": Expected("2.26.2+cuda12.6", RDMA, ("mlx5_2", "mlx5_4")),
    "efa-2.27.log": Expected("2.27.5+cuda12.9", RDMA, ("0000:53:00.0", "0000:6c:00.0")),
    "sharp-merged-2.20.log": Expected("2.20.3+cuda12.3", RDMA, ("mlx5_0", "mlx5_1", "mlx5_4")),
    "rccl-roce-2.18.log": Expected("RCCL 2.18.6+hip6.1", RDMA, ("bnxt_re0", "bnxt_re1")),
    "unknown-plugin-2.30.log": Expected("2.30.3+cuda13.0", UNKNOWN, ("qn0", "qn1")),
    "socket-no-device-2.27.log": Expected(
        "2.27.3+cuda12.9", SOCKETS, ("eno1",), gdr=(False,), absences=(Absence.NO_DEVICE,) * 4
    ),
    "socket-ib-disabled-2.20.log": Expected("2.20.5+cuda12.4", SOCKETS, ("eno1",), gdr=(False,)),
    "socket-wrong-interface-2.22.log": Expected(
        "2.22.3+cuda12.6", SOCKETS, ("docker0",), gdr=(False,)
    ),
    "socket-ipoib-2.19.log": Expected("2.19.3+cuda12.3", SOCKETS, ("ib0", "ib1"), gdr=(False,)),
    "one-node-on-tcp-2.24.log": Expected(
        "2.24.3+cuda12.6",
        RDMA | SOCKETS,
        (*BOTH_RAILS, "eno1"),
        gdr=(True, False),
        absences=(Absence.NO_LIBRARY,) * 2,
    ),
    "rail-down-2.23.log": Expected("2.23.4+cuda12.6", RDMA, BOTH_RAILS),
    "ib-recovered-2.28.log": Expected("2.28.3+cuda13.0", RDMA, BOTH_RAILS, recovered=(True,)),
    "ib-aborted-2.29.log": Expected("2.29.2+cuda13.0", RDMA, BOTH_RAILS, recovered=(False,)),
    "roce-wrong-gid-2.19.log": Expected(
        "2.19.4+cuda12.3", RDMA, ("mlx5_2", "mlx5_4"), complete=False, recovered=(False, False)
    ),
    "cut-2.21.log": Expected("2.21.5+cuda12.4", RDMA, BOTH_RAILS, complete=False, gdr=(True, None)),
}


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.log")), ids=lambda path: path.name)
def test_every_example_is_read_to_the_last_channel_line(path: Path) -> None:
    log = read_nccl_log(path.read_bytes())
    assert log.unknown_lines == ()
    # In these logs each channel line is a separate channel.
    assert len(log.channels) == path.read_text().count(" via ")
    assert bool(log.truncated) == path.name.startswith("cut")


@pytest.mark.parametrize(("name", "expected"), EXAMPLES.items())
def test_the_facts_of_each_example(name: str, expected: Expected) -> None:
    log = log_of(name)
    assert log.nccl_version == expected.version
    assert kinds(log) == expected.kinds
    assert adapters(log) == expected.adapters
    assert all(r.complete for r in log.ranks) is expected.complete
    assert gdr(log) == set(expected.gdr)
    assert tuple(warning.recovered for warning in log.warnings) == expected.recovered
    assert tuple(fact.absence for fact in log.no_device) == expected.absences


def test_ranks_and_communicators_of_a_healthy_log() -> None:
    log = log_of("ib-gdr-2.21.log")
    assert [(r.rank, r.size, r.process.host) for r in log.ranks] == [
        (0, 4, "larch01"),
        (1, 4, "larch01"),
        (2, 4, "larch02"),
        (3, 4, "larch02"),
    ]
    assert {c.transport.value for c in rank(log, 0).channels} == {"P2P", "NET"}
    assert [(c.sender, c.receiver) for c in rank(log, 1).net_channels] == [(1, 2), (1, 2)]
    assert log.networks_of(rank(log, 0).process) == ("IB",)
    (comm,) = rank(log, 2).comms
    assert comm.cuda_device == 0
    assert {c.comm for c in rank(log, 2).channels} == {comm.address}


def test_old_versions_print_no_beginning() -> None:
    log = log_of("ib-gdr-2.10.log")
    assert [(r.rank, r.size, r.complete) for r in log.ranks] == [(0, 2, True), (1, 2, True)]


def test_gpu_direct_lines() -> None:
    assert [fact.enabled for fact in log_of("ib-staged-2.18.log").gpu_direct] == [False] * 8


def test_roce_version_2_shows_its_gid() -> None:
    log = log_of("roce-v2-2.26.log")
    assert {d.link_layer for d in log.devices} == {"RoCE"}
    assert {(g.index, g.local, g.device) for g in log.gids} == {(3, "::ffff:10.45.0.200", "mlx5_2")}
    assert {(s.name, s.value) for s in log.settings} == {
        ("NCCL_IB_HCA", "=mlx5_2:1,mlx5_4:1"),
        ("NCCL_IB_GID_INDEX", "3"),
    }


def test_roce_with_the_wrong_gid() -> None:
    log = log_of("roce-wrong-gid-2.19.log")
    assert {(g.index, g.error) for g in log.gids} == {(1, "Connection timed out")}
    assert all(g.local is not None and g.local.startswith("fe80::") for g in log.gids)


def test_efa_is_rdma_by_its_provider() -> None:
    text = (LOGS / "efa-2.27.log").read_text()
    log = read_nccl_log(text)
    assert log.providers_of(rank(log, 0).process) == ("efa",)
    without = [line for line in text.splitlines() if "Selected provider" not in line]
    assert kinds(read_nccl_log("\n".join(without) + "\n")) == UNKNOWN


def test_a_collective_network() -> None:
    networks = {c.network for c in rank(log_of("sharp-merged-2.20.log"), 3).net_channels}
    assert "SHARP" in networks


def test_rccl_names_the_communicator_of_each_channel() -> None:
    comms = {c.comm for c in log_of("rccl-roce-2.18.log").channels}
    assert comms == {"0x7f3008000e90", "0x7f3018000e90"}


def test_settings_of_a_log() -> None:
    assert log_of("socket-no-device-2.27.log").settings == ()
    settings = {(s.name, s.value) for s in log_of("socket-ib-disabled-2.20.log").settings}
    assert ("NCCL_IB_DISABLE", "1") in settings


def test_a_rail_missing_on_one_node() -> None:
    log = log_of("rail-down-2.23.log")
    used = {r.process.host: tuple(log.adapters(r.net_channels)[0]) for r in log.ranks}
    assert used["larch01"] == BOTH_RAILS
    assert used["larch02"] == ("mlx5_0",)


def test_one_node_alone_on_tcp() -> None:
    log = log_of("one-node-on-tcp-2.24.log")
    assert kinds(log, "larch01") == kinds(log, "larch02") == RDMA
    assert kinds(log, "larch03") == SOCKETS
    assert {fact.process.host for fact in log.no_device} == {"larch03"}


def test_a_connection_that_died_after_a_good_start() -> None:
    log = log_of("ib-aborted-2.29.log")
    (warning,) = log.warnings
    assert warning.process == NcclProcess("larch02", 42101)
    (gid,) = log.gids
    assert (gid.device, gid.error) == ("mlx5_3", "status=12 opcode=1 len=0 vendor err 129")


def test_a_log_that_is_cut_says_so_and_adds_nothing() -> None:
    log = log_of("cut-2.21.log")
    last = log.channels[-1]
    assert (last.sender, last.receiver, last.network) == (3, 0, "IB")
    assert (last.device, last.gdr) == (None, None)
    assert log.adapters([last]) == ({}, False)
    assert [entry[:25] for entry in log.truncated] == ["the last line has no end:"]


def test_a_log_stripped_of_its_last_newline_is_not_cut() -> None:
    whole = (LOGS / "ib-staged-2.18.log").read_text()
    stripped = whole[: whole.rindex(" via NET/IB/1") + len(" via NET/IB/1")]
    assert stripped[-1] != "\n"
    last = read_nccl_log(stripped).channels[-1]
    assert (last.device, last.gdr) == (1, False)


def test_an_empty_log() -> None:
    log = log_of("empty.log")
    assert (log.ranks, log.channels, log.truncated, log.nccl_version) == ((), (), (), None)


def test_utf_16_without_a_byte_order_mark_is_read() -> None:
    log = read_nccl_log((LOGS / "ib-gdr-2.21.log").read_text().encode("utf-16-le"))
    assert log.channels == log_of("ib-gdr-2.21.log").channels


def test_a_truncated_beginning_gives_no_host_name() -> None:
    text = (LOGS / "ib-gdr-2.21.log").read_text()
    begin = text.index("larch01:41200:41240") + 3
    log = read_nccl_log(text[begin:])
    assert {r.process.host for r in log.ranks} == {"larch01", "larch02"}
    assert [entry[:31] for entry in log.truncated] == ["the first line has no beginning"]
