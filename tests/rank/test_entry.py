"""Before a fork: torch's loggers print the same lines through fewer handlers."""

from __future__ import annotations

import subprocess
import sys

LOGGERS = """
import logging, torch.distributed, torch._logging
from pytest_mnode.rank import entry

def apart():
    known = map(logging.getLogger, logging.root.manager.loggerDict)
    return sum(not log.propagate for log in known)

before = apart()
entry._share_torch_handler()
assert apart() < before / 2, (before, apart())
logging.basicConfig(stream=sys.stdout)
for name in ("torch", "torch.distributed", "torch.distributed.fsdp"):
    logging.getLogger(name).warning("of %s", name)
    logging.getLogger(name).info("too low")
torch._logging.set_logs(distributed=logging.INFO)
logging.getLogger("torch.distributed").info("asked for")
"""


def test_loggers_of_torch_print_once_as_before() -> None:
    argv = [sys.executable, "-c", "import sys\n" + LOGGERS]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    lines = [line.rpartition("] ")[2] for line in done.stderr.splitlines() if "<string>" in line]
    names = ("torch", "torch.distributed", "torch.distributed.fsdp")
    assert lines == [*(f"of {name}" for name in names), "asked for"]
