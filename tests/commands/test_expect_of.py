"""`expect --of`: results that people have, judged as the criterion would; and files they give."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.commands import main
from pytest_mnode.errors import UsageError
from pytest_mnode.logs.nccl_tests_rows import NcclTest
from pytest_mnode.measurement import Verdict
from pytest_mnode.measuring.tools.own_results import (
    Asked,
    _of_a_group,
    judge_output,
    name_of,
    verdict_of,
)
from pytest_mnode.spec import Spec, load_spec
from tests.spec.test_schema import CLUSTERS

PATH = CLUSTERS / "h100-ib.yaml"
H100 = load_spec(PATH)
PERFTEST = CLUSTERS.parent / "recordings" / "perftest"
GIB = 1 << 30
HEAD = """\
# nThread 1 nGpus 1 minBytes 1048576 maxBytes 8589934592 step: 8(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
"""  # noqa: E501
COLUMNS = (
    "#  size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong\n"
)
OLD = "#  size  count  type  redop  time  algbw  busbw  error  time  algbw  busbw  error\n"
END = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 1.0\n"
NOTED = "bytes count type redop root time(us) algbw busbw errors time(us) algbw busbw errors\n"
FACTOR = 1.875
"""busbw / algbw of an all-reduce over 16 ranks."""


def devices(hosts: int = 2, per_node: int = 8) -> str:
    return "".join(
        f"#  Rank {rank:2d} Group  0 Pid {90 + rank} on oak{rank // per_node} device "
        f"{rank % per_node} [0x1b] NVIDIA H100\n"
        for rank in range(hosts * per_node)
    )


def row(size: int, busbw: float, wrong: str = "0", in_place: float | None = None) -> str:
    other = busbw if in_place is None else in_place
    blocks = "  ".join(f"100.5 {b / FACTOR:.2f} {b:.2f} {wrong}" for b in (busbw, other))
    return f"  {size} {size // 4} float sum -1 {blocks}\n"


def table(
    *rows: str, named: str = "NCCL_ALGO=Ring all_reduce_perf -b 1M -e 8G -f 8", ranks: str = ""
) -> str:
    return f"$ {named}\n{HEAD}{ranks}{COLUMNS}{''.join(rows)}{END}"


GOOD = table(row(1 << 20, 30.0), row(8 * GIB, 391.0), ranks=devices())
SLOW = table(row(1 << 20, 30.0), row(8 * GIB, 155.6), ranks=devices())


BROKEN = table(row(1 << 20, 30.0), ranks=devices()).replace(END, "oak1: Test NCCL failure a.cu:9\n")


TOP = f"{devices()}{COLUMNS}"
SEVERAL = "run,coll,nodes,ranks,size,busbw\n" + "".join(
    f"{run},all_reduce,2,16,{8 * GIB},{rate}\n"
    for run, rate in enumerate((391, 390, 197, 392, 391))
)


def json_of(busbw: float) -> str:
    block = {"time": 1.0, "alg_bw": busbw / FACTOR, "bus_bw": busbw, "nwrong": 0}
    places = [{"rank": 8 * i, "group": 0, "pid": i, "hostname": f"oak{i}"} for i in range(2)]
    return json.dumps(
        {
            "args": ["all_reduce_perf"],
            "config": {"nthreads": 1, "ngpus": 8, "validation": 1, "devices": places},
            "results": [{"size": 8 * GIB, "out_of_place": block, "in_place": block}],
            "out_of_bounds": {"count": 0, "okay": "true"},
            "average_bus_bandwidth": {"bandwidth": busbw},
        }
    )


def verdict(text: str | bytes, spec: Spec = H100, **said: Any) -> Verdict:
    output = text if isinstance(text, bytes) else text.encode()
    return verdict_of(judge_output(output, Asked(spec, **said)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GOOD, Verdict.PASS),
        (SLOW, Verdict.FAIL),
        (GOOD.replace("\n", "\r\n"), Verdict.PASS),
        ("\ufeff" + SLOW, Verdict.FAIL),
        ("".join(f"[1,0]<stdout>:{line}\n" for line in SLOW.splitlines()), Verdict.FAIL),
        ("".join(f"0: {line}\n" for line in GOOD.splitlines()), Verdict.PASS),
        (json_of(391.0), Verdict.PASS),
        (f"# written to a.json\n{json_of(155.6)}\n", Verdict.FAIL),
        (GOOD.replace(" 0\n", " N/A\n"), Verdict.PASS),
        (GOOD.replace(END, ""), Verdict.INCONCLUSIVE),
        (SLOW.replace(END, ""), Verdict.FAIL),
        (GOOD.replace(END, "oak1: Test NCCL failure common.cu:9\n"), Verdict.INCONCLUSIVE),
        (SLOW.replace(END, "oak1: Test NCCL failure common.cu:9\n"), Verdict.INCONCLUSIVE),
        ("".join(f"[1,0]<stdout>:{line.strip()}\n" for line in GOOD.splitlines()), Verdict.PASS),
        (table(row(1 << 20, 30.0), ranks=devices()), Verdict.INCONCLUSIVE),
        (table(row(8 * GIB, 391.0, "5"), ranks=devices()), Verdict.FAIL),
        (table(row(1 << 20, 30.0, "5"), row(8 * GIB, 391.0), ranks=devices()), Verdict.FAIL),
        (table(row(8 * GIB, 391.0, in_place=10.0), ranks=devices()), Verdict.PASS),
        # Of one run nobody knows how much the next would differ.
        (table(row(8 * GIB, 358.0), ranks=devices()), Verdict.INCONCLUSIVE),
        (GOOD + GOOD + GOOD, Verdict.PASS),
        (GOOD + GOOD.replace(END, ""), Verdict.INCONCLUSIVE),
        # One run that broke off is not made good by one that did not; nor does it hide a slow one.
        (GOOD + BROKEN, Verdict.INCONCLUSIVE),
        (BROKEN + GOOD, Verdict.INCONCLUSIVE),
        (GOOD + BROKEN.replace("oak", "elm"), Verdict.INCONCLUSIVE),
        (SLOW + BROKEN, Verdict.FAIL),
        # Nor do several good ones hide a slow one, of the same nodes or of others.
        (GOOD + SLOW, Verdict.FAIL),
        (
            4 * GOOD + table(row(8 * GIB, 306.0), ranks=devices().replace("oak", "elm")),
            Verdict.FAIL,
        ),
        (GOOD + GOOD.replace("oak", "elm"), Verdict.PASS),
        (SEVERAL, Verdict.FAIL),
        (SEVERAL.replace("197", "389"), Verdict.PASS),
        # Bits that are called bytes.
        (SEVERAL.replace("197", "3118"), Verdict.INCONCLUSIVE),
        (table(row(8 * GIB, 3118.4), ranks=devices()), Verdict.INCONCLUSIVE),
        (GOOD + table(ranks=devices()).replace(END, ""), Verdict.INCONCLUSIVE),
        ("oak1: Test CUDA failure common.cu:7\n" + GOOD, Verdict.INCONCLUSIVE),
        # Of older versions, whose first line is the list of ranks.
        (f"{TOP}{row(1 << 20, 30.0)}{TOP}{row(8 * GIB, 391.0)}{END}", Verdict.INCONCLUSIVE),
        (f"{TOP}{row(8 * GIB, 391.0)}{END}" * 2, Verdict.PASS),
        (GOOD + SLOW.replace("8589934592", "4294967296"), Verdict.FAIL),
    ],
)
def test_a_table_is_judged_as_the_criterion_judges_it(text: str, expected: Verdict) -> None:
    said = None if "NCCL_ALGO" in text else "ring"
    assert verdict(text, algorithm=said) is expected


def test_each_program_and_size_is_judged() -> None:
    gather = GOOD.replace("all_reduce", "all_gather").replace("oak", "elm")
    gather = gather.replace("391.00", "195.50").replace("30.00", "15.00")
    found = judge_output(f"{SLOW}\n{gather}".encode(), Asked(H100))
    assert [one.title for one in found] == [
        "all_reduce, ring pinned, 2 nodes of 8 ranks",
        "all_gather, ring pinned, 2 nodes of 8 ranks, held to what is usual as the spec promises "
        "none",
    ]
    small, large = found[0].sizes
    assert (small.size_bytes, small.value, small.in_place) == (1 << 20, 30.0, 30.0)
    assert large.wire == 400
    assert large.judged is not None
    assert large.judged.expected is not None
    assert "at_least_fraction" in {term.key for term in large.judged.expected.terms}
    assert large.reasons
    assert not small.reasons
    assert "usual" in found[1].title
    assert verdict_of(found[1:]) is Verdict.FAIL  # 195 of 400


NVLS = "oak0:7:9 [0] NCCL INFO NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)\n"
VERSION = "# nccl-tests version 2.17.6 nccl-headers=22809 nccl-library=22809\n"


@pytest.mark.parametrize(
    ("busbw", "above", "expected"),
    [
        (467.0, "", Verdict.PASS),
        (467.0, NVLS, Verdict.PASS),
        (375.0, NVLS, Verdict.FAIL),  # two of eight NICs are dead
        (375.0, NVLS + VERSION, Verdict.FAIL),
        (391.0, NVLS + VERSION.replace("22809", "21701"), Verdict.PASS),
        (391.0, "NCCL version 2.17.1+cuda12.1\n", Verdict.PASS),
        (391.0, "$ NCCL_NVLS_ENABLE=0 ./run\n", Verdict.PASS),
        (391.0, NVLS.replace("is available", "is not available"), Verdict.PASS),
        (391.0, VERSION, Verdict.INCONCLUSIVE),  # nccl.conf may exclude it
        (391.0, "", Verdict.INCONCLUSIVE),
        (300.0, "", Verdict.FAIL),
    ],
)
def test_on_two_nodes_the_bound_follows_from_what_is_known_of_nvls(
    busbw: float, above: str, expected: Verdict
) -> None:
    """NCCL's own choice there is faster with it: 467 where a ring has 391."""
    chosen = above + table(row(8 * GIB, busbw), named="all_reduce_perf -b 8G", ranks=devices())
    [found] = judge_output(chosen.encode(), Asked(H100))
    assert verdict_of([found]) is expected
    assert verdict(chosen, algorithm="ring") is not Verdict.INCONCLUSIVE
    said = " ".join(found.sizes[-1].reasons)
    assert ("--algorithm=ring" in said) is (busbw != 300 and expected is not Verdict.PASS)
    assert ("NCCL_NVLS_ENABLE" in said) is (expected is Verdict.INCONCLUSIVE)


