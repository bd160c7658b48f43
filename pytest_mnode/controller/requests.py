"""Requests of clients: each is a coroutine of the hub, which waits until it can be answered.

The hub has no event loop: once it has read all messages, it lets every request go on, in the order
in which they came. Pure: no sockets, no clocks.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from typing import Any

from pytest_mnode.errors import MnodeError


@dataclass(frozen=True, slots=True)
class Asked:
    """A client, and the number of its call that waits for an answer."""

    client: str
    seq: int

    def is_of(self, client: str, seq: int | None) -> bool:
        """Whether it is of this client, and if given the call `seq`."""
        return self.client == client and seq in (None, self.seq)


class Withdrawn(Exception):
    """Raised in a request that its client no longer waits for; it may go on all the same."""


@types.coroutine
def change() -> Generator[None]:
    """Wait until something may have changed in the hub."""
    yield


class Requests:
    """The requests that wait. answer: sends a value, or an error, to the client that asked."""

    def __init__(self, answer: Callable[[Asked, Any], None]) -> None:
        self._answer = answer
        self._waiting: dict[Asked, Coroutine[Any, Any, Any]] = {}

    def begin(self, asked: Asked, request: Coroutine[Any, Any, Any]) -> None:
        """Raises an error of the request that is no MnodeError, once it is answered."""
        self._waiting[asked] = request
        self._step(asked, request.send, None)

    def go_on(self) -> None:
        """Let every request go on. Raises as `begin`; the others go on at the next call."""
        for asked, request in list(self._waiting.items()):
            self._step(asked, request.send, None)

    def withdraw(self, client: str, seq: int | None = None) -> None:
        """End a client's requests. seq: only this one."""
        for asked, request in list(self._waiting.items()):
            if asked.is_of(client, seq):
                self._step(asked, request.throw, Withdrawn())

    def _step(self, asked: Asked, step: Callable[[Any], object], value: object) -> None:
        try:
            step(value)
        except StopIteration as end:
            answer = end.value
        except Withdrawn:
            del self._waiting[asked]
            return
        except Exception as error:
            answer = error
        else:
            return
        del self._waiting[asked]
        self._answer(asked, answer)
        if isinstance(answer, Exception) and not isinstance(answer, MnodeError):
            raise answer
