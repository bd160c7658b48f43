"""What the NICs of a node allow each collective, by ranks a node and by backend."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pytest_mnode.spec.line import busbw_formula, busbw_line, least_node_bytes, ring_line
from pytest_mnode.spec.wire import Collective, bus_factor


@dataclass(frozen=True)
class Fabric:
    line_rate_bits_s: int = 400_000_000_000
    nics_per_node: int = 8


TOTAL = 400.0
LINE = "fabric.line_rate 400 Gbit/s"


@pytest.mark.parametrize(
    ("collective", "nodes", "ranks_per_node", "backend", "gbytes_s", "ceiling", "text"),
    [
        ("all_reduce", 2, 8, "nccl", TOTAL, TOTAL, f"{LINE} × 8 NICs"),
        ("all_gather", 4, 8, "nccl", TOTAL, TOTAL, f"{LINE} × 8 NICs"),
        ("reduce_scatter", 4, 8, "nccl", TOTAL, TOTAL, f"{LINE} × 8 NICs"),
        ("broadcast", 4, 8, "nccl", TOTAL, TOTAL, f"{LINE} × 8 NICs"),
        # What nccl-tests shows for 16 GPUs of two nodes: 15 of 16 parts leave a GPU, 8 its node.
        ("all_to_all", 2, 8, "nccl", 93.75, 93.75, "(n-1)/(g(n-g)) for g=8 of n=16 ranks"),
        ("all_reduce", 1, 8, "nccl", TOTAL, None, f"{LINE} × 8 NICs"),  # nothing leaves the node
        ("all_to_all", 1, 8, "nccl", TOTAL, None, f"{LINE} × 8 NICs"),
        ("all_to_all", 4, 1, "nccl", TOTAL, TOTAL, f"{LINE} × 8 NICs"),
        ("send_recv", 2, 8, "nccl", 50.0, TOTAL, LINE),
        ("send_recv", 2, 4, "nccl", 100.0, TOTAL, f"{LINE} × 2 NICs of a rank"),
        ("send_recv", 2, 16, "nccl", 50.0, TOTAL, LINE),
        (
            "reduce_scatter",
            4,
            1,
            "gloo",
            200.0,
            TOTAL,
            "÷ 2 as gloo's reduce_scatter is an all_red",
        ),
        ("broadcast", 2, 1, "gloo", TOTAL, TOTAL, f"{LINE} × 8 NICs"),
        ("broadcast", 3, 1, "gloo", 200.0, TOTAL, "÷ 2 copies that the root's node sends"),
        ("broadcast", 4, 1, "gloo", 200.0, TOTAL, "÷ 2 copies"),
        ("broadcast", 16, 1, "gloo", 100.0, TOTAL, "÷ 4 copies"),
        # Measured over 8 ranks in both shapes: 71.5 % of a third of the line is 95 % of a fourth.
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
    line = busbw_line(collective, Fabric(), nodes, ranks_per_node, backend)
    assert line.gbytes_s == pytest.approx(gbytes_s)
    assert line.ceiling_gbytes_s == (ceiling and pytest.approx(ceiling))
    assert text in line.text
    assert line.text.startswith(LINE)


def test_all_to_all_fills_the_nics_of_a_node() -> None:
    nodes, of_a_node = 4, 8
    ranks = nodes * of_a_node
    line = busbw_line("all_to_all", Fabric(), nodes, of_a_node, "nccl")
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
def test_least_that_a_node_sends(collective: str, least: float | None) -> None:
    assert least_node_bytes(collective, 800, 2, 4) == least


def test_one_nic_is_not_counted() -> None:
    assert ring_line(Fabric(nics_per_node=1)).text == LINE
