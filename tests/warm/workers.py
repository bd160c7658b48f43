"""Workers of pytest-xdist, forked from a process that has imported all tests, torch with them.

Otherwise each would do so, in 5 s of CPU, and have a server of its own.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from typing import Any

from execnet import gateway_io
from execnet.gateway_base import Popen2IO

from tests import warm
from tests.warm.run import FORK_WORKERS


class Worker(Popen2IO):
    """A worker, with the methods of execnet's Popen2IOMaster."""

    def __init__(self, forks: socket.socket, execmodel: Any) -> None:
        stdin, to_worker = os.pipe()
        from_worker, stdout = os.pipe()
        self._process = warm.ask(forks, None, stdin, stdout)
        os.close(stdin)
        os.close(stdout)
        super().__init__(os.fdopen(to_worker, "wb"), os.fdopen(from_worker, "rb"), execmodel)
        self.wait, self.kill = self._process.wait, self._process.kill


def use(args: Sequence[str]) -> None:
    """Have execnet start these. args: of the run, which name its tests."""
    forks, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    argv = [sys.executable, "-m", FORK_WORKERS, *args]
    server = warm.server()
    with theirs:
        request = (argv, str(warm.ROOT), dict(os.environ), False)
        warm.ask(server, request, theirs.fileno(), 2, server.fileno())
    vars(gateway_io)["create_io"] = lambda spec, execmodel: Worker(forks, execmodel)
