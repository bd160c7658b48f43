"""Print the bus bandwidth to expect of a cluster, for each collective and size.

Prints the limit of the wire by the spec's line rate, the usual range, how both are derived, and
for a value that you measured the likeliest reasons for a shortfall.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--spec", type=Path, help="the cluster's page; default: the rack's")
    parser.add_argument("--nodes", type=int, required=True, help="2 or more")
    parser.add_argument(
        "--procs-per-node", type=int, help="default: one rank per accelerator of the spec, else 1"
    )
    parser.add_argument(
        "--measured",
        action="append",
        default=[],
        metavar="COLLECTIVE:SIZE:GB_S",
        help="such as all_reduce:1GiB:180, bus bandwidth in GB/s; may be given again",
    )


def run(options: argparse.Namespace) -> int:
    from pytest_mnode.errors import UsageError
    from pytest_mnode.spec import default_spec_path, load_spec
    from pytest_mnode.spec.expect import COLLECTIVES, SIZES_BYTES, Expectation
    from pytest_mnode.spec.quantity import SIZE
    from pytest_mnode.table import aligned

    spec = load_spec(options.spec or default_spec_path())
    per_node = options.procs_per_node
    if per_node is None:
        per_node = spec.accelerators.per_node or 1
    if options.nodes < 2:
        raise UsageError(f"--nodes={options.nodes}: accepted: 2 or more, as one sends nothing")
    if per_node < 1:
        raise UsageError(f"--procs-per-node={per_node}: accepted: 1 or more")
    measured = [_measured(text, COLLECTIVES) for text in options.measured]
    rows = [("collective", "size", "the wire allows", "usual (GB/s)")]
    found = {name: Expectation(spec, name, options.nodes, per_node) for name in COLLECTIVES}
    for name, one in found.items():
        promise = spec.criteria.fabric.busbw(name) if spec.criteria.fabric else None
        for size in promise.sizes_bytes if promise else SIZES_BYTES:
            of = one.of_size(size)
            usual = f"{of.low:.4g} to {of.high:.4g}"
            rows.append((name, SIZE.text(size), f"{of.wire:.4g}", usual))
    print(f"{spec.name}: {options.nodes} nodes of {per_node} ranks, bus bandwidth in GB/s\n")
    print("\n".join(aligned(rows)), end="\n\n")
    for name, one in found.items():
        left = f" × {one.payload_share:.1%} left by headers" if one.payload_share < 1 else ""
        print(f"{name}: the wire allows {one.line.text}{left}")
    usual_of = found[COLLECTIVES[0]].usual
    quick, slow = (1e6 * step_s for step_s in usual_of.step_s)
    print(
        f"usual: {usual_of.low:g} to {usual_of.high:g} of that, less the time of steps: those of a "
        f"ring at {slow:g} µs each, to those of a tree at {quick:g} µs\nsources: {usual_of.source}"
    )
    for name, size, busbw in measured:
        print(f"\n{name} {SIZE.text(size)}, measured {busbw:g} GB/s:")
        print("\n".join(f"- {reason}" for reason in found[name].reasons(size, busbw)))
    return 0


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
