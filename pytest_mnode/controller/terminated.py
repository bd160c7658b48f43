"""SIGTERM ends a run as Ctrl-C does: schedulers, Kubernetes and CI end jobs by it."""

from __future__ import annotations

import signal
import threading
from types import FrameType

import pytest


def end_at_sigterm(config: pytest.Config) -> None:
    """Raise KeyboardInterrupt at the first SIGTERM, until pytest has ended the run.

    More signals of a scheduler that ends all processes of a job do not break the end of the run
    off. Also as the first process of a container, where SIGTERM without a handler does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:  # another plugin's, or the caller's
        return

    def ended(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        signal.signal(signal.SIGTERM, lambda *_: None)
        raise KeyboardInterrupt("SIGTERM")

    def given_back() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    signal.signal(signal.SIGTERM, ended)
    config.add_cleanup(given_back)
