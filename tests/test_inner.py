"""Pytest runs inside tests: why one failed, and what its ranks have if its agent is warm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.inner import InnerRun, need_rack, run_pytest, write_files

FACTS = """
    import json, os, pathlib, re, resource, signal, sys

    def test_facts(world):
        numbers = sorted(signal.valid_signals())
        files = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
        limits = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
        ours = {name for name in sys.modules if name.startswith(("pytest_mnode", "torch", "tests"))}
        facts = {
            "warm": "tests.warm.server" in sys.orig_argv,
            "environment": sorted(os.environ),
            "of the test": os.environ["OF_THE_TEST"],
            "signals": [str(signal.getsignal(number)) for number in numbers],
            "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
            "files": sorted(re.sub(r"[0-9]+", "N", pathlib.Path(name).name) for name in files),
            "limits": [resource.getrlimit(limit) for limit in limits],
            "cwd": os.getcwd() == str(pathlib.Path(__file__).parent),
            "session": os.getsid(0) == os.getsid(os.getppid()),
            "namespaces": sorted(
                kind for kind in os.listdir("/proc/self/ns")
                if os.readlink(f"/proc/self/ns/{kind}") != os.environ["NS_" + kind]
            ),
            "modules": sorted(ours),
            "argv": [pathlib.Path(word).name for word in sys.argv],
            "path": sys.path[1:],
            "uid": (os.getuid(), os.umask(0o22)),
        }
        if world.rank == 1:
            pathlib.Path("facts.json").write_text(json.dumps(facts))
"""


def test_a_run_without_a_junit_shows_its_output(tmp_path: Path) -> None:
    run = InnerRun(4, "unrecognized arguments: --no-such-option", tmp_path / "junit.xml")
    with pytest.raises(pytest.fail.Exception, match=r"status 4:[^$]*arguments: --no-such-option"):
        run.outcomes()


def facts(directory: Path, *, cold: bool) -> dict[str, Any]:
    directory.mkdir()
    write_files(directory, test_it=FACTS)
    kinds = {f"NS_{one.name}": str(one.readlink()) for one in Path("/proc/self/ns").iterdir()}
    args = ("--mnode-nodes=2", "--mnode-launcher=rack")
    run = run_pytest(directory, *args, env={**kinds, "OF_THE_TEST": "1"}, cold=cold)
    assert run.outcomes() == {"test_facts": "passed"}, run.output
    found: dict[str, Any] = json.loads((directory / "facts.json").read_text())
    return found


def test_ranks_have_the_same_of_an_agent_that_was_there_before(tmp_path: Path) -> None:
    need_rack()
    cold = facts(tmp_path / "cold", cold=True)
    warm = facts(tmp_path / "warm", cold=False)
    assert (cold.pop("warm"), warm.pop("warm")) == (False, True)
    assert warm == cold
