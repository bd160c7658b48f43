"""What all tests rely on."""

from __future__ import annotations

import signal

from hypothesis import settings


def pytest_configure() -> None:
    """Let children be interrupted: a shell that starts a job in the background ignores SIGINT.

    Examples of hypothesis have no deadline: a busy machine takes its time.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    settings.register_profile("untimed", settings(), deadline=None)
    settings.load_profile("untimed")
