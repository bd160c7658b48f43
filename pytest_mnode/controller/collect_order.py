"""The controller's pytest configuration, sent so that the ranks collect the same tests."""

from __future__ import annotations

import contextlib
import pickle
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.marks import runs_in_ranks
from pytest_mnode.other_plugins import collected_ids
from pytest_mnode.protocol.hub_messages import Collect


def collect_order(
    config: pytest.Config, items: Sequence[pytest.Item], coverage: str = ""
) -> Collect:
    """The order that makes ranks collect the files of `items` as this process did."""
    files = dict.fromkeys(item.path for item in items)
    root, asked = config.rootpath, items[0].session._initialpaths
    args = dict.fromkeys(str(_collected_from(file, root, asked)) for file in files)
    options = dict(vars(config.option))
    if getattr(getattr(config, "_benchmarksession", None), "disabled", False):
        # pytest-benchmark disables itself under pytest-xdist, which ranks cannot detect.
        options |= {"benchmark_disable": True, "benchmark_enable": False}
    factory = getattr(config, "_tmp_path_factory", None)  # None: -p no:tmpdir
    if hasattr(config, "workerinput"):
        options["capture"] = "fd"  # a worker of pytest-xdist has no terminal
    return Collect(
        args=tuple(args),
        files=frozenset(map(str, files)),
        options=_pickled(options),
        inifile=str(config.inipath) if config.inipath else None,
        rootdir=str(config.rootpath),
        cwd=str(config.invocation_params.dir),
        sys_path=tuple(sys.path),
        markers=tuple(config.getini("markers")),
        basetemp=str(factory.getbasetemp() / "ranks") if factory else "",
        coverage=coverage,
        ranks=any(map(runs_in_ranks, items)),
        collected={} if _names_tests(config) else collected_ids(config, files),
    )


def _names_tests(config: pytest.Config) -> bool:
    """Whether the user selected single tests, so that further ones of their files are not meant."""
    return any("::" in arg for arg in config.args)


def _collected_from(file: Path, root: Path, asked: Iterable[Path]) -> Path:
    """The path to collect `file` from, so that its node ids are equal in another process.

    Node ids are relative to the root directory or, outside of it, to pytest's own arguments.
    """
    below = () if file.is_relative_to(root) else asked
    return next((path for path in below if file.is_relative_to(path)), file)


def _pickled(options: dict[str, Any]) -> dict[str, bytes]:
    kept = {}
    for name, value in options.items():
        with contextlib.suppress(Exception):
            kept[name] = pickle.dumps(value)
    return kept