def bare(redop: str, root: str, busbw: float, algbw: float = 400.0) -> str:
    """A table without a command line, as people paste it."""
    block = f"100.5 {algbw:.2f} {busbw:.2f} 0"
    return f"{COLUMNS}  {8 * GIB} {2 * GIB} float {redop} {root} {block} {block}\n{END}"


@pytest.mark.parametrize(
    ("text", "said", "title"),
    [
        (bare("sum", "-1", 391.0, 208.53), {}, "all_reduce, 2 nodes of 8 ranks"),
        (bare("sum", "-1", 370.51, 191.23), {}, "all_reduce, 4 nodes of 8 ranks"),
        (bare("sum", "-1", 371.98, 187.45), {}, "all_reduce, 16 nodes of 8 ranks"),
        (bare("sum", "-1", 48.0, 32.0), {"procs_per_node": 2}, "all_reduce, 2 nodes of 2 ranks"),
        (bare("sum", "-1", 48.0, 48.0), {"nodes": 2, "procs_per_node": 1}, "all_reduce, 2 nodes"),
        (bare("sum", "-1", 375.0), {}, "reduce_scatter, 2 nodes of 8 ranks"),
        (bare("sum", "0", 400.0), {"nodes": 2}, "reduce, 2 nodes of 8 ranks"),
        (bare("none", "0", 400.0), {"nodes": 2}, "broadcast, 2 nodes of 8 ranks"),
        (bare("none", "-1", 48.0, 48.0), {"nodes": 2}, "send_recv, 2 nodes of 8 ranks"),
        (bare("sum", "-1", 48.0, 48.0), {"nodes": 2}, "send_recv, 2 nodes of 8 ranks"),
        (
            f"# Rank 0 on a device 0\n# Rank 1 on b device 0\n{bare('sum', '-1', 48.0, 48.0)}",
            {},
            "all_reduce, 2 nodes of 1 rank",  # the list was shortened by hand
        ),
        (
            f"$ mpirun -np 16 ./alltoall_perf -b 8G\n# size,busbw\n{8 * GIB},80",
            {"nodes": 2},
            "all_to_all, 2 nodes of 8 ranks",
        ),
        (bare("sum", "-1", 0.15, 0.08), {"nodes": 2}, "all_reduce, 2 nodes of 8 ranks"),
        (
            bare("sum", "-1", 48.0, 48.0).replace(" root", "").replace("sum -1", "sum"),
            {"nodes": 2, "procs_per_node": 1},
            "all_reduce, 2 nodes of 1 rank",
        ),
        (bare("none", "-1", 375.0), {"collective": "all_gather"}, "all_gather, 2 nodes of 8 rank"),
    ],
)
def test_columns_and_rates_tell_the_collective_and_its_ranks(
    text: str, said: dict[str, Any], title: str
) -> None:
    [found] = judge_output(text.encode(), Asked(H100, **said))
    assert found.title.startswith(title)
    assert found.judged


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("-x NCCL_IB_HCA=mlx5_0,mlx5_1", "NCCL_IB_HCA=mlx5_0,mlx5_1 (ranks may use 2 NICs a node)"),
        ("-x NCCL_IB_HCA=mlx5", ""),
        ("-x NCCL_IB_DISABLE=1", "NCCL_IB_DISABLE=1 (no RDMA)"),
        ("-x NCCL_P2P_DISABLE=1", "NCCL_P2P_DISABLE=1 (no direct copies between accelerators)"),
        ("-x NCCL_IB_SPLIT_DATA_ON_QPS=1", "NCCL_IB_SPLIT_DATA_ON_QPS=1 (another use of queue"),
        ("-x NCCL_IB_GID_INDEX=3", ""),
    ],
)
def test_settings_of_a_slow_run_are_its_first_reasons(command: str, reason: str) -> None:
    version = "NCCL version 2.27.5+cuda12.9\n"
    text = table(row(8 * GIB, 60.0), named=f"{command} all_reduce_perf -b 8G", ranks=devices())
    [found] = judge_output((version + text).encode(), Asked(H100))
    first = found.sizes[-1].reasons[0]
    assert (reason in first) if reason else ("settings" not in first)


