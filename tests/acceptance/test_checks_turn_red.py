"""Each check that names its fault is turned red by it, on the nodes that have it and no other."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_mnode.commands.check import red_run, runs_of, tried
from pytest_mnode.evidence.check import catalogue
from tests import red
from tests.inner import clean_env, need_rack
from tests.red import turns_red

OF_NODES, OF_DEVICES = (
    {one.case(): one for one in catalogue(criterion) if one.fault}
    for criterion in ("preflight", "devices")
)


@turns_red("preflight", *OF_NODES)
@turns_red("devices", *OF_DEVICES)
def test_each_check_finds_its_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a user's terminal, in a directory without a conftest.py."""
    need_rack()
    for name in os.environ.keys() - clean_env().keys():
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.chdir(tmp_path)
    found = []
    for together in runs_of([*OF_NODES.values(), *OF_DEVICES.values()]):
        certificate = red_run(together)
        red.register(SimpleNamespace(certificate=certificate))
        found += [tried(one, certificate) for one in together]
    assert [words for right, words in found if not right] == []
