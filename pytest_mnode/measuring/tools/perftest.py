"""ib_write_bw between neighbours, rail by rail, judged by the line rate of one port."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from pytest_mnode.logs.perftest import read_perftest
from pytest_mnode.measurement import Measurement, at_least
from pytest_mnode.spec.fabric import WriteBandwidthPromise
from pytest_mnode.spec.quantity import RATE

if TYPE_CHECKING:
    from pytest_mnode.launchers.nodes import Nodes
    from pytest_mnode.spec.inventory import Fabric

DEFAULT = WriteBandwidthPromise.model_validate({})
"""How a program on every node's PATH is run where the spec does not mention it."""
_FIRST_PORT = 18515
"""perftest's own; each pair of a round has another, because a node may serve two."""
_SERVER_LIMIT_S = 10.0
_RETRY_S = 0.3
_POLL_S = 0.05
_SPARE_S = 20.0
"""Beyond the measured time: queue pairs, memory registration, the exchange of results."""


@dataclass(frozen=True, slots=True)
class PairBandwidth:
    """What one node wrote into another's memory over one rail.

    gbits_s: average of one direction; None where it could not be measured, with the reason in
    `why`.
    """

    sender: str
    receiver: str
    device: str
    gbits_s: float | None
    why: str = ""

    @property
    def path(self) -> str:
        """Such as "node1→node2 mlx5_0"."""
        return f"{self.sender}→{self.receiver} {self.device}"


def judge_devices(devices: Mapping[str, Sequence[str]], fabric: Fabric) -> list[Measurement]:
    """One measurement per node: without its devices there is nothing to measure."""
    return [
        Measurement(
            f"RDMA devices of {node}",
            len(names),
            "",
            at_least(fabric.nics_per_node),
            "fabric.nics_per_node",
            f"{node} has {', '.join(names) or 'no RDMA device of the fabric'}",
        )
        for node, names in devices.items()
    ]


def judge(
    pairs: Iterable[PairBandwidth], fabric: Fabric, promise: WriteBandwidthPromise
) -> list[Measurement]:
    """One measurement per pair and rail, against one port's line rate."""
    bound = at_least(promise.at_least_fraction * fabric.line_rate_gbits_s)
    source = (
        f"fabric.line_rate {RATE.text(fabric.line_rate_bits_s)}"
        f" × at_least_fraction {promise.at_least_fraction:g}"
    )
    return [
        Measurement(
            f"{promise.program} {pair.path}",
            pair.gbits_s,
            "Gbit/s",
            bound,
            source,
            pair.path,
            pair.why,
        )
        for pair in pairs
    ]


def devices_of(cluster: Nodes, fabric: Fabric) -> dict[str, tuple[str, ...]]:
    """RDMA devices of the fabric, by node; none where a node has none."""
    listed = cluster.run(["ls", "-1", "/sys/class/infiniband"], timeout=30)
    return {
        found.node: tuple(
            sorted(
                (name for name in found.stdout.split() if found.ok and fabric.has_interface(name)),
                key=_by_number,
            )
        )
        for found in listed
    }


def _by_number(name: str) -> list[tuple[str, int]]:
    """mlx5_10 after mlx5_9."""
    return [(text, int(digits or 0)) for text, digits in re.findall(r"(\D*)(\d*)", name)]


def write_bandwidths(
    cluster: Nodes, devices: dict[str, tuple[str, ...]], promise: WriteBandwidthPromise
) -> Iterator[PairBandwidth]:
    """Each node writes to the next, the last to the first: all at once, one rail after the other.

    A rail is the devices at the same place in each node's list. Yields one result per pair and
    rail; a device that only some nodes have is reported as missing on the others.
    """
    nodes = cluster.nodes
    for rail in range(max(map(len, devices.values()), default=0)):
        ends = [_End(node, (devices[node][rail : rail + 1] or (None,))[0], rail) for node in nodes]
        neighbours = zip(ends, [*ends[1:], ends[0]], strict=True)
        pairs = [
            _Pair(cluster, promise, sender, receiver, _FIRST_PORT + place)
            for place, (sender, receiver) in enumerate(neighbours)
        ]
        try:
            for pair in pairs:
                pair.start()
            # Polled in turn, so that a pair that hangs delays no other.
            while [pair for pair in pairs if not pair.over()]:
                time.sleep(_POLL_S)
            yield from (pair.result for pair in pairs if pair.result is not None)
        finally:
            for pair in pairs:
                pair.close()


@dataclass(frozen=True, slots=True)
class _End:
    """A node's device for a rail; None where the node has fewer devices than others."""

    node: str
    device: str | None
    rail: int


class _Pair:
    """A server and its client."""

    def __init__(
        self,
        cluster: Nodes,
        promise: WriteBandwidthPromise,
        sender: _End,
        receiver: _End,
        port: int,
    ) -> None:
        self._cluster = cluster
        self._promise = promise
        self._sender, self._receiver = sender, receiver
        self._port = port
        self._server: subprocess.Popen[str] | None = None
        self._client: subprocess.Popen[str] | None = None
        self._printed = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  until close
        self._began = self._again = 0.0
        self.result: PairBandwidth | None = None

    def start(self) -> None:
        """Start both sides, where both have the device."""
        self._began = time.monotonic()
        if missing := [e.node for e in (self._sender, self._receiver) if e.device is None]:
            self._end(None, f"no device for this rail on {' and '.join(missing)}")
            return
        self._server = self._start(self._receiver, subprocess.DEVNULL)
        self._start_client()

    def _start_client(self) -> None:
        self._printed.seek(0)
        self._printed.truncate()
        server = self._cluster.address(self._receiver.node)
        self._client = self._start(self._sender, self._printed, server)

    def _start(self, end: _End, output: int | IO[str], *server: str) -> subprocess.Popen[str]:
        promise = self._promise
        argv = [
            *(promise.program, "-d", str(end.device), "-p", str(self._port), "-F"),
            *("-s", str(promise.size_bytes), "-D", str(max(1, round(promise.duration_s)))),
            *("--report_gbits", *promise.arguments, *server),
        ]
        return self._cluster.start(argv, end.node, output=output)

    def over(self) -> bool:
        """Look at the client; whether `result` is known."""
        now = time.monotonic()
        if self.result is None and now >= self._again:
            self._look(now)
        return self.result is not None

    def _look(self, now: float) -> None:
        assert self._server is not None
        if self._client is None:
            self._start_client()
            return
        if self._client.poll() is None:
            if now > self._began + self._promise.duration_s + _SPARE_S:
                self._end(None, f"{self._promise.program} did not end within its time")
            return
        self._printed.seek(0)
        found = read_perftest(self._printed.read())
        refused = any("connect" in fault.lower() for fault in found.faults)
        if refused and self._server.poll() is None and now < self._began + _SERVER_LIMIT_S:
            self._client, self._again = None, now + _RETRY_S  # its server is not up yet
            return
        rates = [rate for _, rate in found.rates_gbits_s]
        if why := found.why_incomplete:
            self._end(None, why)
        elif len(rates) != 1 or rates[0] is None:
            self._end(None, "no average in its table")
        else:  # of both directions the program prints the sum
            self._end(rates[0] / 2 if found.bidirectional else rates[0])

    def _end(self, gbits_s: float | None, why: str = "") -> None:
        device = self._sender.device or self._receiver.device or f"rail {self._sender.rail}"
        self.result = PairBandwidth(self._sender.node, self._receiver.node, device, gbits_s, why)

    def close(self) -> None:
        """End what still runs."""
        for process in (self._client, self._server):
            if process is not None:
                process.kill()
                process.wait()
        self._printed.close()
