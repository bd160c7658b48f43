"""nccl-tests over all nodes, started by the spec's command, and judged by the line rate."""

from __future__ import annotations

import posixpath
import shlex
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING

from pytest_mnode.detection import Estimate, estimate, wants_more
from pytest_mnode.logs.nccl_tests import NcclTest, read_nccl_tests
from pytest_mnode.measurement import Measurement, equals, listed
from pytest_mnode.processes import last_line
from pytest_mnode.spec.alpha_beta import Algorithm, CollectiveModel, Platform
from pytest_mnode.spec.fabric import NcclTestsPromise
from pytest_mnode.spec.quantity import SIZE

if TYPE_CHECKING:
    from pytest_mnode.launchers.nodes import Nodes
    from pytest_mnode.spec.fabric import BusbwPromise

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
_SIZES = "{program} -b {from} -e {to} -f 2 -g 1 -N 4"
_COMMANDS: Mapping[str, str] = {
    "srun": "srun --overlap --nodes={nodes} --ntasks={ranks} --ntasks-per-node={per_node} "
    f"--nodelist={{names}} {_SIZES}",
    "mpirun": f"mpirun -np {{ranks}} --host {{hosts}} {_SIZES}",
}
"""By the program that starts ranks on other nodes. --overlap: this run holds the allocation."""
_STARTER = (
    'if [ "$SLURM_JOB_ID" ] && command -v srun >/dev/null; then echo srun; '
    "elif command -v mpirun >/dev/null; then echo mpirun; fi"
)
_NO_STARTER = (
    "neither srun, in a Slurm allocation, nor mpirun is on the PATH of {}: install Open MPI, or "
    "name a command (criteria.fabric.nccl_tests.command)"
)
_OF_ONE_RUN = 0.05
"""Part by which the next run may differ from a single one, which does not show its noise.

Source: 5 to 8 % from run to run are usual by Oracle's guide to RCCL on MI355X; the lower end."""
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

    @property
    def rounded_bytes(self) -> int:
        """Most by which a size is rounded down, over all ranks."""
        return _ROUNDED_BYTES * self.nodes * self.ranks_per_node

    def cycles(self, size_bytes: int) -> tuple[float | None, ...]:
        """Busbw in each cycle (`-N`) of the largest size up to `size_bytes`, GB/s; () if none.

        all_gather and similar collectives round a size down, so that each rank's part is a
        multiple of 16 bytes or more; a row that is smaller still belongs to another size.
        """
        spare_bytes = self.rounded_bytes
        rows = [r for r in (self.test.rows if self.test else ()) if r.size_bytes <= size_bytes]
        largest = max((r.size_bytes for r in rows), default=0)
        if size_bytes - largest >= min(spare_bytes, size_bytes / 2):
            return ()
        return tuple(r.out_of_place.busbw_gbytes_s for r in rows if r.size_bytes == largest)


def program_of(collective: str, promise: NcclTestsPromise) -> str:
    """The program for `collective`: a path if the promise has a directory, else a name."""
    name = PROGRAMS[collective]
    return name if promise.directory is None else posixpath.join(promise.directory, name)


def run_until_decided(  # noqa: PLR0917  those of `run`
    cluster: Nodes,
    collective: str,
    promise: NcclTestsPromise,
    busbw: BusbwPromise,
    ranks_per_node: int,
    platform: Platform,
) -> list[NcclRun]:
    """Runs of one program, each with communicators of its own, until every size is decided.

    There are `communicators` runs, and up to four times as many while the interval of a size
    contains its bound; a run that cannot be used is the last.
    """
    runs: list[NcclRun] = []
    for number in count(1):
        runs.append(run(cluster, collective, promise, busbw, ranks_per_node))
        model, moves = model_of(runs[-1], platform)
        sizes = busbw.judged_sizes_bytes(model)
        bounds = {size: busbw.bound_gbytes_s(model, moves, size) for size in sizes}
        found = [(_estimate(runs, size), bound) for size, bound in bounds.items()]
        decided = all(one and bound.decides(*one.interval) is not None for one, bound in found)
        if moves == model.default and model.nvls.used is None and model.nvls_gives_more:
            # A value above NVLS's bound passes too: more runs tell whether it surely is.
            limits = [busbw.bound_with_nvls(model, size) for size in sizes]
            pairs = zip(found, limits, strict=True)
            near = (one and one.low < limit <= one.high for (one, _), limit in pairs)
            decided = decided and not any(near)
        if runs[-1].why or not wants_more(number, busbw.communicators, decided=decided):
            break
    return runs


