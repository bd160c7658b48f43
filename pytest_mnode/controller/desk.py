"""Grants, refuses and withdraws clients' requests for nodes and worlds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_mnode.controller.leases import Leases
from pytest_mnode.controller.worlds import Worlds
from pytest_mnode.errors import MnodeError
from pytest_mnode.protocol.hub_messages import LeaseNodes, OpenWorld, Refused


class Desk:
    """Answers clients' requests. send: sends a message to a client, given its name."""

    def __init__(self, leases: Leases, worlds: Worlds, send: Callable[[str, Any], None]) -> None:
        self.failure: tuple[str, str] | None = None
        """Class name and text of the error after which no request can be granted."""
        self._leases = leases
        self._worlds = worlds
        self._send = send

    def lease(self, client: str, request: LeaseNodes) -> None:
        self._leases.ask(client, request)
        self.grant()

    def open_world(self, client: str, request: OpenWorld) -> None:
        self._worlds.opening.append((client, request))
        self._worlds.open()

    def release(self, lease: int) -> None:
        self._worlds.stop_leased(lease)
        self._leases.give_back(lease)
        self.grant()

    def forget(self, client: str, seq: int | None = None) -> None:
        """Drop a client that is gone, or only its request `seq` that it no longer waits for."""
        self._worlds.forget(client, seq)
        for lease in self._leases.forget(client, seq):
            self.release(lease)
        self.grant()  # the next request in the queue may have waited behind the dropped one

    def grant(self) -> None:
        """Answer the requests for nodes that can be answered now."""
        if self.failure:
            self._refuse_all(self.failure)
            return
        for client, answer in self._leases.answers():
            self._send(client, answer)

    def fail(self, kind: str, text: str) -> None:
        """Refuse every request, queued or later, with this error: the pool no longer works."""
        if self.failure is None:
            self.failure = (kind, text)
        self._refuse_all(self.failure)
        self._worlds.fail_all(text)

    def refuse(self, client: str, seq: int, error: Exception) -> None:
        kind, text = type(error).__name__, str(error)
        if not isinstance(error, MnodeError):
            kind, text = "ClusterError", f"{kind}: {text}"
        self._send(client, Refused(seq, kind, text, getattr(error, "node", "")))

    def _refuse_all(self, failure: tuple[str, str]) -> None:
        waiting: list[tuple[str, LeaseNodes | OpenWorld]] = [
            *self._leases.queue,
            *self._worlds.opening,
        ]
        self._leases.queue.clear()
        self._worlds.opening.clear()
        for client, message in waiting:
            self._send(client, Refused(message.seq, *failure))
