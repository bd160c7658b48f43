"""Print the bus bandwidth to expect of a cluster, for each collective and size; or judge your own.

Prints the limit of the wire by the spec's line rate, the usual range, how both are derived, and
for a value that you measured the likeliest reasons for a shortfall. --of judges the results of a
file as the criterion would, and prints the reasons where they are unusual; the exit status is then
0 if something is judged and all of it passes, else 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_mnode.measuring.tools.own_results import Result, SizeResult
    from pytest_mnode.spec import Spec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--spec", type=Path, help="the cluster's page; default: the rack's")
    parser.add_argument("--nodes", type=int, help="1 or more; with --of by default the file's")
    parser.add_argument(
        "--procs-per-node",
        type=int,
        help="default: that of the file of --of, else one rank per accelerator of the spec, else 1",
    )
    parser.add_argument(
        "--measured",
        action="append",
        default=[],
        metavar="COLLECTIVE:SIZE:GB_S",
        help="such as all_reduce:1GiB:180, bus bandwidth in GB/s; may be given again",
    )
    parser.add_argument(
        "--of",
        metavar="FILE",
        help="results to judge, - for standard input: output of nccl-tests or rccl-tests (text, "
        "JSON), of perftest (text, --out_json), or a CSV of size, time, algbw, busbw",
    )
    parser.add_argument("--collective", help="of a file that does not say it, such as all_reduce")
    parser.add_argument(
        "--algorithm",
        choices=("default", "ring"),
        help="of a file that does not say it; ring: NCCL_ALGO=Ring was set",
    )


def run(options: argparse.Namespace) -> int:
    from pytest_mnode.errors import UsageError
    from pytest_mnode.measuring.tools.own_results import name_of
    from pytest_mnode.spec import default_spec_path, load_spec
    from pytest_mnode.spec.fabric import USUAL_FRACTIONS

    spec = load_spec(options.spec or default_spec_path())
    if options.nodes is not None and options.nodes < 1:
        raise UsageError(f"--nodes={options.nodes}: accepted: 1 or more")
    if options.procs_per_node is not None and options.procs_per_node < 1:
        raise UsageError(f"--procs-per-node={options.procs_per_node}: accepted: 1 or more")
    if (named := options.collective) is not None:
        options.collective = name_of(named)
        if options.collective is None:
            accepted = ", ".join(USUAL_FRACTIONS)
            raise UsageError(f"--collective={named}: accepted: {accepted}")
    if options.of is not None:
        if options.measured:
            raise UsageError("--measured: not with --of, which names what was measured")
        return _judge(options, spec)
    for name in ("collective", "algorithm"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name}: only with --of, whose file it is about")
    if options.nodes is None:
        raise UsageError("--nodes: missing; accepted: 1 or more")
    _expect(options, spec)
    return 0


def _judge(options: argparse.Namespace, spec: Spec) -> int:
    from pytest_mnode.errors import UsageError
    from pytest_mnode.measurement import Verdict
    from pytest_mnode.measuring.tools.own_results import Asked, judge_output, verdict_of

    name = "standard input" if options.of == "-" else options.of
    asked = Asked(
        *(spec, options.nodes, options.procs_per_node, options.collective, options.algorithm)
    )
    try:
        output = sys.stdin.buffer.read() if options.of == "-" else Path(options.of).read_bytes()
        found = judge_output(output, asked)
    except OSError as error:
        raise UsageError(f"--of={options.of}: {error.strerror}") from None
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None
    print(f"{name}, judged by {spec.name}")
    for one in found:
        print(f"\n{one.title}, {one.unit}")
        print("\n".join(_lines(one)))
    verdict = verdict_of(found)
    judged = [measurement for one in found for measurement in one.judged]
    kept = sum(measurement.verdict is Verdict.PASS for measurement in judged)
    print(f"\n{verdict.value}: {kept} of {len(judged)} judged values pass")
    return 0 if verdict is Verdict.PASS else 1


def _lines(one: Result) -> Iterator[str]:
    from pytest_mnode.spec.quantity import SIZE
    from pytest_mnode.table import aligned

    if one.sizes:
        rows = [("size", "measured", "bound", "verdict", "usual", "wire allows")]
        yield from aligned([*rows, *(_row(size) for size in one.sizes)])
    judged = [size.judged for size in one.sizes if size.judged is not None]
    if judged:
        largest = max(size.size_bytes for size in one.sizes if size.judged is not None)
        yield f"bound of {SIZE.text(largest)}: {judged[-1].source}"
    if one.wrong is not None:
        yield f"wrong values: {one.wrong.measured}" + (one.wrong.note and f", {one.wrong.note}")
    if one.why:
        yield f"not judged: {one.why}"
    if one.rest is not None:
        yield f"inconclusive: {one.rest.note}"
    for size in one.sizes:
        if size.judged is not None and size.judged.doubt:
            yield f"{SIZE.text(size.size_bytes)}: {size.judged.doubt}"
    yield from _reasons(one)


def _row(one: SizeResult) -> tuple[str, ...]:
    from pytest_mnode.measurement import Verdict
    from pytest_mnode.spec.quantity import SIZE

    judged = one.judged
    verdict = "not judged"
    if judged is not None and judged.verdict is not None:
        verdict = "FAIL" if judged.verdict is Verdict.FAIL else judged.verdict.value
    in_place = "" if one.in_place is None else f" (in place {one.in_place:.4g})"
    return (
        SIZE.text(one.size_bytes),
        "not measured" if one.value is None else f"{one.value:.4g}{in_place}",
        judged.expected.short() if judged is not None and judged.expected else "",
        verdict,
        " to ".join(f"{edge:.4g}" for edge in one.usual or ()),
        "" if one.wire is None else f"{one.wire:.4g}",
    )


def _reasons(one: Result) -> Iterator[str]:
    """Reasons, each list of them once, with the sizes that it explains."""
    from pytest_mnode.spec.quantity import SIZE

    sizes: dict[tuple[str, ...], list[str]] = {}
    for size in one.sizes:
        if size.reasons:
            sizes.setdefault(size.reasons, []).append(SIZE.text(size.size_bytes))
    for reasons, of in sizes.items():
        yield f"{of[0]}{f' to {of[-1]}' if len(of) > 1 else ''}, likeliest reasons:"
        yield from (f"- {reason}" for reason in reasons)


def _expect(options: argparse.Namespace, spec: Spec) -> None:
    from pytest_mnode.errors import UsageError
    from pytest_mnode.spec.alpha_beta import DIRECT, Platform
    from pytest_mnode.spec.expect import COLLECTIVES, SIZES_BYTES, Expectation
    from pytest_mnode.spec.quantity import SIZE
    from pytest_mnode.table import aligned

    per_node = options.procs_per_node or spec.accelerators.per_node or 1
    measured = [_measured(text, COLLECTIVES) for text in options.measured]
    pinned = ("ring pinned",) if spec.accelerators.per_node else ()
    rows = [("collective", "size", "the wire allows", "usual", "bound", *pinned)]
    if options.nodes * per_node < 2:
        raise UsageError("one rank on one node sends nothing; accepted: 2 ranks or more")
    found = {name: Expectation(spec, name, options.nodes, per_node) for name in COLLECTIVES}
    usual_only = [name for name, one in found.items() if one.promise is None]
    for name, one in found.items():
        held_to, why_not = one.held_to
        if held_to is None and options.nodes == 1:
            raise UsageError(f"--nodes=1: {why_not}")
        for size in one.promise.sizes_bytes if one.promise else SIZES_BYTES:
            of = one.of_size(size)
            usual = f"{of.low:.4g} to {of.high:.4g}"
            rings = [replace(one, algorithm="ring").of_size(size).bound] if pinned else []
            bounds = [of.bound, *(None if name in DIRECT else bound for bound in rings)]
            shown = ["" if bound is None else f"{bound:.4g}" for bound in bounds]
            rows.append((name, SIZE.text(size), f"{of.wire:.4g}", usual, *shown))
    plural = "s" * (options.nodes > 1)
    print(f"{spec.name}: {options.nodes} node{plural} of {per_node} ranks, bus bandwidth in GB/s\n")
    print("\n".join(aligned(rows)), end="\n\n")
    for name, one in found.items():
        left = f" × {one.payload_share:.1%} left by headers" if one.payload_share < 1 else ""
        print(f"{name}: the wire allows {one.line.text}{left}")
    usual_of, alpha = found[COLLECTIVES[0]].usual, Platform.of(spec).alpha
    held = f", or of {', '.join(usual_only)} what is usual" * bool(usual_only)
    print(
        f"usual: {usual_of.low:g} of the model to all of it; bound: the spec's promise{held}, a "
        f"fraction of the model\nsteps: {alpha.source}\nsources: {usual_of.source}"
    )
    for name, size, busbw in measured:
        print(f"\n{name} {SIZE.text(size)}, measured {busbw:g} GB/s:")
        print("\n".join(f"- {reason}" for reason in found[name].reasons(size, busbw)))


def _measured(text: str, names: tuple[str, ...]) -> tuple[str, int, float]:
    from pytest_mnode.errors import UsageError
    from pytest_mnode.spec.quantity import SIZE

    try:
        name, size, busbw = text.split(":")
        value = float(busbw)
        if name in names and 0 < value < float("inf"):
            return name, int(SIZE.parse(size)), value
    except ValueError:
        pass
    raise UsageError(
        f"--measured={text}: accepted: COLLECTIVE:SIZE:GB_S, such as all_reduce:1GiB:180, of "
        f"{', '.join(names)}"
    )
