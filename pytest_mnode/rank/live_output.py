"""What a rank prints while its user watches: -s, --capture=tee-sys, log_cli."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any, TextIO

import pytest

SHOWN_LIVE = ("no", "tee-sys")
"""Values of --capture with which a test's output goes on to the terminal."""


def prints_live(config: pytest.Config) -> bool:
    """Whether what a test prints is shown while it runs."""
    return config.getoption("capture", None) in SHOWN_LIVE


def logs_live(config: pytest.Config) -> bool:
    """The same of what it logs."""
    if not config.pluginmanager.has_plugin("logging-plugin"):
        return False
    return config.getoption("--log-cli-level") is not None or bool(config.getini("log_cli"))


def begin(config: pytest.Config, path: Path) -> TextIO | None:
    """Have this rank print into the file that its node's launcher shows live, if that is wanted.

    Called before pytest captures: what it leaves alone then is shown.
    """
    prints, logs = prints_live(config), logs_live(config)
    if not prints and not logs:
        return None
    file = path.open("a+", buffering=1, errors="replace")
    if prints:
        nothing = os.open(os.devnull, os.O_RDONLY)
        for fd, ours in ((nothing, 0), (file.fileno(), 1), (file.fileno(), 2)):
            os.dup2(fd, ours)  # on 0 was the agent's own input
        os.close(nothing)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if logs:
        plugin: Any = config.pluginmanager.getplugin("logging-plugin")
        # pytest's own handler is one of its terminal, which ranks do not have.
        handler = logging.StreamHandler(file)
        handler.setFormatter(plugin.log_cli_handler.formatter)
        handler.setLevel(plugin.log_cli_level or logging.NOTSET)
        logging.getLogger().addHandler(handler)
    return file


def end_line(file: TextIO) -> None:
    """Whole lines alone are shown: end the last one of a test."""
    sys.stdout.flush()
    size = os.fstat(file.fileno()).st_size
    if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
        file.write("\n")
