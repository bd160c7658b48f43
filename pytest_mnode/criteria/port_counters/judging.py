"""Judges how counters of fabric ports rose between two readings. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low

from pytest_mnode.criteria.port_counters.reading import (
    CARRIER,
    SENT_IN_VAIN,
    TCP,
    Counters,
    NvLinkErrors,
    PortReading,
)
from pytest_mnode.culprit import Culprit
from pytest_mnode.intervals import least_mean
from pytest_mnode.machine.counters import (
    BIT_ERRORS_FALSE_ALARM,
    CounterMeaning,
    counter_increases,
    counts_bit_errors,
    counts_the_link,
    in_use,
    meaning,
)
from pytest_mnode.measurement import Measurement, all_of, at_most, listed
from pytest_mnode.spec.inventory import Fabric
from pytest_mnode.spec.quantity import DURATION

PortReadings = Mapping[str, PortReading | str]
"""Readings by node; a str says why a node could not be read."""
FEWEST_PACKETS = 10_000
"""With fewer packets a share means nothing: losses are then judged as if there were this many."""
_LOSSES = ("rx_dropped", "tx_dropped", "rx_missed_errors", "rx_fifo_errors", "RetransSegs")
_PACKETS = (
    *("OutSegs", "tx_packets", "rx_packets", "port_xmit_packets", "port_rcv_packets"),
    *("sent_pkts", "rcvd_pkts", "tx_pkts", "rx_pkts", "tx_rdma_ucast_pkts", "rx_rdma_ucast_pkts"),
    *("ip4OutPkts", "ip4InPkts", "ip6OutPkts", "ip6InPkts"),  # irdma
)


_TIMES_AS_MANY, _FEW_OF_LIMIT = 2.5, 0.3
"""A node loses too much by itself if it loses 2.5 times as much as the median node, unless that is
little: on a healthy rack single nodes lose up to 0.15 % of their packets."""
_BROKEN_BEFORE = "port_rcv_remote_physical_errors"
"""Packets that a switch marked as broken. Source: InfiniBand Architecture Specification 1.4."""


@dataclass(frozen=True, slots=True, eq=False)
class _Port:
    """Increases of the counters of one port; None if not known.

    bits: what its line carries meanwhile at its full rate, in one direction; None if not known.
    """

    node: str
    name: str
    rises: Mapping[str, int | None]
    bits: float | None = None


@dataclass(frozen=True, slots=True)
class _Row:
    """What one port counted. counter: "" for several. value: None if it is not known; of bit
    errors their rate, as low as it may be."""

    port: _Port
    text: str
    value: float | None
    counter: str = ""

    @property
    def culprit(self) -> Culprit:
        """The port; or, if a switch had marked the packets as broken, a link before it."""
        if self.counter == _BROKEN_BEFORE:
            return Culprit(f"a link between a sender and {self.text}")
        return Culprit.device(self.text, self.port.node, self.port.name)


def judge(
    before: PortReadings,
    after: PortReadings,
    fabric: Fabric,
    *,
    kills: bool = False,
    restarted: Collection[str] = (),
) -> list[Measurement]:
    """Carrier changes, errors and the share of packets lost, each of the worst port.

    kills: processes were killed on purpose between the readings. Counters of connections then say
    nothing about the fabric, and only counters of links are judged. restarted: nodes that were
    switched off on purpose, whose counters restarted; they are not compared.
    """
    ports, unread = list[_Port](), dict[str, str]()
    for node in (node for node in before if node not in restarted):
        found = _ports(node, before[node], after.get(node, "not read"), fabric)
        if isinstance(found, str):
            unread[node] = f"{node}: {found}"
        else:
            ports += found
    carriers = [_counted(port, CARRIER) for port in ports if CARRIER in port.rises]
    counted = [
        (port, counter)
        for port in ports
        for counter in port.rises
        if _means(counter) is CounterMeaning.ERROR
        and not (kills and ":" in port.name and not counts_the_link(counter))
    ]
    of_bits = [(p, counter) for p, counter in counted if p.bits and counts_bit_errors(counter)]
    bit_errors = [_bit_errors(*one, BIT_ERRORS_FALSE_ALARM / len(of_bits)) for one in of_bits]
    errors = [_counted(*one) for one in counted if one not in of_bits]
    lost = [] if kills else [row for port in ports if (row := _lost(port))]
    notes = [f"{node} was switched off on purpose and is not compared" for node in restarted]
    notes += ["jobs were killed on purpose: only counters of links are judged"] if kills else []
    measurements = list[Measurement]()
    culprit: Culprit | None = None
    for name, key, rows in (
        ("carrier changes", "carrier_changes_at_most", carriers),
        ("errors", "errors_at_most", errors),
        ("bit error rate", "bit_error_rate_at_most", bit_errors),
        ("packets lost", "lost_at_most_fraction", lost),
    ):
        if counted and not rows:
            continue  # this fabric has no such counter: InfiniBand has no carrier
        promised = getattr(fabric, key)
        unit, limit = ("%", 100 * promised) if key == "lost_at_most_fraction" else ("", promised)
        known = {row: row.value for row in rows if row.value is not None}
        lacking = [row for row in rows if row.value is None]
        unknown = [f"{row.text} cannot be compared" for row in lacking]
        broken = [row for row, value in known.items() if value > limit]
        worst = max(known, key=known.__getitem__, default=None)
        # A port that loses packets beside a broken port is its victim.
        if broken and not (culprit and rows is lost):
            culprit = _to_blame(broken) or _tcp_path(ports)
        measurements.append(
            Measurement(
                f"{name}, worst fabric port",
                known[worst] if worst and (broken or not (unread or unknown)) else None,
                unit,
                at_most(limit).of(f"fabric.{key}", promised),
                f"fabric.{key} {promised:g}",
                _beside(culprit, dict.fromkeys([*unread, *(row.port.node for row in lacking)])),
                listed([*notes, *unread.values(), *unknown, *([worst.text] if worst else [])]),
                false_alarm=BIT_ERRORS_FALSE_ALARM if rows is bit_errors and rows else None,
            )
        )
    if culprit is None:  # else a port is to blame, which others may lose packets to
        measurements += _against_others(lost, ports, 100 * fabric.lost_at_most_fraction)
    return measurements


def _against_others(
    lost: Sequence[_Row], ports: Sequence[_Port], limit_percent: float
) -> list[Measurement]:
    """Losses of the worst node, compared with the other nodes; [] if nothing can be compared.

    They may be within the bound and still be the fault of one node.
    """
    by_node: dict[str, _Row] = {}
    for row in sorted((row for row in lost if row.value is not None), key=_share):
        by_node[row.port.node] = row
    if len(by_node) < 3:
        return []
    usual = median_low(map(_share, by_node.values()))
    most = max(_FEW_OF_LIMIT * limit_percent, _TIMES_AS_MANY * usual)
    worst = max(by_node.values(), key=_share)
    above = [row for row in by_node.values() if _share(row) > most] or [worst]
    culprit, others = _to_blame([worst]) or _tcp_path(ports), _to_blame(above)
    if others is not None:  # they may have lost packets to the worst node only
        culprit = Culprit.merged(culprit, [culprit, others.suspected])
    return [
        Measurement(
            "packets lost, worst node against most nodes",
            worst.value,
            "%",
            at_most(most),
            # No product: of two numbers the larger one.
            f"the median node's {usual:.2g} %, {_TIMES_AS_MANY:g} times, and at least "
            f"{_FEW_OF_LIMIT:g} of fabric.lost_at_most_fraction",
            culprit,
            listed([row.text for row in above]),
        )
    ]


def _share(row: _Row) -> float:
    return row.value or 0.0


def clock_steps(
    before: PortReadings, after: PortReadings, skew_s: float, *, restarted: Collection[str] = ()
) -> Measurement:
    """The largest step of a node's clock between two readings.

    Preflight compares clocks once. A step later in the run breaks the order of logs, expiry of
    leases and time limits just as a skew does, so that it has the same bound.
    """
    steps, unread = dict[str, float](), dict[str, str]()
    for node in (node for node in before if node not in restarted):
        one, two = before[node], after.get(node, "not read")
        if isinstance(one, str) or isinstance(two, str):
            unread[node] = f"{node}: {one if isinstance(one, str) else two}"
        elif one.boot != two.boot or one.clock_s is None or two.clock_s is None:
            unread[node] = f"{node}: its clock cannot be compared"
        else:
            steps[node] = 1e3 * (two.clock_s - one.clock_s)
    worst = max(steps, key=lambda node: abs(steps[node]), default="")
    broken = [node for node, step in steps.items() if abs(step) > 1e3 * skew_s]
    return Measurement(
        "clock step, worst node",
        abs(steps[worst]) if broken or (worst and not unread) else None,
        "ms",
        at_most(1e3 * skew_s).of("criteria.preflight.clocks.skew", skew_s),
        f"preflight.clocks.skew {DURATION.text(round(skew_s, 9))}",
        _beside(all_of(Culprit(f"{node} clock", node) for node in broken), unread),
        listed([*(f"{node} {steps[node]:+.4g} ms" for node in broken), *unread.values()]),
    )


def nvlink_rises(
    before: PortReadings,
    after: PortReadings,
    bounds: Mapping[str, int | None],
    *,
    restarted: Collection[str] = (),
) -> list[Measurement]:
    """By how much errors, and recoveries, of the worst NVLink rose between two readings.

    bounds: those of `preflight.nvlink` by its keys; None for one that is not promised. Counters
    that fell were reset with their GPU, and count from 0.
    """
    found = list[Measurement]()
    for which, (key, limit) in enumerate(bounds.items()):
        if limit is None:
            continue
        rises, unread = dict[tuple[str, str], int](), dict[str, str]()
        for node in (node for node in before if node not in restarted):
            one, two = _nvlinks(before[node]), _nvlinks(after.get(node, "not read"))
            if isinstance(one, str) or isinstance(two, str):
                unread[node] = f"{node}: {one if isinstance(one, str) else two}"
                continue
            counts = {
                link: (counted[which], two.get(link, (None,) * 2)[which])
                for link, counted in one.items()
            }
            known = {
                link: (a, b) for link, (a, b) in counts.items() if a is not None and b is not None
            }
            if not known:
                unread[node] = f"{node}: its NVLinks show none"
            rises |= {(node, link): b - a if b >= a else b for link, (a, b) in known.items()}
        broken = {at: by for at, by in rises.items() if by > limit}
        worst = max(rises, key=rises.__getitem__, default=None)
        shown = [f"{node} {link} +{by}" for (node, link), by in broken.items()]
        culprits = (
            Culprit.device(f"{n} {link} (+{by})", n, link) for (n, link), by in broken.items()
        )
        found.append(
            Measurement(
                f"{key.partition('_')[0]} of the worst NVLink meanwhile",
                rises[worst] if worst and (broken or not unread) else None,
                "",
                at_most(limit).of(f"criteria.preflight.nvlink.{key}", limit),
                f"preflight.nvlink.{key} {limit}",
                _beside(all_of(culprits), unread),
                listed([*shown, *unread.values()]),
            )
        )
    return found


def _nvlinks(one: PortReading | str) -> Mapping[str, NvLinkErrors] | str:
    return one if isinstance(one, str) else one.nvlinks


def _beside(culprit: Culprit | None, unread: Iterable[str]) -> Culprit | None:
    """The culprit; nodes that could not be read may be to blame too, or alone."""
    suspects = [Culprit(name, either=[[name]]) for name in unread]
    if culprit is None:
        return all_of(suspects, separator=", ")
    return Culprit.merged(culprit, [culprit, *suspects])


def _to_blame(broken: Sequence[_Row]) -> Culprit | None:
    """The ports to blame: not those that received what a link farther away had broken. None if
    only TCP, which is no port, has lost packets."""
    ports = [row for row in broken if row.port.name != TCP]
    near = [row for row in ports if row.counter != _BROKEN_BEFORE]
    return all_of(row.culprit for row in near or ports)


def _tcp_path(ports: Sequence[_Port]) -> Culprit:
    """Nodes between which TCP lost most: senders count retransmissions, receivers reordering.

    One of them is only suspected: a node that is both may have a bad link, or stand between one
    that loses what it sends and one that loses what it receives.
    """
    tcp = [port for port in ports if port.name == TCP]

    def most(counter: str) -> list[str]:
        rises = {port.node: port.rises.get(counter) or 0 for port in tcp}
        return [node for node, by in rises.items() if by >= max(rises.values()) / 2 > 0]

    senders, receivers = most("RetransSegs"), most("TCPOFOQueue")
    ends = [listed(some, separator=", ") for some in (senders, receivers) if some]
    return Culprit(f"TCP from {' to '.join(ends)}", either=[{*senders, *receivers}])


def _ports(
    node: str, before: PortReading | str, after: PortReading | str, fabric: Fabric
) -> list[_Port] | str:
    """Counter increases of each port of a node; a str says why they are not known."""
    if isinstance(before, str) or isinstance(after, str):
        return before if isinstance(before, str) else str(after)
    if before.boot != after.boot:
        return "it was restarted, and so were its counters"
    bits = None
    if before.uptime_s is not None and after.uptime_s is not None:
        bits = fabric.line_rate_bits_s * (after.uptime_s - before.uptime_s)
    names = dict.fromkeys((*before.ports, *after.ports))
    if not names.keys() - {TCP}:
        return f"no port of {', '.join(fabric.interfaces)}"
    # With RDMA, TCP and drops of interfaces are system traffic, not training traffic.
    ports = []
    for name in names:
        rises = _rises(before.ports.get(name, {}), after.ports.get(name, {}))
        if ":" not in name and not fabric.by_kernel:
            rises = {counter: by for counter, by in rises.items() if counter not in _LOSSES}
        if (again := rises.get("RetransSegs")) is not None:
            # A busy machine is late to acknowledge packets of which none was lost.
            rises["RetransSegs"] = max(0, again - (rises.get(SENT_IN_VAIN) or 0))
        ports.append(_Port(node, name, rises, bits))
    if not any(_means(counter) is CounterMeaning.ERROR for port in ports for counter in port.rises):
        return "no error counter of its fabric ports can be read"
    return ports


def _rises(before: Counters, after: Counters) -> dict[str, int | None]:
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


def _means(counter: str) -> CounterMeaning:
    return CounterMeaning.LOSS if counter in _LOSSES else meaning(counter)


def _counted(port: _Port, counter: str) -> _Row:
    by = port.rises[counter]
    text = f"{port.node} {port.name} {counter}" + ("" if by is None else f" +{by}")
    return _Row(port, text, by, counter)


def _bit_errors(port: _Port, counter: str, chance: float) -> _Row:
    """The lowest rate with which as many bit errors are seen with `chance`: they come by chance."""
    row = _counted(port, counter)
    rate = None if row.value is None else least_mean(int(row.value), chance) / (port.bits or 1)
    return replace(row, value=rate)


def _lost(port: _Port) -> _Row | None:
    """Percentage of a port's packets that were lost or retransmitted; None without counters.

    Losses among an unknown number of packets have no known share.
    """
    rises = [
        by
        for counter, by in port.rises.items()
        if _means(counter) is CounterMeaning.LOSS
        and not counter.endswith("_bytes")  # EFA counts both
    ]
    if not rises:
        return None
    if None in rises:
        return _Row(port, f"{port.node} {port.name} losses", None)
    lost = sum(by for by in rises if by)
    carried = [port.rises[counter] for counter in _PACKETS if counter in port.rises]
    if lost and (not carried or None in carried):
        text = f"{port.node} {port.name} lost {lost} of an unknown number of packets"
        return _Row(port, text, None)
    packets = sum(by for by in carried if by)
    text = f"{port.node} {port.name} lost {lost} of {packets} packets"
    return _Row(port, text, 100 * lost / max(packets, FEWEST_PACKETS))
