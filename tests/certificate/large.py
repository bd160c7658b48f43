"""A composed certificate of many nodes, as a nightly run on a large cluster writes it."""

from __future__ import annotations

from dataclasses import replace

from pytest_mnode.certificate import CaseResult, Certificate, build_certificate
from pytest_mnode.charts import Bars, Lines, Moment, Part, Series, Span, Timeline
from pytest_mnode.culprit import Culprit
from pytest_mnode.measurement import Curve, Measurement, Point, at_least, at_most
from pytest_mnode.path_rates import PathRates
from tests.certificate.conftest import FACTS

LINE_GBYTES_S = 400.0
SLOW = 317
"""The node that is slow."""


def composed(nodes: int = 512, questions: int = 30) -> Certificate:
    """Each node has every preflight result; paths are sampled; one node is slow."""
    names = tuple(f"node{n:04d}" for n in range(nodes))
    preflight = [
        CaseResult(
            f"acceptance/test_preflight.py::test_question_{q}[{name}]",
            f"Is number {q} of this node as the spec promises?",
            "passed",
            measurements=(
                Measurement(
                    f"number {q}",
                    0.25 + (n * q % 97) / 100,
                    "ms",
                    at_most(50),
                    "preflight.clocks.skew 0.05 s",
                    note=f"{name} is ahead of {names[(n + 1) % nodes]}, known to ± 0.03 ms",
                ),
            ),
            nodes=(name,),
        )
        for q in range(questions)
        for n, name in enumerate(names)
    ]
    slowest = names[SLOW % nodes]
    culprit = Culprit(f"{slowest} mlx5_3 tx (171 Gbit/s, alone with {names[0]})", slowest)
    sizes = [1 << n for n in range(20, 35)]
    rates = [LINE_GBYTES_S * size / (size + 5e7) * 0.6 for size in sizes]
    points = tuple(
        Point(size, 20, size / rate / 1e3, size / rate / 900, size / rate / 1050, size / rate / 880,
              rate / 2, rate, 0)
        for size, rate in zip(sizes, rates, strict=True)
    )  # fmt: skip
    busbw = Measurement(
        "all_reduce 16 GiB busbw", rates[-1], "GB/s", at_least(0.9 * LINE_GBYTES_S, 8),
        "fabric.line_rate 400 Gbit/s × 8 × at_least_fraction 0.9; busbw = size/time × 2(n-1)/n",
        culprit, "median of 20 × 4 calls, p99 88 ms",
    )  # fmt: skip
    fabric = CaseResult(
        "acceptance/test_fabric.py::test_collective_reaches_the_line_rate[all_reduce]",
        "Does this collective reach the line rate promised, with the right results?",
        "failed",
        measurements=(busbw,),
        charts=(
            Curve("all_reduce", "ring", "nccl", 8 * nodes, points, LINE_GBYTES_S, busbw.expected,
                  tuple(sizes[-4:])),
        ),
        paths=(_paths(names),),
    )  # fmt: skip
    counts = [1 << n for n in range(1, nodes.bit_length())]
    scaling = CaseResult(
        "acceptance/test_scaling.py::test_throughput_grows_with_the_nodes",
        "Do n nodes do n times the work of one, and if not, what is to blame?",
        "passed",
        measurements=(Measurement("efficiency", 0.93, "", at_least(0.9), "criteria.scaling"),),
        charts=(
            Lines("Efficiency by nodes", "nodes", "efficiency",
                  (Series("measured", tuple((n, 1 - 0.008 * i) for i, n in enumerate(counts))),)),
            Bars("Where the time of a step is lost", "ms", tuple(f"{n} nodes" for n in counts), (
                Part("communication", tuple(0.5 * i for i, _ in enumerate(counts))),
                Part("waiting for the slowest", tuple(0.2 * i for i, _ in enumerate(counts))),
            )),
        ),
    )  # fmt: skip
    restart = CaseResult(
        "acceptance/test_restart.py::test_a_killed_job_comes_back_and_loses_nothing[node]",
        "Does the job resume after this kill, with each step and sample once and all values equal?",
        "passed",
        charts=(
            Timeline("Kill of node and resume", ("rank 0", "rank 1"), (
                Span("rank 0", 0, 4, "trains", "1–12"), Span("rank 1", 0, 4, "trains", "1–12"),
                Span("rank 0", 31, 40, "trains", "9–30"), Span("rank 1", 31, 40, "trains", "9–30"),
            ), (Moment(4.1, f"power-off of {names[1]} (clock of the controller)"),)),
        ),
    )  # fmt: skip
    return build_certificate(
        run=replace(FACTS, nodes=names, ranks=8 * nodes, cluster_nodes=nodes, backend="nccl"),
        cases=[*preflight, fabric, scaling, restart],
        promised=["preflight", "fabric", "scaling", "restart"],
        not_promised={"gang": "no scheduler"},
    )


def _paths(names: tuple[str, ...]) -> PathRates:
    """Twelve rounds of the circle, in both directions; paths from the slow node are slow."""
    bad = SLOW % len(names)
    letters = [["-"] * len(names) for _ in names]
    rates = [["-"] * len(names) for _ in names]
    for step in range(1, min(12, len(names))):
        for sender in range(len(names)):
            receiver = (sender + step * 37) % len(names)
            if sender != receiver:
                letters[sender][receiver] = "f" if sender == bad else "p"
                rates[sender][receiver] = "171000" if sender == bad else str(391000 + step)
    return PathRates(
        names,
        ("mlx5_3",),
        360000.0,
        tuple(map("".join, letters)),
        tuple(map(" ".join, rates)),
        tuple("f" if n == bad else "p" for n in range(len(names))),
        tuple("171000" if n == bad else "391011" for n in range(len(names))),
    )
