"""The controller starts and judges jobs without torch."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
import pkgutil
from importlib import import_module
from pytest_mnode.criteria import launching
names = [m.name for m in pkgutil.iter_modules(launching.__path__)]
assert len(names) > 10, names
[import_module(f"{launching.__name__}.{name}") for name in names]
sys.exit("torch" in sys.modules)
"""


def test_controller_modules_do_not_import_torch() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], timeout=60, check=False)
    assert done.returncode == 0
