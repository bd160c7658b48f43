"""Commands in namespaces of their own: nothing else sees what they kill, leave or listen on."""

from __future__ import annotations

import os

_SHARED = ("unshare", "--net", "--pid", "--ipc", "--mount", "--fork", "--mount-proc")
NAMESPACES = (
    *("setpriv", "--pdeathsig=KILL", *_SHARED, "--kill-child"),
    *(() if os.geteuid() == 0 else ("--map-root-user",)),
)
"""The command before another one. It and all its processes end with the process that starts it."""


def loopback_up() -> None:
    """Inside: a new network namespace has its loopback down."""
    from pyroute2 import IPRoute

    with IPRoute() as network:
        network.link("set", index=1, state="up")
