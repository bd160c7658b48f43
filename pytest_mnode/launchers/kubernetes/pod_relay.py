"""Runs in a pod: relays connections to a loopback port to the controller, over one exec stream.

Only the standard library; its source is an argument of the pod's Python. Arguments: the file to
touch while the run lives, and the port (0 for any). The first frame contains the port. A frame is a
connection's number and a length, four bytes each, and that many bytes; length 0 closes the
connection. Number 0 is a sign of life, sent if there is no data. Ends with its standard input.
"""

import os
import select
import socket
import struct
import sys
import time

HEADER = struct.Struct(">II")
CHUNK_BYTES = 1 << 16
MOST_BYTES = 1 << 20


def argv(python: str, alive: str) -> list[str]:
    """The pod's command, without the port."""
    with open(__file__) as text:  # noqa: PTH123
        return [python, "-I", "-S", "-c", text.read(), alive]


class PodRelay:
    """Connections by number, each with the data that waits to be sent to it."""

    def __init__(self, alive: str, port: int) -> None:
        self.alive, self.touched = alive, -1.0
        self.touch()
        self.listener = socket.create_server(("127.0.0.1", port))
        self.to_run, self.from_run = bytearray(), bytearray()
        self.connections: dict[int, socket.socket] = {}
        self.waiting: dict[int, bytearray] = {}
        self.made = 0
        os.set_blocking(1, False)
        self.send(0, str(self.listener.getsockname()[1]).encode())

    def send(self, number: int, data: bytes) -> None:
        self.to_run += HEADER.pack(number, len(data)) + data

    def close(self, number: int) -> None:
        self.connections.pop(number).close()
        del self.waiting[number]

    def turn(self) -> bool:
        """Wait for events, and handle them; False at the end of input."""
        fds = {c.fileno(): number for number, c in self.connections.items()}
        reading = [0]
        if len(self.to_run) < MOST_BYTES:
            reading += [self.listener.fileno(), *fds]
        writing = [fd for fd, number in fds.items() if self.waiting[number]]
        writing += [1] if self.to_run else []
        ready, able, _ = select.select(reading, writing, [])
        if 1 in able:
            del self.to_run[: os.write(1, self.to_run[:CHUNK_BYTES])]
        if 0 in ready and not self.read_run():
            return False
        if self.listener.fileno() in ready:
            self.accept()
        for fd in {*ready, *able} & fds.keys():
            if fds[fd] in self.connections:
                self.serve(fds[fd], fd in ready, fd in able)
        return True

    def read_run(self) -> bool:
        """Handle whole frames of the run; False at the end of input."""
        data = os.read(0, CHUNK_BYTES)
        self.from_run += data
        if data:
            self.touch()
        while len(self.from_run) >= HEADER.size:
            number, length = HEADER.unpack_from(self.from_run)
            end = HEADER.size + length
            if len(self.from_run) < end:
                break
            payload = self.from_run[HEADER.size : end]
            del self.from_run[:end]
            if number in self.connections and length:
                self.waiting[number] += payload
            elif number in self.connections:
                self.close(number)
        return bool(data)

    def touch(self) -> None:
        if time.monotonic() < self.touched + 1.0:
            return
        self.touched = time.monotonic()
        try:
            with open(self.alive, "a"):  # noqa: PTH123  pathlib would cost its import
                os.utime(self.alive)
        except OSError as error:
            folder = os.path.dirname(self.alive)  # noqa: PTH120
            sys.exit(
                f"cannot write {self.alive}: {error.strerror}; mount a writable volume, such as an "
                f"emptyDir, at {folder}"
            )

    def accept(self) -> None:
        connection, _ = self.listener.accept()
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.made += 1
        self.connections[self.made], self.waiting[self.made] = connection, bytearray()

    def serve(self, number: int, ready: bool, able: bool) -> None:
        connection, waiting = self.connections[number], self.waiting[number]
        try:
            if able:
                del waiting[: connection.send(waiting[:CHUNK_BYTES])]
            data = connection.recv(CHUNK_BYTES) if ready else None
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data is not None:
            self.send(number, data)
        if data == b"":
            self.close(number)


if __name__ == "__main__":
    relay = PodRelay(sys.argv[1], int(sys.argv[2]))
    while relay.turn():
        pass
