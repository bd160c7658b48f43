"""Four ranks on four nodes save and load: shared work, agreement, refusals, resharding, kills."""

from __future__ import annotations

import ast
import os
import shutil
from pathlib import Path

import pytest

from tests.inner import InnerRun, clean_env, command, need_rack, run_pytest, run_to_end

SCENARIOS = Path(__file__).with_name("scenarios")
ROOT = Path(__file__).parents[3]
LIMIT_S = 120
HEALTHY = ("in_ranks", "resharding", "killed")


def names_in(*scenarios: str) -> list[str]:
    """Names of the tests in these files, with their parameters."""
    names = []
    for scenario in scenarios:
        for one in ast.parse((SCENARIOS / f"{scenario}.py").read_text()).body:
            if isinstance(one, ast.FunctionDef) and one.name.startswith("test_"):
                kinds = "KINDS" in map(ast.unparse, one.decorator_list)
                names += [f"{one.name}[{k}]" for k in ("ddp", "fsdp2")] if kinds else [one.name]
    return names


def copy(directory: Path, *scenarios: str) -> dict[str, str]:
    """Run these files in a directory; returns the environment that they need."""
    for scenario in scenarios:
        shutil.copy(SCENARIOS / f"{scenario}.py", directory / f"test_{scenario}.py")
    return {"PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> InnerRun:
    need_rack()
    directory = tmp_path_factory.mktemp("ranks")
    return run_pytest(directory, "--mnode-nodes=4", env=copy(directory, *HEALTHY))


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> InnerRun:
    """A run in a mount namespace with a small file system that ends with it."""
    need_rack()
    directory = tmp_path_factory.mktemp("storage")
    for name in ("small", "read_only", "own"):
        (directory / name).mkdir()
    env = copy(directory, "on_bad_storage")
    (directory / "pytest.ini").touch()
    junit = directory / "junit.xml"
    faults = f"read_only_path:node2:{directory}/read_only,full_disk:node2:{directory}/own"
    rights = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    mount = 'mount -t tmpfs -o size=2m small "$1" && shift && exec "$@"'
    argv = [
        *("unshare", *rights, "--mount", "--", "sh", "-c", mount, "sh", f"{directory}/small"),
        *command("--mnode-nodes=4", f"--mnode-fault={faults}", f"--junitxml={junit}"),
    ]
    return run_to_end(argv, directory, clean_env() | env, LIMIT_S)


@pytest.mark.parametrize("name", names_in(*HEALTHY))
def test_in_ranks(healthy: InnerRun, name: str) -> None:
    assert healthy.outcomes().get(name) == "passed", healthy.output


@pytest.mark.parametrize("name", names_in("on_bad_storage"))
def test_on_bad_storage(faulty: InnerRun, name: str) -> None:
    assert faulty.outcomes().get(name) == "passed", faulty.output
