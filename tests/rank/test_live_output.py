"""The log of a rank that is shown live."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from pytest_mnode.rank import live_output


@pytest.mark.parametrize(
    ("level", "shown"), [(None, ["note", "warning"]), (logging.WARNING, ["warning"])]
)
def test_a_log_is_shown_from_its_level_on(
    level: int | None, shown: list[str], tmp_path: Path
) -> None:
    root = logging.getLogger()
    before, before_level = root.handlers[:], root.level
    plugin = SimpleNamespace(log_cli_level=level, log_cli_handler=logging.StreamHandler())
    plugin.log_cli_handler.setFormatter(logging.Formatter("%(message)s"))
    config: Any = Mock(getoption=lambda name, *_: None, getini=lambda name: name == "log_cli")
    config.pluginmanager.getplugin = lambda name: plugin
    try:
        file = live_output.begin(config, tmp_path / "live")
        assert file is not None
        root.setLevel(logging.INFO)
        logging.info("note")
        logging.warning("warning")
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
