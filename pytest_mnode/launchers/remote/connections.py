"""The controller's side of the keeper: connections made, watched and ended, files that go with a
run however it ends."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_mnode.errors import ClusterError
from pytest_mnode.launchers.remote import keeper

_SLACK_S = 5.0
_END_S = 12.0


@dataclass(slots=True)
class _Held:
    """A connection. why: it is not there, "" where it is; answered: whether that is known."""

    why: str = "no connection in time"
    answered: bool = False


class Connections:
    """Connections by the names of what they lead to; thread-safe.

    on_lost: called from a thread of this object with the name and the reason, once a connection.
    """

    def __init__(self, on_lost: Callable[[str, str], None]) -> None:
        self._on_lost = on_lost
        self._held: dict[str, _Held] = {}
        self._news = threading.Condition()
        self._program: subprocess.Popen[bytes] | None = None
        self._closed = False

    def start(self, remove: Sequence[str]) -> int:
        """Start the keeper, which removes these directories if this process is killed; its pid."""
        self._program = subprocess.Popen(
            [sys.executable, "-S", "-E", "-s", str(Path(keeper.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._order({"remove": list(remove)})
        threading.Thread(target=self._listen, name="mnode-keeper", daemon=True).start()
        return self._program.pid

    def connect(
        self, ways: Mapping[str, tuple[Sequence[str], str]], limit_s: float
    ) -> dict[str, str]:
        """Run these programs, each of which makes a socket when its connection is up, and wait.

        ways: (argv, path of the socket) by name. Why those are not up that are not, by name.
        """
        with self._news:
            for name in ways:
                self._held[name] = _Held()
        for name, (argv, socket) in ways.items():
            order = {"connect": name, "argv": list(argv), "socket": socket, "within_s": limit_s}
            self._order(order)
        held = [self._held[name] for name in ways]
        with self._news:
            self._news.wait_for(lambda: all(one.answered for one in held), limit_s + _SLACK_S)
            return {name: self._held[name].why for name in ways if self._held[name].why}

    def end(self, name: str) -> None:
        """End a connection; that is no loss."""
        with self._news:
            self._held.pop(name, None)
        self._order({"end": name})

    def close(self, remove: Sequence[str] = ()) -> None:
        """End all, and remove these directories, but not those that `start` was told of."""
        self._closed = True
        program = self._program
        if program is None:
            return
        assert program.stdin is not None
        with contextlib.suppress(ClusterError, OSError):
            self._order({"remove": list(remove)})
            self._order({"done": True})
            program.stdin.close()
        try:
            program.wait(_END_S)
        except subprocess.TimeoutExpired:
            program.kill()
            program.wait()

    def _order(self, order: Mapping[str, object]) -> None:
        assert self._program is not None
        assert self._program.stdin is not None
        try:
            self._program.stdin.write(json.dumps(order).encode() + b"\n")
            self._program.stdin.flush()
        except (OSError, ValueError):
            raise ClusterError("the process that holds the connections has ended") from None

    def _listen(self) -> None:
        assert self._program is not None
        assert self._program.stdout is not None
        with self._program.stdout as lines:
            for line in lines:
                self._heard(json.loads(line))
        for name in list(self._held):
            if not self._closed:
                self._lose(name, "the process that holds the connections has ended")

    def _heard(self, told: Mapping[str, str]) -> None:
        match told:
            case {"up": name}:
                self._answered(name, "")
            case {"failed": name, "why": why}:
                self._answered(name, why)
            case {"ended": name, "why": why}:
                self._lose(name, why)

    def _answered(self, name: str, why: str) -> None:
        with self._news:
            if (held := self._held.get(name)) is not None:
                held.why, held.answered = why, True
            self._news.notify_all()

    def _lose(self, name: str, why: str) -> None:
        with self._news:
            held = self._held.get(name)
            was_up = held is not None and held.answered and not held.why
            if held is not None and (was_up or not held.answered):
                held.why, held.answered = why, True
            self._news.notify_all()
        if was_up:
            self._on_lost(name, why)
