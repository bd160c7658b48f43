"""How counters of fabric ports, NVLinks and clocks rose between two readings: rows. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from pytest_mnode.criteria.port_counters.reading import (
    CARRIER,
    SENT_IN_VAIN,
    TCP,
    TCP_OUT_OF_ORDER,
    Counters,
    NvLinkErrors,
    PortReading,
)
from pytest_mnode.evidence.row import Row, row
from pytest_mnode.machine.counters import (
    BYTES_SENT,
    CounterMeaning,
    bytes_of,
    counter_increases,
    in_use,
    meaning,
)

PortReadings = Mapping[str, PortReading | str]
"""Readings by node; a str says why a node could not be read."""
KILLED, NEW_MTU, OFF = "processes killed on purpose", "MTU changed on purpose", "switched off"
"""Metrics of what the run did itself: of all nodes, and the last of the row's node."""
SENT, EVERY_NIC = "bytes sent by an RDMA port", "what was sent went over each NIC"
"""Metrics: the second of all nodes, None with a reason where a load may use some NICs only."""
COUNTERS, STILL, PACKETS = "port counters", "counters that stood still", "packets"
"""Metrics: a reason why a node has no increases; names of the counters of these ports that did not
rise, which saves nearly all rows; packets sent and received by a port. Any other metric of a row
with a device is a counter, and its value the increase."""
BETWEEN, CLOCK = "time between the readings", "clock step"
NVLINK = ("NVLink errors", "NVLink recoveries")
"""Increases of one link; of no device: 0, of all other links of the node."""
LOSSES = ("rx_dropped", "tx_dropped", "rx_missed_errors", "rx_fifo_errors", "RetransSegs")
_PACKETS = (
    *("OutSegs", "tx_packets", "rx_packets", "port_xmit_packets", "port_rcv_packets"),
    *("sent_pkts", "rcvd_pkts", "tx_pkts", "rx_pkts", "tx_rdma_ucast_pkts", "rx_rdma_ucast_pkts"),
    *("ip4OutPkts", "ip4InPkts", "ip6OutPkts", "ip6InPkts"),  # irdma
)
_BESIDE = (CARRIER, SENT_IN_VAIN, TCP_OUT_OF_ORDER)
_UNKNOWN = "it cannot be compared"


def means(counter: str) -> CounterMeaning:
    """What an increase of a counter of a port means: interfaces' drops are losses."""
    return CounterMeaning.LOSS if counter in LOSSES else meaning(counter)


def rises(
    before: PortReadings,
    after: PortReadings,
    patterns: Iterable[str],
    *,
    restarted: Collection[str] = (),
    kills: bool = False,
    new_mtu: bool = False,
) -> Iterator[Row]:
    """Rows of all nodes. patterns: names of the fabric's ports, as in `fabric.interfaces`.

    kills, new_mtu: the tests between the readings killed processes, or changed the MTU. restarted:
    nodes that were switched off on purpose, whose counters restarted; they are not compared.
    """
    if kills:
        yield row(KILLED, 1)
    if new_mtu:
        yield row(NEW_MTU, 1)
    for node in restarted:
        yield row(OFF, 1, node=node)
    for node in (node for node in before if node not in restarted):
        one, two = before[node], after.get(node, "not read")
        if isinstance(one, str) or isinstance(two, str):
            why = one if isinstance(one, str) else str(two)
            yield from (row(what, node=node, why=why) for what in (COUNTERS, CLOCK, *NVLINK))
        else:
            yield from _of_node(node, one, two, ", ".join(patterns))


def _of_node(node: str, one: PortReading, two: PortReading, patterns: str) -> Iterator[Row]:
    ports = {
        name: _increases(one.ports.get(name, {}), two.ports.get(name, {}))
        for name in (*one.ports, *(name for name in two.ports if name not in one.ports))
    }
    # A container that starts again may keep the network, and count its time anew.
    between_s = None
    if one.uptime_s is not None and two.uptime_s is not None:
        between_s = two.uptime_s - one.uptime_s
    restarted = one.boot != two.boot or (between_s or 0.0) < 0
    why = ""
    if restarted:
        why = "it was restarted, and so were its counters"
    elif not ports.keys() - {TCP}:
        why = f"no port of {patterns}"
    elif not any(means(c) is CounterMeaning.ERROR for risen in ports.values() for c in risen):
        why = "no error counter of its fabric ports can be read"
    if why:
        yield row(COUNTERS, node=node, why=why)
    else:
        yield from _of_ports(node, ports)
    if between_s is not None and not restarted:
        yield row(BETWEEN, between_s, "s", node=node)
    if restarted or one.clock_s is None or two.clock_s is None:
        yield row(CLOCK, node=node, why="its clock cannot be compared")
    else:
        yield row(CLOCK, two.clock_s - one.clock_s, "s", node=node)
    yield from _of_nvlinks(node, one.nvlinks, two.nvlinks)


def _of_ports(node: str, ports: Mapping[str, Counters]) -> Iterator[Row]:
    still: dict[str, list[str]] = {}
    for port, risen in ports.items():
        judged = {
            counter: by
            for counter, by in risen.items()
            if counter in _BESIDE or means(counter) in (CounterMeaning.ERROR, CounterMeaning.LOSS)
        }
        still.setdefault(" ".join(name for name, by in judged.items() if by == 0), []).append(port)
        for counter, by in judged.items():
            if by != 0:
                yield row(counter, by, node=node, device=port, why="" if by else _UNKNOWN)
        if ":" in port and not risen.keys().isdisjoint(BYTES_SENT):
            yield row(SENT, bytes_of(risen), "B", node=node, device=port, why=_UNKNOWN)
        if carried := [risen[counter] for counter in _PACKETS if counter in risen]:
            known = [by for by in carried if by is not None]
            if len(known) == len(carried):
                yield row(PACKETS, sum(known), node=node, device=port)
    for names, of in still.items():
        if names:
            yield row(STILL, names, node=node, device=" ".join(of))


def _of_nvlinks(
    node: str,
    one: Mapping[str, NvLinkErrors] | str | None,
    two: Mapping[str, NvLinkErrors] | str | None,
) -> Iterator[Row]:
    """Counters that fell were reset with their GPU, and count from 0. Nothing if nobody asked."""
    if one is None or two is None:
        return
    for which, metric in enumerate(NVLINK):
        if isinstance(one, str) or isinstance(two, str):
            yield row(metric, node=node, why=one if isinstance(one, str) else str(two))
            continue
        counts = {
            link: (had[which], two.get(link, (None,) * 2)[which]) for link, had in one.items()
        }
        risen = {
            link: None if b is None else b - a if b >= a else b
            for link, (a, b) in counts.items()
            if a is not None
        }
        for link, by in risen.items():
            if by != 0:
                yield row(metric, by, node=node, device=link, why="" if by else _UNKNOWN)
        if 0 in risen.values():
            yield row(metric, 0, node=node)
        elif not risen:
            yield row(metric, node=node, why="its NVLinks show none")


def _increases(before: Counters, after: Counters) -> dict[str, int | None]:
    """Counter increases; None if the port appeared or vanished, or if its counters restarted.

    They did if half of those that were not 0 fell. Of one that falls by itself only its own
    increase is unknown: it is a rate, or 32 bits wide, such as mlx5's rx_write_requests.
    """
    names = before | after
    risen = [
        after_count >= count
        for name, count in before.items()
        if count and not in_use(name) and (after_count := after.get(name)) is not None
    ]
    back = not all(risen) and 2 * sum(risen) <= len(risen)
    if back or not before or not after:
        return dict.fromkeys(names)
    return counter_increases(names, before, after)
