"""What can be promised of preflight: its forms, its faults in one line, its doubts."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mnode.errors import SpecError
from pytest_mnode.spec import doubts
from tests.criteria.preflight.made import spec_of


def test_units_and_defaults(tmp_path: Path) -> None:
    spec = spec_of(
        tmp_path,
        "{reachable: {within: 500 ms}, names: {}, clocks: {skew: 2 ms}, same: [code, kernel],"
        " limits: {memlock: unlimited, shm: 64 GiB}, disk: [{path: /tmp, free: 1 TB}]}",
    )
    promise = spec.criteria.preflight
    assert promise is not None
    assert promise.reachable is not None
    assert (promise.reachable.within_s, promise.reachable.networks) == (0.5, ("fabric",))
    assert promise.names is not None
    assert promise.names.within_s == 1.0
    assert promise.limits is not None
    assert (promise.limits.memlock_bytes, promise.limits.shm_bytes) == ("unlimited", 64 << 30)
    assert promise.rdma is None  # what is left out is not promised
    assert doubts(spec) == []


@pytest.mark.parametrize(
    ("preflight", "told"),
    [
        ("{clocks: {}}", "criteria.preflight.clocks.skew: missing"),
        ("{clocks: {skew: 5}}", "criteria.preflight.clocks.skew: 5 has no unit"),
        ("{same: [kernal]}", "criteria.preflight.same[0]: 'kernal'; accepted: 'code'"),
        ("{same: [code, code]}", "criteria.preflight.same: [code, code] names one twice"),
        ("{same: []}", "criteria.preflight.same: [];"),
        ("{reachable: {networks: []}}", "criteria.preflight.reachable.networks: []"),
        ("{reachable: {master_port: 0}}", "criteria.preflight.reachable.master_port: 0"),
        ("{payload: {size: 4}}", "criteria.preflight.payload.size: 4 has no unit"),
        ("{speed: {at_least_fraction: 1.1}}", "criteria.preflight.speed.at_least_fraction: 1.1"),
        ("{environment: {allowed: [ib]}}", "criteria.preflight.environment.allowed[0]: 'ib'"),
        ("{disk: [{path: tmp, free: 1 GB}]}", "criteria.preflight.disk[0].path: 'tmp'"),
        ("{gpudirect: maybe}", "criteria.preflight.gpudirect: 'maybe'"),
        ("{limits: {memlock: 5}}", "criteria.preflight.limits.memlock"),
        ("{pings: {}}", "criteria.preflight.pings: unknown key"),
    ],
)
def test_a_fault_is_one_line(tmp_path: Path, preflight: str, told: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec_of(tmp_path, preflight)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("preflight", "line"),
    [
        ("{names: {within: 10 s}}", "names.within: 10 s: torchrun stalls"),
        ("{clocks: {skew: 1 min}}", "clocks.skew: 1 min: logs of two nodes"),
        ("{speed: {at_least_fraction: 0.5}}", "speed.at_least_fraction: 0.5: a link that came up"),
        ("{rdma: {}}", "rdma: given, but fabric.kind is ethernet"),
        ("{gpudirect: either}", "gpudirect: given, but accelerators.per_node is 0"),
        ("{accelerators: {}}", "accelerators: given, but accelerators.per_node is 0"),
        ("{same: [nccl]}", "same: nccl, but accelerators.per_node is 0"),
        ("{payload: {size: 64 KiB}}", "payload.size: 64 KiB: a wire that changes a byte"),
        ("{storage: {writable: [datasets]}}", "storage.writable: datasets: preflight will write"),
    ],
)
def test_a_promise_that_cannot_be_right_is_doubtful(
    tmp_path: Path, preflight: str, line: str
) -> None:
    [doubt] = doubts(spec_of(tmp_path, preflight))
    assert doubt.startswith(f"criteria.preflight.{line}")


def test_gids_that_ports_do_not_have_are_doubtful(tmp_path: Path) -> None:
    wrong = spec_of(tmp_path, "{rdma: {gid_types: [IB, RoCE v2]}}", "roce")
    assert doubts(wrong) == [
        "criteria.preflight.rdma.gid_types: IB, which ports of roce do not have"
    ]
    assert doubts(spec_of(tmp_path, "{rdma: {gid_types: [RoCE v2]}}", "roce")) == []
