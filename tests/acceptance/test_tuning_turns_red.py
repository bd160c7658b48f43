"""Settings that do not gain what the spec promises, on the rack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.acceptance.certified import PORTS, certify, spec_edited
from tests.acceptance.test_ports_turn_red import UNPLUGGED
from tests.red import turns_red

GAINS = "test_settings_gain_what_is_promised"


@turns_red("tuning", GAINS)
def test_small_packets_do_not_gain_what_is_promised(tmp_path: Path) -> None:
    """They lose 3.5 %: 1448 of 1514 bytes are payload, and not 8948 of 9014."""

    def edit(page: dict[str, Any]) -> None:
        page["fabric"]["mtu"] = page["management"]["mtu"] = 9000
        page["criteria"] = {"tuning": {"rounds": 4, "mtu": {"gain_at_least": 1.0}, "channels": {}}}

    done = certify(tmp_path, spec_edited(tmp_path, edit), files=["test_tuning.py"])
    verdict, found = done.case("tuning", f"{GAINS}[mtu]")
    assert verdict == "fail", done.run.output
    [gain] = found.values()
    assert -30 < gain["value"] < 50, done.run.output  # cores may be busy
    case = done.cases("tuning")[f"{GAINS}[mtu]"]
    [chart] = case["charts"]
    assert {row["metric"] for row in chart["rows"]} == {"rate", "CPU"}
    assert "mtu: What does another MTU gain? (4 rounds" in done.run.output
    assert "<td>MTU 1500</td>" in (tmp_path / "report/certificate.html").read_text()
    assert done.case("tuning", f"{GAINS}[channels]")[0] == "not promised"
    assert "gloo has no such settings" in done.cases("tuning")[f"{GAINS}[channels]"]["message"]


@turns_red("tuning", PORTS)
def test_a_link_that_goes_down_meanwhile_is_named(tmp_path: Path) -> None:
    def edit(page: dict[str, Any]) -> None:
        page["criteria"] = {"tuning": {"loader": {}}}

    files = [f"test_tuning.py::{PORTS}"]
    done = certify(tmp_path, spec_edited(tmp_path, edit), fault=UNPLUGGED, files=files)
    assert any(one.startswith("node1 fab0 ") for one in done.culprits("tuning"))
