"""Expects tests for nodes before pytest collects, by the text of the test files.

Then nodes and the import of torch can start while pytest collects. A wrong guess costs time only: a
run whose tests give no sign of nodes starts them once tests for nodes are collected.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

_SIGN = re.compile(
    rb"\bmnode\b|\bpytest_mnode\b|\bmark\.criterion\b"
    rb"|\bdef \w+\([^)]*\b(?:world|process_group|shared_tmp_path|cluster|fabric_ports)\b"
)
"""The mark, an import, or a fixture with a name that other suites hardly give to their own."""
_MOST_FILES = 2000
_NARROWING = ("keyword", "markexpr", "deselect", "lf", "stepwise")


def expects_nodes(config: pytest.Config) -> bool:
    """Whether a file that pytest will collect gives a sign of tests for nodes.

    False if only some tests of the files are wanted, because they may be the others.
    """
    if any(config.getoption(name, None) for name in _NARROWING):
        return False
    modules = [arg for arg in config.args if config.getoption("pyargs", False) and "::" not in arg]
    if any(_SIGN.search(arg.encode()) for arg in modules):
        return True
    return any(_SIGN.search(_bytes(file)) for file in _files(config))


def _files(config: pytest.Config) -> Iterator[Path]:
    patterns, left = config.getini("python_files"), _MOST_FILES
    for arg in config.args:
        path = config.invocation_params.dir / arg
        if path.is_file():
            yield path
        for folder, folders, names in os.walk(path):
            folders[:] = [name for name in folders if _may_have_tests(config, Path(folder, name))]
            for name in names:
                if any(fnmatch(name, pattern) for pattern in patterns):
                    yield Path(folder, name)
                    left -= 1
                if not left:
                    return


def _may_have_tests(config: pytest.Config, folder: Path) -> bool:
    """Whether pytest looks into a directory; not into one with installed packages."""
    barred = any(fnmatch(folder.name, pattern) for pattern in config.getini("norecursedirs"))
    return not barred and not (folder / "pyvenv.cfg").exists()


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""
