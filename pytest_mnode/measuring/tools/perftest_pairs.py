"""Runs of a perftest program between neighbouring nodes, rail by rail."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mnode.criteria.preflight.survey import search_path
from pytest_mnode.detection import Estimate, estimate, wants_more
from pytest_mnode.logs.perftest import Perftest, read_perftest
from pytest_mnode.machine.encoding import decode
from pytest_mnode.measurement import Bound
from pytest_mnode.measuring.tools.beside_nic import STARTED, ToolPlacement
from pytest_mnode.processes import end_programs
from pytest_mnode.spec.fabric import RdmaBandwidthPromise, WriteLatencyPromise

if TYPE_CHECKING:
    from pytest_mnode.launchers.nodes import Nodes

Promise = RdmaBandwidthPromise | WriteLatencyPromise
_FIRST_PORT = 18515
"""perftest's default port; each pair of a round has its own, because a node may serve two."""
_SERVER_LIMIT_S = 60.0
"""Time to start a server: the first interpreter from a file server may be slow."""
_LISTEN_LIMIT_S = 10.0
"""A server whose program runs listens within this time; one that still refuses is unreachable."""
_SERVER_END_S, _FAILED_END_S = 10.0, 2.0
"""Time for a server to end after its client, or after one that failed: then it may wait for another
client. A server that is killed later does not report where it ran."""
_RETRY_S = 0.3
_POLL_S = 0.05
_SPARE_S = 80.0
"""Time besides the measured duration: interpreters, queue pairs, registration, results."""
_BESIDE_NIC = ("-P", "-m", "pytest_mnode.measuring.tools.beside_nic")


@dataclass(frozen=True, slots=True)
class PairResult:
    """The result of a program between two nodes over one rail.

    value: mean of `repeats`, in Gbit/s of one direction, or µs of typical latency; None if a run
    could not be measured, with the reason in `why`. repeats: value of each run, which connects
    anew. client, server: where each ran in the last
    run; None if unknown.
    """

    sender: str
    receiver: str
    device: str
    value: float | None
    why: str = ""
    client: ToolPlacement | None = None
    server: ToolPlacement | None = None
    repeats: tuple[float, ...] = ()

    def after(self, before: PairResult | None) -> PairResult:
        """This run combined with the earlier runs."""
        if self.value is None:
            return self
        after = replace(self, repeats=(*(before.repeats if before else ()), self.value))
        return replace(after, value=after.estimate.value) if after.estimate else after

    @property
    def estimate(self) -> Estimate | None:
        """The value and how sure it is; None for one run."""
        return estimate([[value] for value in self.repeats])

    @property
    def path(self) -> str:
        """Nodes and device, such as "node1→node2 mlx5_0"."""
        return f"{self.sender}→{self.receiver} {self.device}"


@dataclass(frozen=True, slots=True)
class End:
    """A node's device for a rail. device: None if the node has fewer devices than others."""

    node: str
    device: str | None
    rail: int


def rails(nodes: Sequence[str], devices: Mapping[str, Sequence[str]]) -> Iterator[list[End]]:
    """The ends of each rail, by node: the devices of one name.

    If nodes name their devices differently, those at the same position in each node's list.
    """
    longest = max(devices.values(), key=len, default=())
    by_name = all(set(names) <= set(longest) for names in devices.values())
    for rail, name in enumerate(longest):
        ends = []
        for node in nodes:
            here = {name} & {*devices[node]} if by_name else devices[node][rail : rail + 1]
            ends.append(End(node, next(iter(here), None), rail))
        yield ends


def run_pairs(
    cluster: Nodes, devices: Mapping[str, tuple[str, ...]], promise: Promise, bound: Bound
) -> Iterator[PairResult]:
    """Measure each node to the next, the last to the first; one result per pair and rail.

    Bandwidth is measured on all pairs at once, one rail after the other; latency on one pair after
    the other, because other traffic would increase it. Each rail (`rails`) is measured `repeats`
    times, as the promise says, and up to four times as often while a pair's interval contains the
    bound; but a pair that could not be measured is not tried again. A device that only some nodes
    have is reported as missing on the others.
    """
    nodes = cluster.nodes
    for ends in rails(nodes, devices):
        neighbours = list(zip(ends, [*ends[1:], ends[0]], strict=True))
        found: dict[int, PairResult] = {}
        for repeat in count():
            decided = all(is_decided(pair, bound) for pair in found.values())
            if repeat and not wants_more(repeat, promise.repeats, decided=decided):
                break
            pairs = {
                place: _pair(cluster, promise, *neighbours[place], _FIRST_PORT + place)
                for place in range(len(nodes))
                if place not in found or found[place].value is not None
            }
            for place, result in _each_once(pairs, promise).items():
                found[place] = result.after(found.get(place))
        yield from found.values()


def is_decided(pair: PairResult, bound: Bound) -> bool:
    """Whether more runs could not tell more: also for a single run, which shows no noise."""
    found = pair.estimate if pair.value is not None else None
    return found is None or bound.decides(*found.interval) is not None


def _each_once(
    pairs: Mapping[int, Generator[None, None, PairResult]], promise: Promise
) -> dict[int, PairResult]:
    """Results of all pairs: bandwidths measured together, latencies one after the other."""
    together = isinstance(promise, RdmaBandwidthPromise)
    try:
        if together:
            return _over(pairs)
        return {place: _over({place: pair})[place] for place, pair in pairs.items()}
    finally:
        for pair in pairs.values():
            pair.close()


