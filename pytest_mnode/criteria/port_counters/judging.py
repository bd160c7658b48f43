"""Judges how counters of fabric ports rose between two readings. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low

from pytest_mnode.criteria.nics_used import judge_sent, partly
from pytest_mnode.criteria.port_counters.reading import CARRIER, SENT_IN_VAIN, TCP, TCP_OUT_OF_ORDER
from pytest_mnode.criteria.port_counters.rises import (
    BETWEEN,
    CLOCK,
    COUNTERS,
    EVERY_NIC,
    KILLED,
    LOSSES,
    NEW_MTU,
    NVLINK,
    OFF,
    PACKETS,
    SENT,
    STILL,
    means,
)
from pytest_mnode.culprit import Culprit
from pytest_mnode.evidence.row import Row
from pytest_mnode.intervals import least_mean
from pytest_mnode.machine.counters import (
    BIT_ERRORS_FALSE_ALARM,
    CounterMeaning,
    counts_bit_errors,
    counts_the_link,
)
from pytest_mnode.measurement import Measurement, Verdict, all_of, at_most, listed, with_suspects
from pytest_mnode.spec import Spec
from pytest_mnode.spec.inventory import Fabric
from pytest_mnode.spec.quantity import DURATION

FEWEST_PACKETS = 10_000
"""With fewer packets a share means nothing: losses are then judged as if there were this many."""
_TIMES_AS_MANY, _FEW_OF_LIMIT = 2.5, 0.3
"""A node loses too much by itself if it loses 2.5 times as much as the median node, unless that is
little: on a healthy rack single nodes lose up to 0.15 % of their packets."""
_LOADED_S = 1.0
"""[choice] A node that sends less than one NIC does in this time was not loaded."""
_BROKEN_BEFORE = "port_rcv_remote_physical_errors"
"""Packets that a switch marked as broken. Source: InfiniBand Architecture Specification 1.4."""


@dataclass(frozen=True, slots=True, eq=False)
class _Port:
    """What one port counted: increases of its counters, None if not known.

    packets: sent and received; None if not known. seconds: time between the readings, likewise.
    """

    node: str
    name: str
    rises: Mapping[str, int | None]
    packets: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class _Counted:
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


def judge(rows: Sequence[Row], fabric: Fabric) -> list[Measurement]:
    """Carrier changes, errors and the share of packets lost, each of the worst port.

    Once processes were killed on purpose, counters of connections say nothing about the fabric, and
    only counters of links are judged. Carriers change where the run set another MTU itself.
    """
    ports, done = _ports(rows, fabric), {one.metric for one in rows}
    kills = KILLED in done
    unread = {one.node: f"{one.node}: {one.why}" for one in rows if one.metric == COUNTERS}
    carriers = [_counted(port, CARRIER) for port in ports if CARRIER in port.rises]
    counted = [
        (port, counter)
        for port in ports
        for counter in port.rises
        if means(counter) is CounterMeaning.ERROR
        and not (kills and ":" in port.name and not counts_the_link(counter))
    ]
    of_bits = [(p, counter) for p, counter in counted if p.seconds and counts_bit_errors(counter)]
    chance = BIT_ERRORS_FALSE_ALARM / max(len(of_bits), 1)
    bit_errors = [_bit_errors(*one, chance, fabric.line_rate_bits_s) for one in of_bits]
    errors = [_counted(*one) for one in counted if one not in of_bits]
    lost = [] if kills else [one for port in ports if (one := _lost(port))]
    off = [one.node for one in rows if one.metric == OFF]
    notes = [f"{node} was switched off on purpose and is not compared" for node in off]
    notes += ["jobs were killed on purpose: only counters of links are judged"] if kills else []
    measurements = list[Measurement]()
    culprit: Culprit | None = None
    for name, key, of in (
        ("carrier changes", "carrier_changes_at_most", carriers),
        ("errors", "errors_at_most", errors),
        ("bit error rate", "bit_error_rate_at_most", bit_errors),
        ("packets lost", "lost_at_most_fraction", lost),
    ):
        if counted and not of:
            continue  # this fabric has no such counter: InfiniBand has no carrier
        promised = getattr(fabric, key)
        unit, limit = ("%", 100 * promised) if key == "lost_at_most_fraction" else ("", promised)
        known = {one: one.value for one in of if one.value is not None}
        lacking = [one for one in of if one.value is None]
        unknown = [f"{one.text} cannot be compared" for one in lacking]
        broken = [one for one, value in known.items() if value > limit]
        worst = max(known, key=known.__getitem__, default=None)
        # A port that loses packets beside a broken port is its victim.
        if broken and not (culprit and of is lost):
            culprit = _to_blame(broken) or _tcp_path(ports)
        found = Measurement(
            f"{name}, worst fabric port",
            known[worst] if worst and (broken or not (unread or unknown)) else None,
            unit,
            at_most(limit).of(f"fabric.{key}", promised),
            f"fabric.{key} {promised:g}",
            _with_unread(culprit, dict.fromkeys([*unread, *(one.port.node for one in lacking)])),
            listed([*notes, *unread.values(), *unknown, *([worst.text] if worst else [])]),
            false_alarm=BIT_ERRORS_FALSE_ALARM if of is bit_errors and of else None,
        )
        if of is carriers and NEW_MTU in done:
            found = replace(found, expected=None, source="recorded: a new MTU restarts NICs")
            culprit = None
        measurements.append(found)
    if culprit is None:  # else a port is to blame, which others may lose packets to
        measurements += _against_others(lost, ports, 100 * fabric.lost_at_most_fraction)
    return measurements


def nics_used(
    rows: Sequence[Row],
    spec: Spec,
    ranks_per_node: int | None = None,
    during: str = "this criterion",
) -> list[Measurement]:
    """NICs that carried their share of what nodes sent meanwhile; recorded if the load may use some
    of them only. [] if nobody says what it uses, if jobs were killed, or if too little was sent.
    ranks_per_node: one per accelerator if None.
    """
    loads = [one for one in rows if one.metric == EVERY_NIC]
    if not loads or any(one.metric == KILLED for one in rows):
        return []
    sent: dict[str, dict[str, int]] = {}
    unknown = {one.node for one in rows if one.metric == SENT and one.value is None}
    for one in rows:
        if one.metric == SENT and one.node not in unknown:
            nics, nic = sent.setdefault(one.node, {}), one.device.partition(":")[0]
            nics[nic] = nics.get(nic, 0) + int(one.value or 0)
    least = _LOADED_S * spec.fabric.line_rate_bits_s / 8
    loaded = {node: nics for node, nics in sent.items() if sum(nics.values()) >= least}
    each = ranks_per_node or spec.accelerators.per_node or 1
    return judge_sent(loaded, spec, each, during, loads[0].why or partly(spec))


def _against_others(
    lost: Sequence[_Counted], ports: Sequence[_Port], limit_percent: float
) -> list[Measurement]:
    """Losses of the worst node, compared with the other nodes; [] if nothing can be compared.

    They may be within the bound and still be the fault of one node.
    """
    by_node: dict[str, _Counted] = {}
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


def _share(row: _Counted) -> float:
    return row.value or 0.0


def clock_steps(rows: Sequence[Row], skew_s: float) -> Measurement:
    """The largest step of a node's clock between two readings.

    Preflight compares clocks once. A step later in the run breaks the order of logs, expiry of
    leases and time limits just as a skew does, so that it has the same bound.
    """
    clocks = [one for one in rows if one.metric == CLOCK]
    steps = {one.node: 1e3 * float(one.value) for one in clocks if one.value is not None}
    unread = {one.node: f"{one.node}: {one.why}" for one in clocks if one.value is None}
    worst = max(steps, key=lambda node: abs(steps[node]), default="")
    broken = [node for node, step in steps.items() if abs(step) > 1e3 * skew_s]
    return Measurement(
        "clock step, worst node",
        abs(steps[worst]) if broken or (worst and not unread) else None,
        "ms",
        at_most(1e3 * skew_s).of("criteria.preflight.clocks.skew", skew_s),
        f"preflight.clocks.skew {DURATION.text(round(skew_s, 9))}",
        _with_unread(all_of(Culprit(f"{node} clock", node) for node in broken), unread),
        listed([*(f"{node} {steps[node]:+.4g} ms" for node in broken), *unread.values()]),
    )


def nvlink_rises(rows: Sequence[Row], bounds: Mapping[str, int | None]) -> list[Measurement]:
    """By how much errors, and recoveries, of the worst NVLink rose between two readings.

    bounds: those of `preflight.nvlink` by its keys; None for one that is not promised.
    """
    nodes = [one.node for one in rows if one.metric == CLOCK]
    found = list[Measurement]()
    for metric, (key, limit) in zip(NVLINK, bounds.items(), strict=True):
        if limit is None:
            continue
        links = [one for one in rows if one.metric == metric]
        rises = {(o.node, o.device): int(o.value) for o in links if o.value is not None}
        lost = [one for one in links if one.value is None]
        unread = {n: f"{n}: its NVLinks were not read" for n in nodes}
        for one in links:
            unread.pop(one.node, None)
        unread |= {one.node: f"{one.node} {one.device}".rstrip() + f": {one.why}" for one in lost}
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
                _with_unread(all_of(culprits), unread),
                listed([*shown, *unread.values()]),
            )
        )
    return found


def _with_unread(culprit: Culprit | None, nodes: Iterable[str]) -> Culprit | None:
    return with_suspects(culprit, (Culprit(name, name) for name in nodes))


def _to_blame(broken: Sequence[_Counted]) -> Culprit | None:
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

    senders, receivers = most("RetransSegs"), most(TCP_OUT_OF_ORDER)
    ends = [listed(some, separator=", ") for some in (senders, receivers) if some]
    return Culprit(f"TCP from {' to '.join(ends)}", either=[{*senders, *receivers}])


def _ports(rows: Iterable[Row], fabric: Fabric) -> list[_Port]:
    """The ports that can be judged, in the order of their nodes."""
    found: dict[tuple[str, str], dict[str, int | None]] = {}
    packets, seconds = dict[tuple[str, str], int](), dict[str, float]()
    for one in rows:
        if one.metric == BETWEEN:
            seconds[one.node] = float(one.value or 0)
        elif one.metric == PACKETS:
            packets[one.node, one.device] = int(one.value or 0)
        elif one.metric == STILL:
            for name in one.device.split():
                still = dict.fromkeys(str(one.value).split(), 0)
                found.setdefault((one.node, name), {}).update(still)
        elif one.device and one.metric not in (*NVLINK, SENT):
            by = None if one.value is None else int(one.value)
            found.setdefault((one.node, one.device), {})[one.metric] = by
    for (_, name), rises in found.items():
        # With RDMA, TCP and drops of interfaces are system traffic, not training traffic.
        if ":" not in name and not fabric.by_kernel:
            for counter in LOSSES:
                rises.pop(counter, None)
        if (again := rises.get("RetransSegs")) is not None:
            # A busy machine is late to acknowledge packets of which none was lost.
            rises["RetransSegs"] = max(0, again - (rises.get(SENT_IN_VAIN) or 0))
    return [_Port(*at, rises, packets.get(at), seconds.get(at[0])) for at, rises in found.items()]


def _counted(port: _Port, counter: str) -> _Counted:
    by = port.rises[counter]
    text = f"{port.node} {port.name} {counter}" + ("" if by is None else f" +{by}")
    return _Counted(port, text, by, counter)


def _bit_errors(port: _Port, counter: str, chance: float, bits_s: float) -> _Counted:
    """The lowest rate with which as many bit errors are seen with `chance`: they come by chance.

    bits_s: what the port's line carries in one direction.
    """
    one = _counted(port, counter)
    if one.value is None:
        return one
    return replace(one, value=least_mean(int(one.value), chance) / (bits_s * (port.seconds or 1)))


def _lost(port: _Port) -> _Counted | None:
    """Percentage of a port's packets that were lost or retransmitted; None without counters.

    Losses among an unknown number of packets have no known share.
    """
    rises = [
        by
        for counter, by in port.rises.items()
        if means(counter) is CounterMeaning.LOSS
        and not counter.endswith("_bytes")  # EFA counts both
    ]
    if not rises:
        return None
    if None in rises:
        return _Counted(port, f"{port.node} {port.name} losses", None)
    lost = sum(by for by in rises if by)
    if lost and port.packets is None:
        text = f"{port.node} {port.name} lost {lost} of an unknown number of packets"
        return _Counted(port, text, None)
    packets = port.packets or 0
    text = f"{port.node} {port.name} lost {lost} of {packets} packets"
    return _Counted(port, text, 100 * lost / max(packets, FEWEST_PACKETS))


def located(found: Sequence[Measurement], paths: Sequence[Measurement]) -> list[Measurement]:
    """The measurements; where TCP has lost too much, of the nodes that lose datagrams on paths, and
    those of the paths beside them."""
    if not any(map(of_tcp, found)):
        return [*found]
    culprit = next((one.culprit for one in paths if one.verdict is Verdict.FAIL), None)
    lost = (replace(one, culprit=culprit) if culprit and of_tcp(one) else one for one in found)
    return [*lost, *paths]


def of_tcp(one: Measurement) -> bool:
    """Whether it found that TCP lost too much, without a port to blame."""
    lost = one.unit == "%" and one.verdict is Verdict.FAIL
    return lost and one.culprit is not None and not one.culprit.parts
