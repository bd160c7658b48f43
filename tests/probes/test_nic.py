"""What the kernel counted, read from files as it writes them."""

from __future__ import annotations

from pathlib import Path

from pytest_mnode.probes.nic import port_bytes, sent_bytes
from pytest_mnode.probes.rdma import Port


def test_reads_every_interface_and_leaves_out_what_it_cannot_read(tmp_path: Path) -> None:
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
        state_raw="4: ACTIVE",
        phys_state="LinkUp",
        phys_state_raw="5: LinkUp",
        rate_gbits_s=400.0,
        rate_raw="400 Gb/sec (4X NDR)",
        link_layer="InfiniBand",
        lid=1,
        sm_lid=1,
        gids=(),
        counters=counters,
        hw_counters=hw_counters,
    )


def test_ports_count_words_and_efa_counts_bytes() -> None:
    counted = _port({"port_xmit_data": 250, "port_rcv_data": 3}, None)
    assert (port_bytes(counted), port_bytes(counted, sent=False)) == (1000, 12)
    efa = _port({}, {"tx_bytes": 7000, "rx_bytes": 1})
    assert (port_bytes(efa), port_bytes(efa, sent=False)) == (7000, 1)


def test_a_counter_at_the_end_of_32_bits_says_nothing() -> None:
    assert port_bytes(_port({"port_xmit_data": 2**32 - 1}, None)) is None
    assert port_bytes(_port(None, None)) is None


def test_this_machine_has_a_loopback() -> None:
    assert "lo" in sent_bytes()
