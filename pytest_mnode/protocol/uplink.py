"""A machine's connection to a hub on another one, for all of its processes; see `router`."""

from __future__ import annotations

import os
import select
import time
from collections import deque

import zmq

from pytest_mnode.protocol.channel import Line, Switchboard
from pytest_mnode.protocol.router import SPACE, Keys, messages, without_limit


class Uplink(Line):
    """Made only after a fork: zmq contexts survive none."""

    def __init__(
        self,
        name: str,
        endpoint: str,
        keys: Keys,
        ranks: Switchboard | None = None,
        *,
        reconnects: bool = True,
    ) -> None:
        """ranks: of other processes of this machine, whose messages this connection carries.

        reconnects: whether zmq connects again by itself, which loses messages without a word.
        """
        self._pid, self._name, self._ranks = os.getpid(), name, ranks
        self._context = zmq.Context(io_threads=1)
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        self._socket.identity = name.encode()
        self._socket.curve_serverkey = keys.server_public.encode()
        self._socket.curve_publickey = keys.client_public.encode()
        self._socket.curve_secretkey = keys.client_secret.encode()
        self._socket.ipv6 = True
        without_limit(self._socket)
        if not reconnects:
            self._socket.reconnect_ivl = -1
        self._socket.connect(endpoint)
        self._epoll = select.epoll()
        self._epoll.register(int(self._socket.getsockopt(zmq.FD)), select.EPOLLIN)
        if ranks is not None:
            self._epoll.register(ranks.descriptor, select.EPOLLIN)
        self.descriptor = self._epoll.fileno()
        self._arrived: deque[tuple[str, bytes]] = deque()

    def send_bytes(self, destination: str, payload: bytes) -> None:
        self._socket.send_multipart([self._name.encode(), destination.encode(), payload])

    def receive_bytes(self, timeout_s: float | None) -> bytes | None:
        """Also carries the messages of the ranks, both ways."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self._carry_up()
            self._carry_down()
            if self._arrived:
                self.sender, payload = self._arrived.popleft()
                return payload
            left_s = None if end is None else end - time.monotonic()
            if left_s is not None and left_s <= 0:
                return None
            self._epoll.poll(left_s)

    @property
    def pending(self) -> bool:
        """Whether messages from the hub are there; the descriptor tells only of the first."""
        return bool(int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def _carry_up(self) -> None:
        """Send the hub what the ranks have sent since the last call."""
        frames: list[bytes] = []
        for source, destination, payload in self._ranks.arrived() if self._ranks else ():
            frames += source.encode(), destination.encode(), payload
        if frames:
            self._socket.send_multipart(frames)

    def _carry_down(self) -> None:
        while self.pending:
            for source, names, payload in messages(self._socket.recv_multipart(zmq.NOBLOCK)):
                destinations = names.split(SPACE)
                if self._name in destinations:
                    self._arrived.append((source, payload))
                elif self._ranks is not None:
                    self._ranks.send(destinations, source, payload)

    def close(self) -> None:
        if os.getpid() == self._pid:
            self._epoll.close()
            self._socket.close(linger=500)
            self._context.term()
