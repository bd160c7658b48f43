"""Runs pytest on separate test files in a subprocess, and reads the outcomes."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

# Imported here, because pytester forgets its imports and each run would import them again.
from pytest_mnode.certifying import certificate_plugin  # noqa: F401
from pytest_mnode.controller import console  # noqa: F401
from pytest_mnode.errors import UsageError
from pytest_mnode.faults import parse
from pytest_mnode.launchers.rack import Rack
from tests import warm

LIMIT_S = 600


def _has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


IPV6 = pytest.mark.skipif(not _has_ipv6(), reason="no ::1 on this machine")
OWN_ADDRESSES = ["127.0.0.1", pytest.param("::1", marks=IPV6)]


def need(missing: str | None) -> None:
    """Skip if something is missing; in CI fail. None: nothing is missing."""
    if missing is not None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(missing)


def need_rack() -> None:
    """Skip if no rack is possible."""
    need(Rack.unavailable())


def need_program(name: str, package: str) -> None:
    """Skip without a program, which faults also find where an ordinary user's PATH ends."""
    places = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    there = shutil.which(name, path=places) is not None
    need(None if there else f"{name} is not installed (Debian: {package})")


def need_programs_of(faults: str) -> None:
    """Skip without a program that these faults need, as they know themselves."""
    try:
        injections = parse(faults)
    except UsageError:  # what a test of its message wants
        return
    for program in filter(None, (injection.fault.program for injection in injections)):
        need(
            None
            if program.find()
            else f"{program.name} is not installed (Debian: {program.package})"
        )


def need_gdb() -> None:
    """Skip without gdb."""
    need_program("gdb", "gdb")


def released_plugins() -> Path:
    """Path of released plugins, for PYTHONPATH; skip without them, in CI fail."""
    return _installed("plugins")


def released_libraries() -> Path:
    """Path of released libraries that are no pytest plugins; skip without them, in CI fail."""
    return _installed("libraries")


def released_frameworks() -> Path:
    """Path of released training programs, with what they import; skip without, in CI fail."""
    directory = str(_installed("frameworks", "frameworks"))
    return Path(sysconfig.get_path("purelib", vars={"base": directory}))


def _installed(beside: str, target: str = "environment") -> Path:
    directory = Path(sys.prefix, beside)
    need(None if Path(directory, ".ready").exists() else f"no {directory}: make {target}")
    return directory


@dataclass(frozen=True)
class InnerRun:
    """The output of a pytest run, and its junit."""

    returncode: int
    output: str
    junit: Path

    def cases(self) -> dict[str, ElementTree.Element]:
        """junit cases by test name, parameters included; without a junit, its output says why."""
        if not self.junit.exists():
            pytest.fail(f"no junit, exit status {self.returncode}:\n{self.output}", pytrace=False)
        root = ElementTree.parse(self.junit).getroot()
        return {str(case.get("name")): case for case in root.iter("testcase")}

    def outcomes(self) -> dict[str, str]:
        """Outcome of each test: "passed", "failure", "error" or "skipped", by test name."""
        found = {}
        for name, case in self.cases().items():
            kinds = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
            found[name] = kinds[0] if kinds else "passed"
        return found

    def properties(self, name: str) -> dict[str, str]:
        return {
            str(p.get("name")): str(p.get("value")) for p in self.cases()[name].iter("property")
        }


def write_files(directory: Path, **files: str) -> None:
    """`test_a="…"` becomes test_a.py."""
    for name, text in files.items():
        (directory / f"{name}.py").write_text(textwrap.dedent(text))


def clean_env() -> dict[str, str]:
    """The environment without variables of an outer pytest.

    Also without variables of continuous integration, with which pytest prints longer lines.
    """
    outer = ("PYTEST", "MNODE")
    longer = ("CI", "BUILD_NUMBER")
    return {k: v for k, v in os.environ.items() if not k.startswith(outer) and k not in longer}


def command(*args: str) -> list[str]:
    """pytest without the hypothesis plugin, which would import all of hypothesis in any run.

    Skips without a program that a fault of these arguments needs.
    """
    for arg in args:
        if arg.startswith("--mnode-fault="):
            need_programs_of(arg.partition("=")[2])
    return [sys.executable, "-m", "pytest", "-p", "no:hypothesispytest", *args]


def junit_command(directory: Path, *args: str) -> list[str]:
    """pytest with its junit in `directory`, which becomes its root."""
    (directory / "pytest.ini").touch()
    return command(f"--junitxml={directory}/junit.xml", *args)


def run_pytest(
    directory: Path,
    *args: str,
    env: dict[str, str] | None = None,
    limit_s: float = LIMIT_S,
    cold: bool = False,
) -> InnerRun:
    """Run pytest in `directory`; the calling test fails if it does not end in time.

    cold: its agent is a process of its own from the start, and imports torch. Otherwise it is one
    of tests/warm: tests of processes, or of the whole, ask for a cold one.
    """
    env = {**clean_env(), **(env or {})}
    argv = junit_command(directory, *args)
    if cold or not warm.possible(argv, env):
        return run_to_end(argv, directory, env, limit_s)
    junit = directory / "junit.xml"
    junit.unlink(missing_ok=True)
    return InnerRun(*warm.run(argv, directory, env, limit_s), junit)


def run_here(pytester: pytest.Pytester, *args: str) -> InnerRun:
    """Run pytest in `pytester.path` and in this process: for runs without ranks."""
    (pytester.path / "pytest.ini").touch()
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ.keys() - clean_env().keys():
            patch.delenv(name)
        done = pytester.runpytest_inprocess("--junitxml=junit.xml", *args, no_reraise_ctrlc=True)
    output = f"{done.stdout}\n{done.stderr}"
    return InnerRun(int(done.ret), output, pytester.path / "junit.xml")


def run_to_end(
    argv: Sequence[str], directory: Path, env: Mapping[str, str], limit_s: float
) -> InnerRun:
    """Run the command of `junit_command`, directly or by another program."""
    junit = directory / "junit.xml"
    junit.unlink(missing_ok=True)
    done = subprocess.run(
        argv,
        cwd=directory,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=limit_s,
        check=False,
    )
    return InnerRun(done.returncode, done.stdout, junit)
