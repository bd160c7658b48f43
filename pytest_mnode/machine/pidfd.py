"""Process descriptors, also for a Python that was built without os.pidfd_open.

Conda's Python is, to support old C libraries. The cleanup daemon, which runs without site-packages,
imports this module.
"""

from __future__ import annotations

import ctypes
import os

NUMBER = 434
"""Number of the system call, on every architecture that torch is built for."""


def pidfd_open(pid: int) -> int:
    """A descriptor that is ready for reading once the process has ended; no child inherits it.

    Raises ProcessLookupError if there is no such process, and another OSError if the kernel gives
    no descriptor (before Linux 5.3, or in a container that forbids it).
    """
    if hasattr(os, "pidfd_open"):
        try:
            return os.pidfd_open(pid)
        except OSError as error:
            code = error.errno or 0
    else:
        libc = ctypes.CDLL(None, use_errno=True)
        fd = libc.syscall(ctypes.c_long(NUMBER), ctypes.c_long(pid), ctypes.c_long(0))
        if fd >= 0:
            return int(fd)
        code = ctypes.get_errno()
    raise OSError(code, os.strerror(code), "pidfd_open")
