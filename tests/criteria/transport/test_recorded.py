"""MPI over UCX recorded on two guests: an all-reduce over soft-RoCE, and one over TCP."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mnode.criteria.transport.evidence import Evidence
from pytest_mnode.logs.nccl_log.read import read_nccl_log
from tests.machines.all_reduce import evidence_of
from tests.machines.four_facts import PROMISE, faults, faults_on_tcp

RECORDED = Path(__file__).parents[3] / "fixtures/recordings/ucx"


def evidence(name: str) -> Evidence:
    lines = (RECORDED / name).read_text().splitlines()
    return evidence_of(lines, PROMISE.size_bytes, PROMISE.calls)


def test_all_four_facts_agree_over_rdma() -> None:
    assert faults(evidence("rc-1.13.jsonl")) == {}


def test_tcp_over_the_promised_nic_is_not_rdma() -> None:
    faults_on_tcp(evidence("tcp-1.13.jsonl"))


@pytest.mark.parametrize(
    ("name", "rdma", "tcp"),
    [("rc-1.13.log", ("rxe0:1",), ()), ("tcp-1.13.log", (), ("fab0",))],
)
def test_transports_of_ucx_logs(name: str, rdma: tuple[str, ...], tcp: tuple[str, ...]) -> None:
    """Process numbers are padded, and a thread may have a letter."""
    [config] = read_nccl_log((RECORDED / name).read_bytes()).ucx
    assert (config.rdma, config.tcp) == (rdma, tcp)
