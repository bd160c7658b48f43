"""The controller starts and judges jobs without torch."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
from pytest_mnode.criteria import launching
[getattr(launching, name) for name in launching.__all__]
import pytest_mnode.criteria.launching.meeting
sys.exit("torch" in sys.modules)
"""


def test_nothing_on_the_controllers_side_imports_torch() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], timeout=60, check=False)
    assert done.returncode == 0
