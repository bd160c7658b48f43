"""The trial import of a module in a separate process."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pytest_mnode.rank.trial import Trial


def test_daemons_of_an_import_end_with_the_trial(tmp_path: Path) -> None:
    noted = tmp_path / "pid"

    def collect() -> list[object]:
        if os.fork() == 0:
            os.setsid()
            if (pid := os.fork()) == 0:
                time.sleep(60)
            noted.write_text(str(pid))
            os._exit(0)
        while not noted.exists() or not noted.read_text():
            time.sleep(0.01)
        return []

    lost: Any = lambda: ""  # noqa: E731
    options: Any = None
    module: Any = SimpleNamespace(collect=collect, path=tmp_path)
    assert Trial(lost, options)._tried(module) == ""
    assert not Path("/proc", noted.read_text()).exists()
