"""What gates leave where they are killed with their machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_mnode.agent.leftovers import private_directory, remove_leftovers

GATE = """
import os, sys
from pytest_mnode.agent.leftovers import private_directory
if os.fork() == 0:  # as the forge, whose children outlive it for a moment
    sys.stdin.read()
    os._exit(0)
print(private_directory(), flush=True)
sys.stdin.read()
"""


def test_a_directory_is_removed_once_its_gate_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    others = [tmp_path / name for name in ("mnode-of-a-controller", "mnode-elsewhere", "else")]
    for other in others:
        other.mkdir()
        (other / "file").touch()
    for other in others[1:]:
        (other / "gate").write_text("another-machine")
    gate = subprocess.Popen(
        [sys.executable, "-c", GATE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert gate.stdout is not None
    theirs = Path(gate.stdout.readline().strip())
    assert theirs.parent == tmp_path
    ours = Path(private_directory())
    assert theirs.is_dir(), "its gate lives"
    (theirs / "logs" / "w1").mkdir(parents=True)
    gate.kill()
    gate.wait()
    remove_leftovers()
    assert not theirs.exists()
    assert {ours, *others} == set(tmp_path.iterdir())
    gate.communicate()


def test_what_is_not_ours_to_look_at_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    precious = tmp_path / "precious"
    precious.write_text(os.uname().nodename)
    (tmp_path / "mnode-trap").mkdir()
    (tmp_path / "mnode-trap" / "gate").symlink_to(precious)
    remove_leftovers()
    assert precious.exists()
    assert (tmp_path / "mnode-trap").is_dir()