def test_a_size_that_only_one_runs_error_leaves_open_passes_by_a_larger_one() -> None:
    text = table(row(4 * GIB, 356.0), row(8 * GIB, 391.0), ranks=devices())
    assert verdict(text) is Verdict.PASS
    assert verdict(table(row(8 * GIB, 356.0), ranks=devices())) is Verdict.INCONCLUSIVE
    by_nvls = (row(4 * GIB, 391.0), row(8 * GIB, 467.0))
    assert verdict(table(*by_nvls, named="all_reduce_perf -b 4G", ranks=devices())) is Verdict.PASS


def test_nodes_of_one_domain_that_send_over_their_nics_are_told_so() -> None:
    spec = load_spec(CLUSTERS / "gb200-nvl72.yaml")
    line = row(8 * GIB, 85.0).replace(f"{85 / FACTOR:.2f}", f"{85 / 1.75:.2f}")
    text = table(line, named="all_reduce_perf -b 8G", ranks=devices(2, 4))
    [found] = judge_output(text.encode(), Asked(spec))
    assert "NCCL_MNNVL_ENABLE" in found.sizes[-1].reasons[0]


def inside(busbw: float, *, nvls: bool) -> str:
    line = row(8 * GIB, busbw).replace(f"{busbw / FACTOR:.2f}", f"{busbw / 1.75:.2f}")
    named = f"NCCL_NVLS_ENABLE={int(nvls)} all_reduce_perf -b 8G"
    return NVLS * nvls + table(line, named=named, ranks=devices(1))


@pytest.mark.parametrize(
    ("busbw", "nvls", "expected"),
    [
        (479.7, True, Verdict.PASS),
        (365.6, True, Verdict.FAIL),  # a ring, where the switches should reduce
        (365.6, False, Verdict.PASS),
        (183.0, False, Verdict.FAIL),
    ],
)
def test_one_node_is_held_to_its_nvlink(busbw: float, nvls: bool, expected: Verdict) -> None:
    [found] = judge_output(inside(busbw, nvls=nvls).encode(), Asked(H100))
    assert found.title.startswith("all_reduce, 1 node of 8 ranks")
    assert verdict_of([found]) is expected
    said = " ".join(found.sizes[0].reasons)
    assert ("NCCL_NVLS_ENABLE" in said) is (nvls and expected is Verdict.FAIL)


@pytest.mark.parametrize(
    ("model", "busbw", "expected"),
    [
        ("NVIDIA GeForce RTX 5090", 27.3, Verdict.PASS),
        ("NVIDIA GeForce RTX 5090", 13.0, Verdict.FAIL),
        ("NVIDIA H200 NVL", 68.7, Verdict.PASS),  # bridges join some of them
        ("NVIDIA L40S", 68.7, Verdict.INCONCLUSIVE),  # which this one has not
    ],
)
def test_one_node_of_cards_on_pcie(model: str, busbw: float, expected: Verdict) -> None:
    accelerators = H100.accelerators.model_copy(update={"model": model})
    spec = H100.model_copy(update={"accelerators": accelerators})
    [found] = judge_output(inside(busbw, nvls=False).encode(), Asked(spec))
    assert verdict_of([found]) is expected
    assert ("NCCL_P2P_LEVEL" in " ".join(found.sizes[0].reasons)) is (expected is Verdict.FAIL)


