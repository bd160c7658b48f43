"""Output of a rank that is shown live: -s, --capture=tee-sys, log_cli."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any, TextIO

import pytest

SHOWN_LIVE = ("no", "tee-sys")
"""Values of --capture with which a test's output also reaches the terminal."""


def prints_live(config: pytest.Config) -> bool:
    """Whether a test's output is shown while it runs."""
    return config.getoption("capture", None) in SHOWN_LIVE


def logs_live(config: pytest.Config) -> bool:
    """Whether a test's log is shown while it runs."""
    if not config.pluginmanager.has_plugin("logging-plugin"):
        return False
    return config.getoption("--log-cli-level") is not None or bool(config.getini("log_cli"))


def begin(config: pytest.Config, path: Path) -> TextIO | None:
    """Redirect this rank's output to the file that its node's launcher shows live, if enabled.

    Called before pytest captures, so that output which pytest does not capture is shown.
    """
    prints, logs = prints_live(config), logs_live(config)
    if not prints and not logs:
        return None
    file = path.open("a+", buffering=1, errors="replace")
    if prints:
        nothing = os.open(os.devnull, os.O_RDONLY)
        for fd, ours in ((nothing, 0), (file.fileno(), 1), (file.fileno(), 2)):
            os.dup2(fd, ours)  # descriptor 0 was the agent's standard input
        os.close(nothing)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if logs:
        plugin: Any = config.pluginmanager.getplugin("logging-plugin")
        # pytest's own handler writes to its terminal reporter, which ranks do not have.
        handler = logging.StreamHandler(file)
        handler.setFormatter(plugin.log_cli_handler.formatter)
        handler.setLevel(plugin.log_cli_level or logging.NOTSET)
        logging.getLogger().addHandler(handler)
    return file


def end_line(file: TextIO) -> None:
    """End the last line of a test, because only whole lines are shown."""
    sys.stdout.flush()
    size = os.fstat(file.fileno()).st_size
    if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
        file.write("\n")