def _estimate(runs: Sequence[NcclRun], size_bytes: int) -> Estimate | None:
    """The busbw of a size, each run by the median of its cycles; None if a run has none."""
    by_run = [run.cycles(size_bytes) for run in runs]
    values = [[busbw for busbw in cycles if busbw is not None] for cycles in by_run]
    return estimate(values) if all(cycles and None not in cycles for cycles in by_run) else None


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
    command = promise.command or _command_here(cluster, nodes[0])
    if not command:
        why = _NO_STARTER.format(nodes[0])
        return NcclRun(collective, len(nodes), ranks_per_node, (), "", None, why)
    argv = tuple(word.format_map(values) for word in shlex.split(command))
    [done] = cluster.run(argv, nodes[0], timeout=promise.limit_s)
    output = f"{done.stdout}\n{done.stderr}"
    tests = read_nccl_tests(output)
    test = tests[0] if len(tests) == 1 else None
    if done.returncode is None:
        why = f"did not end within {promise.limit_s:g} s"
    elif test is None:
        why = f"{len(tests)} tables" if tests else last_line(output) or "no output"
    else:
        why = test.why_incomplete or elsewhere(test, len(nodes), ranks_per_node) or ""
    if not why and done.returncode and test is not None and not test.wrong:
        why = f"ended with status {done.returncode}: {last_line(done.stderr)}"
    return NcclRun(collective, len(nodes), ranks_per_node, argv, output, test, why)


def _command_here(cluster: Nodes, node: str) -> str:
    """The command of what starts ranks from this node; "" if nothing does."""
    [done] = cluster.run(["sh", "-c", _STARTER], node)
    return _COMMANDS.get(done.stdout.strip(), "")


def missing(  # noqa: PLR0917  what was asked for, and of whom
    collective: str,
    program: str,
    nodes: Sequence[str],
    platform: Platform,
    promise: BusbwPromise,
    ranks: tuple[int, int],
) -> Measurement:
    """The busbw that could not be measured, because these nodes lack the program.

    ranks: number of nodes, and of ranks on each.
    """
    model, size = CollectiveModel(platform, collective, *ranks, "nccl"), promise.sizes_bytes[-1]
    return Measurement(
        f"nccl-tests {collective} busbw",
        None,
        "GB/s",
        promise.bound_gbytes_s(model, model.default, size),
        promise.source(model, model.default, size),
        note=f"{program} is not on the PATH of {listed(nodes, separator=', ')}: install nccl-tests "
        "there, name its criteria.fabric.nccl_tests.directory, or list fabric.nccl_tests under "
        "not_promised, with a reason",
    )


def elsewhere(test: NcclTest, nodes: int, ranks_per_node: int) -> str | None:
    """Why a test did not run over all these ranks together; None if it did."""
    if test.hosts and len(test.hosts) < nodes:
        return f"ran on {len(test.hosts)} of {nodes} nodes ({', '.join(test.hosts)})"
    if test.groups > 1:
        return f"ran in {test.groups} separate groups"
    if test.ranks not in (0, nodes * ranks_per_node):
        return f"ran over {test.ranks} of {nodes * ranks_per_node} ranks"
    return None


