"""pytest as users of an engine run it: on the login node, with files that all nodes share."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import yaml

from pytest_mnode.spec import default_spec_path
from tests.engines.switch import Switch
from tests.inner import InnerRun, clean_env, junit_command, run_to_end


class Engine(Protocol):
    """The common interface of engines on a rack."""

    env: dict[str, str]
    switch: Switch | None

    def command(self, *argv: str, on: str = "") -> list[str]:
        """A local command that runs this one on the login node, or on the named node."""


def environment(engine: Engine, env: Mapping[str, str] | None = None) -> dict[str, str]:
    return {**clean_env(), **(env or {}), **engine.env}


def own_temporary(directory: Path) -> tuple[str, dict[str, str]]:
    """Option and variable of a run whose temporary files are in its directory.

    Those on a node whose power is cut remain until an agent starts there again.
    """
    made = directory / "tmp"
    made.mkdir()
    return "--mnode-env=TMPDIR", {"TMPDIR": str(made)}


def run_pytest(
    engine: Engine,
    directory: Path,
    *args: str,
    before: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    limit_s: float = 240,
) -> InnerRun:
    """Run pytest on the login node; the test fails if it does not end in time.

    before: a command that runs the rest of its line in an allocation.
    """
    argv = engine.command(*before, *junit_command(directory, *args))
    return run_to_end(argv, directory, environment(engine, env), limit_s)


def start_pytest(
    engine: Engine, directory: Path, *args: str, env: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start pytest on the login node in its own session, without waiting for it."""
    return subprocess.Popen(
        engine.command(*junit_command(directory, *args)),
        cwd=directory,
        env=environment(engine, env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )


@contextmanager
def running_pytest(
    engine: Engine, directory: Path, *args: str, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Start pytest on the login node, and kill it at the end if it still runs."""
    program = start_pytest(engine, directory, *args, env=env)
    try:
        yield program
    finally:
        program.kill()
        program.communicate()


COVERAGE = ("-p", "no:randomly", "--cov=.", "--cov-report=json")
"""Options of a run with `released_plugins`."""


def lines_run(directory: Path) -> set[str]:
    """Lines of test_it.py that ran on the login node, from the coverage data of the run."""
    report = json.loads((directory / "coverage.json").read_text())["files"]["test_it.py"]
    lines = (directory / "test_it.py").read_text().splitlines()
    return {lines[number - 1].strip() for number in report["executed_lines"]}


def page_for(engine: Engine, name: str, **changes: Any) -> dict[str, Any]:
    """The rack's spec for an engine: its nodes are separate machines and show no sockets.

    changes: of keys; None removes one.
    """
    page: dict[str, Any] = yaml.safe_load(default_spec_path().read_text())
    page["name"] = name
    page["nodes"] = 4
    del page["topology"]
    del page["criteria"]["numa"]
    del page["criteria"]["launch"]["path"]  # a scheduler starts the jobs, if there is one
    page["not_promised"].append(
        {"question": "numa", "reason": "sockets are shown by the rack launcher only"}
    )
    if engine.switch is not None:
        off, on = engine.switch.command("off"), engine.switch.command("on")
        page["power"] = {"switch_off": off, "switch_on": on, "within": "60 s"}
    page.update(changes)
    return {key: value for key, value in page.items() if value is not None}


def spec_for(engine: Engine, directory: Path, name: str, **changes: Any) -> str:
    """--mnode-spec of `page_for`, in `directory`."""
    path = directory / "spec.yaml"
    path.write_text(yaml.safe_dump(page_for(engine, name, **changes), sort_keys=False))
    return f"--mnode-spec={path}"
