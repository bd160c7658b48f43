"""nccl-tests over all nodes, started by the spec's command, and judged by the line rate."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median_low
from typing import TYPE_CHECKING

from pytest_mnode.detection import smallest_loss
from pytest_mnode.logs.nccl_tests import NcclTest, read_nccl_tests
from pytest_mnode.measurement import Measurement, equals
from pytest_mnode.spec.bandwidth import busbw_at_line_rate
from pytest_mnode.spec.fabric import NcclTestsPromise
from pytest_mnode.spec.quantity import SIZE

if TYPE_CHECKING:
    from pytest_mnode.launchers.nodes import Nodes
    from pytest_mnode.spec.bandwidth import BusbwAtLineRate
    from pytest_mnode.spec.fabric import BusbwPromise
    from pytest_mnode.spec.inventory import Fabric

DEFAULT = NcclTestsPromise.model_validate({})
"""Settings if the spec has none: programs are on every node's PATH."""

PROGRAMS: Mapping[str, str] = {
    "all_reduce": "all_reduce_perf",
    "all_gather": "all_gather_perf",
    "reduce_scatter": "reduce_scatter_perf",
    "all_to_all": "alltoall_perf",
    "broadcast": "broadcast_perf",
    "send_recv": "sendrecv_perf",
}
_ONE_CYCLE = "one cycle, which does not show its noise (nccl_tests.command: give -N 3 or more)"
_ROUNDED_BYTES = 128
"""Most by which a rank's part of a size is rounded down. Source: nccl-tests, src/all_gather.cu."""


@dataclass(frozen=True, slots=True)
class NcclRun:
    """The run of one program, over `nodes` × `ranks_per_node` ranks.

    test: None if the output does not have exactly one table. why: why the table must not be used;
    empty if it may be.
    """

    collective: str
    nodes: int
    ranks_per_node: int
    argv: tuple[str, ...]
    output: str
    test: NcclTest | None
    why: str

    def cycles(self, size_bytes: int) -> tuple[float | None, ...]:
        """Busbw in each cycle (`-N`) of the largest size up to `size_bytes`, GB/s; () if none.

        all_gather and similar collectives round a size down, so that each rank's part is a
        multiple of 16 bytes or more; a row that is smaller still belongs to another size.
        """
        spare_bytes = _ROUNDED_BYTES * self.nodes * self.ranks_per_node
        rows = [r for r in (self.test.rows if self.test else ()) if r.size_bytes <= size_bytes]
        largest = max((r.size_bytes for r in rows), default=0)
        if size_bytes - largest >= min(spare_bytes, size_bytes / 2):
            return ()
        return tuple(r.out_of_place.busbw_gbytes_s for r in rows if r.size_bytes == largest)


def program_of(collective: str, promise: NcclTestsPromise) -> str:
    """The program for `collective`: a path if the promise has a directory, else a name."""
    name = PROGRAMS[collective]
    return name if promise.directory is None else posixpath.join(promise.directory, name)


def run(
    cluster: Nodes,
    collective: str,
    promise: NcclTestsPromise,
    busbw: BusbwPromise,
    ranks_per_node: int,
) -> NcclRun:
    """Run one program from the first node over the sizes of `busbw`, and parse its table."""
    nodes = cluster.nodes
    values = {
        "program": program_of(collective, promise),
        "ranks": str(len(nodes) * ranks_per_node),
        "nodes": str(len(nodes)),
        "per_node": str(ranks_per_node),
        "hosts": ",".join(f"{node}:{ranks_per_node}" for node in nodes),
        "names": ",".join(nodes),
        "from": str(busbw.sizes_bytes[0]),
        "to": str(busbw.sizes_bytes[-1]),
    }
    argv = tuple(word.format_map(values) for word in shlex.split(promise.command))
    [done] = cluster.run(argv, nodes[0], timeout=promise.limit_s)
    output = f"{done.stdout}\n{done.stderr}"
    tests = read_nccl_tests(output)
    test = tests[0] if len(tests) == 1 else None
    if done.returncode is None:
        why = f"did not end within {promise.limit_s:g} s"
    elif test is None:
        why = f"{len(tests)} tables" if tests else _last_line(output) or "no output"
    else:
        why = test.why_incomplete or _elsewhere(test, len(nodes), ranks_per_node) or ""
    if not why and done.returncode and test is not None and not test.wrong:
        why = f"ended with status {done.returncode}: {_last_line(done.stderr)}"
    return NcclRun(collective, len(nodes), ranks_per_node, argv, output, test, why)


def _elsewhere(test: NcclTest, nodes: int, ranks_per_node: int) -> str | None:
    if test.hosts and len(test.hosts) < nodes:
        return f"ran on {len(test.hosts)} of {nodes} nodes ({', '.join(test.hosts)})"
    if test.groups > 1:
        return f"ran in {test.groups} separate groups"
    if test.ranks not in (0, nodes * ranks_per_node):
        return f"ran over {test.ranks} of {nodes * ranks_per_node} ranks"
    return None


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def _judge_size(
    run: NcclRun, size_bytes: int, line: BusbwAtLineRate, promise: BusbwPromise, program: str
) -> Measurement:
    """Judge the median of a size's cycles; of an even number, the lower of the middle two."""
    cycles = () if run.why else run.cycles(size_bytes)
    measured = [busbw for busbw in cycles if busbw is not None]
    bound = promise.bound_gbytes_s(line)
    name = f"nccl-tests {run.collective} {SIZE.text(size_bytes)} busbw"
    if not measured or len(measured) < len(cycles):
        why = run.why or ("a cycle without a rate" if cycles else "no row of that size")
        note = "; ".join(filter(None, [why, program]))
        return Measurement(name, None, "GB/s", bound, promise.source(line), note=note)
    busbw = median_low(measured)
    of_cycles = f"median of {len(measured)} cycles" if len(measured) > 1 else _ONE_CYCLE
    return Measurement(
        name,
        busbw,
        "GB/s",
        bound,
        promise.source(line),
        note=f"{busbw / line.gbytes_s:.1%} of the line, {of_cycles}; {program}",
        detection=smallest_loss(measured, bound.accepted[0], promise.tolerated_fraction),
    )


def judge(run: NcclRun, fabric: Fabric, promise: BusbwPromise) -> list[Measurement]:
    """One measurement per plateau size of the promise, and one of wrong values."""
    program = f"{run.test.program or ''} {run.test.version or ''}".strip() if run.test else ""
    line = busbw_at_line_rate(run.collective, fabric, run.nodes, run.ranks_per_node, "nccl")
    found = [_judge_size(run, s, line, promise, program) for s in promise.plateau_sizes_bytes]
    # Reported wrong values count even if the program failed.
    wrong = run.test.wrong if run.test and (run.test.wrong or not run.why) else None
    sizes = run.test.wrong_by_size if run.test else {}
    why = run.why or ("" if wrong is not None else "results were not checked (-c 0)")
    where = ", ".join(f"{count} of {SIZE.text(size)}" for size, count in sizes.items())
    found.append(
        Measurement(
            f"nccl-tests {run.collective} #wrong",
            wrong,
            "",
            equals(0),
            "as nccl-tests checks results",
            note="; ".join(filter(None, [f"wrong values: {where}" if where else "", why])),
        )
    )
    return found
