"""elbencho's files of results: CSV of several versions, JSON, and what is cut or missing."""

from __future__ import annotations

import json

import pytest

from pytest_mnode.logs.elbencho import Phase, read_elbencho

LABELS = (
    "ISO date,label,path type,paths,hosts,threads,dirs,files,file size,block size,direct IO,random,"
    "random aligned,IO depth,shared paths,truncate,operation,time ms [first],time ms [last],"
    "CPU% [first],CPU% [last],entries/s [first],entries/s [last],IOPS [first],IOPS [last],"
    "MiB/s [first],MiB/s [last],entries [first],entries [last],MiB [first],MiB [last],"
    "version,command"
)
BEFORE = "2026-05-22T16:09:38,,dir,1,1,8,1,4,268435456,1048576,1,0,,4,1,0"
MKDIRS = f"{BEFORE},MKDIRS,2,5,8,7,3277,1466,,,,,8,8,,,3.1-1,"
COMMAND = '"elbencho" "--write" "--csvfile=a b.csv" '
WRITE = f"{BEFORE},WRITE,2134,2784,10,9,11,11,3494,2941,3494,2941,25,32,7460,8192,3.1-1,{COMMAND}"
WRITTEN = Phase("WRITE", 2.784, 8192 * 2**20 / 2.784)
LAST = {"elapsed_time_ms": "2784", "entries/s": "11", "iops": "2941", "bytes/s": "3085434482"}
JSON = json.dumps({"phase_type": "WRITE", "config": {"version": "3.0-9"}, "last_done": LAST})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{LABELS}\n{WRITE}\n", [WRITTEN]),
        (
            f"{LABELS}\n{MKDIRS}\n{LABELS}\n\n{WRITE}\n",
            [Phase("MKDIRS", 0.005, None), WRITTEN],
        ),
        (f"{LABELS}\n{WRITE[:60]}", []),
        (WRITE, []),  # --nocsvlabels
        ("operation,IOPS [last],MiB/s [last]\nREAD,17900,17900.5\n",
         [Phase("READ", None, 17900.5 * 2**20)]),
        (f"{JSON}\n{JSON[:80]}", [Phase("WRITE", 2.784, 3085434482.0)]),
        ("", []),
        ("ERROR: Unable to open\n", []),
    ],
)  # fmt: skip
def test_phases(text: str, expected: list[Phase]) -> None:
    assert read_elbencho(text) == expected