def _judge_size(  # noqa: PLR0917  those of `judge`
    runs: Sequence[NcclRun],
    size_bytes: int,
    model: CollectiveModel,
    moves: Sequence[Algorithm],
    promise: BusbwPromise,
    program: str,
) -> Measurement:
    """The mean of the runs; a single one may be off by `_OF_ONE_RUN` to either side."""
    last, bound = runs[-1], promise.bound_gbytes_s(model, moves, size_bytes)
    source, line = promise.source(model, moves, size_bytes), model.line.gbytes_s
    name = f"nccl-tests {last.collective} {SIZE.text(size_bytes)} busbw"
    found = None if last.why else _estimate(runs, size_bytes)
    if found is None:
        every = [run.cycles(size_bytes) for run in runs]
        why = last.why or ("" if all(every) else "no row of that size")
        why = why or ("a cycle without a rate" if any(None in one for one in every) else "")
        if not why:
            value = statistics.median(busbw for busbw in every[0] if busbw is not None)
            return Measurement(
                *(name, value, "GB/s", bound, source),
                note=f"{value / line:.1%} of the line; one run, so ± {_OF_ONE_RUN:.0%}",
                interval=(value / (1 + _OF_ONE_RUN), value * (1 + _OF_ONE_RUN)),
            )
        note = "; ".join(filter(None, [why, program]))
        return Measurement(name, None, "GB/s", bound, source, note=note)
    within, between = found.scatter
    cycles = len(found.values[-1])
    return Measurement(
        name,
        found.value,
        "GB/s",
        bound,
        source,
        note=f"{found.value / line:.1%} of the line, mean of {len(runs)} runs, each the "
        f"median of {cycles} cycle{'s' * (cycles > 1)}, cycles vary by {within:.2%} and runs by "
        f"{between:.2%}; {program}",
        detection=found.detection(bound.accepted),
        interval=found.interval,
    )


def model_of(run: NcclRun, platform: Platform) -> tuple[CollectiveModel, tuple[Algorithm, ...]]:
    """The model of a run, and the algorithms that it may have used, by what its output says."""
    shape = (run.collective, run.nodes, run.ranks_per_node, "nccl")
    model = CollectiveModel(platform, *shape)
    if run.test is not None:
        platform = replace(platform, nccl=run.test.nccl.version)
        model = replace(model, platform=platform, nvls=run.test.nvls(across=model.domains > 1))
    return model, model.algorithms("ring" if run.test and run.test.pins_ring else "default")


def judge(
    runs: Sequence[NcclRun],
    platform: Platform,
    promise: BusbwPromise,
    sizes_bytes: Sequence[int] | None = None,
) -> list[Measurement]:
    """One measurement per size, and one of wrong values of all runs.

    sizes_bytes: those to judge; those that the promise judges if None.
    """
    tests = [run.test for run in runs if run.test]
    program = f"{tests[-1].program or ''} {tests[-1].version or ''}".strip() if tests else ""
    model, moves = model_of(runs[-1], platform)
    sizes = promise.judged_sizes_bytes(model) if sizes_bytes is None else sizes_bytes
    found = [_judge_size(runs, size, model, moves, promise, program) for size in sizes]
    for at, (size, one) in enumerate(zip(sizes, found, strict=True)):
        if why := promise.why_undecided(model, moves, size, one):
            found[at] = replace(one, value=None, note=f"{why}; {one.note}")
    return [*found, judge_wrong(runs)]


def judge_wrong(runs: Sequence[NcclRun]) -> Measurement:
    """The wrong values of all runs."""
    tests = [run.test for run in runs if run.test]
    last = runs[-1]
    # Reported wrong values count even if the program failed.
    counts = [run.test.wrong if run.test else None for run in runs]
    known = [wrong for wrong in counts if wrong is not None]
    unread = bool(last.why) or len(known) < len(runs)
    wrong = sum(known) if known and (any(known) or not unread) else None
    sizes = Counter[int]()
    for test in tests:
        sizes.update(test.wrong_by_size)
    off = any(test.validated is False for test in tests)
    unchecked = "results were not checked" + (" (-c 0)" if off else ", as far as the output says")
    why = last.why or ("" if wrong is not None else unchecked)
    where = ", ".join(f"{count} of {SIZE.text(size)}" for size, count in sizes.items() if count)
    return Measurement(
        f"nccl-tests {last.collective} #wrong",
        wrong,
        "",
        equals(0),
        "as nccl-tests checks results",
        note="; ".join(filter(None, [where, why])),
    )
