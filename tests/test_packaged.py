"""The wheel contains all that a certificate needs: the acceptance suite, its jobs and the specs."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.inner import clean_env, command

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


def test_the_suite_is_found_by_name(tmp_path: Path, built: Path) -> None:
    """It is the clone's; tests/test_first_steps.py certifies a criterion of an installed one."""
    [wheel] = built.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(built / "site")
    argv = command("--collect-only", "-q", "--mnode-nodes=2", "-p", "no:cacheprovider")
    done = subprocess.run(
        [*argv, "--pyargs", SUITE],
        cwd=tmp_path,
        env=clean_env() | {"PYTHONPATH": str(built / "site")},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line]
    found = {Path(line).name for line in lines}
    in_clone = {path.name: path.read_bytes() for path in (ROOT / "acceptance").glob("*.py")}
    assert found == {name for name in in_clone if name.startswith("test_")}, done.stdout
    suite = built / "site/pytest_mnode/acceptance"
    assert {path.name: path.read_bytes() for path in suite.glob("*.py")} == in_clone


def test_the_sdist_has_the_files_of_the_wheel(built: Path) -> None:
    [archive] = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    for folder in ("acceptance", "fixtures/clusters", "fixtures/jobs"):
        here = {f"{folder}/{p.name}" for p in (ROOT / folder).iterdir() if p.is_file()}
        assert here <= names
    assert {"pyproject.toml", "README.md", "LICENSE", "conftest.py"} <= names