def _over(pairs: Mapping[int, Generator[None, None, PairResult]]) -> dict[int, PairResult]:
    """Results of pairs, polled in turn so that a hanging pair does not delay others."""
    results: dict[int, PairResult] = {}
    while waiting := pairs.keys() - results:
        for place in sorted(waiting):
            try:
                next(pairs[place])
            except StopIteration as end:
                results[place] = end.value
        time.sleep(_POLL_S)
    return {place: results[place] for place in pairs}


class _Side:
    """The process of one end, and the file with its output."""

    def __init__(self, cluster: Nodes, promise: Promise, end: End, port: int, *to: str) -> None:
        memory = "host"
        if isinstance(promise, RdmaBandwidthPromise):
            length = ["-D", str(max(1, round(promise.duration_s))), "--report_gbits"]
            memory = promise.memory
        else:
            length = ["-n", str(promise.iterations)]
        argv = [
            *(cluster.python, *_BESIDE_NIC, str(end.device), promise.binding, memory),
            *(promise.program, "-d", str(end.device), "-p", str(port), "-F"),
            *("-s", str(promise.size_bytes), *length, *promise.arguments, *to),
        ]
        self._printed = tempfile.NamedTemporaryFile(dir=cluster.run_id)  # noqa: SIM115  until close
        env = search_path(cluster.python)
        output = Path(self._printed.name)
        self._process = cluster.start(argv, end.node, env=env, output=output)

    @property
    def started(self) -> bool:
        """Whether its program was started."""
        return STARTED in self._text()

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def read(self) -> tuple[Perftest, ToolPlacement | None]:
        """Its parsed output, and where it ran, from the last line; None if that is missing."""
        text = self._text()
        output, _, last = text.strip().rpartition("\n")
        try:
            return read_perftest(output), decode(ToolPlacement, last)
        except ValueError:
            return read_perftest(text), None

    def _text(self) -> str:
        return Path(self._printed.name).read_text(errors="replace")

    def close(self) -> None:
        """Kill the process if it still runs."""
        end_programs([self._process])
        self._printed.close()


def _pair(
    cluster: Nodes, promise: Promise, sender: End, receiver: End, port: int
) -> Generator[None, None, PairResult]:
    """Run a server and its client, and yield while waiting for them."""
    names = sender.node, receiver.node, sender.device or receiver.device or f"rail {sender.rail}"
    if missing := [end.node for end in (sender, receiver) if end.device is None]:
        return PairResult(*names, None, f"no device for this rail on {' and '.join(missing)}")
    began = time.monotonic()
    listens_by = began + _SERVER_LIMIT_S
    with contextlib.closing(_Side(cluster, promise, receiver, port)) as server:
        while True:
            to = cluster.address(receiver.node)
            with contextlib.closing(_Side(cluster, promise, sender, port, to)) as client:
                duration_s = getattr(promise, "duration_s", 0.0)
                while not client.ended and time.monotonic() <= began + duration_s + _SPARE_S:
                    yield
                ended = client.ended
                found, placed = client.read()
            refused = ended and any("connect" in fault.lower() for fault in found.faults)
            if server.started:
                listens_by = min(listens_by, time.monotonic() + _LISTEN_LIMIT_S)
            if not refused or server.ended or time.monotonic() >= listens_by:
                break
            yield from _until(time.monotonic() + _RETRY_S)  # the server does not listen yet
        if ended:
            value, why = _judged(found, placed, promise, sender.node)
        else:
            value, placed = None, None
            why = f"{promise.program} to {receiver.node} port {port} did not end within its time"
        waits_s = _FAILED_END_S if value is None else _SERVER_END_S
        yield from _until(time.monotonic() + waits_s, server)
        there = None
        if server.ended:
            found, there = server.read()
            if value is None and (error := _server_error(found, there)) and error not in why:
                why += f"; its server on {receiver.node}: {error}"
        return PairResult(*names, value, why, placed, there)


def _until(moment: float, side: _Side | None = None) -> Iterator[None]:
    """Yield until this moment of the monotonic clock, or until this side has ended."""
    while time.monotonic() <= moment and not (side and side.ended):
        yield


def _judged(
    found: Perftest, placed: ToolPlacement | None, promise: Promise, node: str
) -> tuple[float | None, str]:
    """The value that a client measured, and ""; or None, and why it measured none."""
    rates = isinstance(promise, RdmaBandwidthPromise)
    values = [value for _, value in (found.rates_gbits_s if rates else found.typical_us)]
    if placed and placed.status is None:
        return None, f"client on {node}: {placed.problem}"
    if why := found.why_incomplete:
        return None, why
    if len(values) != 1 or values[0] is None:
        return None, f"no {'average' if rates else 'latency'} in its table"
    if rates and found.bidirectional is None:
        return None, "no title above its table, so it is unknown whether it adds up both directions"
    # A bidirectional program prints the sum of both directions.
    return values[0] / 2 if found.bidirectional else values[0], ""


def _server_error(found: Perftest, placed: ToolPlacement | None) -> str:
    """Why a server failed; "" if it ended without an error."""
    if placed is not None and placed.status is None:
        return placed.problem
    if placed is not None and placed.status and placed.status < 0:
        return f"killed by signal {-placed.status}"
    return found.faults[0] if found.faults else "" if placed else "it was killed"
