"""What fio prints, of versions 2 and 3, with warnings, errors and cuts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_mnode.logs.fio import read_fio

NONE = {"io_bytes": 0, "io_kbytes": 0, "bw_bytes": 0, "bw": 0, "iops": 0.0, "runtime": 0}
# Recorded: fio 3.33, two jobs of 16 MiB with --group_reporting.
WRITE = {
    **{"io_bytes": 33554432, "io_kbytes": 32768, "bw_bytes": 2581110153, "bw": 2520615},
    **{"iops": 2461.538462, "runtime": 13, "total_ios": 32},
    "clat_ns": {"mean": 729316.34, "percentile": {"50.000000": 684032, "99.000000": 1073152}},
}
# As fio 2.2 prints it: sizes in KiB, times in us.
OLD = {
    **{"io_bytes": 32768, "bw": 2520615, "iops": 2461.54, "runtime": 13},
    "clat": {"mean": 729.3, "percentile": {"99.000000": 1073, "99.900000": 1100}},
}
STARTED = "fio: this platform does not support process shared mutexes, forcing use of threads.\n"


def page(*jobs: dict[str, Any], version: str = "fio-3.33", key: str = "jobs") -> str:
    """A result with these jobs, each with what it wrote."""
    every = [{"jobname": "a", "error": 0, "read": NONE, "write": NONE, **job} for job in jobs]
    return json.dumps({"fio version": version, key: every}, indent=2)


SEVERAL = page({"write": WRITE}, {"write": {**WRITE, "runtime": 26}})


@pytest.mark.parametrize(
    ("output", "size", "time_s"),
    [
        (page({"write": WRITE}), 2**25, 0.013),
        (page({"write": OLD}, version="fio-2.2.10"), 2**25, 0.013),
        (f"{STARTED}{page({'write': WRITE})}\nRun status group 0:\n", 2**25, 0.013),
        (SEVERAL, 2**26, 0.026),
        (page({"write": {**WRITE, "bw_bytes": 0}}), 2**25, 0.013),
        (page({"write": {k: v for k, v in WRITE.items() if k != "runtime"}}), 2**25, 0.013),
        (
            page({"jobname": "All clients", "write": WRITE}, {"write": WRITE}, key="client_stats"),
            *(2**25, 0.013),
        ),
        (page({"write": WRITE}).replace("2461.538462", "2461,538462"), 2**25, 0.013),
        (page({"write": WRITE}).replace("729316.34", "-nan"), 2**25, 0.013),
    ],
)
def test_what_was_written(output: str, size: int, time_s: float) -> None:
    found = read_fio(output)
    assert (found.errors, found.read) == ((), None)
    assert found.write is not None
    assert found.write.size_bytes == pytest.approx(size, rel=1e-5)
    assert found.write.time_s == pytest.approx(time_s, rel=1e-2)


FULL = "fio: pid=28892, err=28/file:io_u.c:1876, func=io_u error, error=No space left on device\n"


@pytest.mark.parametrize(
    ("output", "errors", "expected"),
    [
        (FULL + page({"error": 28, "write": WRITE}), "", ("No space left on device",)),
        (page({"error": 28}), "", ("No space left on device",)),
        ("", "fio: /no is not a directory\n", ("/no is not a directory",)),
        ("", "", ("it printed no JSON",)),
        (page({"write": WRITE})[:200], "", ("its output is cut",)),
        ('{"fio version": "fio-3.33", "jobs": []}', "", ("no job is in its JSON",)),
        ("[1, 2]", "", ("it printed no JSON",)),
    ],
)
def test_errors(output: str, errors: str, expected: tuple[str, ...]) -> None:
    assert read_fio(output, errors).errors == expected