def test_one_node_whose_nvlink_is_not_known_is_shown_and_not_judged() -> None:
    accelerators = H100.accelerators.model_copy(update={"model": "Wattle 9"})
    spec = H100.model_copy(update={"accelerators": accelerators})
    [found] = judge_output(inside(479.7, nvls=True).encode(), Asked(spec))
    assert (found.sizes[0].value, found.sizes[0].wire, found.judged[:-1]) == (479.7, None, [])
    assert "accelerators.domain.bandwidth" in found.why
    assert verdict_of([found]) is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([350.0, 391.0], Verdict.INCONCLUSIVE),  # a little short, where a larger size is not
        ([341.0, 391.0], Verdict.INCONCLUSIVE),
        ([341.0, 342.0, 391.0], Verdict.FAIL),  # two sizes are no chance: not all larger ones pass
        ([341.0, 391.0, 391.0], Verdict.INCONCLUSIVE),
        ([391.0, 341.0, 391.0], Verdict.INCONCLUSIVE),
        ([250.0, 341.0, 391.0], Verdict.FAIL),
        ([250.0, 391.0], Verdict.FAIL),
        ([391.0, 330.0], Verdict.FAIL),
    ],
)
def test_a_dip_that_larger_sizes_do_not_share(values: list[float], expected: Verdict) -> None:
    rows = (row(4 * GIB << at, busbw) for at, busbw in enumerate(values))
    text = 3 * table(*rows, ranks=devices())
    assert verdict(text.replace("350.00", "340.00").replace("186.67", "181.33")) is expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [([80, 300, 300], Verdict.PASS), ([80, 300], Verdict.FAIL), ([80, 80, 300], Verdict.FAIL)],
)
def test_a_dip_below_several_sizes_that_nothing_promises(
    values: list[float], expected: Verdict
) -> None:
    rows = (f"{8 * GIB << at},{busbw}" for at, busbw in enumerate(values))
    text = "\n".join(["coll,nodes,ranks,size,busbw", *(f"all_gather,2,16,{one}" for one in rows)])
    assert verdict(text) is expected


@pytest.mark.parametrize(
    ("busbw", "expected"),
    [(48.0, Verdict.PASS), (23.0, Verdict.FAIL), (92.0, Verdict.INCONCLUSIVE)],
)
def test_each_group_that_runs_at_once_has_its_part_of_the_nics(
    busbw: float, expected: Verdict
) -> None:
    """NCCL_TESTS_SPLIT_MASK=7 makes groups of the ranks of one place on each node."""
    ranks = "".join(
        f"# Rank {node} Group {place} Pid {9 * node + place} on oak{node} device {place}\n"
        for node in (0, 1)
        for place in range(8)
    )
    [found] = judge_output((ranks + bare("sum", "-1", busbw, busbw)).encode(), Asked(H100))
    assert found.title == "all_reduce, 2 nodes of 1 rank, each of 8 groups at once"
    assert verdict_of([found]) is expected


def test_the_part_of_a_group_with_several_ranks_of_each_node() -> None:
    """Four groups of two of a node's eight ranks: two of its eight NICs each."""
    test = NcclTest(ranks=16, groups=4, group_hosts=2, hosts=("oak0", "oak1"), nodes=2)
    own, part = _of_a_group(test, H100)
    assert (own.ranks, own.nodes, own.groups, own.hosts) == (4, 2, 1, ("oak0", "oak1"))
    assert part.fabric.line_rate_bits_s == 2 * H100.fabric.line_rate_bits_s
    assert (part.fabric.nics_per_node, part.accelerators.per_node) == (1, 2)
    unequal = replace(test, ranks=12)
    assert _of_a_group(unequal, H100) == (unequal, H100)


@pytest.mark.parametrize(("busbw", "expected"), [(330, Verdict.PASS), (5.3, Verdict.FAIL)])
def test_a_table_of_small_sizes_is_judged_by_its_largest(busbw: float, expected: Verdict) -> None:
    """By steps that take twice as long as the model's."""
    [found] = judge_output(table(row(256 << 20, busbw), ranks=devices()).encode(), Asked(H100))
    assert verdict_of([found]) is expected
    assert found.sizes[0].judged
    assert "2 × (NCCL" in found.sizes[0].judged.source


def test_an_old_table_and_no_list_of_ranks() -> None:
    line = f"{8 * GIB} {2 * GIB} float sum 100.5 {391 / FACTOR:.2f} 391.00 2e-07"
    old = f"{OLD}{line} 100.5 {391 / FACTOR:.2f} 391.00 2e-07\n{END}"
    assert verdict(old, nodes=2, collective="all_reduce", algorithm="ring") is Verdict.PASS
    logged = "oak0:90:91 [0] NCCL INFO ncclCommInitRank comm 0x5 rank 0 nRanks 16 nNodes 2 - Init\n"
    assert verdict(f"$ NCCL_ALGO=Ring all_reduce_perf -b 8G\n{logged}{old}") is Verdict.PASS


@pytest.mark.parametrize(
    ("network", "word"), [("Socket/0", "silent TCP"), ("IB/0", "no GPUDirect")]
)
def test_a_reason_in_nccls_log_comes_first(network: str, word: str) -> None:
    log = "".join(
        f"oak0:90:91 [0] NCCL INFO Channel 0{i}/0 : 0[0] -> 8[0] [send] via NET/{network}\n"
        for i in range(2)
    )
    [found] = judge_output(SLOW.replace(COLUMNS, log + COLUMNS).encode(), Asked(H100))
    assert found.sizes[-1].reasons[0].startswith(word)
    assert "2 of 2 network channels" in found.sizes[-1].reasons[0]


def test_unused_nics_are_named_if_all_ranks_of_a_host_logged() -> None:
    def log(ranks: int) -> str:
        return "".join(
            f"oak0:{90 + rank}:9 [{rank}] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB\n"
            f"oak0:{90 + rank}:9 [{rank}] NCCL INFO Channel 0{rank}/0 : {rank}[{rank}] -> 8[0] "
            f"[send] via NET/IB/{rank % 2}/GDRDMA\n"
            for rank in range(ranks)
        )

    for ranks, named in ((8, True), (1, False)):
        text = SLOW.replace(COLUMNS, log(ranks) + COLUMNS)
        [found] = judge_output(text.encode(), Asked(H100))
        reasons = found.sizes[-1].reasons
        assert any(one.startswith("oak0 uses 2 of 8 NICs") for one in reasons) is named


CSV = "size_bytes,time_us,algbw_gbytes_s,busbw_gbytes_s\n8589934592,41203.5,208.48,390.9\n"


