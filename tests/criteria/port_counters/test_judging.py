"""Counters of fabric ports between two readings: increases, and what is unknown."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from pytest_mnode.criteria.port_counters import judging
from pytest_mnode.criteria.port_counters.reading import Counters, NvLinkErrors, PortReading
from pytest_mnode.criteria.port_counters.rises import EVERY_NIC, KILLED, PortReadings, rises
from pytest_mnode.culprit import Culprit
from pytest_mnode.evidence.file import rows_from_json, rows_to_json
from pytest_mnode.evidence.row import Row, row
from pytest_mnode.intervals import least_mean
from pytest_mnode.machine.counters import BIT_ERRORS_FALSE_ALARM
from pytest_mnode.measurement import Measurement, Verdict
from pytest_mnode.spec import Spec, profile_spec
from pytest_mnode.spec.inventory import Fabric

CARRIER, ERRORS, LOST = (
    f"{what}, worst fabric port" for what in ("carrier changes", "errors", "packets lost")
)
QUIET: dict[str, Counters] = {
    "fab0": {
        "carrier_changes": 2,
        **dict.fromkeys(("rx_errors", "rx_crc_errors", "tx_carrier_errors", "collisions"), 7),
        **dict.fromkeys(("rx_dropped", "rx_missed_errors"), 90),
        **{"tx_packets": 5000, "rx_packets": 5000},
    },
    "mlx5_0:1": {
        **dict.fromkeys(("symbol_error", "link_error_recovery", "link_downed"), 3),
        **dict.fromkeys(("port_rcv_errors", "port_xmit_discards"), 3),
        **{"port_xmit_packets": 5000, "port_rcv_packets": 5000},
        **dict.fromkeys(("out_of_sequence", "packet_seq_err", "local_ack_timeout_err"), 40),
        **dict.fromkeys(("req_cqe_error", "port_xmit_wait", "np_cnp_sent"), 40),
    },
    "TCP": {"OutSegs": 9000, "RetransSegs": 12, "TCPOFOQueue": 5},
}
PACKETS = 1_000_000


def fabric(kind: str = "infiniband", **more: Any) -> Fabric:
    page = {"kind": kind, "interfaces": ["fab0"], "line_rate": "400 Gbit/s"}
    return Fabric.model_validate({**page, "nics_per_node": 1, "mtu": 4096, **more})


def risen(before: PortReadings, after: PortReadings, **done: Any) -> list[Row]:
    """Rows as the evidence gives them back."""
    kept = rows_to_json("ports", rises(before, after, ["fab0"], **done))
    return [rows_from_json(json.loads(json.dumps(one)))[1] for one in kept]


def judge(before: PortReadings, after: PortReadings, of: Fabric, **done: Any) -> list[Measurement]:
    return judging.judge(risen(before, after, **done), of)


def clock_steps(
    before: PortReadings, after: PortReadings, skew_s: float, **done: Any
) -> Measurement:
    return judging.clock_steps(risen(before, after, **done), skew_s)


def nvlink_rises(
    before: PortReadings, after: PortReadings, bounds: Mapping[str, int | None], **done: Any
) -> list[Measurement]:
    return judging.nvlink_rises(risen(before, after, **done), bounds)


def reading(port: str = "", counter: str = "", by: int | None = 0, boot: str = "a") -> PortReading:
    """A reading after a million packets, with one counter higher by `more` or unreadable."""
    ports = {name: dict(counters) for name, counters in QUIET.items()}
    for counters in ports.values():
        for name in counters.keys() & {"tx_packets", "port_xmit_packets", "OutSegs"}:
            counters[name] = (counters[name] or 0) + PACKETS
    if port:
        ports[port][counter] = None if by is None else (ports[port][counter] or 0) + by
    return PortReading(boot, ports)


def found(
    after: PortReading | str, kind: str = "infiniband", **more: Any
) -> dict[str, Measurement]:
    """Measurements of three nodes, of which gpu1 reads `after`."""
    quiet = PortReading("a", QUIET)
    before = {f"gpu{i}": quiet for i in range(3)}
    last = {"gpu0": reading(), "gpu1": after, "gpu2": reading()}
    options = {key: more.pop(key) for key in ("kills", "restarted") if key in more}
    return {m.name: m for m in judge(before, last, fabric(kind, **more), **options)}


def verdicts(measurements: dict[str, Measurement]) -> dict[str, str]:
    return {name.partition(",")[0]: str(m.verdict) for name, m in measurements.items()}


def culprit(one: Measurement) -> Culprit:
    assert one.culprit is not None
    return one.culprit


PASS = dict.fromkeys(("carrier changes", "errors", "packets lost"), "pass")


@pytest.mark.parametrize("kind", ["infiniband", "roce", "efa", "ethernet"])
def test_ports_that_only_carried_traffic_pass_without_a_culprit(kind: str) -> None:
    measurements = found(reading(), kind)
    assert verdicts(measurements) == PASS
    assert {m.culprit for m in measurements.values()} == {None}


@pytest.mark.parametrize(
    ("port", "counter", "what"),
    [
        ("fab0", "carrier_changes", CARRIER),
        *(("fab0", name, ERRORS) for name in ("rx_errors", "rx_crc_errors", "tx_carrier_errors")),
        *(("mlx5_0:1", name, ERRORS) for name in ("symbol_error", "link_error_recovery")),
        *(("mlx5_0:1", name, ERRORS) for name in ("link_downed", "port_rcv_errors")),
        *(("mlx5_0:1", name, ERRORS) for name in ("port_xmit_discards", "req_cqe_error")),
    ],
)
def test_an_error_counter_that_rose_is_named_with_node_port_and_count(
    port: str, counter: str, what: str
) -> None:
    measurements = found(reading(port, counter, 1))
    assert verdicts(measurements) == {**PASS, what.partition(",")[0]: "fail"}
    worst = measurements[what]
    assert (worst.value, worst.culprit) == (1, f"gpu1 {port} {counter} +1")
    allowed = "carrier_changes_at_most" if what == CARRIER else "errors_at_most"
    spec: dict[str, Any] = {allowed: 1}
    assert verdicts(found(reading(port, counter, 1), **spec)) == PASS
    assert verdicts(found(reading(port, counter, 2), **spec)) != PASS


def of_cluster(seconds: float, nodes: int, rises: dict[str, int], **more: Any) -> Measurement:
    """The bit error rate of nodes with 8 ports of 400 Gbit/s. rises: by "gpu0 mlx5_0:1"."""

    def read(node: str, uptime_s: float) -> PortReading:
        ports: dict[str, Counters] = {
            f"mlx5_{i}:1": {
                "symbol_error": rises.get(f"{node} mlx5_{i}:1", 0) if uptime_s else 0,
                "link_downed": 0,
            }
            for i in range(8)
        }
        return PortReading("a", ports, uptime_s=uptime_s)

    names = [f"gpu{i}" for i in range(nodes)]
    before, after = ({name: read(name, at_s) for name in names} for at_s in (0.0, seconds))
    errors, rate = judge(before, after, fabric(nics_per_node=8, **more))
    assert str(errors.verdict) == "pass"
    return rate


# A link at a post-FEC BER of 1e-15 has 0.12 errors in 5 minutes at 400 Gbit/s: 128 ports have 15.
@pytest.mark.parametrize(
    ("seconds", "rises", "verdict"),
    [
        (300, {f"gpu{i} mlx5_0:1": 1 for i in range(15)}, "pass"),
        (300, {"gpu3 mlx5_2:1": 3}, "pass"),
        (300, {"gpu3 mlx5_2:1": 12}, "fail"),  # 1e-13
        (300, {"gpu3 mlx5_2:1": 50_000}, "fail"),
        (10, {"gpu3 mlx5_2:1": 1}, "pass"),
        (10, {"gpu3 mlx5_2:1": 4}, "fail"),  # 1e-12
    ],
)
def test_a_few_bit_errors_come_by_chance_and_many_accuse_a_cable(
    seconds: float, rises: dict[str, int], verdict: str
) -> None:
    rate = of_cluster(seconds, 16, rises)
    assert str(rate.verdict) == verdict
    if verdict == "fail":
        assert culprit(rate).nodes == {"gpu3"}
        assert rate.value is not None
        assert rate.value <= rises["gpu3 mlx5_2:1"] / (4e11 * seconds)
        assert str(of_cluster(seconds, 16, rises, bit_error_rate_at_most="1e-9").verdict) == "pass"


def test_healthy_links_are_accused_as_rarely_as_promised() -> None:
    """Of 128 ports that just keep the rate."""
    chance = BIT_ERRORS_FALSE_ALARM / 128
    mean = 1e-15 * 4e11 * 300
    most = next(k for k in range(1, 50) if least_mean(k, chance) > mean)
    tail = 1 - sum(math.exp(-mean) * mean**k / math.factorial(k) for k in range(most))
    assert 1 - (1 - tail) ** 128 <= BIT_ERRORS_FALSE_ALARM
    assert most <= 6  # so that 2e-14 is found


def roce(before: dict[str, int], after: dict[str, int]) -> dict[str, str]:
    """Verdicts of one RoCE port of one node."""
    first, last = ({"gpu0": PortReading("a", {"mlx5_0:1": {**one}})} for one in (before, after))
    return verdicts({m.name: m for m in judge(first, last, fabric("roce"))})


@pytest.mark.parametrize(("errors", "flushed", "verdict"), [(256, 256, "pass"), (257, 256, "fail")])
def test_requests_that_mlx5_flushes_at_an_orderly_end_are_no_errors(
    errors: int, flushed: int, verdict: str
) -> None:
    quiet = {"resp_cqe_error": 9, "resp_cqe_flush_error": 5, "port_rcv_errors": 0}
    last = quiet | {"resp_cqe_error": 9 + errors, "resp_cqe_flush_error": 5 + flushed}
    assert roce(quiet, last)["errors"] == verdict


def test_resources_in_use_are_not_counters_that_were_reset() -> None:
    first = {"max_retry_exceeded": 0, "to_retransmits": 0, "active_qps": 17, "tx_pkts": 5}
    last = first | {"active_qps": 1, "tx_pkts": 10**7}
    assert roce(first, last) == {"errors": "pass", "packets lost": "pass"}
    assert "inconclusive" in roce(first | {"tx_pkts": 10**8}, last).values()


def test_a_counter_that_wraps_does_not_hide_the_others() -> None:
    first = {"rx_write_requests": (1 << 32) - 9, "symbol_error": 1, "port_xmit_packets": 10**9}
    first |= {"out_of_sequence": 7, "port_rcv_errors": 0}
    last = first | {"rx_write_requests": 5, "port_xmit_packets": 2 * 10**9}
    assert roce(first, last) == {"errors": "pass", "packets lost": "pass"}
    assert roce(first, last | {"port_rcv_errors": 1})["errors"] == "fail"
    assert roce(first, last | {"symbol_error": 0})["errors"] == "inconclusive"
    assert roce(first, dict.fromkeys(first, 0))["errors"] == "inconclusive"


def test_losses_have_no_share_of_an_unknown_number_of_packets() -> None:
    first, last = ({"rxVlanErrors": 0, "tcpRetransSegs": n} for n in (3, 503))
    assert [roce(first, one)["packets lost"] for one in (first, last)] == ["pass", "inconclusive"]
    irdma = roce(first | {"ip4OutPkts": 5}, last | {"ip4OutPkts": PACKETS})
    assert irdma["packets lost"] == "pass"


@pytest.mark.parametrize(
    ("kind", "port", "counter"),
    [
        ("ethernet", "TCP", "RetransSegs"),
        ("ethernet", "fab0", "rx_dropped"),
        ("ethernet", "fab0", "rx_missed_errors"),
        *(("roce", "mlx5_0:1", name) for name in ("out_of_sequence", "packet_seq_err")),
        ("infiniband", "mlx5_0:1", "local_ack_timeout_err"),
    ],
)
def test_lost_packets_are_judged_by_their_share(kind: str, port: str, counter: str) -> None:
    assert verdicts(found(reading(port, counter, PACKETS // 500), kind)) == PASS
    measurements = found(reading(port, counter, PACKETS // 50), kind)
    assert verdicts(measurements) == {**PASS, "packets lost": "fail"}
    assert measurements[LOST].value == pytest.approx(2)
    words = f"gpu1 {port} lost 20000 of 1000000 packets"
    assert words in measurements[LOST].note
    assert measurements[LOST].culprit == ("TCP from gpu1" if port == "TCP" else words)


@pytest.mark.parametrize(
    ("sent_again", "out_of_order", "suspects"),
    [
        ((20, 900, 19, 18), (10, 950, 12, 9), {1}),  # its link, both ways
        ((900, 2, 880, 910), (3, 950, 4, 4), {0, 1, 2, 3}),
        ((1, 5, 35, 306), (0, 0, 108, 0), {2, 3}),
        # What 1 receives is lost, and what 3 sends: 2 is both, and well.
        ((94, 28, 370, 394), (19, 124, 80, 0), {1, 2, 3}),
        ((900, 2, 3, 2), (0, 0, 0, 0), {0}),
    ],
)
def test_counters_of_tcp_only_let_suspect(
    sent_again: tuple[int, ...], out_of_order: tuple[int, ...], suspects: set[int]
) -> None:
    def after_it(again: int, odd: int) -> PortReading:
        tcp: Counters = {"OutSegs": 19000, "RetransSegs": 12 + again, "TCPOFOQueue": 5 + odd}
        return PortReading("a", {**QUIET, "TCP": tcp})

    before = {f"gpu{i}": PortReading("a", QUIET) for i in range(4)}
    readings = map(after_it, sent_again, out_of_order)
    after = dict(zip(before, readings, strict=True))
    [*_, lost] = judge(before, after, fabric("ethernet"))
    assert lost.culprit is not None
    assert not lost.culprit.nodes
    assert lost.culprit.either == frozenset({frozenset(f"gpu{i}" for i in suspects)})


def test_packets_that_a_busy_receiver_had_already_were_not_lost() -> None:
    quiet: Counters = {"OutSegs": 0, "RetransSegs": 0, "TCPOFOQueue": 0, "TCPDSACKRecvSegs": 0}
    before = {f"gpu{i}": PortReading("a", {**QUIET, "TCP": quiet}) for i in range(4)}

    def measured(in_vain: int) -> Measurement:
        busy: Counters = {"OutSegs": 19000, "RetransSegs": 376, "TCPDSACKRecvSegs": in_vain}
        [*_, lost] = judge(
            before,
            before | {"gpu0": PortReading("a", {**QUIET, "TCP": quiet | busy})},
            fabric("ethernet"),
        )
        return lost

    assert (str(measured(374).verdict), measured(374).culprit) == ("pass", None)
    assert measured(76).culprit == "TCP from gpu0"


def test_of_two_nodes_that_lose_both_ways_either_is_suspected() -> None:
    before = {f"gpu{i}": PortReading("a", QUIET) for i in range(2)}
    tcp: Counters = {"OutSegs": 19000, "RetransSegs": 912, "TCPOFOQueue": 905}
    after = {name: PortReading("a", {**QUIET, "TCP": tcp}) for name in before}
    [*_, lost] = judge(before, after, fabric("ethernet"))
    assert lost.culprit is not None
    assert lost.culprit == "TCP from gpu0, gpu1 to gpu0, gpu1"
    assert (lost.culprit.nodes, lost.culprit.either) == (
        frozenset[str](),
        frozenset({frozenset(before)}),
    )


@pytest.mark.parametrize(("again", "verdict"), [(PACKETS // 500, "pass"), (PACKETS // 50, "fail")])
def test_efa_retransmits_are_counted_in_packets(again: int, verdict: str) -> None:
    before: Counters = {
        **dict.fromkeys(("tx_pkts", "rx_pkts", "retrans_pkts", "retrans_bytes", "rx_drops"), 9),
        **dict.fromkeys(("retrans_timeout_events", "unresponsive_remote_events"), 1),
    }
    more = {"tx_pkts": PACKETS, "retrans_pkts": again, "retrans_bytes": 8800 * again}
    after: Counters = {name: (n or 0) + more.get(name, 0) for name, n in before.items()}
    first, last = (PortReading("a", {"rdmap0s6:1": counters}) for counters in (before, after))
    [errors, lost] = judge({"gpu0": first}, {"gpu0": last}, fabric("efa", interfaces=["rdmap*"]))
    assert (str(errors.verdict), str(lost.verdict)) == ("pass", verdict)
    assert lost.value == pytest.approx(100 * again / PACKETS)


@pytest.mark.parametrize(
    ("broken", "culprit"),
    [
        ("", "a link between a sender and gpu1 mlx5_0:1 port_rcv_remote_physical_errors +7"),
        ("symbol_error", "gpu2 mlx5_0:1 symbol_error +1"),
    ],
)
def test_who_receives_what_another_link_broke_is_its_victim(broken: str, culprit: str) -> None:
    quiet = {"symbol_error": 0, "port_rcv_remote_physical_errors": 0, "port_xmit_packets": 9}
    victim = quiet | {"port_rcv_remote_physical_errors": 7}
    last = {"gpu1": victim, "gpu2": quiet | ({broken: 1} if broken else {})}
    after = {node: PortReading("a", {"mlx5_0:1": {**those}}) for node, those in last.items()}
    before = dict.fromkeys(last, PortReading("a", {"mlx5_0:1": {**quiet}}))
    errors = judge(before, after, fabric())[0]
    assert (errors.value, errors.culprit) == (7, culprit)


def test_few_losses_among_few_packets_accuse_nobody() -> None:
    quiet = PortReading("a", QUIET)
    ports = QUIET | {"TCP": {"OutSegs": 9030, "RetransSegs": 22}}  # 10 of 30
    [*_, lost] = judge({"gpu0": quiet}, {"gpu0": PortReading("a", ports)}, fabric("ethernet"))
    assert str(lost.verdict) == "pass"


@pytest.mark.parametrize(
    ("kind", "port", "counter"),
    [
        *(("infiniband", "mlx5_0:1", counter) for counter in ("port_xmit_wait", "np_cnp_sent")),
        *(("roce", "fab0", "rx_dropped"), ("roce", "TCP", "RetransSegs")),
    ],
)
def test_congestion_and_drops_beside_rdma_are_no_faults(kind: str, port: str, counter: str) -> None:
    assert verdicts(found(reading(port, counter, PACKETS), kind)) == PASS


def test_nodes_that_lose_packets_to_a_flapping_port_are_not_blamed() -> None:
    quiet, flapped = PortReading("a", QUIET), reading("fab0", "carrier_changes", 4)
    victim = reading("TCP", "RetransSegs", PACKETS)
    before = {"gpu0": quiet, "gpu1": quiet}
    measurements = judge(before, {"gpu0": victim, "gpu1": flapped}, fabric("ethernet"))
    culprits = {m.name: m.culprit for m in measurements if m.culprit}
    assert culprits == dict.fromkeys((CARRIER, LOST), "gpu1 fab0 carrier_changes +4")


@pytest.mark.parametrize(
    ("after", "words"),
    [
        ("its counters were not read within 30 s", "gpu1: its counters were not read"),
        (reading("fab0", "carrier_changes", -1), "gpu1 fab0 carrier_changes cannot be compared"),
        (reading("fab0", "carrier_changes", None), "gpu1 fab0 carrier_changes cannot be compared"),
        (reading(boot="b"), "gpu1: it was restarted, and so were its counters"),
        (
            PortReading("a", {"TCP": {"OutSegs": 10**6}}),
            "gpu1 fab0 carrier_changes cannot be compared",
        ),
    ],
)
def test_incomparable_readings_are_inconclusive(after: PortReading | str, words: str) -> None:
    carrier = found(after)[CARRIER]
    assert str(carrier.verdict) == "inconclusive"
    assert words in carrier.note
    assert verdicts(found(after, restarted=["gpu1"])) == PASS


def test_nodes_without_ports_or_counters_are_inconclusive() -> None:
    nothing = PortReading("a", {"TCP": {"OutSegs": 1, "RetransSegs": 0}})
    for dumb in (nothing, PortReading("a", {"mlx5_0:1": {"port_xmit_packets": 5}})):
        measurements = judge({"gpu0": dumb}, {"gpu0": dumb}, fabric())
        assert {str(m.verdict) for m in measurements} == {"inconclusive"}
    assert "no port of fab0" in judge({"a": nothing}, {"a": nothing}, fabric())[0].note


def test_an_increase_fails_even_if_another_node_is_unreadable() -> None:
    quiet = PortReading("a", QUIET)
    after: PortReadings = {"gpu0": reading("fab0", "carrier_changes", 2), "gpu1": "gone"}
    carrier = judge({"gpu0": quiet, "gpu1": quiet}, after, fabric())[0]
    assert (str(carrier.verdict), carrier.culprit) == ("fail", "gpu0 fab0 carrier_changes +2")


def test_deliberate_kills_cause_no_errors_and_hide_no_link_errors() -> None:
    for counter, kind in (("req_cqe_error", "roce"), ("local_ack_timeout_err", "roce")):
        killed = reading("mlx5_0:1", counter, PACKETS)
        assert "fail" in verdicts(found(killed, kind)).values()
        assert set(verdicts(found(killed, kind, kills=True)).values()) == {"pass"}
    retransmitted = reading("TCP", "RetransSegs", PACKETS)
    assert set(verdicts(found(retransmitted, "ethernet", kills=True)).values()) == {"pass"}
    for port, counter in (("mlx5_0:1", "symbol_error"), ("fab0", "carrier_changes")):
        assert "fail" in verdicts(found(reading(port, counter, 1), kills=True)).values()


def test_infiniband_without_interfaces_is_judged_by_its_own_counters() -> None:
    only = {"mlx5_0:1": QUIET["mlx5_0:1"]}
    quiet = PortReading("a", only)
    measurements = judge({"gpu0": quiet}, {"gpu0": quiet}, fabric())
    assert {m.name: str(m.verdict) for m in measurements} == {ERRORS: "pass", LOST: "pass"}


@pytest.mark.parametrize(("step_s", "named"), [(0.04, None), (-3.0, "b clock"), (3.0, "b clock")])
def test_a_clock_that_was_stepped_is_named(step_s: float, named: str | None) -> None:
    before: PortReadings = {node: PortReading("1", {}, 100.0) for node in "abc"}
    after: PortReadings = {**before, "b": PortReading("1", {}, 100.0 + step_s)}
    one = clock_steps(before, after, 0.05)
    assert (one.passed, one.culprit) == (named is None, named)


@pytest.mark.parametrize(
    "odd", [PortReading("2", {}, 100.0), PortReading("1", {}), "its counters were not read"]
)
def test_a_clock_that_cannot_be_compared_is_inconclusive(odd: PortReading | str) -> None:
    before: PortReadings = {node: PortReading("1", {}, 100.0) for node in "ab"}
    one = clock_steps(before, {**before, "b": odd}, 0.05)
    assert str(one.verdict) == "inconclusive"
    assert "b: its c" in one.note
    assert clock_steps(before, {**before, "b": odd}, 0.05, restarted=["b"]).passed


@pytest.mark.parametrize(
    ("percent", "named"),
    [
        ((0.0, 0.05, 0.15, 0.1), ""),
        ((0.0, 0.0, 0.15, 0.0), ""),
        ((0.1, 0.13, 0.45, 0.15), "c"),
        ((0.02, 0.5, 0.0, 0.1), "b"),
        ((0.4, 0.5, 0.45, 0.35), ""),
        ((0.1, 0.45, 0.1), "b"),
    ],
)
def test_a_node_that_loses_more_than_the_others_is_named(
    percent: tuple[float, ...], named: str
) -> None:
    """Retransmissions of each node among a million segments."""
    again = {node: int(PACKETS * share / 100) for node, share in zip("abcd", percent, strict=False)}
    before: PortReadings = {node: PortReading("a", QUIET) for node in again}
    after = {node: reading("TCP", "RetransSegs", by) for node, by in again.items()}
    found = {m.name: m for m in judge(before, after, fabric("ethernet"))}
    assert found[LOST].passed
    one = found["packets lost, worst node against most nodes"]
    assert one.passed is not bool(named)
    assert one.culprit is None or one.culprit.either == frozenset({frozenset({named})})


def test_others_that_lose_too_much_beside_the_worst_are_suspect() -> None:
    before: PortReadings = {node: PortReading("a", QUIET) for node in "abcde"}
    after = {node: reading("fab0", "rx_dropped", 0) for node in "abcde"}
    after["b"] = reading("fab0", "rx_dropped", int(0.006 * PACKETS))
    after["d"] = reading("fab0", "rx_dropped", int(0.004 * PACKETS))
    found = {m.name: m for m in judge(before, after, fabric("ethernet"))}
    one = found["packets lost, worst node against most nodes"]
    assert culprit(one).nodes == {"b"}
    assert culprit(one).either == {frozenset("b"), frozenset("d")}
    assert " × " not in one.source  # `judge` would scale it by the spec's key


def test_losses_of_all_counters_of_a_port_add_up() -> None:
    lossy = reading("fab0", "rx_dropped", 6000)
    ports = {name: dict(counters) for name, counters in lossy.ports.items()}
    ports["fab0"]["rx_missed_errors"] = (ports["fab0"]["rx_missed_errors"] or 0) + 6000
    one = found(PortReading("a", ports), "ethernet", lost_at_most_fraction=0.01)[LOST]
    assert (str(one.verdict), one.value) == ("fail", 1.2)
    assert culprit(one).nodes == {"gpu1"}


def test_counters_of_which_half_fell_were_reset() -> None:
    quiet = {"symbol_error": 5, "port_rcv_errors": 5}
    assert roce(quiet, {"symbol_error": 1, "port_rcv_errors": 9})["errors"] == "inconclusive"
    three = quiet | {"link_downed": 5}
    fell = {"symbol_error": 1, "port_rcv_errors": 9, "link_downed": 5}
    assert roce(three, fell)["errors"] == "fail"


def test_a_node_that_was_not_read_has_not_passed_beside_a_broken_one() -> None:
    before: PortReadings = {node: PortReading("a", QUIET, 100.0) for node in "abc"}
    broken = reading("fab0", "rx_crc_errors", 9)
    after: PortReadings = {"a": broken, "b": "no answer", "c": reading()}
    errors = {m.name: m for m in judge(before, after, fabric("ethernet"))}[ERRORS]
    stepped: PortReadings = {**before, "a": PortReading("a", QUIET, 103.0), "b": "no answer"}
    for one in (errors, clock_steps(before, stepped, 0.05)):
        assert culprit(one).nodes == {"a"}
        assert culprit(one).either == {frozenset("b")}


def test_a_node_that_was_restarted_is_suspected_and_no_other() -> None:
    before = {node: PortReading("a", QUIET, 100.0, uptime_s=4902.0) for node in "abc"}
    container = PortReading("a", QUIET, 5000.0, uptime_s=2.0)
    for again in (PortReading("another boot", QUIET, 101.0), container):
        quiet = replace(reading(), clock_s=100.0)
        after = {"a": quiet, "b": again, "c": quiet}
        for found in (judge(before, after, fabric("ethernet"))[0], clock_steps(before, after, 1)):
            assert (str(found.verdict), found.culprit) == ("inconclusive", "b")
            assert culprit(found).either == {frozenset("b")}
            assert not culprit(found).nodes


def test_losses_of_two_nodes_are_not_compared() -> None:
    before: PortReadings = {node: PortReading("a", QUIET) for node in "ab"}
    after = {"a": reading("TCP", "RetransSegs", 5000), "b": reading()}
    assert not [m for m in judge(before, after, fabric("ethernet")) if "most nodes" in m.name]


BOUNDS = {"errors_at_most": 5, "recoveries_at_most": 0}


def links(**counts: NvLinkErrors) -> PortReading:
    return PortReading("a", {}, nvlinks=counts)


@pytest.mark.parametrize(
    ("after", "verdicts", "culprits"),
    [
        (links(x=(12, 1), y=(0, 0)), "pass pass", [None, None]),
        (links(x=(13, 1), y=(0, 0)), "fail pass", ["n1 x (+6)", None]),
        (links(x=(7, 2), y=(0, 3)), "pass fail", [None, "n1 x (+1); n1 y (+3)"]),
        (links(x=(3, 0), y=(0, 0)), "pass pass", [None, None]),  # its GPU was reset
        (links(x=(None, None), y=(None, None)), "inconclusive inconclusive", ["n1", "n1"]),
        (links(), "inconclusive inconclusive", ["n1", "n1"]),
        (links(x=(7, 1)), "inconclusive inconclusive", ["n1", "n1"]),  # y is lost
        (PortReading("a", {}), "inconclusive inconclusive", ["n1", "n1"]),
        ("gone", "inconclusive inconclusive", ["n1", "n1"]),
        (
            PortReading("a", {}, nvlinks="nvidia-smi is missing"),
            "inconclusive inconclusive",
            ["n1", "n1"],
        ),
    ],
)
def test_errors_of_nvlinks_may_not_rise(
    after: PortReading | str, verdicts: str, culprits: list[str | None]
) -> None:
    before = {"n0": links(x=(7, 1)), "n1": links(x=(7, 1), y=(0, 0))}
    found = nvlink_rises(before, {"n0": links(x=(7, 1)), "n1": after}, BOUNDS)
    assert " ".join(str(one.verdict) for one in found) == verdicts
    assert [one.culprit for one in found] == culprits
    assert nvlink_rises(before, before, dict.fromkeys(BOUNDS)) == []
    [one, _] = nvlink_rises(before, {"n0": links(x=(7, 1)), "n1": after}, BOUNDS, restarted=["n1"])
    assert str(one.verdict) == "pass"


GB200, H100 = profile_spec("gb200-nvl72"), profile_spec("h100-ib")
ALIKE = [row(EVERY_NIC, 1)]


def sent(spec: Spec, **gbytes: Sequence[float | None]) -> list[Row]:
    """Rows of nodes that sent so much over each NIC."""

    def read(node: str, words: Callable[[float | None], int | None]) -> PortReading:
        link = {"symbol_error": 0}
        ports = {
            f"mlx5_{i}:1": {**link, "port_xmit_data": words(one)}
            for i, one in enumerate(gbytes[node])
        }
        return PortReading("a", ports)

    readings = (
        {node: read(node, words) for node in gbytes}
        for words in (lambda _: 7, lambda gb: None if gb is None else 7 + int(gb * 1e9) // 4)
    )
    before, after = readings
    kept = rows_to_json("ports", rises(before, after, spec.fabric.interfaces))
    return [rows_from_json(json.loads(json.dumps(one)))[1] for one in kept]


EVEN, DEAD = [90.0] * 8, [90.0] * 5 + [0.0] + [90.0, 180.0]


@pytest.mark.parametrize(
    ("nodes", "verdict", "devices"),
    [
        ({"n0": EVEN, "n1": EVEN}, "pass", ()),
        ({"n0": EVEN, "n1": DEAD}, "fail", (("n1", "mlx5_5"),)),
        ({"n0": DEAD, "n1": DEAD}, "fail", (("n0", "mlx5_5"), ("n1", "mlx5_5"))),
        ({"n0": EVEN, "n1": [5.0] + [0.0] * 7}, "pass", ()),  # it took no part in the load
        ({"n0": EVEN, "n1": [None, *EVEN[1:]]}, "pass", ()),  # judged where the counter is
        ({"n0": EVEN, "n1": EVEN[1:]}, "fail", ()),  # a NIC that is not there
        ({"n0": [1.0] * 8, "n1": [1.0] * 7 + [0.0]}, "", ()),  # too little to tell
    ],
)
def test_each_nic_carries_its_share_of_a_load(
    nodes: dict[str, list[float | None]], verdict: str, devices: tuple[tuple[str, str], ...]
) -> None:
    """With failover of ports a job survives the loss of one."""
    found = judging.nics_used([*sent(H100, **nodes), *ALIKE], H100)
    assert "".join(str(one.verdict) for one in found) == verdict
    if devices:
        assert found[0].culprit is not None
        assert found[0].culprit.parts.devices == devices


@pytest.mark.parametrize(
    ("spec", "more", "count", "source"),
    [
        (H100, [row(EVERY_NIC, why="its job may use some NICs only")], 1, "some NICs only"),
        (GB200, ALIKE, 1, "NVLink carries what stays in a domain"),
        (H100, [*ALIKE, row(KILLED, 1)], 0, ""),
        (H100, [], 0, ""),
    ],
)
def test_nics_are_not_judged_where_a_load_may_leave_some_out(
    spec: Spec, more: list[Row], count: int, source: str
) -> None:
    dead = DEAD[8 - spec.fabric.nics_per_node :]
    rows = [*sent(spec, n0=dead, n1=dead), *more]
    found = judging.nics_used(rows, spec)
    assert [one.expected for one in found] == [None] * count
    assert all(one.source.endswith(source) for one in found)
    assert all(one.verdict not in (Verdict.FAIL, Verdict.INCONCLUSIVE) for one in found)
    assert all(one.verdict is Verdict.PASS for one in judging.judge(rows, spec.fabric))
