"""The bridge to nodes whose streams are those of local commands, such as ssh."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE
from typing import Any

from pytest_mnode.launchers.cleanup import child
from pytest_mnode.launchers.remote import bootstrap, bridge
from pytest_mnode.launchers.remote.openssh import was_dropped, why_no_connection
from pytest_mnode.launchers.remote.wire import CHUNK_BYTES, HANG_UP, HELLO, UNUSABLE, frame
from pytest_mnode.processes import KILLED_S, end_programs

AT_ONCE = 32
"""Most streams that are opened at once: each also runs an ssh on this machine, and a jump host gets
those of all nodes."""
AGAIN_AT_ONCE = 8
"""The same once a connection was dropped: an sshd drops some if 10 or more have not authenticated
yet (MaxStartups)."""
AGAIN_S = 0.5
TRIES = 6
STATUS_S = 2.0
"""Time until ssh has ended, after its stream has."""
END_S = 7.0
"""Time for nodes to end what runs there (remote_exec.GRACE_S), after which ssh is ended."""
_POLL_S = 0.02


@dataclass(slots=True)
class Opened:
    """A host's local command. errors: the file of its standard error. greeting: what the node
    printed before its program ran. skipped: bytes of errors that were printed until then."""

    program: subprocess.Popen[bytes]
    writer: asyncio.WriteTransport
    errors: Path
    greeting: bytes = b""
    greeted: bool = False
    skipped: int = 0

    def printed(self) -> list[str]:
        """Lines of the command, and of the node before its program ran."""
        first = b"" if self.greeted else self.greeting
        with contextlib.suppress(OSError):
            first += b"\n" + self.errors.read_bytes()[self.skipped :]
        return first.decode(errors="replace").splitlines()


class StdioBridge(bridge.Bridge):
    """late: why a node's program may take longer than its limit to start."""

    def __init__(self, directory: Path, silence_s: float, late: str) -> None:
        super().__init__(silence_s)
        self._directory, self._silence_s, self._late = directory, silence_s, late
        self._held: dict[str, Opened] = {}
        self._at_once, self._trying = AT_ONCE, 0
        self._turn = asyncio.Condition()

    async def open(self, host: str, argv: Sequence[str], within_s: float) -> str:
        """See Bridge. Tries again what an sshd with too many connections has dropped."""
        why = ""
        for _ in range(TRIES):
            async with self._turn:
                await self._turn.wait_for(lambda: self._trying < self._at_once)
                self._trying += 1
            try:
                why, dropped = await self._try(host, argv, within_s)
            finally:
                async with self._turn:
                    self._trying -= 1
                    self._turn.notify_all()
            if not dropped:
                break
            self._at_once = AGAIN_AT_ONCE
            await asyncio.sleep(AGAIN_S)
        return why

    async def _try(self, host: str, argv: Sequence[str], within_s: float) -> tuple[str, bool]:
        """Why no stream was opened, or ""; and whether an sshd dropped it."""
        self.drop(host)
        loop = asyncio.get_running_loop()
        errors = self._directory / f"errors-{host.replace('/', '-')}"
        try:
            with errors.open("wb") as file:
                program = child.start(argv, PIPE, PIPE, file)
        except (OSError, subprocess.SubprocessError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            return f"cannot start {argv[0]} on this machine: {reason}", False
        assert program.stdout is not None
        writer, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, program.stdin)
        held = self._held[host] = Opened(program, writer, errors)
        writer.write(bootstrap.source(self._silence_s))
        os.set_blocking(program.stdout.fileno(), False)
        up: asyncio.Future[str] = loop.create_future()
        loop.add_reader(program.stdout.fileno(), self._read, host, held, up)
        try:
            why = await asyncio.wait_for(asyncio.shield(up), within_s)
        except TimeoutError:
            why = why_late(within_s, held.printed(), self._late)
        if why:
            dropped = was_dropped(held.printed())
            self.drop(host)
            return why, dropped
        return "", False

    def _read(self, host: str, held: Opened, up: asyncio.Future[str]) -> None:
        assert held.program.stdout is not None
        try:
            data = os.read(held.program.stdout.fileno(), CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(held.program.stdout.fileno())
            self.do(self._over(host, held, up))
        elif held.greeted:
            self.nodes.feed(self.nodes.at[host], data)
        else:
            held.greeting += data
            _, hello, data = held.greeting.partition(HELLO)
            if hello:
                held.greeted = True
                held.skipped = held.errors.stat().st_size  # a login shell's explain no later loss
                self.nodes.feed(self.nodes.take(host, held.writer.write), data)
                if not up.done():
                    up.set_result("")

    async def _over(self, host: str, held: Opened, up: asyncio.Future[str]) -> None:
        """The stream has ended: say why."""
        end = time.monotonic() + STATUS_S
        while held.program.poll() is None and time.monotonic() < end:
            await asyncio.sleep(_POLL_S)
        why = why_over(held.program.poll(), held.printed(), greeted=held.greeted)
        if self._held.get(host) is not held:
            return
        if not up.done():
            up.set_result(why)
        else:
            self.nodes.lose(host, why)

    def drop(self, host: str) -> None:
        """End the host's command, with its own ssh to a jump host."""
        if (held := self._held.pop(host, None)) is not None:
            self._end([held])
            self.do(asyncio.to_thread(end_programs, [held.program], KILLED_S))

    def end(self) -> None:
        """See Bridge."""
        every = list(self._held.values())
        for held in every:
            assert held.program.stdin is not None
            with contextlib.suppress(OSError, ValueError):
                os.set_blocking(held.program.stdin.fileno(), False)
                os.write(held.program.stdin.fileno(), frame(HANG_UP))
        end = time.monotonic() + END_S
        while any(one.program.poll() is None for one in every) and time.monotonic() < end:
            time.sleep(_POLL_S)
        self._end(every)
        end_programs([held.program for held in every], KILLED_S)

    def _end(self, every: Sequence[Opened]) -> None:
        for held in every:
            assert held.program.stdout is not None
            with contextlib.suppress(RuntimeError):  # the loop is over
                asyncio.get_running_loop().remove_reader(held.program.stdout.fileno())
                held.writer.close()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(held.program.pid, signal.SIGKILL)
            held.program.stdout.close()


def why_over(code: int | None, printed: Sequence[str], *, greeted: bool) -> str:
    """Why a stream ended, from its command's status and the lines it printed.

    greeted: whether the node's program ran.
    """
    last = why_no_connection(printed)
    if greeted:
        return f"the connection was lost{': ' * bool(last)}{last}"
    if code == UNUSABLE and last:
        return last
    if code == 255:
        return last or "ssh ended and printed nothing"
    how = f"status {code}" if code is not None else "no status"
    return f"Python did not start on the node ({how}{': ' * bool(last)}{last})"


def why_late(limit_s: float, printed: Sequence[str], late: str) -> str:
    """Why a node's program is given up that did not run within `limit_s`. late: what is slow."""
    last = why_no_connection(printed)
    printed_last = f" ({last})" if last else ""
    remedy = "raise --mnode-start-limit if it is slow"
    return f"no answer within {limit_s:g} s{printed_last}: {late}; {remedy}"


def _made(settings: Mapping[str, Any], directory: Path) -> StdioBridge:
    return StdioBridge(directory, **settings)


if __name__ == "__main__":
    bridge.run(_made, *sys.argv[1:])
