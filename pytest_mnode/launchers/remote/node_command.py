"""Local process that represents a command on a node: `node_command.py SOCKET HOST COMMAND…`.

Run by its path, without site-packages. SOCKET is the bridge's, which holds the run's streams to its
nodes: it gets the command with the caller's variables and directory (never in an argument list),
and this process's standard streams. The exit status is the command's, or 128 + signal; 255, with
one line on standard error, if the node was not reached or is lost.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys

LOST = 255
PASSED_ON = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2),
)


def as_sent(text: str) -> str:
    """A text whose UTF-8 bytes are the bytes of `text` on this machine, whatever the locale."""
    return os.fsencode(text).decode("utf-8", "surrogateescape")


def request(host: str, argv: list[str], environ: dict[str, str]) -> bytes:
    """The bridge's request to run a command."""
    try:
        directory = os.getcwd()  # noqa: PTH109  pathlib costs 10 ms
    except OSError:  # removed meanwhile
        directory = "/"
    asked = {"exec": host, "argv": [as_sent(word) for word in argv], "cwd": as_sent(directory)}
    variables = {as_sent(name): as_sent(value) for name, value in environ.items()}
    return json.dumps({**asked, "environ": variables}).encode() + b"\n"


def ask(bridge: socket.socket, asked: bytes, fds: list[int]) -> None:
    """Send a request with the command's standard streams. Raises OSError."""
    sent = socket.send_fds(bridge, [asked], fds)
    if sent < len(asked):
        bridge.sendall(asked[sent:])


def read_answer(answer: bytes, host: str) -> tuple[int, str]:
    """Exit status, and the line that says why there is none."""
    status, _, why = answer.decode(errors="replace").partition(" ")
    if not status:
        why = "the run's connection to its nodes has ended"
    return int(status or LOST), f"{host}: {why}\n" if why else ""


def main(path: str, host: str, *argv: str) -> int:
    bridge = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    answer = b""
    try:
        folder, _, name = path.rpartition("/")  # as protocol.socket_path, which costs an import
        bridge.connect(f"/proc/self/fd/{os.open(folder, os.O_PATH)}/{name}")

        def pass_on(number: int, _: object) -> None:
            with contextlib.suppress(OSError):
                bridge.send(bytes([number]))

        asked = request(host, list(argv), dict(os.environ))
        # The command may run before its signals can be passed on: until then they wait.
        signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        ask(bridge, asked, [0, 1, 2])
        for number in PASSED_ON:
            signal.signal(number, pass_on)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        while data := bridge.recv(4096):
            answer += data
    except OSError:
        pass
    status, why = read_answer(answer, host)
    sys.stderr.write(why)
    return status


if __name__ == "__main__":
    status = main(*sys.argv[1:])
    sys.stderr.flush()
    os._exit(status)
