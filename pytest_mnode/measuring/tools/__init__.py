"""Programs that operators know, run on the cluster and read: perftest and nccl-tests.

Run from the controller through the cluster's own commands, so they need no ranks and no torch. What
they print is read by `probes`; bounds come from the spec, verdicts from `measure`. A program that
is absent, aborts or prints what cannot be read gives no value, which is inconclusive.
"""

from __future__ import annotations

from pytest_mnode.measuring.tools.judge import (
    record_devices,
    record_nccl_run,
    record_write_bandwidths,
)
from pytest_mnode.measuring.tools.nccl import NcclRun, program_of, run_nccl_tests
from pytest_mnode.measuring.tools.nodes import missing_on
from pytest_mnode.measuring.tools.rdma import PairBandwidth, devices_of, write_bandwidths
from pytest_mnode.spec.fabric import NcclTestsPromise, WriteBandwidthPromise

__all__ = [
    "WHERE_FOUND",
    "WRITES_WHERE_FOUND",
    "NcclRun",
    "PairBandwidth",
    "devices_of",
    "missing_on",
    "program_of",
    "record_devices",
    "record_nccl_run",
    "record_write_bandwidths",
    "run_nccl_tests",
    "write_bandwidths",
]

WHERE_FOUND = NcclTestsPromise.model_validate({})
WRITES_WHERE_FOUND = WriteBandwidthPromise.model_validate({})
"""How programs are run that are on every node's PATH and of which the spec says nothing."""
