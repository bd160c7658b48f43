"""Collectives over RDMA without a GPU: MPI over UCX, judged by the four facts."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from pytest_mnode.criteria.transport.evidence import Evidence
from tests.machines import all_reduce
from tests.machines.bed import Machines
from tests.machines.four_facts import PROMISE, faults, faults_on_tcp

LIMIT_S = 240.0
LOG = {"UCX_LOG_LEVEL": "info", "UCX_LOG_FILE": "/tmp/ucx.%h.%p"}
# UCX connects by datagrams, and soft-RoCE's do not show the GID that they were sent to: with
# UCX's check of it all of them are dropped.
RDMA = {"UCX_TLS": "rc", "UCX_NET_DEVICES": "rxe0:1", "UCX_UD_VERBS_ETH_DGID_CHECK": "n"}
TCP = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "fab0"}
MPIRUN = """
cd /tmp
rm -f /tmp/ucx.*
ulimit -l unlimited
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mpirun.openmpi --host {hosts} --mca plm_rsh_agent 'ssh -F {config}' \
    --mca oob_tcp_if_include mgmt0 --mca pml ucx \
    --mca opal_common_ucx_tls any --mca opal_common_ucx_devices any {settings} \
    {python} -P {program} {size} {calls}
"""


def all_reduced(machines: Machines, settings: Mapping[str, str]) -> Evidence:
    """Evidence of all-reduces with one rank per guest; all sums are correct."""
    paths = f"{Path(__file__).parents[2]}:/usr/lib/python3/dist-packages"
    environment = {**LOG, **settings, "PYTHONPATH": paths}
    script = MPIRUN.format(
        hosts=",".join(machines.names),
        config=machines.config,
        settings=" ".join(f"-x {name}={value}" for name, value in environment.items()),
        python=sys.executable,
        program=all_reduce.__file__,
        size=PROMISE.size_bytes,
        calls=PROMISE.calls,
    )
    lines = machines.guest("node0", script, LIMIT_S).splitlines()
    return all_reduce.evidence_of(lines, PROMISE.size_bytes, PROMISE.calls)


def test_an_all_reduce_runs_over_rdma(machines: Machines) -> None:
    assert faults(all_reduced(machines, RDMA)) == {}


def test_tcp_over_the_promised_nic_is_not_rdma(machines: Machines) -> None:
    faults_on_tcp(all_reduced(machines, TCP))
