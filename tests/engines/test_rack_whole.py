"""The whole acceptance suite on a healthy rack, with the rack's unchanged spec."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from tests.acceptance.certified import certify


def test_a_healthy_rack_is_certified(tmp_path: Path) -> None:
    done = certify(tmp_path, limit_s=900)
    assert done.run.returncode == 0, done.run.output
    assert set(done.run.outcomes().values()) == {"passed", "skipped"}
    assert done.certificate["verdict"] == "certified"
    assert {c["name"]: c["verdict"] for c in done.certificate["criteria"]} == {
        **dict.fromkeys(("preflight", "mesh", "numa", "devices", "fabric"), "pass"),
        **dict.fromkeys(("groups", "data", "storage", "launch"), "pass"),
        **dict.fromkeys(("scaling", "restart"), "pass"),
        **dict.fromkeys(
            ("accelerators", "gang", "soak", "traffic", "tuning", "workload"), "not promised"
        ),
    }
    cases = [case for c in done.certificate["criteria"] for case in c["cases"]]
    assert {case["verdict"] for case in cases} == {"pass", "not promised"}
    [suite] = ElementTree.parse(done.run.junit).getroot()  # names are not unique over files
    not_promised = sum(case["verdict"] == "not promised" for case in cases)
    assert int(suite.attrib["skipped"]) == not_promised
    fabric = done.measurements("fabric")
    judged = {name for name, m in fabric.items() if m["verdict"] == "pass"}
    assert {n for n in judged if n.endswith("busbw")} == {
        "all_reduce 4 MiB busbw",
        "all_gather 4 MiB busbw",
        "reduce_scatter 4 MiB busbw",
        "all_to_all 512 KiB busbw",
        "broadcast 64 KiB busbw",
        "send_recv 512 KiB busbw",
    }
    charts = [chart for case in done.criterion("fabric")["cases"] for chart in case["charts"]]
    assert {c["collective"]: len(c["points"]) for c in charts if c["kind"] == "curve"} == {
        "all_reduce": 3,
        **dict.fromkeys(("all_gather", "reduce_scatter", "all_to_all"), 2),
        **dict.fromkeys(("broadcast", "send_recv"), 2),
    }
    assert fabric["all_reduce 64 KiB busbw"]["verdict"] is None  # recorded, not judged
    assert fabric["all_reduce 64 KiB #wrong"]["verdict"] == "pass"
    assert fabric["all_reduce 4 MiB busbw"]["where"] == "all 4 ranks"
    assert fabric["off-fabric traffic, worst node"]["value"] < 1
    # No more than TCP can carry at this MTU, otherwise the clock is wrong.
    assert fabric["all_reduce 4 MiB busbw"]["value"] < 0.025 * 0.975
    assert len({case["question"] for case in cases}) >= 30
    assert all(case["question"].endswith("?") for case in cases)
