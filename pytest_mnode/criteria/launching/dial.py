"""Whether somebody listens at an address, asked until a limit."""

from __future__ import annotations

import socket
import time

_RETRY_S = 0.1


def unreachable(address: str, port: int, until: float) -> str | None:
    """None once somebody listens there; else why not, in a few words, when the time is over.

    until: by the monotonic clock. A look-up of the name may outlast it: nobody can end one.
    """
    while True:
        left = max(_RETRY_S, until - time.monotonic())
        try:
            socket.create_connection((address, port), timeout=left).close()
        except socket.gaierror as error:
            why = f"{address!r} is not known ({error.strerror})"
        except TimeoutError:
            why = "no answer"
        except (OSError, OverflowError) as error:
            why = (getattr(error, "strerror", None) or str(error)).lower()
        else:
            return None
        if time.monotonic() + _RETRY_S > until:
            return why
        time.sleep(_RETRY_S)
