"""An agent's state of one node's part of a world, and how such a part is ended."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from pytest_mnode import processes
from pytest_mnode.protocol.agent_messages import Launch
from pytest_mnode.protocol.pipe import Pipe

LIMIT_S = 5.0
"""How long to wait until killed processes have ended."""


@dataclass(slots=True)
class WorldPart:
    """A node's part of a world.

    pid: its first process; 0 until the fork server has reported it. enters: whether that process
    only enters the namespaces of the node. end_by: deadline once it must end (time.monotonic);
    infinite before.
    """

    launch: Launch
    pipe: Pipe
    enters: bool
    pid: int = 0
    end_by: float = math.inf

    def end(self) -> None:
        """Set the deadline for `has_ended`, which kills the processes."""
        self.end_by = time.monotonic() + LIMIT_S

    def has_ended(self) -> bool:
        """Kill the part's processes; whether all have ended. Call it until it returns True.

        The elastic launcher is killed last, because it adopts processes that lose their parents
        meanwhile.
        """
        in_time = time.monotonic() < self.end_by
        if self.pid == 0:  # nothing is known to be below it; the launcher ends with its pipe
            if not in_time:
                self.pipe.close()
            return not in_time
        # On a node with namespaces the first process only enters them; its child is the launcher.
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