@pytest.mark.parametrize(
    ("text", "busbw"),
    [
        (CSV, 390.9),
        (CSV.replace("\n", "\r\n"), 390.9),
        (f"\ufeff{CSV}", 390.9),
        (f"# my cluster\n\n{CSV}average,,,390.9\n", 390.9),
        ("size,busbw\n8G,390.9\n", 390.9),
        ("size,busbw\n8 GiB,390.9\n", 390.9),
        ("Message Size (GiB);Bus bandwidth (GB/s)\n8;390,9\n", 390.9),
        ("Size (B)\tBusBW (Gbit/s)\n8,589,934,592\t3127.2\n", 390.9),
        ('size,"algbw (GB/s)"\n"8,589,934,592",208.48\n', 390.9),
        ("size,time (ms)\n8GiB,41.2035\n", 390.9),
        ("size time(us) algbw(MB/s)\n8589934592 41203.5 208480\n", 390.9),
        ("| size | busbw |\n| ---- | ----: |\n| 8G | 390.9 |\n", 390.9),
        ("size,oop_busbw,ip_busbw\n8G,390.9,10\n", 390.9),
        (
            "Size (B),Busbw (GB/s) Out-of-place,#Wrong Out-of-place,Busbw (GB/s) In-place\n"
            "8589934592,390.9,0,10\n",
            390.9,
        ),
        ("ip_busbw,size\n390.9,8G\n", 390.9),
        ("size_bytes,max_busbw_gbytes_s,avg_busbw_gbytes_s\n8589934592,399.0,390.9", 390.9),
        ("| Scope | Peak busbw (GB/s) | At size |\n|---|---|---|\n| two | 390.9 | 8 GiB |", 390.9),
        # Bold, and a time that may mean two things.
        ("| size | time (us) | busbw |\n| 8 GiB | 41,203 | **390.9** |\n", 390.9),
    ],
)
def test_a_csv_in_common_spellings(text: str, busbw: float) -> None:
    [found] = judge_output(text.encode(), Asked(H100, 2, None, "all_reduce", "ring"))
    [size] = found.sizes
    assert size.size_bytes == 8 * GIB
    assert size.value == pytest.approx(busbw, rel=1e-3)
    assert verdict_of([found]) is Verdict.PASS


def test_a_gb_may_be_binary_where_the_rate_shows_it() -> None:
    text = "size,time (us),algbw\n8 GB,{},208.48\n"
    said: dict[str, Any] = {"nodes": 2, "collective": "all_reduce"}
    assert verdict(text.format(41203.5), algorithm="ring", **said) is Verdict.PASS
    with pytest.raises(UsageError, match=r"size / time is 160 GB/s"):
        verdict(text.format(50000), **said)


def test_a_csv_may_say_collective_ranks_and_wrong_values() -> None:
    head = "collective,nodes,ranks,size,busbw,#wrong\n"
    good, bad = "all_reduce,2,16,8G,390,0\n", "AllReduce,4,32,8G,390,1\n"
    asked = Asked(H100, algorithm="ring")
    first, second = judge_output(f"{head}{good}{bad}".encode(), asked)
    assert (first.title, verdict_of([first])) == (
        *("all_reduce, ring pinned, 2 nodes of 8 ranks", Verdict.PASS),
    )
    assert (second.title, verdict_of([second])) == (
        *("all_reduce, ring pinned, 4 nodes of 8 ranks", Verdict.FAIL),
    )


RCCL_KEYS = [
    "name",
    "ranks",
    "gpusPerRank",
    "size",
    "type",
    "redop",
    "inPlace",
    "time",
    "algBw",
    "busBw",
    "#wrong",
]
RCCL_ROWS: list[list[Any]] = [
    ["AllReduce", 8, 2, 8 * GIB, "float", "sum", place, 41203.5, 208.48, busbw, str(wrong)]
    for place, busbw, wrong in ((0, 390.9, 0), (1, 389.0, 2))
]
RCCL_JSON = [json.dumps(dict(zip(RCCL_KEYS, row, strict=True))) for row in RCCL_ROWS]


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(",".join(map(str, row)) for row in [RCCL_KEYS, *RCCL_ROWS]),
        "\n".join(RCCL_JSON),
        f"[{', '.join(RCCL_JSON)}]",
    ],
)
def test_the_files_of_rccl_tests(text: str) -> None:
    [found] = judge_output(text.encode(), Asked(H100, 2, algorithm="ring"))
    assert found.title.startswith("all_reduce, ring pinned, 2 nodes of 8")
    assert [(one.value, one.in_place) for one in found.sizes] == [(390.9, 389.0)]
    assert found.wrong is not None
    assert (found.wrong.value, verdict_of([found])) == (2, Verdict.FAIL)
    if text.startswith("["):
        [cut] = judge_output(text[:-1].encode(), Asked(H100, 2, algorithm="ring"))
        assert cut.rest is not None
        assert cut.rest.note == "aborted: its JSON has no end"


@pytest.mark.parametrize(
    "prefix",
    [
        *("node1: ", "1: ", " 1: ", "[1,0]<stdout>:", "\x1b[32m", "worker-0  | ", "[rank0]: "),
        *("2026-03-01T10:11:1{}.123Z ", "[12:30:1{}] ", "Mar 01 10:11:1{} oak run[12]: ", "    "),
        *("2026-03-01T10:11:1{}.123456789Z stdout F ", "(RayActor pid=12, ip=10.0.0.1) "),
    ],
)
def test_logs_of_any_collector(prefix: str) -> None:
    """Also a CSV whose first column would be hidden behind what stands before each line."""
    lines = (f"{prefix.format(i % 10)}{line}" for i, line in enumerate(GOOD.splitlines()))
    assert verdict("\n".join(lines)) is Verdict.PASS
    of_csv = f"{prefix.format(1)}collective,size,busbw\n{prefix.format(2)}all_reduce,8G,391\n"
    assert verdict(of_csv, nodes=2, algorithm="ring") is Verdict.PASS


TWICE = "22906 351.56 351.56 0e+00 "
ALONE = "".join(f"#  Rank 0 Group 0 Pid {pid} on oak{pid} device 0 [0x1b] V100\n" for pid in (1, 2))


