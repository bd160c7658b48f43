"""A run is watched through what its ranks write, whatever a kill left of their lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_mnode.restart.watching import _AWAIT, _NOT_SEEN

START, TORN = '{"kind":"start","rank":1}\n', '{"kind":"step","rank":1,"wor\n'


def steps(first: int, last: int) -> str:
    return "".join(f'{{"kind":"step","step":{n}}}\n' for n in range(first, last + 1))


@pytest.mark.parametrize(
    ("text", "starts", "step", "status"),
    [
        (START + steps(1, 6), 1, 6, 0),
        (START + steps(1, 5), 1, 6, _NOT_SEEN),
        (START + steps(1, 6) + TORN + START + steps(5, 8), 2, 8, 0),
        (START + steps(1, 6) + TORN + START, 2, 0, _NOT_SEEN),
        (START + '{"kind":"step"}\n{"kind":"step","step":null}\n' + steps(1, 1), 1, 1, 0),
    ],
)
def test_until_ranks_have_done_a_step(
    tmp_path: Path, text: str, starts: int, step: int, status: int
) -> None:
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "rank1.jsonl").write_text(text)
    words = [str(tmp_path), "1", str(starts), str(step), "0.1"]
    done = subprocess.run([sys.executable, "-S", "-c", _AWAIT, *words], check=False, timeout=20)
    assert done.returncode == status
