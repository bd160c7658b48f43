"""Runs a program of perftest between neighbours, rail by rail, and reads what it prints."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from pytest_mnode.criteria.preflight.survey import search_path
from pytest_mnode.logs.perftest import Perftest, read_perftest
from pytest_mnode.machine.encoding import decode
from pytest_mnode.measuring.tools.beside_nic import ToolPlacement
from pytest_mnode.spec.fabric import RdmaBandwidthPromise, WriteLatencyPromise

if TYPE_CHECKING:
    from pytest_mnode.launchers.nodes import Nodes

Promise = RdmaBandwidthPromise | WriteLatencyPromise
_FIRST_PORT = 18515
"""perftest's own; each pair of a round has another, because a node may serve two."""
_SERVER_LIMIT_S = 60.0
"""Interpreters may start from a file server that is slow for the first."""
_SERVER_END_S, _FAILED_END_S = 10.0, 2.0
"""A server ends with its client: later it is ended, and where it ran is not known. After a client
that failed it may wait for another."""
_RETRY_S = 0.3
_POLL_S = 0.05
_SPARE_S = 80.0
"""Beyond the measured time: interpreters, queue pairs, memory registration, results."""
_BESIDE_NIC = ("-P", "-m", "pytest_mnode.measuring.tools.beside_nic")


@dataclass(frozen=True, slots=True)
class PairResult:
    """What a program measured between two nodes over one rail.

    value: Gbit/s of one direction, or the typical latency in µs; None where it could not be
    measured, with the reason in `why`. client, server: where each ran; None: not known.
    """

    sender: str
    receiver: str
    device: str
    value: float | None
    why: str = ""
    client: ToolPlacement | None = None
    server: ToolPlacement | None = None

    @property
    def path(self) -> str:
        """Such as "node1→node2 mlx5_0"."""
        return f"{self.sender}→{self.receiver} {self.device}"


def run_pairs(
    cluster: Nodes, devices: Mapping[str, tuple[str, ...]], promise: Promise
) -> Iterator[PairResult]:
    """Each node sends to the next, the last to the first: all at once, one rail after the other.

    Latencies are measured one pair after the other: traffic beside them would be measured with
    them. A rail is the devices at the same place in each node's list. Yields one result per pair
    and rail; a device that only some nodes have is reported as missing on the others.
    """
    nodes = cluster.nodes
    for rail in range(max(map(len, devices.values()), default=0)):
        ends = [_End(node, (devices[node][rail : rail + 1] or (None,))[0], rail) for node in nodes]
        neighbours = zip(ends, [*ends[1:], ends[0]], strict=True)
        pairs = [
            _Pair(cluster, promise, sender, receiver, _FIRST_PORT + place)
            for place, (sender, receiver) in enumerate(neighbours)
        ]
        together = isinstance(promise, RdmaBandwidthPromise)
        try:
            for turn in [pairs] if together else [[pair] for pair in pairs]:
                for pair in turn:
                    pair.start()
                # Polled in turn, so that a pair that hangs delays no other.
                while [pair for pair in turn if not pair.over()]:
                    time.sleep(_POLL_S)
            yield from (pair.result for pair in pairs)
        finally:
            for pair in pairs:
                pair.close()


@dataclass(frozen=True, slots=True)
class _End:
    """A node's device for a rail; None where the node has fewer devices than others."""

    node: str
    device: str | None
    rail: int


class _Side:
    """One end's process, and the file that it prints to."""

    def __init__(self, cluster: Nodes, node: str, argv: list[str]) -> None:
        self._printed: IO[str] = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  until close
        env = search_path(cluster.python)
        self.process: subprocess.Popen[str] = cluster.start(
            argv, node, env=env, output=self._printed
        )

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def read(self) -> tuple[Perftest, ToolPlacement | None]:
        """What it printed, and where it ran, which is its last line."""
        self._printed.seek(0)
        text = self._printed.read()
        output, _, last = text.strip().rpartition("\n")
        try:
            return read_perftest(output), decode(ToolPlacement, last)
        except ValueError:
            return read_perftest(text), None

    def close(self) -> None:
        """End what still runs."""
        self.process.kill()
        self.process.wait()
        self._printed.close()