@pytest.mark.parametrize(
    ("text", "said", "title", "expected"),
    [
        # People leave out ranks, or the heading, or paste from Markdown.
        (re.sub("#  Rank  3.*\n", "", GOOD), {}, "all_reduce, ring pinned, 2", Verdict.PASS),
        (SLOW.replace(COLUMNS, ""), {}, "all_reduce, ring pinned, 2", Verdict.FAIL),
        (
            row(8 * GIB, 155.6),
            {"nodes": 2, "collective": "AllReduce"},
            "all_reduce, 2",
            Verdict.FAIL,
        ),
        (GOOD.replace("  8589934592 ", "| 8589934592 | "), {}, "all_reduce, ring", Verdict.PASS),
        # Rows from the middle, with a heading of somebody's own; a summary stands beside.
        (COLUMNS + row(8 * GIB, 476.0), {"nodes": 2}, "all_reduce, 2", Verdict.PASS),
        (f"{NOTED}{row(8 * GIB, 476.0)}{END}", {"nodes": 2}, "all_reduce, 2", Verdict.PASS),
        (
            f"| size | busbw |\n| 8 GiB | 476.0 |\n\n{NOTED}{row(8 * GIB, 476.0)}{END}",
            {"nodes": 2},
            "all_reduce, 2 nodes of 8 ranks, 2 runs",
            Verdict.PASS,
        ),
        # The end of the list of ranks is cut off.
        (re.sub("#  Rank 1[1-5].*\n", "", GOOD), {"nodes": 2}, "all_reduce, ring", Verdict.PASS),
        (SLOW.replace("_perf", "_perf_mpi"), {}, "all_reduce, ring pinned, 2", Verdict.FAIL),
        # The command stands above the table of another program.
        (
            f"all_reduce_perf -b 8G\n{bare('none', '-1', 90.0, 96.0)}".replace(" 0\n", " N/A\n"),
            {"nodes": 2},
            "all_to_all, 2",
            Verdict.PASS,
        ),
        # Nothing is sent where each process is alone, whatever collective it ran.
        (
            bare("sum", "-1", 0.0).replace("# ", ALONE + "# ", 1),
            {"nodes": 2},
            "nccl-tests",
            Verdict.INCONCLUSIVE,
        ),
        (
            bare("sum", "-1", 0.0).replace("# ", ALONE[:60] + "# ", 1),
            {},
            "nccl-tests",
            Verdict.INCONCLUSIVE,
        ),
        (
            devices() + "oak0: Test NCCL failure common.cu:9\n",
            {},
            "nccl-tests",
            Verdict.INCONCLUSIVE,
        ),
        # Until 2020 busbw stands twice, and in place an all-to-all has no right values.
        (
            f"{OLD}{8 * GIB} 1 float none {2 * TWICE}\n{END}",
            {"nodes": 2},
            "all_gather, 2",
            Verdict.PASS,
        ),
        (
            bare("none", "-1", 90.0, 96.0).replace(" 0\n", " N/A\n"),
            {"nodes": 2},
            "all_to_all, 2",
            Verdict.PASS,
        ),
    ],
)
def test_tables_as_people_paste_them(
    text: str, said: dict[str, Any], title: str, expected: Verdict
) -> None:
    collective = said.get("collective")
    said |= {"collective": collective and name_of(collective)}
    [found] = judge_output(text.encode(), Asked(H100, **said))
    assert found.title.startswith(title)
    assert verdict_of([found]) is expected


def test_of_runs_that_differ_the_worst_is_judged_and_named() -> None:
    [found] = judge_output(SEVERAL.encode(), Asked(H100))
    assert found.sizes[0].value == 197
    assert "5 runs" in found.title
    assert "run 3" in found.title
    here, there = judge_output((GOOD + SLOW.replace("oak", "elm")).encode(), Asked(H100))
    assert ("oak0, oak1" in here.title, "elm0, elm1" in there.title) == (True, True)
    assert [verdict_of([one]) for one in (here, there)] == [Verdict.PASS, Verdict.FAIL]


def test_every_kind_of_result_in_a_file_is_judged() -> None:
    port = perftest("RDMA_Write BW", "Gb/sec", (1 << 20, 391.5))
    gather = "coll,nodes,ranks,size,busbw\nall_gather,2,16,8G,388\n"
    for slow, whole in (("391.5", port), ("388", gather)):
        for text in (GOOD + whole, whole + GOOD):
            assert verdict(text) is Verdict.PASS
            assert len(judge_output(text.encode(), Asked(H100))) == 2
            assert verdict(text.replace(slow, "121.5")) is Verdict.FAIL
    assert verdict(port + SLOW) is Verdict.FAIL
    assert verdict(port + gather) is Verdict.PASS
    assert verdict(f"{port}oak1: Test CUDA failure common.cu:7\n") is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("name", "word", "expected"),
    [
        ("status", "OK", Verdict.PASS),
        ("result", "Passed", Verdict.PASS),
        ("exit_code", "0", Verdict.PASS),
        ("state", "success", Verdict.PASS),
        ("status", "TIMEOUT", Verdict.INCONCLUSIVE),
        ("result", "", Verdict.INCONCLUSIVE),
        ("exit code", "137", Verdict.INCONCLUSIVE),
    ],
)
def test_a_row_counts_only_if_its_status_is_a_success(
    name: str, word: str, expected: Verdict
) -> None:
    fine = {"OK": "ok", "Passed": "pass"}.get(word, "0")
    for small, large in ((fine, word), (word, fine)):
        text = f"size,busbw,{name}\n1M,30,{small}\n8G,391,{large}\n"
        said: dict[str, Any] = {"collective": "all_reduce", "algorithm": "ring", "nodes": 2}
        assert verdict(text, **said) is expected


def test_a_program_without_a_known_rate_leaves_the_others_to_be_judged() -> None:
    unknown, known = judge_output(f"{GOOD.replace('all_red', 'no_')}{SLOW}".encode(), Asked(H100))
    assert (unknown.title, unknown.judged) == ("no_uce_perf", [])
    assert unknown.why
    assert verdict_of([unknown, known]) is verdict(SLOW)


def test_the_rates_of_one_side_are_not_those_of_both() -> None:
    """perftest --report-both prints the sum of both directions, then each."""
    head = "#bytes iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]\n"
    rule = f"{'-' * 30}\n"
    rates = [f"{head}8388608 1000 0.00 **{rate}** 0.1\n{rule}" for rate in (784.2, 392.0)]
    text = f"Send Bidirectional BW Test\n{rates[0]}\n Local results: \n{rule}{rates[1]}"
    written = [
        f'"{key}": {{"MsgSize": 8388608, "BW_average": {rate}, "MsgRate": {rate / 8 / 8388.608}}}'
        for key, rate in (("results", 784.2), ("results_local", 392.0), ("results_remote", 392.1))
    ]
    named = '{"test_info": {"test": "Send_Bidirectional_BW_Test"}, '
    of_command = text.partition("\n Local")[0].partition("\n")[2]
    of_command = f"$ ib_send_bw -d mlx5_0 -b --report_gbits 10.0.0.1\n{of_command}"
    for output in (
        text,
        of_command,
        f"{named}{', '.join(written)}}}",
        f"{named}{', '.join(written[1:])}}}",
    ):
        [found] = judge_output(output.encode(), Asked(H100))
        assert [round(size.value or 0) for size in found.sizes] == [392]


