"""`python -m benchmarks [part …] [--quick]`: the tables, all measured in this run."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
from collections.abc import Callable

from benchmarks import (
    cold,
    deaths,
    evidence,
    growth,
    idle,
    kills,
    logs,
    losses,
    page,
    rank_rates,
    rehearsals,
    trivial,
    wall_clock,
    wire,
    workload,
)

PARTS = (
    "wall-clock",
    "trivial",
    "cold",
    "deaths",
    "wire",
    "idle",
    "kills",
    "losses",
    "growth",
    "page",
    "evidence",
    "logs",
    "rank-rates",
    "rehearsals",
    "workload",
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; all but kills"
    )
    parser.add_argument("--quick", action="store_true", help="few repeats: does it work at all?")
    parser.add_argument("--count", type=int, default=500, help="kills at most")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="time for kills, workload"
    )
    parser.add_argument("--seed", type=int, default=1, help="of kills")
    parser.add_argument("--first", type=int, default=0, help="number of the first kill")
    options = parser.parse_args()
    if unknown := sorted(set(options.parts) - set(PARTS)):
        parser.error(f"{unknown[0]}: no such part; there are {', '.join(PARTS)}")
    print(_where(), flush=True)
    for part in options.parts or [part for part in PARTS if part != "kills"]:  # takes hours
        print("\n" + _table(part, options), flush=True)


def _table(part: str, options: argparse.Namespace) -> str:
    quick = options.quick
    tables: dict[str, Callable[[], str]] = {
        "wall-clock": lambda: wall_clock.measure(repeats=1 if quick else 5),
        "trivial": lambda: trivial.measure(trivial.QUICK if quick else trivial.FULL),
        "cold": lambda: cold.measure(repeats=2 if quick else 7),
        "deaths": lambda: deaths.measure(repeats=2 if quick else 9),
        "wire": lambda: wire.measure(seconds=3 if quick else 10, rounds=1 if quick else 3),
        "growth": lambda: growth.measure(2, growth.SIZES[:1]) if quick else growth.measure(5),
        "losses": lambda: losses.measure(trials=2 if quick else 20),
        "workload": lambda: workload.measure(7 if quick else 100, options.seconds),
        "page": lambda: page.measure(repeats=1 if quick else 7),
        "evidence": lambda: evidence.measure(64 if quick else 1024),
        "logs": lambda: logs.measure(repeats=1 if quick else 3),
        "rehearsals": lambda: (
            rehearsals.measure(1, 1, rehearsals.SIZES[:4], rehearsals.QUICK)
            if quick
            else rehearsals.measure(32, 20)
        ),
        "rank-rates": lambda: rank_rates.measure(100 if quick else 4_000),
        "kills": lambda: kills.measure(
            3 if quick else options.count, options.seconds, options.seed, options.first
        ),
        "idle": lambda: idle.measure(repeats=5 if quick else 21),
    }
    return tables[part]()


def _where() -> str:
    versions = " ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("torch", "pytest")
    )
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    return (
        f"Python {platform.python_version()} {versions}, {os.cpu_count()} cores, load {load}: "
        "a load of other programs makes these figures worse than they are"
    )


if __name__ == "__main__":
    main()
