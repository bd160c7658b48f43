from __future__ import annotations

from dataclasses import dataclass

import pytest

from pytest_mnode.spec import wire


@dataclass(frozen=True)
class Nics:
    line_rate_bits_s: int
    nics_per_node: int


@pytest.mark.parametrize(
    ("collective", "factor"),
    [
        ("all_reduce", 1.75),
        ("all_gather", 0.875),
        ("reduce_scatter", 0.875),
        ("all_to_all", 0.875),
        ("gather", 0.875),
        ("scatter", 0.875),
        ("broadcast", 1.0),
        ("reduce", 1.0),
        ("send_recv", 1.0),
    ],
)
def test_bus_factors_are_those_of_nccl_tests(collective: str, factor: float) -> None:
    assert wire.bus_factor(collective, 8) == factor


def test_every_collective_has_a_tested_factor() -> None:
    assert len(wire.Collective) == 9


def test_busbw_of_a_line_of_an_nccl_tests_table() -> None:
    # 8 ranks, 128 MiB in 700.4 us: algbw 191.63, busbw 335.36 GB/s
    assert wire.algbw_gbytes_s(134217728, 700.4e-6) == pytest.approx(191.63, abs=0.01)
    assert wire.busbw_gbytes_s("all_reduce", 134217728, 700.4e-6, 8) == pytest.approx(
        335.36, abs=0.01
    )


def test_a_ring_at_line_rate_has_a_busbw_of_the_line_rate() -> None:
    time_s = wire.ring_all_reduce_time_s(4 << 20, 4, latency_s=0, bandwidth_gbytes_s=0.025)
    assert time_s == pytest.approx(1.5 * (4 << 20) / 25e6)
    assert wire.busbw_gbytes_s("all_reduce", 4 << 20, time_s, 4) == pytest.approx(0.025)
    slower_s = wire.ring_all_reduce_time_s(4 << 20, 4, latency_s=1e-3, bandwidth_gbytes_s=0.025)
    assert slower_s - time_s == pytest.approx(6e-3)


def test_bytes_that_leave_a_node_by_algorithm() -> None:
    assert wire.flat_ring_node_bytes(1600, 2, 8) == 3000
    assert wire.hierarchical_node_bytes(1600, 2) == 1600
    assert wire.in_network_node_bytes(1600, 2) == 1600
    assert wire.flat_ring_node_bytes(1600, 4, 1) == wire.hierarchical_node_bytes(1600, 4) == 2400
    # two nodes of eight: busbw may be 1.875 of the sum of NIC rates
    assert wire.flat_ring_node_bytes(1600, 2, 8) / wire.hierarchical_node_bytes(1600, 2) == 1.875


@pytest.mark.parametrize(
    ("mtu_bytes", "framing_bytes", "share"),
    [
        (1500, wire.ETHERNET_HEADER_BYTES, 1448 / 1514),
        (1500, wire.ETHERNET_WIRE_BYTES, 1448 / 1538),
        (9000, wire.ETHERNET_WIRE_BYTES, 8948 / 9038),
    ],
)
def test_tcp_payload_share_of_a_line(mtu_bytes: int, framing_bytes: int, share: float) -> None:
    assert wire.tcp_payload_share(mtu_bytes, framing_bytes=framing_bytes) == pytest.approx(share)


def test_tcp_payload_share_counts_ipv6_and_options() -> None:
    assert wire.tcp_payload_share(1500, ip_header_bytes=40) == pytest.approx(1428 / 1538)
    assert wire.tcp_payload_share(1500, tcp_options_bytes=0) == pytest.approx(1460 / 1538)


@pytest.mark.parametrize(
    ("nics", "gbytes_s"), [(Nics(400 * 10**9, 8), 400.0), (Nics(200 * 10**6, 1), 0.025)]
)
def test_line_rate_is_the_sum_of_nics_in_bytes(nics: Nics, gbytes_s: float) -> None:
    assert wire.line_rate_gbytes_s(nics) == pytest.approx(gbytes_s)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: wire.bus_factor("allreduce", 2),
            "collective 'allreduce' is not one of all_reduce",
        ),
        (lambda: wire.bus_factor("all_reduce", 1), "ranks=1 is below 2"),
        (lambda: wire.algbw_gbytes_s(0, 1), "size_bytes=0 is not a finite number above 0"),
        (lambda: wire.algbw_gbytes_s(1, 0), "time_s=0 is not a finite number above 0"),
        (lambda: wire.algbw_gbytes_s(1, float("nan")), "time_s=nan is not a finite number above 0"),
        (
            lambda: wire.ring_all_reduce_time_s(1, 2, latency_s=-1, bandwidth_gbytes_s=1),
            "latency_s=-1 is not a finite number of 0 or more",
        ),
        (
            lambda: wire.ring_all_reduce_time_s(1, 2, latency_s=0, bandwidth_gbytes_s=0),
            "bandwidth_gbytes_s=0 is not",
        ),
        (lambda: wire.flat_ring_node_bytes(1, 1, 8), "nodes=1 is below 2"),
        (lambda: wire.flat_ring_node_bytes(1, 2, 0), "ranks_per_node=0 is below 1"),
        (lambda: wire.hierarchical_node_bytes(1, 1), "nodes=1 is below 2"),
        (lambda: wire.in_network_node_bytes(-1, 2), "size_bytes=-1 is not"),
        (lambda: wire.tcp_payload_share(52), "mtu_bytes=52 leaves no room for payload"),
        (lambda: wire.tcp_payload_share(1500, framing_bytes=-1), "framing_bytes=-1 is below 0"),
        (lambda: wire.line_rate_gbytes_s(Nics(0, 1)), "line_rate_bits_s=0 is not"),
        (lambda: wire.line_rate_gbytes_s(Nics(1, 0)), "nics_per_node=0 is below 1"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match="^" + message):
        call()