@pytest.mark.parametrize("width", [50, 60, 72])
def test_lines_broken_by_a_terminal(width: int) -> None:
    for text in (GOOD, SLOW):
        assert verdict(re.sub(f"(.{{{width}}})", r"\1\n", text)) is verdict(text)


@pytest.mark.parametrize("text", [GOOD, SLOW])
def test_records_of_log_collectors(text: str) -> None:
    expected = verdict(text)
    lines = text.splitlines()
    for key in ("log", "message", "textPayload"):
        records = (json.dumps({"time": "10:00", key: f"{line}\n"}) for line in lines)
        assert verdict("\n".join(records)) is expected
    of_ansible = json.dumps({"changed": True, "stdout": text, "stdout_lines": lines}, indent=4)
    assert verdict(f"oak1 | CHANGED => {of_ansible}") is expected
    assert verdict("".join(f'1735689600,"{line}"\n' for line in lines)) is expected


def test_rows_as_json_are_those_of_a_csv() -> None:
    rows = [{"size_bytes": 8 * GIB, "busbw_gbytes_s": rate} for rate in (391.0, 390.0, 392.0)]
    said: dict[str, Any] = {"nodes": 2, "collective": "all_reduce", "algorithm": "ring"}
    assert verdict(json.dumps(rows), **said) is Verdict.PASS
    assert verdict(json.dumps({"by": "x", "rows": rows[:1]}, indent=1), **said) is Verdict.PASS


def test_each_port_is_judged_by_its_worst_run() -> None:
    def run(device: str, rate: float) -> str:
        return (
            f"{'-' * 30}\nRDMA_Write BW Test\n Dual-port : OFF Device         : {device}\n"
            "#bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]\n"
            f"65536 1000 0.00 {rate} 0.1\n{'-' * 30}\n"
        )

    text = run("mlx5_0", 391.8) + run("mlx5_1", 196.8) + run("mlx5_0", 392.0) + run("mlx5_1", 391.0)
    good, slow = judge_output(text.encode(), Asked(H100))
    assert ("mlx5_0" in good.title, "mlx5_1" in slow.title) == (True, True)
    assert [round(one.sizes[0].value or 0, 1) for one in (good, slow)] == [391.8, 196.8]
    assert [verdict_of([one]) for one in (good, slow)] == [Verdict.PASS, Verdict.FAIL]


@pytest.mark.parametrize(
    "end",
    [
        f"{'-' * 30}\n",
        "#bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]\n",
        " Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81\n",
    ],
)
def test_a_port_without_a_rate_is_not_made_good_by_the_others(end: str) -> None:
    good = perftest("RDMA_Write BW", "Gb/sec", (65536, 391.2))
    text = f"{good}{RULE}\nRDMA_Write BW Test\n Dual-port : OFF Device         : mlx5_6\n{end}"
    rated, broken = judge_output(text.encode(), Asked(H100))
    assert (verdict_of([rated]), broken.sizes) == (Verdict.PASS, ())
    assert broken.rest is not None
    assert verdict(text) is Verdict.INCONCLUSIVE


def test_perftests_own_json() -> None:
    text = (
        '{"test_info": {"test": "RDMA_Write BW Test", "Device": "mlx5_0"}, "results": {"MsgSize": '
        '1048576, "n_iterations": 5000, "BW_average": 392.60, "MsgRate": 0.046802}}'
    )
    [found] = judge_output(text.encode(), Asked(H100))
    assert (found.title, found.sizes[0].value) == ("ib_write_bw, mlx5_0", 392.6)
    assert verdict(3 * text) is Verdict.PASS
    assert verdict(3 * text.replace("392.60", "200.00").replace("46802", "23842")) is Verdict.FAIL


@pytest.mark.parametrize(
    ("text", "said", "message"),
    [
        ("", {}, "empty"),
        (" \n\n", {}, "empty"),
        (b"\x1f\x8b\x08\x00\x00\xff", {}, "no text, but a binary file"),
        ("Hello, world\n", {}, "no results; accepted: the output of nccl-tests"),
        (GOOD, {"nodes": 4}, "--nodes=4, but the file has ranks on 2 hosts"),
        (GOOD, {"procs_per_node": 4}, "--procs-per-node=4 on 2 nodes, but the file has 16 ranks"),
        (GOOD, {"algorithm": "default"}, "--algorithm=default, but the file has NCCL_ALGO=Ring"),
        (GOOD, {"collective": "all_gather"}, "--collective=all_gather, but the file has all_red"),
        (table(row(8 * GIB, 391.0)), {"nodes": 4}, "busbw / algbw is 1.875 at 8 GiB, but 1.938"),
        (table(row(8 * GIB, 0.15)), {}, "--nodes: missing"),
        (bare("none", "-1", 375.0).replace(".00 0", ".00 N/A"), {"nodes": 2}, "--collective: miss"),
        (CSV, {"nodes": 2}, "--collective: missing"),
        (CSV, {"collective": "all_reduce"}, "--nodes: missing"),
        (GOOD.replace("all_reduce", "hypercube"), {}, "hypercube_perf; accepted: all_reduce"),
        ("size,busbw\n8G,39", {"nodes": 2, "collective": "all_reduce"}, ""),
        ("size,busbw\n8G\n", {"nodes": 2, "collective": "all_reduce"}, "line 2: 1 cells, but the"),
        ("size,busbw_gbps\n8G,390\n", {}, "line 1: bandwidth in 'gbps' may be in bytes or bits"),
        ("size,busbw\n8 parsecs,390\n", {}, "line 2: '8 parsecs' has the unknown unit"),
        ("size;busbw\n8G;1,024\n", {}, "line 2: '1,024' may be 1024 or 1.024"),
        ("size,busbw\n8G,fast\n", {}, "line 2: could not convert"),
        (CSV.replace("time_us", "time_ms"), {"nodes": 2, "collective": "all_reduce"}, "line 2: si"),
    ],
)
def test_a_file_that_cannot_be_judged_is_one_line(
    text: str | bytes,
    said: dict[str, object],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "mine.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    options = [f"--{key.replace('_', '-')}={value}" for key, value in said.items()]
    status = main(["expect", f"--spec={PATH}", f"--of={path}", *options])
    if not message:
        assert status == 1  # 39 GB/s is what the cut line says
        return
    assert status == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"python -m pytest_mnode expect: {path}: {message}")


