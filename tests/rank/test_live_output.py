"""The log of a rank that is shown live."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from pytest_mnode.rank import live_output


@pytest.mark.parametrize(
    ("level", "shown"),
    [(None, ["INFO note", "WARNING late"]), (logging.WARNING, ["WARNING late"])],
)
def test_a_log_is_shown_from_its_level_on(
    level: int | None, shown: list[str], tmp_path: Path
) -> None:
    root = logging.getLogger()
    before, before_level = root.handlers[:], root.level
    plugin = SimpleNamespace(log_cli_level=level, log_cli_handler=logging.StreamHandler())
    plugin.log_cli_handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    config: Any = Mock(getoption=lambda name, *_: None, getini=lambda name: name == "log_cli")
    config.pluginmanager.getplugin = lambda name: plugin
    try:
        file = live_output.begin(config, tmp_path / "live")
        assert file is not None
        root.setLevel(logging.INFO)
        logging.info("note")
        logging.warning("late")
    finally:
        root.handlers[:] = before
        root.setLevel(before_level)
    file.close()
    assert (tmp_path / "live").read_text().splitlines() == shown


def test_no_file_is_made_for_output_that_is_not_shown(tmp_path: Path) -> None:
    config: Any = Mock(getoption=lambda name, *_: None, getini=lambda name: False)
    assert live_output.begin(config, tmp_path / "live") is None
    config.pluginmanager.has_plugin = lambda name: False
    config.getini = Mock(side_effect=ValueError("unknown configuration value"))
    assert live_output.begin(config, tmp_path / "live") is None
    assert not (tmp_path / "live").exists()


def test_output_goes_to_the_file_line_by_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced: list[tuple[str, int]] = []
    by: list[int] = []

    def dup2(fd: int, ours: int) -> None:
        replaced.append((str(Path(f"/proc/self/fd/{fd}").readlink()), ours))
        by.append(fd)

    monkeypatch.setattr(os, "dup2", dup2)
    monkeypatch.setattr(sys, "stdout", stdout := Mock())
    options = {"capture": "no"}
    config: Any = Mock(getoption=options.get, getini=lambda name: False)
    file = live_output.begin(config, path := tmp_path / "live")
    assert file is not None
    assert replaced == [(os.devnull, 0), (str(path), 1), (str(path), 2)]
    stdout.reconfigure.assert_called_once_with(line_buffering=True)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(by[0])
    file.close()
