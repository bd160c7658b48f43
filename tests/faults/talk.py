"""Checks between nodes of a rack, by plain sockets and files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pytest_mnode import faults
from pytest_mnode.launchers.rack import Rack, cgroups
from tests.inner import need_programs_of

PYTHON = [sys.executable, "-S", "-E", "-s", "-c"]

BYTES = 900_000
# Timed from before the first byte is sent until the last has arrived, so that a process without
# CPU time makes a link look slower, never faster.
SINK = """
import socket, sys, time
server = socket.create_server((sys.argv[1], 7100))
print("up", flush=True)
peer, _ = server.accept()
while peer.recv(1 << 16): pass
print(time.monotonic())
"""
SOURCE = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 7100), 5) as peer:
    print(time.monotonic())
    peer.sendall(bytes(int(sys.argv[2])))
"""
ECHO = """
import socket, sys
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind((sys.argv[1], 7101))
print("up", flush=True)
while True:
    server.sendto(*server.recvfrom(9000))
"""
# IP_MTU_DISCOVER = IP_PMTUDISC_DO: never cut a packet in pieces.
CALL = """
import socket, sys, time
peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
peer.setsockopt(socket.IPPROTO_IP, 10, 2)
size, count, wait = int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
sent = {}
peer.connect((sys.argv[1], 7101))
for i in range(count):
    sent[i] = time.monotonic()
    peer.send(i.to_bytes(4, "big") + bytes(size - 4))
peer.settimeout(wait)
times = []
try:
    while len(times) < count:
        number = int.from_bytes(peer.recv(9000)[:4], "big")
        times.append(time.monotonic() - sent[number])
except TimeoutError:
    pass
print(len(times), min(times, default=-1))
"""
CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 0.4)
    print("connected")
except OSError as error:
    print(type(error).__name__)
"""


def output_of(rack: Rack, index: int, argv: list[str]) -> str:
    """Output of a command on a node, with errors."""
    (command,) = rack.commands([rack.nodes[index]], argv)
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return str(subprocess.run(command, timeout=20, check=False, **pipes).stdout).strip()


def shell(rack: Rack, index: int, script: str) -> str:
    return output_of(rack, index, ["sh", "-c", script])


@contextmanager
def injected(rack: Rack, text: str) -> Iterator[None]:
    need_programs_of(text)
    undo = faults.inject(rack, text)
    try:
        yield
    finally:
        undo()


@contextmanager
def server(rack: Rack, index: int, program: str, *args: str) -> Iterator[subprocess.Popen[str]]:
    """A program that is ready once it has printed a line."""
    (command,) = rack.commands([rack.nodes[index]], [*PYTHON, program, *args])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "up\n"
            yield process
        finally:
            process.terminate()


def rate_mbit_s(rack: Rack, source: int, target: int) -> float:
    """Payload of one TCP stream over the fabric."""
    address = rack.nodes[target].fabric_address or ""
    with server(rack, target, SINK, address) as sink:
        started_s = float(output_of(rack, source, [*PYTHON, SOURCE, address, str(BYTES)]))
        assert sink.stdout is not None
        return BYTES * 8e-6 / (float(sink.stdout.read()) - started_s)


def echoes(
    rack: Rack, source: int, target: int, *, size: int = 64, count: int = 1, wait_s: float = 2.0
) -> tuple[int, float]:
    """Number of `count` UDP packets that returned over the fabric, and the shortest time, s."""
    address = rack.nodes[target].fabric_address or ""
    with server(rack, target, ECHO, address):
        call = [*PYTHON, CALL, address, str(size), str(count), str(wait_s)]
        number, least = output_of(rack, source, call).split()
    return int(number), float(least)


def connection(rack: Rack, source: int, address: str, port: int) -> str:
    """ "connected", or the error's name."""
    return output_of(rack, source, [*PYTHON, CONNECT, address, str(port)])


def quotas() -> bool:
    """Whether control groups with a CPU quota can be created here."""
    found = cgroups.hierarchy_of("cpu")
    return os.geteuid() == 0 and found is not None and os.access(found[0], os.W_OK)


def need_quotas() -> None:
    """Skip if none can be created by any user: they need a right that a container may lack."""
    if not quotas():
        pytest.skip("no control groups for CPU time can be made here")