@pytest.mark.parametrize("text", [GOOD, SLOW])
def test_a_file_from_standard_input(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    status = main(["expect", f"--spec={PATH}", "--nodes=2", "--of=-"])
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "standard input, judged by H100 8×400G InfiniBand (profile)"
    [large] = [line for line in out if line.startswith("8 GiB ")]
    assert "≥ 354" in large
    if text is GOOD:
        assert (status, large.split()[-5:-4]) == (0, ["pass"])
        assert out[-1] == "pass: 2 of 2 judged values pass"
    else:
        assert status == 1
        assert "FAIL" in large
        assert "8 GiB, likeliest reasons:" in out
        assert out[-1] == "fail: 1 of 2 judged values pass"


def test_a_missing_file_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["expect", f"--spec={PATH}", "--of=/nowhere.txt"]) == 2
    assert "--of=/nowhere.txt: No such file" in capsys.readouterr().err


RULE = "-" * 70


def perftest(title: str, unit: str, *rows: tuple[int, float]) -> str:
    lines = "".join(f" {size} 5000 {rate} {rate} 0.05\n" for size, rate in rows)
    head = f" #bytes #iterations BW peak[{unit}] BW average[{unit}] MsgRate[Mpps]\n"
    return f"{RULE}\n   {title} Test\n{RULE}\n{head}{lines}{RULE}\n"


CUT_SHORT = perftest("RDMA_Write BW", "Gb/sec", (1 << 20, 392.6)).replace(" MsgRate[Mpps]", "")
"""A heading that lacks the last column of its row."""
AT_ONCE = f"{RULE}\n RDMA_Write BW Test\n Device : mlx5_0\n" + (
    f"{RULE}\n RDMA_Write BW Test\n Device : mlx5_1\n{RULE}\n #bytes #iterations BW peak[Gb/sec] "
    f"BW average[Gb/sec] MsgRate[Mpps]\n 65536 5000 0.0 391.0 0.7\n{RULE}\n 65536 5000 391.0 391.0 "
    f"0.7\n{RULE}\n"
)
"""Two tests in one terminal."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (perftest("RDMA_Write BW", "Gb/sec", (1 << 20, 392.6)), Verdict.PASS),
        (perftest("RDMA_Write BW", "Gb/sec", (1 << 20, 201.0)), Verdict.FAIL),
        (perftest("RDMA_Write BW", "Gb/sec", (1 << 20, 779.6)), Verdict.INCONCLUSIVE),
        (perftest("RDMA_Write BW", "MiB/sec", (1 << 20, 46800.0)), Verdict.PASS),
        (perftest("RDMA_Write Bidirectional BW", "Gb/sec", (1 << 20, 779.6)), Verdict.PASS),
        (perftest("RDMA_Write BW", "Gb/sec", (65536, 392.6)), Verdict.PASS),
        (perftest("RDMA_Write BW", "Gb/sec", (65536, 216.0)), Verdict.FAIL),
        (perftest("RDMA_Write BW", "Gb/sec", (4096, 216.0)), Verdict.INCONCLUSIVE),
        (perftest("RDMA_Read BW", "Gb/sec", (1 << 20, 372.6)), Verdict.PASS),
        (
            perftest("RDMA_Write BW", "Gb/sec", (1 << 20, 392.6))
            + perftest("RDMA_Read BW", "Gb/sec", (1 << 20, 1.0)),
            Verdict.FAIL,
        ),
        # Of one size the row is all that there is.
        (perftest("RDMA_Write BW", "Gb/sec", (1 << 20, 9.0))[:-71], Verdict.FAIL),
        (CUT_SHORT, Verdict.PASS),
        (AT_ONCE, Verdict.PASS),
        (AT_ONCE.replace("391.0", "191.0"), Verdict.FAIL),
        (AT_ONCE.partition(" 65536 5000 391")[0], Verdict.INCONCLUSIVE),  # one of two
        ((PERFTEST / "write_bw-all-sizes.client.txt").read_bytes(), Verdict.FAIL),
        ((PERFTEST / "write_lat.client.txt").read_bytes(), Verdict.INCONCLUSIVE),
    ],
)
def test_perftest_is_judged_by_its_own_promise(text: str | bytes, expected: Verdict) -> None:
    assert verdict(text) is expected
    if b"RDMA_Write BW" in (text.encode() if isinstance(text, str) else text):
        output = text if isinstance(text, bytes) else text.encode()
        assert judge_output(output, Asked(H100))[-1].sizes[-1].wire == 400


@pytest.mark.parametrize(
    ("size", "rate", "reason"),
    [
        (65536, 201.0, "half of the port"),
        (1 << 20, 98.0, "a quarter of the port"),
        (1 << 20, 250.0, "client or server ran"),
        (1 << 20, 370.0, "RoCE at an MTU of 1024"),
        (65536, 380.0, ""),
        (2, 0.1, ""),
    ],
)
def test_a_slow_port_has_its_reasons(size: int, rate: float, reason: str) -> None:
    text = perftest("RDMA_Write BW", "Gb/sec", (size, rate))
    [found] = judge_output(text.encode(), Asked(H100))
    reasons = found.sizes[0].reasons
    assert reasons[0].startswith(reason) if reason else not reasons


def test_a_latency_is_judged_at_the_promised_size() -> None:
    fabric = H100.criteria.fabric
    assert fabric is not None
    promised = {"write_latency": {"at_most": "5 us"}}
    given = type(fabric).model_validate(promised)
    criteria = H100.criteria.model_copy(update={"fabric": given})
    spec = H100.model_copy(update={"criteria": criteria})
    assert verdict((PERFTEST / "write_lat.client.txt").read_bytes(), spec) is Verdict.FAIL
