"""A short soak: what fails now and then is named with its time; one that is cut goes on.

Clocks are accelerated: what comes once in minutes on a cluster comes once in seconds here.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.certificate.gathered import certificate_from
from pytest_mnode.criteria.soak.found import KEY, Kept, kept_in
from pytest_mnode.evidence.file import NAME, ROWS, read, rows_from_json
from tests.acceptance.certified import Certified, certify
from tests.faults.talk import need_quotas
from tests.red import turns_red

SOAKS = "test_nodes_stay_right_and_as_fast_under_load"
AFTER_A_ROUND = """
    import os, pathlib, signal, threading, time, zlib
    from pytest_mnode import faults
    from pytest_mnode.options import RUN

    def text(path):
        return zlib.decompressobj(31).decompress(path.read_bytes())

    def watch(session, path):
        while text(path).count(b'"metric":"round"') < ROUNDS:
            time.sleep(0.05)
        ACT

    def pytest_collection_finish(session):
        path = pathlib.Path(session.config.getoption("mnode_report"), "evidence.jsonl.gz")
        threading.Thread(target=watch, args=[session, path], daemon=True).start()
"""


def after(rounds: int, act: str) -> str:
    return AFTER_A_ROUND.replace("ROUNDS", str(rounds)).replace("ACT", act)


def soak(directory: Path, time: str, *args: str, fault: str | None = None) -> Certified:
    return certify(directory, f"--mnode-soak={time}", *args, fault=fault, files=["test_soak.py"])


def failures(done: Certified) -> dict[str, Any]:
    return dict(done.measurements("soak")["rounds with a failure"])


@turns_red("soak", SOAKS)
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("link_down:node2@100ms+200ms", "node2 fab0 carrier_changes +2"),
        ("cpu_quota:node1:20", "rank 1 on node1 ("),
    ],
)
def test_what_comes_once_is_named_with_its_time(tmp_path: Path, fault: str, words: str) -> None:
    if "quota" in fault:
        need_quotas()
    inject = f"faults.inject(session.config.stash[RUN].pool.launcher, {fault!r})"
    done = soak(tmp_path, "25s", fault=after(1, inject))
    found = failures(done)
    assert found["verdict"] == "fail", done.run.output
    assert found["culprit_nodes"] == [fault.split(":")[1].partition("@")[0]], found
    assert words in found["culprit"]
    assert " UTC" in found["culprit"]
    assert "round 1 at" not in found["note"], "it came later"


@turns_red("soak", SOAKS)
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("wrong_layers:node3:130", "training steps, digests that differ"),
        ("wrong_products:node3:3000", "of 12288) (repeated products float32, wrong "),
    ],
)
def test_a_wrong_result_now_and_then_is_named(tmp_path: Path, fault: str, words: str) -> None:
    done = soak(tmp_path, "10s", f"--mnode-fault={fault}")
    found = failures(done)
    assert found["verdict"] == "fail", done.run.output
    assert found["culprit_nodes"] == ["node3"], found
    assert words in found["culprit"]


@pytest.mark.parametrize("signal", ["SIGTERM", "SIGKILL"])
def test_a_soak_that_is_cut_loses_no_round_and_goes_on(tmp_path: Path, signal: str) -> None:
    plugin = after(2, f"os.kill(os.getpid(), signal.{signal})")
    report = tmp_path / "report"

    def kept() -> Kept:
        rows = [rows_from_json(one) for one in read(report / NAME) if one["kind"] == ROWS]
        return kept_in(row for key, row in rows if key == KEY)

    def rounds() -> list[int]:
        return [one.number for one in kept().rounds]

    if signal == "SIGKILL":
        with pytest.raises(AssertionError):  # it wrote no certificate
            soak(tmp_path, "60s", fault=plugin)
        killed = certificate_from(report).certificate
        [case] = (case for one in killed.criteria if one.name == KEY for case in one.cases)
        assert case.verdict == "inconclusive"
        assert {m.name: m.value for m in case.measurements}["rounds with a failure"] == 0
    else:
        done = soak(tmp_path, "60s", fault=plugin)
        assert done.criterion("soak")["verdict"] == "inconclusive", done.run.output
        left = done.measurements("soak")["time under load"]["note"]
        assert "interrupted (SIGTERM): 2 rounds" in left
        assert "interrupted" in done.certificate["run"]["cut_short"]
    assert rounds() == [1, 2]
    (tmp_path / "fault.py").unlink()
    # Time for another round, however long those took.
    done = soak(tmp_path, f"{math.ceil(2.5 * kept().soaked_s) + 3}s", "-vv")
    assert done.criterion("soak")["verdict"] == "pass", done.run.output
    assert "goes on after 2 rounds of earlier runs" in failures(done)["note"]
    assert "mnode: soak, round 3 (its seed)" in done.run.output
    assert rounds() == list(range(1, len(rounds()) + 1))
    assert len(rounds()) == done.measurements("soak")["rounds"]["value"] > 2
