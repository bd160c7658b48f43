"""What all tests rely on."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Let children be interrupted: a shell that starts a job in the background ignores SIGINT."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
