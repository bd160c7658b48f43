"""A command under a limit leaves nothing. Run separately: the guard ends all its children."""

import subprocess
import sys
import textwrap
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]


def guarded(tmp_path: Path, script: str, limit_s: float) -> list[str]:
    """repr of exit code and leftovers of a shell script under a guard, in a separate process."""
    program = f"""
        from pathlib import Path
        from benchmarks import guard
        done = guard.run(["sh", "-c", {script!r}], {limit_s}, {{}}, Path({str(tmp_path)!r}))
        print(done.code)
        print(len(done.left))
        print(done.output.strip())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.split()


def test_a_command_that_ends_by_itself_leaves_nothing(tmp_path: Path) -> None:
    assert guarded(tmp_path, "echo out; exit 3", 30) == ["3", "0", "out"]


def test_a_child_in_its_own_session_is_found_and_ended(tmp_path: Path) -> None:
    code, left, pid = guarded(tmp_path, "setsid sleep 600 & echo $!", 30)
    assert (code, left) == ("0", "1")
    assert not psutil.pid_exists(int(pid))


def test_a_hang_is_ended_at_the_limit_with_its_children(tmp_path: Path) -> None:
    code, left, pid = guarded(tmp_path, "setsid sleep 600 & echo $!; wait", 1)
    assert (code, left) == ("None", "0")
    assert not psutil.pid_exists(int(pid))
