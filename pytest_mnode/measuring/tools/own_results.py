"""Results that people already have, judged by a spec as the criterion judges its own. Pure.

What is read: nccl-tests and rccl-tests, as text or JSON, perftest, and CSV. Rates and wrong values
become the runs that the criterion's judges take, so that there is no second rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from pytest_mnode.criteria.transport.settings import cost
from pytest_mnode.errors import UsageError
from pytest_mnode.logs.busbw_csv import ACCEPTED, CsvRow, CsvTable, read_csv
from pytest_mnode.logs.lines import plain_lines
from pytest_mnode.logs.nccl_log.model import NetworkKind
from pytest_mnode.logs.nccl_log.read import read_nccl_log
from pytest_mnode.logs.nccl_log.text import plain_text
from pytest_mnode.logs.nccl_tests import (
    NAMED_IN_A_COMMAND,
    NcclTest,
    NcclTestsRow,
    Timing,
    read_nccl_tests,
)
from pytest_mnode.logs.perftest import Perftest, read_perftests
from pytest_mnode.measurement import Measurement, Verdict, listed
from pytest_mnode.measuring.tools import nccl_tests, perftest
from pytest_mnode.measuring.tools.nccl_tests import NcclRun
from pytest_mnode.measuring.tools.perftest_pairs import PairResult
from pytest_mnode.spec.alpha_beta import NVLS_USED, Nvls, Platform
from pytest_mnode.spec.bandwidth import bus_factor
from pytest_mnode.spec.expect import Expectation, must_be_rdma, reasons_of_a_port
from pytest_mnode.spec.fabric import (
    USUAL_FRACTIONS,
    FabricCriterion,
    RdmaBandwidthPromise,
    WriteLatencyPromise,
)
from pytest_mnode.spec.models import Spec
from pytest_mnode.spec.quantity import SIZE

_NO_LETTER = re.compile(r"[^a-z]")
_COLLECTIVES = tuple(USUAL_FRACTIONS)
_NAMES = {_NO_LETTER.sub("", name): name for name in _COLLECTIVES}
_LITTLE = 0.8
"""[choice] 2 nodes of A100 had 156 GB/s at 512 MiB, beside 165 and 219 at half and twice the size,
and a bound of 159 to 166 (a tutorial on Oracle's cloud)."""
_LEAST_BYTES = 16 << 20
"""[choice] Where no size of a table is large enough to be judged, its largest is, from here on."""
_CLEAR_GBYTES_S = 1.0
"""From this algbw on, two printed decimals leave the ratio busbw / algbw within 1 %."""
_SAME_RATIO = 0.015
_HCA = "NCCL_IB_HCA"
_WHOLE_NAME = re.compile(r"_\d+$")
"""Of one device, such as mlx5_0; mlx5 would be the beginning of several."""
_NEUTRAL = frozenset({"NCCL_ALGO", "NCCL_NVLS_ENABLE", "NCCL_IB_GID_INDEX", "NCCL_TOPO_FILE"})
"""Settings that many clusters need, or that the bound knows."""
_OTHER = re.compile(rb"# *(OSU MPI[\w-]* [\w -]+ Test|Intel\(R\) MPI Benchmarks)")
_REDUCE = ("all_reduce", "reduce_scatter", "reduce")
_ROOTED = ("broadcast", "reduce")
_ROUNDED = 0.006
"""GB/s by which a printed rate may be off, and a little."""
_LARGE_BYTES, _LARGE_SHARE = 1 << 16, 0.9
"""A rate of this size, perftest's default, is unusual below this part of the line: of 200 Gbit/s 64
KiB reach 0.951 (HDR, Azure/aks-rdma-infiniband, tests/expected-output.md)."""
_UNSTEADY = 1.1
"""[choice] Runs that differ by more are of several peers, or something is at fault: the worst is
judged."""
_FAR_ABOVE, _ABOVE_A_PORT = 1.25, 1.1
"""[choice] Factors by which a value may exceed the most that the model or a port gives: 1.21 is the
largest published (all-to-all on 16 RTX PRO 6000D), and none of a port."""
_USUAL_PORT = RdmaBandwidthPromise.model_validate(
    {"program": "perftest", "size": "64 KiB", "at_least_fraction": _LARGE_SHARE}
)
PORT_USUAL = (0.96, 0.99)
"""Usual part of a port's line rate that large messages reach. Sources: 196.55 of 200 Gbit/s (HDR,
Azure/aks-rdma-infiniband, tests/expected-output.md), 392.6 of 400 (RoCE, NVIDIA/nccl issue 2409),
393.69 of 400 (NDR, NVIDIA/nccl-tests issue 319)."""


@dataclass(frozen=True, slots=True)
class SizeResult:
    """One size. value: GB/s, Gbit/s or µs; of several runs their mean. usual: in the same unit.

    wire: what the wire allows; None for a latency. judged: None if no rule judges this size.
    """

    size_bytes: int
    value: float | None
    in_place: float | None = None
    wire: float | None = None
    usual: tuple[float, float] | None = None
    judged: Measurement | None = None
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """What one program measured, in all its runs.

    title: program and shape. wrong: of collectives; with the value None if nothing was checked.
    why: why sizes are not judged; empty if they are. rest: of runs that aborted, are cut off or
    cannot be used: what they measured may fail, but not pass.
    """

    title: str
    unit: str
    sizes: tuple[SizeResult, ...]
    wrong: Measurement | None = None
    why: str = ""
    rest: Measurement | None = None

    @property
    def judged(self) -> list[Measurement]:
        """Measurements that decide: those of sizes, and wrong values."""
        found = [one.judged for one in self.sizes if one.judged is not None]
        checked = self.wrong if self.wrong and self.wrong.value is not None else None
        return [*found, *filter(None, (checked, self.rest))]


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user said about a file. Each is None if it is to be taken from the file."""

    spec: Spec
    nodes: int | None = None
    procs_per_node: int | None = None
    collective: str | None = None
    algorithm: Literal["default", "ring"] | None = None


def verdict_of(results: Sequence[Result]) -> Verdict:
    """Fail if anything fails; pass if a size is judged and all that is judged passes."""
    found = [measurement.verdict for one in results for measurement in one.judged]
    if Verdict.FAIL in found:
        return Verdict.FAIL
    rated = any(size.judged is not None for one in results for size in one.sizes)
    passed = rated and all(one is Verdict.PASS for one in found)
    return Verdict.PASS if passed else Verdict.INCONCLUSIVE


def judge_output(output: bytes, asked: Asked) -> list[Result]:
    """All results in a file, judged.

    Raises UsageError for a file without results, and for one that contradicts what the user said or
    leaves open what is needed.
    """
    if not output.strip():
        raise UsageError("empty")
    if plain_text(output).zeros:
        raise UsageError("no text, but a binary file")
    tests, runs = list(read_nccl_tests(output)), read_perftests(output)
    rated = any(test.rows for test in tests)
    try:
        tables = read_csv(output, alone=not (rated or runs))
    except UsageError:
        if rated or runs or not tests:
            raise
        tables = ()
    if (runs or tables) and not rated:  # without any row, as what is no test may look
        tests = [test for test in tests if test.faults]
    # A summary of the same results may lack the collective's name.
    beside = {name_of(t.program) if t.program else _by_columns(t, asked) for t in tests} - {None}
    commands = filter(None, map(NAMED_IN_A_COMMAND.search, plain_lines(output)))
    beside = beside or {name_of(one[1]) for one in commands} - {None}
    named = asked.collective or (beside.pop() if len(beside) == 1 else None)
    for table in tables:
        tests += _of_table(table, asked if table.collective else replace(asked, collective=named))
    found = _judge_collectives(tests, output, asked) if tests else []
    if found := [*found, *_judge_perftest(runs, asked)]:
        return found
    other = _OTHER.search(output)
    raise UsageError(
        (f"{other[1].decode()}, which measures MPI and not NCCL; " if other else "no results; ")
        + "accepted: the output of nccl-tests or rccl-tests (text or JSON), of perftest, "
        f"or a CSV with {ACCEPTED}"
    )


def _judge_collectives(tests: Sequence[NcclTest], output: bytes, asked: Asked) -> list[Result]:
    groups: dict[tuple[object, ...], tuple[Spec, dict[tuple[str, ...], list[NcclRun]]]] = {}
    found: list[Result] = []
    for read in tests:
        test = _with_algorithm(read, asked.algorithm)
        unknown = len(tests) > 1 and test.program and name_of(test.program) is None
        why = "what it should reach is not known" if unknown else test.why_without_shape
        if why:
            # Lines above a table stand apart from it if a collector puts the newest line first.
            apart = not (test.rows or test.faults) and any(t.rows and not t.ranks for t in tests)
            rest = None if unknown or apart else Measurement.unknown("results", why)
            name, why = test.program or "nccl-tests", "" if rest else why
            found.append(Result(name, "GB/s", (), why=why, rest=rest))
            continue
        if (asked.nodes or 0) >= test.nodes > 0 and test.ranks % test.nodes:
            test = replace(test, ranks=0, nodes=0, hosts=())  # the list of ranks is cut off
        test, spec = _of_a_group(test, asked.spec)
        collective = _collective(test, replace(asked, spec=spec))
        nodes, per_node = _shape(test, replace(asked, spec=spec), collective)
        _agrees(test, collective, nodes * per_node)
        # Complete rows of a table that is cut off are measured all the same.
        why = "" if test.only_cut_off else test.why_incomplete
        why = why or nccl_tests.elsewhere(test, nodes, per_node) or ""
        run = NcclRun(collective, nodes, per_node, (), "", test, why)
        used = nccl_tests.model_of(run, Platform.of(spec))[0].nvls.used
        at_once = f", each of {read.groups} groups at once" * (read.groups > test.groups)
        key = (at_once, collective, nodes, per_node, test.pins_ring, used)
        of_key = groups.setdefault(key, (spec, {}))[1]
        of_key.setdefault(tuple(sorted(test.hosts)), []).append(run)
    logged = tuple(_reasons_in_log(output, asked.spec))
    for (among, *_), (spec, by_hosts) in groups.items():
        for hosts, runs in by_hosts.items():
            reasons = (*_reasons_in_settings(runs, asked.spec), *logged)
            one = _judge_runs(runs, spec, reasons)
            where = f", on {listed(hosts, separator=', ')}" if hosts and len(by_hosts) > 1 else ""
            found.append(replace(one, title=f"{one.title}{among}{where}"))
    return found


def _of_a_group(test: NcclTest, spec: Spec) -> tuple[NcclTest, Spec]:
    """One of groups of ranks that run at once (NCCL_TESTS_SPLIT), and its part of a node's NICs."""
    if test.groups == 1 or test.ranks % (test.groups * test.group_hosts):
        return test, spec
    ranks, fabric = test.ranks // test.groups, spec.fabric
    each = ranks // test.group_hosts
    part = fabric.nics_per_node * each * test.nodes / test.ranks
    of_it = {"line_rate_bits_s": int(fabric.line_rate_bits_s * part), "nics_per_node": 1}
    gpus = spec.accelerators.model_copy(update={"per_node": each})
    update = {"fabric": fabric.model_copy(update=of_it), "accelerators": gpus}
    hosts = test.hosts[: test.group_hosts]
    test = replace(test, ranks=ranks, nodes=test.group_hosts, hosts=hosts, groups=1)
    return test, spec.model_copy(update=update)


def _judge_runs(runs: Sequence[NcclRun], spec: Spec, logged: Sequence[str]) -> Result:
    number = {id(run): at for at, run in enumerate(runs, 1)}
    runs = sorted(runs, key=lambda run: bool(run.why))  # as the criterion stops at such a run
    one = runs[0]
    platform, pins = Platform.of(spec), bool(one.test and one.test.pins_ring)
    model, _ = nccl_tests.model_of(one, platform)
    expectation = Expectation(
        *(spec, one.collective, one.nodes, one.ranks_per_node),
        algorithm="ring" if pins else "default",
        nvls=model.nvls,
    )
    promise, why_not = expectation.held_to
    sizes = sorted({row.size_bytes for run in runs if run.test for row in run.test.rows})
    start = promise.judged_from_bytes(model) if promise else 0
    judged = [size for size in sizes if promise and size > start - one.rounded_bytes]
    if promise and not judged and sizes and sizes[-1] >= _LEAST_BYTES:
        judged = sizes[-1:]
    of_size = {size: _judged_runs(size, runs) for size in sizes}
    measured = {
        size: nccl_tests.judge(of_size[size], platform, promise, [size])[0]
        for size in judged
        if promise
    }
    values = {size: _busbw(size, of_size[size]) or 0.0 for size in measured}
    dips = _dips(measured, values, usual=expectation.promise is None)
    measured = {size: kept for size, old in measured.items() if (kept := dips.get(size, old))}
    for size, of_this in measured.items():
        of = expectation.of_size(size)
        value = max(row.out_of_place.busbw_gbytes_s or 0.0 for row in _rows(size, runs))
        most = max(of.high, of.wire, expectation.bridged_gbytes_s)
        measured[size] = _unless_far_above(of_this, value, _FAR_ABOVE * most)
    why, rest = why_not, next(filter(None, map(_why_unusable, runs)), None)
    if promise is not None and not judged:
        why = f"sizes below {-(-start >> 20)} MiB, from which they are judged"
    ranks = f"{one.ranks_per_node} rank{'s' * (one.ranks_per_node > 1)}"
    shape = f"{one.nodes} node{'s' * (one.nodes > 1)} of {ranks}"
    pinned = ", ring pinned" if pins else ""
    times = f", {len(runs)} runs" if len(runs) > 1 else ""
    several = [size for size in judged if len(_having(size, runs)) > len(of_size[size])]
    if worst := {number[id(of_size[size][0])] for size in several}:
        times += f", the worst (run {', '.join(map(str, sorted(worst)))}) judged"
    usual = ", held to what is usual as the spec promises none" * (expectation.promise is None)
    return Result(
        f"{one.collective}{pinned}, {shape}{times}{usual if promise else ''}",
        "GB/s",
        tuple(
            _size_result(of_size[size], size, expectation, measured.get(size), logged)
            for size in sizes
        ),
        nccl_tests.judge_wrong(runs),
        why,
        Measurement.unknown("rest of the runs", rest) if rest else None,
    )


def _why_unusable(run: NcclRun) -> str | None:
    """Why a run cannot be used, or not all of it; None if it can."""
    rows = run.test.rows if run.test else ()
    if run.why or not run.test:
        return run.why
    if run.test.only_cut_off:
        return None if run.test.is_excerpt else run.test.why_incomplete
    unrated = [row.size_bytes for row in rows if row.out_of_place.busbw_gbytes_s is None]
    sizes = listed(map(SIZE.text, dict.fromkeys(unrated)), separator=", ")
    return f"{sizes}: no rate, or a status other than ok" if unrated else None


def _dips(
    measured: Mapping[int, Measurement], values: Mapping[int, float], *, usual: bool
) -> dict[int, Measurement | None]:
    """The largest size that falls short, if it does so a little and all larger ones pass:
    inconclusive, as faults slow large ones; not judged if the spec does not promise it (usual) and
    several pass. Those between that are open, by the error of one run or
    by what NCCL chose, pass, or are not judged where they are below their bound by less than that
    error. values: of each size, which one that is open lacks."""
    found: dict[int, Measurement | None] = {}
    sizes = sorted(measured, reverse=True)
    for larger, size in enumerate(sizes[1:] if sizes and measured[sizes[0]].passed else (), 1):
        one = measured[size]
        edge = one.expected.accepted[0] if one.expected else 0.0
        not_asked = usual and larger > 1
        if one.verdict is Verdict.FAIL and (not_asked or (one.value or 0.0) >= _LITTLE * edge):
            note = f"{one.measured}, but larger sizes keep their bounds: a change of algorithm, or "
            note = f"{note}chance; {one.note}"
            found[size] = None if not_asked else replace(one, value=None, note=note)
            break
        if one.verdict is Verdict.INCONCLUSIVE and values[size] >= edge:
            note = f"{one.note}; larger sizes pass"
            found[size] = replace(one, value=values[size], interval=None, note=note)
        elif one.verdict is Verdict.INCONCLUSIVE and one.interval and one.value is not None:
            found[size] = None
        elif not one.passed:
            break
    return found


def _having(size_bytes: int, runs: Sequence[NcclRun]) -> list[NcclRun]:
    return [run for run in runs if run.cycles(size_bytes)]


def _judged_runs(size_bytes: int, runs: Sequence[NcclRun]) -> list[NcclRun]:
    """The runs that have this size; if they differ by more than `_UNSTEADY`, the worst alone."""
    having = _having(size_bytes, runs)
    cycles = [[rate for rate in run.cycles(size_bytes) if rate is not None] for run in having]
    whole = all(not run.why and None not in run.cycles(size_bytes) for run in having)
    middles = [median(one) for one in cycles] if whole and having else [0.0]
    if max(middles) <= _UNSTEADY * min(middles):
        return having
    return [having[middles.index(min(middles))]]


def _unless_far_above(one: Measurement, value: float, most: float) -> Measurement:
    """A value that is far above the most that is possible: a wrong unit, shape or spec; no pass."""
    if not one.passed or value <= most:
        return one
    note = f"{value:.4g} {one.unit} is more than any such cluster gives, {most:.4g}"
    note = f"{note}: the unit, the number of ranks, or the spec is wrong"
    return replace(one, value=None, interval=None, note=note)


def _rows(size_bytes: int, runs: Sequence[NcclRun]) -> list[NcclTestsRow]:
    return [r for run in runs if run.test for r in run.test.rows if r.size_bytes == size_bytes]


def _busbw(size_bytes: int, runs: Sequence[NcclRun]) -> float | None:
    return _mean(row.out_of_place.busbw_gbytes_s for row in _rows(size_bytes, runs))


def _size_result(
    runs: Sequence[NcclRun],
    size_bytes: int,
    expectation: Expectation,
    judged: Measurement | None,
    logged: Sequence[str],
) -> SizeResult:
    rows, value = _rows(size_bytes, runs), _busbw(size_bytes, runs)
    if judged is not None and judged.value is not None:
        value = judged.value
    in_place = _mean(row.in_place.busbw_gbytes_s for row in rows if row.in_place)
    if expectation.nodes == 1 and expectation.model.platform.nvlink is None:
        return SizeResult(size_bytes, value, in_place)
    of = expectation.of_size(size_bytes)
    if not value or judged is None:
        return SizeResult(size_bytes, value, in_place, of.wire, (of.low, of.high), judged)
    reasons: tuple[str, ...] = ()
    failed = judged.verdict is Verdict.FAIL
    if failed or not expectation.is_usual(size_bytes, value):
        guessed = expectation.reasons(size_bytes, value)
        reasons = (*(logged if value < of.wire else ()), *guessed)
    undecided = judged.value is None and not any(run.why for run in runs)
    slower = replace(expectation.model, nvls=Nvls(used=None)).nvls_gives_more
    if undecided:
        on = replace(expectation, nvls=NVLS_USED)
        known = reasons if reasons or not slower else on.reasons(size_bytes, value)
        reasons = (judged.note, *known)
    if (failed or undecided) and expectation.algorithm == "default" and slower:
        ring = replace(expectation, algorithm="ring").of_size(size_bytes).bound
        if ring is not None and ring <= value <= of.wire:
            pinned = f"a ring, whose bound is {ring:.4g}: if NCCL_ALGO=Ring was set, say so by "
            reasons = (f"{pinned}--algorithm=ring", *reasons)
    return SizeResult(size_bytes, value, in_place, of.wire, (of.low, of.high), judged, reasons)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def name_of(program: str | None) -> str | None:
    """The collective of a program or name such as alltoall_perf, AllToAll; None if unknown."""
    return _NAMES.get(_NO_LETTER.sub("", (program or "").lower().partition("_perf")[0]))


def _with_algorithm(test: NcclTest, asked: str | None) -> NcclTest:
    if asked is None or (asked == "ring") == test.pins_ring:
        return test
    if (said := test.settings.get("NCCL_ALGO")) is not None:
        raise UsageError(f"--algorithm={asked}, but the file has NCCL_ALGO={said}")
    return replace(test, settings={**test.settings, "NCCL_ALGO": "ring"})


def _collective(test: NcclTest, given: Asked) -> str:
    asked, said = given.collective, name_of(test.program)
    if test.program and said is None:
        raise UsageError(f"{test.program}; accepted: {', '.join(_COLLECTIVES)}")
    if said and asked and said != asked:
        raise UsageError(f"--collective={asked}, but the file has {test.program}")
    if found := said or asked or _by_columns(test, given):
        return found
    raise UsageError(
        f"--collective: missing, and the file does not say it; accepted: {', '.join(_COLLECTIVES)}"
    )


def _clearest(test: NcclTest) -> tuple[NcclTestsRow, float, float] | None:
    """The row with the largest algbw, its busbw / algbw, and by how much that may be off."""
    rows = [
        (one.algbw_gbytes_s, one.busbw_gbytes_s, row)
        for row in test.rows
        if (one := row.out_of_place).busbw_gbytes_s and one.algbw_gbytes_s
    ]
    algbw, busbw, row = max(rows, key=lambda one: one[0] or 0.0, default=(None, None, None))
    if not algbw or not busbw or row is None:
        return None
    return row, busbw / algbw, (1 + busbw / algbw) * _ROUNDED / algbw


def _by_columns(test: NcclTest, given: Asked) -> str | None:
    """The collective, if only one of all has such columns and such a ratio of its rates: programs
    older than nccl-tests 2.17 do not print their names."""
    clearest = _clearest(test)
    if clearest is None or clearest[0].reduces is None:
        return None
    row, ratio, off = clearest
    off = max(off, _SAME_RATIO * ratio)
    rooted = row.root is not None and row.root >= 0  # older versions print it only there
    per_node = given.procs_per_node or given.spec.accelerators.per_node or 1
    ranks = test.ranks or (given.nodes or 0) * per_node
    if row.reduces and ratio - off > 1:
        return "all_reduce"
    found = [
        name
        for name in _COLLECTIVES
        if (name == "send_recv" or (name in _REDUCE) is row.reduces)
        and (name in _ROOTED) is rooted
        and (
            abs(ratio - bus_factor(name, ranks)) <= off
            if ranks > 1
            else (ratio - off > 1) is (name == "all_reduce")
        )
    ]
    checked = (row.out_of_place.wrong, row.out_of_place.deviation) != (None, None)
    if len(found) == 2 and row.in_place and checked:
        # All-to-alls and exchanges are not checked in place, or are wrong there.
        return found[row.in_place.wrong != 0 and row.in_place.deviation != 0]
    return found[0] if len(found) == 1 or (found and row.reduces) else None


def _ranks_by_ratio(test: NcclTest, collective: str, per_node: int) -> int:
    """The only number of ranks, on two nodes or more, that busbw / algbw fits; 0 without one."""
    if (clearest := _clearest(test)) is None or bus_factor(collective, 2) == bus_factor(
        collective, 3
    ):
        return 0
    _, ratio, off = clearest
    several = range(2 * per_node, 64 * per_node, per_node)
    fits = [n for n in several if abs(bus_factor(collective, n) - ratio) <= off]
    return fits[0] if len(fits) == 1 else 0


def _shape(test: NcclTest, asked: Asked, collective: str) -> tuple[int, int]:
    """Nodes and ranks of each, from the file where it says them, or its rates show them."""
    nodes, per_node, ranks = asked.nodes, asked.procs_per_node, test.ranks
    if not ranks and not nodes:
        per_node = per_node or asked.spec.accelerators.per_node
        ranks = _ranks_by_ratio(test, collective, per_node) if per_node else 0
    if nodes and test.nodes and nodes != test.nodes:
        raise UsageError(
            f"--nodes={nodes}, but the file has ranks on {test.nodes} host{'s' * (test.nodes > 1)}"
        )
    nodes = nodes or test.nodes
    usual = per_node or asked.spec.accelerators.per_node
    if not nodes and ranks and usual and ranks % usual == 0:
        nodes = ranks // usual
    if not nodes:
        raise UsageError("--nodes: missing, and the file does not say it; accepted: 1 or more")
    if ranks and per_node and nodes * per_node != ranks:
        raise UsageError(
            f"--procs-per-node={per_node} on {nodes} nodes, but the file has {ranks} ranks"
        )
    if ranks % nodes:
        raise UsageError(
            f"{ranks} ranks on {nodes} nodes; accepted: as many on each node, or --nodes where the "
            "list of ranks is cut off"
        )
    per_node = per_node or ranks // nodes or asked.spec.accelerators.per_node or 1
    if nodes * per_node < 2:
        raise UsageError("one rank on one node, which sends nothing; accepted: 2 ranks or more")
    return nodes, per_node


def _agrees(test: NcclTest, collective: str, ranks: int) -> None:
    """Raises UsageError if busbw / algbw is not that of the collective over so many ranks."""
    factor = bus_factor(collective, ranks)
    for row in test.rows:
        one = row.out_of_place
        if not one.busbw_gbytes_s or (one.algbw_gbytes_s or 0.0) < _CLEAR_GBYTES_S:
            continue
        ratio = one.busbw_gbytes_s / (one.algbw_gbytes_s or 1.0)
        if abs(ratio / factor - 1) > _SAME_RATIO:
            raise UsageError(
                f"busbw / algbw is {ratio:.4g} at {SIZE.text(row.size_bytes)}, but {factor:.4g} "
                f"for {collective} over {ranks} ranks; check --nodes, --procs-per-node and "
                "--collective"
            )


def _of_table(table: CsvTable, asked: Asked) -> list[NcclTest]:
    """A CSV as tests, whose results were checked if it has a column for that: a size that stands
    there again is of another run."""
    known = name_of(table.collective) is not None
    test = NcclTest(
        program=table.collective if known or not asked.collective else None,
        ranks=table.ranks or 0,
        nodes=table.nodes or 0,
        closed=True,
    )
    collective = _collective(test, asked)
    nodes, per_node = _shape(test, asked, collective)
    factor = bus_factor(collective, nodes * per_node)
    runs: list[list[NcclTestsRow]] = []
    last: list[NcclTestsRow] = []
    for line in table.rows:
        timing, size = _timing(line, factor), line.size_bytes
        if line.in_place and last and last[-1].size_bytes == size and not last[-1].in_place:
            last[-1] = replace(last[-1], in_place=timing)
            continue
        free = (run for run in runs if all(row.size_bytes != size for row in run))
        if (last := next(free, [])) == []:
            runs.append(last)
        last.append(NcclTestsRow(size, timing))
    checked = all(line.wrong is not None for line in table.rows)
    test = replace(test, program=collective, validated=checked)
    return [replace(test, rows=tuple(rows)) for rows in runs]


def _timing(row: CsvRow, factor: float) -> Timing:
    """Results of one line, with the busbw computed from algbw or time where it has none."""
    timed = row.size_bytes / row.time_us / 1e3 if row.time_us else None
    algbw = row.algbw_gbytes_s if row.algbw_gbytes_s is not None else timed
    # 1 GB may be 2^30 bytes, as nccl-tests means it: its rate shows that.
    if (
        timed
        and algbw
        and all(abs(algbw - timed * more) > max(0.05 * timed, 0.01) for more in (1.0, 1.049, 1.074))
    ):
        raise UsageError(
            f"line {row.line}: size / time is {timed:.4g} GB/s, but algbw is {algbw:.4g}; "
            "check the units in the heading"
        )
    busbw = row.busbw_gbytes_s
    if busbw is None and algbw is not None:
        busbw = algbw * factor
    busbw = busbw if row.ok else None
    return Timing(busbw, row.wrong, algbw_gbytes_s=algbw)


def _reasons_in_settings(runs: Sequence[NcclRun], spec: Spec) -> Iterator[str]:
    """Settings of the runs, by their command lines and logs, that cost speed."""
    kind, found = spec.fabric.kind, dict[str, None]()
    for test in (run.test for run in runs if run.test):
        version = ".".join(map(str, test.nccl.version or ())) or None
        for name, value in test.settings.items():
            if name == _HCA:
                ports = {one.partition(":")[0] for one in value.lstrip("=").split(",")}
                few = len(ports) < spec.nics_of_ranks(runs[0].ranks_per_node)
                whole = value.startswith("=") or all(map(_WHOLE_NAME.search, ports))
                if few and whole and "^" not in value:
                    found[f"{name}={value} (ranks may use {len(ports)} NICs a node)"] = None
            elif name not in _NEUTRAL and (why := cost(name, value, kind, version)):
                found[f"{name}={value} ({why})"] = None
    if found:
        yield f"settings of this run that cost speed, or override NCCL's choice: {listed(found)}"


def _reasons_in_log(output: bytes, spec: Spec) -> Iterator[str]:
    """What NCCL's own log in the file says about the network: no guesses."""
    if b"NCCL" not in output:
        return
    log = read_nccl_log("\n".join(plain_lines(output)))
    channels = [channel for channel in log.channels if channel.crosses_network]
    if not channels or spec.fabric.kind == "ethernet":
        return
    sockets = [one for one in channels if log.kind_of(one) is NetworkKind.SOCKETS]
    if sockets:
        setting = must_be_rdma(spec.fabric.kind)
        yield (
            f"silent TCP, by NCCL's log: {len(sockets)} of {len(channels)} network channels are "
            f"sockets; {setting} makes it an error"
        )
    elif staged := [one for one in channels if one.gdr is False]:
        yield (
            f"no GPUDirect, by NCCL's log: {len(staged)} of {len(channels)} network channels are "
            "staged through host memory: acceptance/test_preflight.py"
        )
    hosts = {channel.process.host for channel in channels}
    per_node = spec.accelerators.per_node
    for host in sorted(filter(None, hosts)):
        used, all_named = log.adapters([c for c in channels if c.process.host == host])
        whole = sum(rank.process.host == host for rank in log.ranks) >= per_node > 0
        if all_named and whole and not sockets and len(used) < spec.fabric.nics_per_node:
            yield (
                f"{host} uses {len(used)} of {spec.fabric.nics_per_node} NICs, by NCCL's log: "
                "NCCL_IB_HCA, or a port that is down"
            )
            return


def _judge_perftest(runs: Sequence[Perftest], asked: Asked) -> list[Result]:
    by_port: dict[tuple[str, str], list[Perftest]] = {}
    for run in runs:
        by_port.setdefault((run.program or "perftest", run.device or "one port"), []).append(run)
    return [_judge_port(*port, of_port, asked.spec) for port, of_port in by_port.items()]


def _judge_port(program: str, port: str, runs: Sequence[Perftest], spec: Spec) -> Result:
    key = program.removeprefix("ib_").replace("_bw", "_bandwidth").replace("_lat", "_latency")
    promise = getattr(spec.criteria.fabric, key, None)
    unusable = next((why for run in runs if (why := run.why_unusable)), "") or ""
    rates = not any(run.typical_us for run in runs)
    unread = [None in dict(run.rates_gbits_s if rates else run.typical_us).values() for run in runs]
    if any(unread):
        unusable = unusable or (
            "a row without a number above 0, as after a clock was set, or of unknown unit"
        )
    if rates and any(run.bidirectional is None and run.rates_gbits_s for run in runs):
        unusable = unusable or "no title, which says whether rates are of both directions"
    why = usual = ""
    if key not in FabricCriterion.model_fields:
        why = "no promise of a spec is about it"
    elif promise is None and not rates:
        why = f"the spec has no criteria.fabric.{key}"
    elif promise is None:
        promise, usual = _USUAL_PORT, ", held to what is usual as the spec promises none"
    values: dict[int, list[float]] = {}
    for run in runs:
        # A bidirectional program prints the sum of both directions.
        ways = 2 if rates and run.bidirectional else 1
        for size, value in run.rates_gbits_s if rates else run.typical_us:
            if value is not None:
                values.setdefault(size, []).append(value / ways)
    # Two say little of the noise.
    if rates and any(
        len(found) == 2 or max(found) > _UNSTEADY * min(found) for found in values.values()
    ):
        values, usual = (
            {size: [min(found)] for size, found in values.items()},
            f"{usual}, worst run",
        )
    found = tuple(
        _of_pair(size, one, spec, _judged(size, one, spec, promise, unusable), rates=rates)
        for size, one in sorted(values.items())
    )
    if found and promise is not None and not any(one.judged for one in found):
        why = f"the spec's promise is of {SIZE.text(promise.size_bytes)}" + (
            " or more" if rates else ""
        )
    both = ", half of both directions" if any(run.bidirectional for run in runs) else ""
    return Result(
        f"{program}, {port}{both}{usual}",
        "Gbit/s" if rates else "µs",
        found,
        why=why,
        rest=Measurement.unknown("rest of the runs", unusable) if unusable else None,
    )


def _pair(values: Sequence[float]) -> PairResult:
    pair = PairResult("client", "server", "", sum(values) / len(values), repeats=tuple(values))
    return replace(pair, value=pair.estimate.value) if pair.estimate else pair


def _judged(
    size_bytes: int,
    values: Sequence[float],
    spec: Spec,
    promise: RdmaBandwidthPromise | WriteLatencyPromise | None,
    why: str,
) -> Measurement | None:
    """None if the promise is not of this size: a rate of its size or more, a latency of its own.
    Rates from perftest's default size on are held to what is usual."""
    if promise is None:
        return None
    if isinstance(promise, RdmaBandwidthPromise) and size_bytes < promise.size_bytes:
        fraction = min(promise.at_least_fraction, _LARGE_SHARE)
        promise = _USUAL_PORT.model_copy(update={"at_least_fraction": fraction})
    if size_bytes < promise.size_bytes:
        return None
    if isinstance(promise, WriteLatencyPromise) and size_bytes != promise.size_bytes:
        return None
    pair = replace(_pair(values), value=None, why=why) if why else _pair(values)
    [judged] = perftest.judge([pair], spec.fabric, promise.model_copy(update={"binding": "none"}))
    if isinstance(promise, RdmaBandwidthPromise):
        most = _ABOVE_A_PORT * spec.fabric.line_rate_gbits_s
        return _unless_far_above(judged, max(values), most)
    return judged


def _of_pair(
    size_bytes: int, values: Sequence[float], spec: Spec, judged: Measurement | None, *, rates: bool
) -> SizeResult:
    line, pair = spec.fabric.line_rate_gbits_s, _pair(values)
    if not rates:
        return SizeResult(size_bytes, pair.value, judged=judged)
    low, high = PORT_USUAL
    value = pair.value or 0.0
    failed = judged is not None and judged.verdict is Verdict.FAIL
    unusual = size_bytes >= _LARGE_BYTES and value < _LARGE_SHARE * line
    reasons = tuple(reasons_of_a_port(value / line)) if value and (failed or unusual) else ()
    return SizeResult(
        *(size_bytes, pair.value, None, line, (low * line, high * line), judged, reasons)
    )
