"""What an agent holds of one node's part of a world, and how such a part is ended."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from pytest_mnode import processes
from pytest_mnode.agent.pipe import Pipe
from pytest_mnode.protocol.agent_messages import Launch

LIMIT_S = 5.0
"""How long to wait for processes that were killed."""


@dataclass(slots=True)
class WorldPart:
    """A node's part of a world.

    pid: of its first process; 0 until the fork server has reported it. enters: whether that process
    only enters the namespaces of the node. end_by: when it is to have ended, once it is to end.
    """

    launch: Launch
    pipe: Pipe
    enters: bool
    pid: int = 0
    end_by: float = math.inf

    def end(self) -> None:
        """Have `has_ended` kill it."""
        self.end_by = time.monotonic() + LIMIT_S

    def has_ended(self) -> bool:
        """Kill what runs of it; whether nothing does any more. To be called until that is so.

        The elastic launcher comes last: it adopts the processes that lose their parents meanwhile.
        """
        in_time = time.monotonic() < self.end_by
        if self.pid == 0 and in_time:
            return False
        # In a node with namespaces the first process is the one that entered them.
        launchers = [self.pid, *(processes.children(self.pid) if self.enters else [])]
        below = [
            pid
            for pid in processes.descendants(self.pid)
            if pid not in launchers and not processes.has_ended(pid)
        ]
        for pid in below:
            processes.kill(pid)
        if below and in_time:
            return False
        for pid in launchers:
            processes.kill(pid)
        self.pipe.close()
        return True
