"""The acceptance suite itself, on a rack that is well and on racks with one fault each."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.spec import default_spec_path
from tests.inner import InnerRun, need_rack, run_pytest, write_files

ACCEPTANCE = Path(__file__).parents[2] / "acceptance"

SLOW_LINK = """
    import pytest
    from pytest_mnode.run import RUN

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(session):
        if RUN in session.config.stash:
            session.config.stash[RUN].client.ask_launcher("set_rate", "node2", "fab0", 50.0)
"""
STOPPED_RANK = """
    import os, signal
    import pytest

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(item):
        hit = item.name in ("test_sum_is_right[4]", "test_all_reduce_reaches_the_line_rate")
        if hit and os.environ.get("RANK") == "2":
            os.kill(os.getpid(), signal.SIGSTOP)
"""
WRONG_SUM = """
    import os
    import pytest

    @pytest.fixture(autouse=True)
    def one_wrong_value(world, monkeypatch):
        import torch.distributed as dist
        right = dist.all_reduce
        def all_reduce(tensor, *args, **kwargs):
            right(tensor, *args, **kwargs)
            if world.rank == 1:
                tensor[-1] += 1
        monkeypatch.setattr(dist, "all_reduce", all_reduce)
"""


@dataclass(frozen=True)
class Certified:
    """A run of the acceptance suite with its certificate."""

    run: InnerRun
    certificate: Mapping[str, Any]

    def criterion(self, name: str) -> Mapping[str, Any]:
        return next(c for c in self.certificate["criteria"] if c["name"] == name)

    def measurements(self, name: str) -> dict[str, Mapping[str, Any]]:
        return {m["name"]: m for c in self.criterion(name)["cases"] for m in c["measurements"]}

    def culprits(self, name: str) -> set[str]:
        cases = self.criterion(name)["cases"]
        named = {c["culprit"] for c in cases if c["verdict"] != "pass"}
        named |= {m["culprit"] for m in self.measurements(name).values() if m["verdict"] == "fail"}
        return named - {None}


@pytest.fixture(autouse=True)
def _rack() -> None:
    need_rack()


def _certify(
    directory: Path, *args: str, fault: str | None = None, env: Mapping[str, str] | None = None
) -> Certified:
    """Run acceptance/ on four nodes; `fault` is the text of a pytest plugin."""
    if fault is not None:
        write_files(directory, fault=fault)
        args = ("-p", "fault", *args)
    report = directory / "report"
    arguments = ("--mnode-nodes=4", str(ACCEPTANCE), f"--mnode-report={report}", *args)
    run = run_pytest(directory, *arguments, env={"PYTHONPATH": str(directory), **(env or {})})
    assert (report / "certificate.json").exists(), run.output
    return Certified(run, json.loads((report / "certificate.json").read_text()))


def _spec(directory: Path, *changes: tuple[str, str]) -> str:
    """--mnode-spec of the rack's page with regular expressions replaced."""
    text = default_spec_path().read_text()
    for pattern, replacement in changes:
        text, count = re.subn(pattern, replacement, text)
        assert count == 1, pattern
    path = directory / "spec.yaml"
    path.write_text(text)
    return f"--mnode-spec={path}"


def _short(directory: Path) -> str:
    """A sweep that is over soon even on a slow link."""
    return _spec(
        directory, (r"sizes: .*", "sizes: [64 KiB, 1 MiB]"), (r"repeats: .*", "repeats: 3")
    )


