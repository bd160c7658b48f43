"""What the kernel counted, read from files as it writes them."""

from __future__ import annotations

from pathlib import Path

from pytest_mnode.probes.nic import sent_bytes


def test_reads_every_interface_and_leaves_out_what_it_cannot_read(tmp_path: Path) -> None:
    for name, text in {"fab0": "1500\n", "mgmt0": "0\n", "broken0": "\n"}.items():
        statistics = tmp_path / name / "statistics"
        statistics.mkdir(parents=True)
        (statistics / "tx_bytes").write_text(text)
    (tmp_path / "bonding_masters").write_text("")
    assert sent_bytes(tmp_path) == {"fab0": 1500, "mgmt0": 0}


def test_this_machine_has_a_loopback() -> None:
    assert "lo" in sent_bytes()
