"""The bandwidth that links allow for each collective, by ranks per node and by backend."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pytest_mnode.spec.bandwidth import (
    ETHERNET_HEADER_BYTES,
    ETHERNET_WIRE_BYTES,
    Collective,
    algbw_gbytes_s,
    bus_factor,
    busbw_at_line_rate,
    busbw_formula,
    busbw_gbytes_s,
    flat_ring_node_bytes,
    hierarchical_node_bytes,
    in_network_node_bytes,
    least_node_bytes,
    line_rate_gbytes_s,
    ring_at_line_rate,
    tcp_payload_share,
)


@dataclass(frozen=True)
class Fabric:
    line_rate_bits_s: int = 400_000_000_000
    nics_per_node: int = 8


TOTAL = 400.0
LINE = "fabric.line_rate 400 Gbit/s"


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
    assert bus_factor(collective, 8) == factor


def test_every_collective_has_a_tested_factor() -> None:
    assert len(Collective) == 9


def test_busbw_of_a_line_of_an_nccl_tests_table() -> None:
    # 8 ranks, 128 MiB in 700.4 us: algbw 191.63, busbw 335.36 GB/s
    assert algbw_gbytes_s(134217728, 700.4e-6) == pytest.approx(191.63, abs=0.01)
    assert busbw_gbytes_s("all_reduce", 134217728, 700.4e-6, 8) == pytest.approx(335.36, abs=0.01)


def test_a_ring_at_line_rate_has_a_busbw_of_the_line_rate() -> None:
    time_s = 1.5 * (4 << 20) / 25e6  # each of four ranks sends 2(n-1)/n of the size
    assert busbw_gbytes_s("all_reduce", 4 << 20, time_s, 4) == pytest.approx(0.025)


def test_bytes_that_leave_a_node_by_algorithm() -> None:
    assert flat_ring_node_bytes(1600, 2, 8) == 3000
    assert hierarchical_node_bytes(1600, 2) == 1600
    assert in_network_node_bytes(1600, 2) == 1600
    assert flat_ring_node_bytes(1600, 4, 1) == hierarchical_node_bytes(1600, 4) == 2400
    # two nodes of eight: busbw may be 1.875 of the sum of NIC rates
    assert flat_ring_node_bytes(1600, 2, 8) / hierarchical_node_bytes(1600, 2) == 1.875


@pytest.mark.parametrize(
    ("mtu_bytes", "framing_bytes", "share"),
    [
        (1500, ETHERNET_HEADER_BYTES, 1448 / 1514),
        (1500, ETHERNET_WIRE_BYTES, 1448 / 1538),
        (9000, ETHERNET_WIRE_BYTES, 8948 / 9038),
    ],
)
def test_tcp_payload_share_of_a_line(mtu_bytes: int, framing_bytes: int, share: float) -> None:
    assert tcp_payload_share(mtu_bytes, framing_bytes=framing_bytes) == pytest.approx(share)


def test_tcp_payload_share_counts_ipv6_and_options() -> None:
    assert tcp_payload_share(1500, ip_header_bytes=40) == pytest.approx(1428 / 1538)
    assert tcp_payload_share(1500, tcp_options_bytes=0) == pytest.approx(1460 / 1538)


@pytest.mark.parametrize(("nics", "gbytes_s"), [(Fabric(), 400.0), (Fabric(200 * 10**6, 1), 0.025)])
def test_line_rate_is_the_sum_of_nics_in_bytes(nics: Fabric, gbytes_s: float) -> None:
    assert line_rate_gbytes_s(nics) == pytest.approx(gbytes_s)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bus_factor("allreduce", 2), "collective 'allreduce' is not one of all_reduce"),
        (lambda: bus_factor("all_reduce", 1), "ranks=1 is below 2"),
        (lambda: algbw_gbytes_s(0, 1), "size_bytes=0 is not a finite number above 0"),
        (lambda: algbw_gbytes_s(1, 0), "time_s=0 is not a finite number above 0"),
        (lambda: algbw_gbytes_s(1, float("nan")), "time_s=nan is not a finite number above 0"),
        (lambda: flat_ring_node_bytes(1, 1, 8), "nodes=1 is below 2"),
        (lambda: flat_ring_node_bytes(1, 2, 0), "ranks_per_node=0 is below 1"),
        (lambda: hierarchical_node_bytes(1, 1), "nodes=1 is below 2"),
        (lambda: in_network_node_bytes(-1, 2), "size_bytes=-1 is not"),
        (lambda: tcp_payload_share(52), "mtu_bytes=52 leaves no room for payload"),
        (lambda: tcp_payload_share(1500, framing_bytes=-1), "framing_bytes=-1 is below 0"),
        (lambda: line_rate_gbytes_s(Fabric(0, 1)), "line_rate_bits_s=0 is not"),
        (lambda: line_rate_gbytes_s(Fabric(1, 0)), "nics_per_node=0 is below 1"),
    ],
)
def test_impossible_values_are_refused_by_name(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match="^" + message):
        call()


@pytest.mark.parametrize(
    ("collective", "nodes", "ranks_per_node", "backend", "gbytes_s", "ceiling", "text"),
    [
        ("all_reduce", 2, 8, "nccl", TOTAL, TOTAL, f"{LINE} × 8 NICs"),
        ("all_gather", 4, 8, "nccl", TOTAL, TOTAL, f"{LINE} × 8 NICs"),
        ("reduce_scatter", 4, 8, "nccl", TOTAL, TOTAL, f"{LINE} × 8 NICs"),
        ("broadcast", 4, 8, "nccl", TOTAL, TOTAL, f"{LINE} × 8 NICs"),
        # nccl-tests' result for 16 GPUs on two nodes: 15 of 16 parts leave a GPU, 8 leave its node.
        ("all_to_all", 2, 8, "nccl", 93.75, 93.75, "(n-1)/(g(n-g)) for g=8 of n=16 ranks"),
        ("all_reduce", 1, 8, "nccl", TOTAL, None, f"{LINE} × 8 NICs"),  # nothing leaves the node
        ("all_to_all", 1, 8, "nccl", TOTAL, None, f"{LINE} × 8 NICs"),
        ("all_to_all", 4, 1, "nccl", TOTAL, TOTAL, f"{LINE} × 8 NICs"),
        ("send_recv", 2, 8, "nccl", 50.0, TOTAL, LINE),
        ("send_recv", 2, 4, "nccl", 100.0, TOTAL, f"{LINE} × 2 NICs of a rank"),
        ("send_recv", 2, 16, "nccl", 50.0, TOTAL, LINE),
        ("reduce_scatter", 4, 1, "gloo", 200.0, TOTAL, "÷ 2 as gloo's reduce_scatter is an"),
        ("broadcast", 2, 1, "gloo", TOTAL, TOTAL, f"{LINE} × 8 NICs"),
        ("broadcast", 3, 1, "gloo", 200.0, TOTAL, "÷ 2 copies that the root's node sends"),
        ("broadcast", 4, 1, "gloo", 200.0, TOTAL, "÷ 2 copies"),
        ("broadcast", 16, 1, "gloo", 100.0, TOTAL, "÷ 4 copies"),
        # Measured over 8 ranks in both shapes: 71.5 % of a third of the line equals 95 % of a
        # quarter.
        ("broadcast", 4, 2, "gloo", 100.0, TOTAL, "÷ 4 copies"),
        ("broadcast", 2, 4, "gloo", 100.0, TOTAL, "÷ 4 copies"),
        ("broadcast", 4, 4, "gloo", 50.0, TOTAL, "÷ 8 copies"),
    ],
)
def test_line_of_a_collective(  # noqa: PLR0917  a table
    collective: str,
    nodes: int,
    ranks_per_node: int,
    backend: str,
    gbytes_s: float,
    ceiling: float | None,
    text: str,
) -> None:
    line = busbw_at_line_rate(collective, Fabric(), nodes, ranks_per_node, backend)
    assert line.gbytes_s == pytest.approx(gbytes_s)
    assert line.ceiling_gbytes_s == (ceiling and pytest.approx(ceiling))
    assert text in line.text
    assert line.text.startswith(LINE)


def test_all_to_all_fills_the_nics_of_a_node() -> None:
    nodes, of_a_node = 4, 8
    ranks = nodes * of_a_node
    line = busbw_at_line_rate("all_to_all", Fabric(), nodes, of_a_node, "nccl")
    time_s = 1.0
    size_bytes = line.gbytes_s * 1e9 * time_s / bus_factor("all_to_all", ranks)
    leaves = least_node_bytes("all_to_all", int(size_bytes), nodes, of_a_node)
    assert leaves == pytest.approx(TOTAL * 1e9 * time_s, rel=1e-6)


@pytest.mark.parametrize("collective", list(Collective))
@pytest.mark.parametrize("ranks", [2, 7, 16])
def test_formula_in_words_is_the_one_computed(collective: Collective, ranks: int) -> None:
    words = busbw_formula(collective)
    assert words.endswith("(nccl-tests, PERFORMANCE.md)")
    factor = words.removeprefix("busbw = size/time × ").partition(" (nccl-tests")[0]
    computed = eval(factor.replace("2(n", "2*(n"), {"n": ranks})
    assert computed == bus_factor(collective, ranks)


@pytest.mark.parametrize(
    ("collective", "least"),
    [
        ("all_reduce", 800),
        ("all_gather", 400),
        ("reduce_scatter", 400),
        ("all_to_all", 1600),
        ("send_recv", 800),
        ("broadcast", None),
    ],
)
def test_fewest_bytes_that_a_node_sends(collective: str, least: float | None) -> None:
    assert least_node_bytes(collective, 800, 2, 4) == least


def test_one_nic_has_no_factor() -> None:
    assert ring_at_line_rate(Fabric(nics_per_node=1)).text == LINE
