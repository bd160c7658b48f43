"""The wheel contains all that a certificate needs: the acceptance suite, its jobs and the specs."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.inner import clean_env, command, need_rack, run_pytest

pytest.importorskip("hatchling")
ROOT = Path(__file__).parents[1]
SUITE = "pytest_mnode.acceptance"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel and the sdist."""
    directory = tmp_path_factory.mktemp("built")
    code = "import sys; from hatchling import build as b; b.build_wheel(sys.argv[1]); "
    code += "b.build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(directory)], cwd=ROOT, check=True)
    return directory


@pytest.fixture(scope="module")
def installed(built: Path) -> dict[str, str]:
    """An environment in which the wheel's package is imported first."""
    [wheel] = built.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(built / "site")
    return {"PYTHONPATH": str(built / "site")}


def collected(directory: Path, env: dict[str, str], *args: str) -> list[str]:
    """Ids of tests, without the folders of their files."""
    argv = command("--collect-only", "-q", "--mnode-nodes=2", "-p", "no:cacheprovider", *args)
    done = subprocess.run(
        argv, cwd=directory, env=clean_env() | env, capture_output=True, text=True, check=False
    )
    ids = [line.rpartition("/test_")[2] for line in done.stdout.splitlines() if "::" in line]
    assert ids, done.stdout + done.stderr
    return sorted(line.removeprefix("test_") for line in ids)


def test_the_suite_is_found_by_name(tmp_path: Path, installed: dict[str, str]) -> None:
    in_clone = collected(tmp_path, {"PYTHONPATH": str(ROOT)}, "--pyargs", SUITE)
    assert collected(tmp_path, installed, "--pyargs", SUITE) == in_clone
    assert {line.partition(".py")[0] for line in in_clone} == {
        path.stem.removeprefix("test_") for path in (ROOT / "acceptance").glob("test_*.py")
    }


def test_a_criterion_is_certified_without_a_clone(
    tmp_path: Path, installed: dict[str, str]
) -> None:
    need_rack()
    some = ("-k", "every_rank_meets or stay_up")
    mesh = f"{SUITE}.test_mesh"
    args = ("--pyargs", mesh, *some, "--mnode-nodes=2", "--mnode-report=report")
    run = run_pytest(tmp_path, *args, env=installed)
    assert run.outcomes() == {
        "test_every_rank_meets_every_other": "passed",
        "test_fabric_ports_stay_up_and_free_of_errors": "passed",
    }, run.output
    certificate = json.loads((tmp_path / "report/certificate.json").read_text())
    ran = {c["name"]: c["verdict"] for c in certificate["criteria"] if c["cases"]}
    assert ran == {"mesh": "pass"}
    assert certificate["run"]["spec"]["name"] == "rack"


def test_the_sdist_has_the_files_of_the_wheel(built: Path) -> None:
    [archive] = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    for folder in ("acceptance", "fixtures/clusters", "fixtures/jobs"):
        here = {f"{folder}/{p.name}" for p in (ROOT / folder).iterdir() if p.is_file()}
        assert here <= names
    assert {"pyproject.toml", "README.md", "LICENSE", "conftest.py"} <= names
