"""The sdist has all that the wheel is built from; what is installed: tests/test_first_steps.py."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pytest.importorskip("hatchling")
ROOT = Path(__file__).parents[1]


def test_the_sdist_has_the_files_of_the_wheel(tmp_path: Path) -> None:
    code = "import sys; from hatchling import build as b; b.build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True)
    [archive] = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    for folder in ("acceptance", "fixtures/clusters", "fixtures/jobs"):
        here = {f"{folder}/{p.name}" for p in (ROOT / folder).iterdir() if p.is_file()}
        assert here <= names
    assert {"pyproject.toml", "README.md", "LICENSE", "conftest.py"} <= names