def test_a_rack_that_is_well_is_certified(tmp_path: Path) -> None:
    done = _certify(tmp_path)
    assert done.run.returncode == 0, done.run.output
    assert set(done.run.outcomes().values()) == {"passed"}
    assert done.certificate["verdict"] == "certified"
    assert {c["name"]: c["verdict"] for c in done.certificate["criteria"]} == {
        "mesh": "pass",
        "fabric": "pass",
        "accelerators": "not promised",
        "storage": "not promised",
        "gang": "not promised",
    }
    fabric = done.measurements("fabric")
    judged = {name for name, m in fabric.items() if m["verdict"] == "pass"}
    assert {n for n in judged if "busbw" in n} == {
        "all_reduce 1 MiB busbw",
        "all_reduce 4 MiB busbw",
    }
    assert fabric["all_reduce 64 KiB busbw"]["verdict"] is None  # recorded, not judged
    assert fabric["all_reduce 64 KiB #wrong"]["verdict"] == "pass"
    assert fabric["all_reduce 4 MiB busbw"]["where"] == "all 4 ranks"
    assert fabric["sent past the fabric, by the node that did most"]["value"] < 1
    # No more than TCP can carry at this MTU, or the clock is wrong.
    assert fabric["all_reduce 4 MiB busbw"]["value"] < 0.025 * 0.975
    questions = [case["question"] for c in done.certificate["criteria"] for case in c["cases"]]
    assert len(questions) == 5
    assert all(question.endswith("?") for question in questions)


def test_a_slow_link_is_found(tmp_path: Path) -> None:
    done = _certify(tmp_path, _short(tmp_path), fault=SLOW_LINK)
    assert done.run.returncode == 1
    assert done.certificate["verdict"] == "not certified"
    assert done.criterion("mesh")["verdict"] == "pass"  # slow, but right
    [culprit] = done.culprits("fabric")
    found = re.fullmatch(r"node2 fab0 \((\d+) Mbit/s, alone with .*; other nodes (\d+)\)", culprit)
    assert found, culprit
    assert 40 <= int(found[1]) <= 55
    assert int(found[2]) > 150
    told = done.run.output.partition("short test summary")[0]
    assert told.count("all_reduce 1 MiB busbw: ") == 1  # once for all ranks
    assert f"fabric failed ({culprit})" in done.run.output


def test_the_management_network_is_recognised(tmp_path: Path) -> None:
    done = _certify(tmp_path, _short(tmp_path), env={"GLOO_SOCKET_IFNAME": "mgmt0"})
    assert done.certificate["verdict"] == "not certified"
    [culprit] = done.culprits("fabric")
    assert culprit.startswith("all nodes sent over mgmt0 instead of fab0; the fabric as a whole: ")
    assert culprit.endswith(" Mbit/s, the rate of the management network")
    measured = done.measurements("fabric")
    assert measured["all_reduce 1 MiB busbw"]["verdict"] == "fail"
    assert measured["sent past the fabric, by the node that did most"]["value"] > 95
    assert "node2 mostly mgmt0" in done.run.output


def test_a_stopped_rank_is_named(tmp_path: Path) -> None:
    done = _certify(tmp_path, _short(tmp_path), "--mnode-timeout=8", fault=STOPPED_RANK)
    assert done.certificate["verdict"] == "not certified"
    for criterion in ("mesh", "fabric"):
        assert done.criterion(criterion)["verdict"] == "fail"
        assert done.culprits(criterion) == {"rank 2 of 4 on node2"}
    outcomes = done.run.outcomes()
    assert outcomes.pop("test_sum_is_right[4]") == "failure"
    assert outcomes.pop("test_all_reduce_reaches_the_line_rate") == "failure"
    assert set(outcomes.values()) == {"passed"}  # the run went on


def test_a_wrong_sum_fails_and_what_is_not_promised_is_not_judged(tmp_path: Path) -> None:
    silent = _spec(tmp_path, (r"(?s)  fabric:\n    all_reduce_busbw:.*?\n\n", "\n"))
    done = _certify(tmp_path, silent, fault=WRONG_SUM)
    assert done.certificate["verdict"] == "not certified"
    wrong = done.measurements("mesh")["#wrong"]
    assert (wrong["value"], wrong["verdict"]) == (1, "fail")
    assert done.criterion("fabric")["verdict"] == "not promised"
    assert done.run.outcomes()["test_all_reduce_reaches_the_line_rate"] == "skipped"
