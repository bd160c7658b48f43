"""Kernel counters, read from files in the kernel's format."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mnode.machine.counters import (
    estimated_port_bytes,
    increase,
    increases,
    port_bytes,
    sent_bytes,
    sent_so_far,
)
from pytest_mnode.machine.rdma import Port
from tests.trees import MELLANOX, NIC, Tree


def test_every_readable_interface_is_read(tmp_path: Path) -> None:
    for name, text in {"fab0": "1500\n", "mgmt0": "0\n", "broken0": "\n"}.items():
        statistics = tmp_path / "sys/class/net" / name / "statistics"
        statistics.mkdir(parents=True)
        (statistics / "tx_bytes").write_text(text)
    (tmp_path / "sys/class/net/bonding_masters").write_text("")
    assert sent_bytes(tmp_path) == {"fab0": 1500, "mgmt0": 0}


def _port(counters: dict[str, int] | None, hw_counters: dict[str, int] | None) -> Port:
    return Port(
        device="mlx5_0",
        number=1,
        state="ACTIVE",
        phys_state="LinkUp",
        rate_gbits_s=400.0,
        link_layer="InfiniBand",
        gids=(),
        counters=counters,
        hw_counters=hw_counters,
    )


_OTHER = {"rx_drops": 3, "tx_pkts": 9, "rx_pkts": 9, "lifespan": 10}
_EFA = {"tx_bytes": 9_200, "rx_bytes": 700, **_OTHER}
_EFA_SENDS = {"send_bytes": 200, "recv_bytes": 100}
_EFA_READS = {"rdma_read_resp_bytes": 4_000, "rdma_read_bytes": 300}
_EFA_WRITES = {"rdma_write_bytes": 5_000, "rdma_write_recv_bytes": 300}


@pytest.mark.parametrize(
    ("counters", "hw_counters", "sent", "received"),
    [
        pytest.param({"port_xmit_data": 250, "port_rcv_data": 3}, None, 1000, 12, id="mlx5, hfi1"),
        pytest.param({"port_xmit_data": 250}, {"tx_bytes": 7}, 1000, None, id="bnxt_re with a PMA"),
        pytest.param(None, {"tx_bytes": 7, "rx_bytes": 1, **_OTHER}, 7, 1, id="bnxt_re"),
        pytest.param(None, {"hw_tx_bytes_cnt": 7, "hw_rx_bytes_cnt": 1}, 7, 1, id="erdma, old"),
        pytest.param(None, {"tx_bytes_cnt": 7, "rx_bytes_cnt": 1}, 7, 1, id="erdma"),
        pytest.param(
            None,
            {"ip4OutOctets": 5, "ip6OutOctets": 2, "ip4InOctets": 1, "ip4OutMcastOctets": 4},
            *(7, 1),
            id="irdma",
        ),
        pytest.param(None, {"sent_pkts": 9, "rcvd_pkts": 9}, None, None, id="soft-RoCE"),
        pytest.param(None, {"tx_rc_pkt": 9, "rx_rc_pkt": 9}, None, None, id="hns"),
        pytest.param(None, None, None, None, id="soft-iWARP"),
        pytest.param({"port_xmit_data": 2**32 - 1}, None, None, None, id="saturated at 32 bits"),
        pytest.param({}, {}, None, None, id="folders without a file"),
        # EFA: the operations are parts of the total, which counts once.
        pytest.param(None, _EFA, 9200, 700, id="EFA, first driver"),
        pytest.param(None, _EFA | _EFA_SENDS, 9200, 700, id="EFA with sends"),
        pytest.param(None, _EFA | _EFA_SENDS | _EFA_READS, 9200, 700, id="EFA with reads"),
        pytest.param(
            None, _EFA | _EFA_SENDS | _EFA_READS | _EFA_WRITES, 9200, 700, id="EFA with writes"
        ),
        pytest.param(
            None,
            _EFA | {"tx_bytes": 200, "rx_bytes": 100} | _EFA_SENDS | _EFA_READS | _EFA_WRITES,
            *(9200, 700),
            id="EFA whose total leaves RDMA out",
        ),
        pytest.param(
            None, {"tx_bytes": 0, "rdma_write_bytes": 5}, 5, None, id="EFA, writes not in the total"
        ),
        pytest.param(
            None,
            {"tx_rdma_ucast_bytes": 6, "tx_rdma_mcast_bytes": 1, "rx_rdma_ucast_bytes": 1},
            *(7, 1),
            id="ionic",
        ),
    ],
)
def test_counters_of_each_driver(
    counters: dict[str, int] | None,
    hw_counters: dict[str, int] | None,
    sent: int | None,
    received: int | None,
) -> None:
    port = _port(counters, hw_counters)
    assert (port_bytes(port), port_bytes(port, sent=False)) == (sent, received)


_COUNTS = st.tuples(*[st.integers(0, 1 << 50)] * 4)


@given(_COUNTS, _COUNTS, st.integers(0, 3))
def test_efa_counts_each_byte_once(
    before: tuple[int, ...], moved: tuple[int, ...], generation: int
) -> None:
    """For any operations that carry the bytes, and any of these that a driver counts."""
    names = ("send_bytes", "rdma_read_resp_bytes", "rdma_write_bytes")[:generation]

    def sent(counts: tuple[int, ...], total: int) -> int | None:
        parts = dict(zip(names, counts, strict=False))
        return port_bytes(_port(None, {"tx_bytes": total, **_OTHER, **parts}))

    after = tuple(b + m for b, m in zip(before, moved, strict=True))
    # A total of all bytes, with headers or whatever else the fourth counter covers.
    assert increase(sent(before, sum(before)), sent(after, sum(after))) == sum(moved)
    if generation == 3:  # a total of sends alone
        assert increase(sent(before, before[0]), sent(after, after[0])) == sum(moved[:3])


def test_an_unreadable_counter_is_not_replaced_by_another() -> None:
    port = _port({"port_rcv_data": 3}, {"tx_bytes": 7, "rx_bytes": 7})
    port = replace(port, unreadable=("counters/port_xmit_data",))
    assert (port_bytes(port), port_bytes(port, sent=False)) == (None, 12)


def test_interfaces_and_ports_together(tmp_path: Path) -> None:
    """Readings whose differences scaling and bench use."""

    def reading(name: str, counts: dict[str, int]) -> dict[str, int]:
        tree = Tree(tmp_path / name)
        tree.interface("eth0", None, **{"statistics/tx_bytes": counts["eth0"]})
        for index, counter in enumerate(("port_xmit_data", "tx_bytes", "tx_pkts")):
            on = f"pci0000:10/0000:10:{index:02x}.0"
            tree.pci(on, NIC, MELLANOX)
            shown = {counter: counts[counter]}
            counters, hw_counters = (shown, None) if index == 0 else (None, shown)
            tree.rdma(f"rdma{index}", on, counters, hw_counters)
        return sent_so_far(tree.root)

    before = reading("before", {"eth0": 10, "port_xmit_data": 1, "tx_bytes": 9, "tx_pkts": 1})
    after = reading("after", {"eth0": 30, "port_xmit_data": 3, "tx_bytes": 4, "tx_pkts": 5})
    assert after == {"eth0": 30, "rdma0:1": 12, "rdma1:1": 4}
    # rdma1 decreased, as after a reset; its later bytes have no first reading.
    assert increases(before, after | {"new0": 5}) == {"eth0": 20, "rdma0:1": 8}


def test_this_machine_has_a_loopback() -> None:
    assert "lo" in sent_bytes()


@pytest.mark.parametrize(
    ("packets", "below", "found"),
    [
        (0, (9000, 33_000_000), 0),  # TCP beside it, none of it from the port
        (8000, (8000, 33_000_000), 33_000_000),
        (8000, (8004, 33_000_300), 33_000_300),  # a few packets that are not from the port
        (8000, (8100, 33_000_300), None),  # these may be of 64 KiB each
        (80, (81, 9000), 9000),
        (2, (40, 9000), 2 * (4096 + 94)),
        (8000, (12, 3000), None),  # the interface does not count the port's packets
    ],
)
def test_bytes_of_a_port_that_counts_packets(
    packets: int, below: tuple[int, int], found: int | None
) -> None:
    assert estimated_port_bytes(packets, *below) == found
