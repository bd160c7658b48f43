"""What a rank's report shows of an exception."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import pytest
from torch.distributed import DistError

from pytest_mnode.rank.reports import problem, shorten

TORCH = "/venv/lib/python3.11/site-packages/torch/"
C10D = "distributed/distributed_c10d.py"


@pytest.mark.parametrize(
    ("error", "files", "shown"),
    [
        (RuntimeError, ["distributed/c10d_logger.py", C10D], 0),
        (RuntimeError, ["nn/parallel/distributed.py", C10D], 0),
        (DistError, ["distributed/rendezvous.py"], 0),
        (ValueError, [C10D], 1),  # an argument that is wrong
        (RuntimeError, ["distributed/fsdp/api.py", "nn/modules/linear.py"], 2),
    ],
)
def test_frames_of_torch_are_dropped_where_communication_failed(
    error: type[Exception], files: list[str], shown: int
) -> None:
    made: dict[str, object] = {"error": error}
    exec(compile("def last(): raise error", TORCH + files[-1], "exec"), made)
    for file in files[-2::-1]:
        before = made["last"]
        exec(compile("def last(): inner()", TORCH + file, "exec"), now := {"inner": before})
        made = now
    call = made["last"]
    assert callable(call)
    with pytest.raises(error) as raised:
        call()
    shorten(raised)
    frames, frame = [], raised.value.__traceback__
    while isinstance(frame, TracebackType):
        frames.append(Path(frame.tb_frame.f_code.co_filename).name)
        frame = frame.tb_next
    names = [Path(file).name for file in files]
    assert frames == [Path(__file__).name, *names[:shown]]
    assert [Path(entry.path).name for entry in raised.traceback] == frames


def test_an_error_that_no_test_catches_has_its_line() -> None:
    with pytest.raises(pytest.exit.Exception) as raised:
        pytest.exit("enough")
    line = f'test_reports.py:{raised.traceback[0].lineno + 1}: pytest.exit("enough")'
    assert problem(raised.value).splitlines()[-1] == line
    assert problem(RuntimeError("no traceback")) == "RuntimeError: no traceback"