class _Pair:
    """A server and its client."""

    def __init__(
        self, cluster: Nodes, promise: Promise, sender: _End, receiver: _End, port: int
    ) -> None:
        self._cluster = cluster
        self._promise = promise
        self._sender, self._receiver = sender, receiver
        self._port = port
        self._server: _Side | None = None
        self._client: _Side | None = None
        self._began = self._again = self._server_end = 0.0
        self._value: float | None = None
        self._why: str | None = None
        self._placed: ToolPlacement | None = None

    def start(self) -> None:
        """Start both sides, where both have the device."""
        self._began = time.monotonic()
        if missing := [e.node for e in (self._sender, self._receiver) if e.device is None]:
            self._why = f"no device for this rail on {' and '.join(missing)}"
            return
        self._server = self._start(self._receiver)
        self._start_client()

    def _start_client(self) -> None:
        self._client = self._start(self._sender, self._cluster.address(self._receiver.node))

    def _start(self, end: _End, *server: str) -> _Side:
        promise, memory = self._promise, "host"
        if isinstance(promise, RdmaBandwidthPromise):
            length = ["-D", str(max(1, round(promise.duration_s))), "--report_gbits"]
            memory = promise.memory
        else:
            length = ["-n", str(promise.iterations)]
        argv = [
            *(self._cluster.python, *_BESIDE_NIC, str(end.device), promise.binding, memory),
            *(promise.program, "-d", str(end.device), "-p", str(self._port), "-F"),
            *("-s", str(promise.size_bytes), *length, *promise.arguments, *server),
        ]
        return _Side(self._cluster, end.node, argv)

    def over(self) -> bool:
        """Look at both sides; whether `result` is whole."""
        now = time.monotonic()
        if self._why is None:
            if now >= self._again:
                self._look(now)
            return False
        return self._server is None or self._server.ended or now > self._server_end

    def _look(self, now: float) -> None:
        assert self._server is not None
        if self._client is None:
            self._start_client()
            return
        if not self._client.ended:
            spent = getattr(self._promise, "duration_s", 0.0) + _SPARE_S
            if now > self._began + spent:
                to = f"{self._receiver.node} port {self._port}"
                self._end(None, f"{self._promise.program} to {to} did not end within its time")
            return
        found, self._placed = self._client.read()
        refused = any("connect" in fault.lower() for fault in found.faults)
        if refused and not self._server.ended and now < self._began + _SERVER_LIMIT_S:
            self._client.close()
            self._client, self._again = None, now + _RETRY_S  # its server is not up yet
            return
        rates = isinstance(self._promise, RdmaBandwidthPromise)
        values = [value for _, value in (found.rates_gbits_s if rates else found.typical_us)]
        if self._placed and self._placed.status is None:
            self._end(None, f"client on {self._sender.node}: {self._placed.problem}")
        elif why := found.why_incomplete:
            self._end(None, why)
        elif len(values) != 1 or values[0] is None:
            self._end(None, f"no {'average' if rates else 'latency'} in its table")
        elif rates and found.bidirectional is None:
            self._end(None, "no title above its table: whether it adds up both directions is open")
        else:  # of both directions the program prints the sum
            self._end(values[0] / 2 if found.bidirectional else values[0])

    def _end(self, value: float | None, why: str = "") -> None:
        self._value, self._why = value, why
        waits_s = _FAILED_END_S if value is None else _SERVER_END_S
        self._server_end = time.monotonic() + waits_s

    @property
    def result(self) -> PairResult:
        """What was measured, once the pair is over."""
        device = self._sender.device or self._receiver.device or f"rail {self._sender.rail}"
        server, why = None, self._why or ""
        if self._server is not None and self._server.ended:
            found, server = self._server.read()
            if self._value is None and (error := _server_error(found, server)) and error not in why:
                why += f"; its server on {self._receiver.node}: {error}"
        names = self._sender.node, self._receiver.node, device
        return PairResult(*names, self._value, why, self._placed, server)

    def close(self) -> None:
        """End what still runs."""
        for side in (self._client, self._server):
            if side is not None:
                side.close()


def _server_error(found: Perftest, placed: ToolPlacement | None) -> str:
    """Why a server that ended did so; "" where it ended well."""
    if placed is not None and placed.status is None:
        return placed.problem
    if placed is not None and placed.status and placed.status < 0:
        return f"killed by signal {-placed.status}"
    return found.faults[0] if found.faults else "" if placed else "it was killed"
