"""Real NUMA nodes: processes and perftest beside their NIC, and each way to be far from it."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator

import pytest

from pytest_mnode.logs.perftest import read_perftest
from pytest_mnode.machine.encoding import decode
from pytest_mnode.measuring.tools import perftest
from pytest_mnode.measuring.tools.beside_nic import ToolPlacement
from pytest_mnode.measuring.tools.perftest_pairs import PairResult
from pytest_mnode.spec.fabric import WriteBandwidthPromise
from tests.machines import placed
from tests.machines.bed import Machines, need_machines
from tests.machines.hardware import Hardware, Nic, NumaNode
from tests.measuring.tools.local import fabric_of

UNEVEN = Hardware(
    numa=(NumaNode(2, 640), NumaNode(1, 256), NumaNode(1, 256), NumaNode(0, 128)),
    nics=(Nic("mgmt0", None), Nic("fab0", 2)),
)
CASES = (
    ("fab0", ("--cpunodebind=2", "--membind=2"), "pass pass", "on NUMA node 2"),
    (
        "fab0",
        ("--cpunodebind=0", "--membind=0"),
        "fail fail",
        "is bound to CPUs 0-1 on NUMA node 0",
    ),
    ("fab0", (), "fail", "is not bound: it may run on all CPUs 0-3"),
    ("fab0", ("--physcpubind=2,3", "--membind=2"), "fail pass", "which span NUMA nodes 1-2"),
    ("fab0", ("--cpunodebind=2", "--membind=0"), "pass fail", "MiB on NUMA node 0"),
    ("fab0", ("--cpunodebind=2", "--membind=3"), "pass fail", "MiB on NUMA node 3"),
    ("mgmt0", ("--cpunodebind=0",), "inconclusive inconclusive", "mgmt0 (numa_node is −1"),
)


# Client and server on one machine; the client binds itself according to its arguments.
PERFTEST = """
cd /
beside() {{ {python} -P -m pytest_mnode.measuring.tools.beside_nic rxe0 nic host "$@"; }}
run="-d rxe0 -F -D 2 -s 65536"
beside ib_write_bw $run >/tmp/server &
until ss -ltn | grep -q :18515; do sleep 0.2; done
beside {how} ib_write_bw $run 127.0.0.1 >/tmp/client
wait
tail -n 1 /tmp/server
cat /tmp/client
"""


@pytest.fixture(scope="module")
def uneven() -> Iterator[Machines]:
    need_machines()
    with Machines(1, UNEVEN) as machines:
        yield machines


@pytest.mark.parametrize(
    ("how", "culprit"),
    [
        ("", None),
        (
            "numactl --cpunodebind=0 --membind=0",
            "ib_write_bw client on node0: CPUs 0-1, memory on NUMA node 0;"
            " expected beside rxe0 on NUMA node 2",
        ),
    ],
)
def test_perftest_runs_beside_its_nic_and_elsewhere_is_named(
    uneven: Machines, how: str, culprit: str | None
) -> None:
    script = PERFTEST.format(python=sys.executable, how=how)
    server, *output, client = uneven.guest("node0", script, limit_s=300).splitlines()
    read = read_perftest("\n".join(output))
    assert read.why_incomplete is None, output
    [(_, rate)] = read.rates_gbits_s
    assert rate is not None
    pair = PairResult(
        *("node0", "node0", "rxe0", rate),
        client=decode(ToolPlacement, client),
        server=decode(ToolPlacement, server),
    )
    assert pair.server is not None
    assert (pair.server.unknown, pair.server.problem) == ("", "")
    assert (pair.server.cpus, set(pair.server.memory_bytes or ())) == (frozenset({3}), {2})
    found = perftest.judge([pair], fabric_of(), WriteBandwidthPromise.model_validate({}))[-1]
    assert (found.value, found.culprit) == (0 if culprit is None else 1, culprit)


def test_four_uneven_nodes_and_a_nic_without_affinity(uneven: Machines) -> None:
    """Real processes bound by numactl, as a real kernel shows them."""
    cases = json.dumps([[nic, *how] for nic, how, _, _ in CASES])
    program = shlex.join([sys.executable, "-P", placed.__file__, cases])
    lines = uneven.guest("node0", f"cd /; {program}", limit_s=400).splitlines()
    *found, beside = map(json.loads, lines)
    for (_, _, expected, words), answers in zip(CASES, found, strict=True):
        verdicts, notes = zip(*answers, strict=True)
        assert " ".join(verdicts).startswith(expected), notes
        assert words in "; ".join(notes)
    assert beside == ["rxe0 on NUMA node 2", [3], [2]]
