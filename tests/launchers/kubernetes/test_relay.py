"""Connections from a pod to a port of the controller; the pod's part runs on this machine."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from pytest_mnode.launchers.kubernetes import pod_relay
from pytest_mnode.launchers.kubernetes.relay import Relay
from pytest_mnode.launchers.remote.bridge_server import STDERR, STDOUT

BIG = bytes(range(256)) * 4096  # 1 MiB
LIMIT_S = 30.0


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


async def through(port: int, data: bytes) -> bytes:
    """The bytes that return from a port for this data."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    back = await reader.readexactly(len(data))
    writer.close()
    return back


async def relayed(alive: Path) -> list[bytes]:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    relay = Relay(server.sockets[0].getsockname()[1])
    argv = [*pod_relay.argv(sys.executable, str(alive)), "0"]
    pipe = asyncio.subprocess.PIPE
    pod = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, stderr=pipe)
    to, of = pod.stdin, pod.stdout
    assert to is not None
    assert of is not None

    async def to_pod() -> None:
        while True:
            to.write(await relay.read())
            await to.drain()

    async def from_pod() -> None:
        while data := await of.read(1 << 15):
            await relay.write(STDOUT, data)

    feeding, ended = asyncio.ensure_future(to_pod()), asyncio.ensure_future(from_pod())
    await relay.opened(ended)
    back = await asyncio.gather(*(through(relay.port, BIG[number:]) for number in range(3)))
    feeding.cancel()
    to.close()
    await pod.wait()
    await ended
    relay.close()
    server.close()
    return back


def test_simultaneous_connections_keep_their_bytes(tmp_path: Path) -> None:
    back = asyncio.run(asyncio.wait_for(relayed(tmp_path / "alive"), LIMIT_S))
    assert back == [BIG, BIG[1:], BIG[2:]]
    # Data count as a sign of life: a busy relay gets no other.
    assert (tmp_path / "alive").exists()


def test_a_pod_whose_python_fails_is_reported() -> None:
    async def opened() -> str:
        relay = Relay(1)
        await relay.write(STDERR, b"Traceback\nOSError: address in use\n")
        ended = asyncio.ensure_future(asyncio.sleep(0))
        try:
            await relay.opened(ended)
        except OSError as error:
            return str(error)
        return ""

    assert asyncio.run(opened()) == "OSError: address in use"


def test_a_pod_whose_file_system_is_read_only_says_so() -> None:
    argv = pod_relay.argv(sys.executable, "/proc/mnode-alive")
    done = subprocess.run(
        [*argv, "0"], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("cannot write /proc/mnode-alive: ")
    assert done.stderr.endswith("; mount a writable volume, such as an emptyDir, at /proc\n")
