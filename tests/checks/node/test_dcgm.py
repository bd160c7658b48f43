"""DCGM's diagnostics against promises, from a stand-in for dcgmi."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.checks.node import dcgm
from pytest_mnode.checks.node.dcgm import DcgmDiagnosticPasses, DcgmNodesPass
from pytest_mnode.evidence.reading import CheckRows, ReadOrder, read
from pytest_mnode.spec.inventory import Accelerators
from tests.checks.node.judged import blamed, judged, rows_of, verdicts
from tests.logs.test_dcgm import GONE, WARNED, four, gpu
from tests.programs import write_program
from tests.waiting import soon

TWO = Accelerators.model_validate({"per_node": 2})
LEVEL = "{level: 1}"
NODES = (("a", "10.0.0.1"), ("b", "10.0.0.2"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def prints(folder: Path, text: str, status: int = 0) -> None:
    (folder / "text").write_text(text)
    script = f"#!/bin/sh\necho $* >{folder}/argv\ncat {folder}/text\nexit {status}\n"
    write_program(folder / "dcgmi", script)


@pytest.mark.parametrize(
    ("promise", "results", "verdict", "words"),
    [
        (LEVEL, (gpu(0), gpu(1)), "ppp", ""),
        (LEVEL, (gpu(0), gpu(1, "Fail", warnings=[WARNED])), "fpp", "error 29, a setting"),
        (LEVEL, (gpu(0), gpu(1, "Skip")), "pip", "all 1 were skipped"),
        (LEVEL, (gpu(0),), "pfp", "1 of 2"),
        (LEVEL, (gpu(0), gpu(1, "Warn", warnings=["hot"])), "ppi", "memory: hot"),
        ("{level: 1, warnings: allowed}", (gpu(0), gpu(1, "Warn")), "pp", ""),
        ("{level: 1, skipped: none}", (gpu(0), gpu(1, "Skip")), "pipf", "accelerator 1"),
        (LEVEL, (gpu(0), gpu(1, "Aborted")), "pii", "unknown"),
        ("{level: 2}", (gpu(0), gpu(1)), "ppp", ""),
        ("{level: 3}", (gpu(0), gpu(1)), "iii", "none of its tests is of level 3"),
        ("{level: 3}", (gpu(0), gpu(1, "Fail")), "fpp", ""),
    ],
)
def test_every_test_passes_on_every_gpu(
    folder: Path, promise: str, results: tuple[Any, ...], verdict: str, words: str
) -> None:
    prints(folder, f"a warning\n{json.dumps(four(*results))}", 226)
    found = judged(DcgmDiagnosticPasses, promise, {"a": Path("/")}, accelerators=TWO)
    assert verdicts(found) == verdict
    assert words in " ".join(map(str, found["a"]))
    assert blamed(found) == ({"a"} if "f" in verdict else set())


@pytest.mark.parametrize(
    ("text", "words"),
    [(GONE, "unable to establish a connection"), ("", "status 226"), ('{"x": [', "JSON is cut")],
)
def test_without_results_it_is_inconclusive(folder: Path, text: str, words: str) -> None:
    prints(folder, text, 226)
    found = judged(DcgmDiagnosticPasses, LEVEL, {"a": Path("/")}, accelerators=TWO)
    assert set(verdicts(found)) == {"i"}
    assert words in found["a"][0].note


def test_level_and_host_are_those_promised(folder: Path) -> None:
    prints(folder, json.dumps(four(gpu(0))))
    rows_of(DcgmDiagnosticPasses, "{level: 3, host: 'n1:5555'}")
    assert (folder / "argv").read_text() == "diag -r 3 --json --host n1:5555\n"


def test_one_that_hangs_ends_at_the_limit_of_its_level(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_program(folder / "dcgmi", "#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(dcgm, "_LEVEL_S", {1: 0.2, 2: 50.0})
    for promise in (LEVEL, "{level: 2, within: 200 ms}"):
        with soon():
            assert "no answer within 0.2 s" in rows_of(DcgmDiagnosticPasses, promise).why
    limits = [
        DcgmDiagnosticPasses(dcgm.Dcgm.model_validate({"level": level})).limit_s for level in (1, 2)
    ]
    assert None not in limits
    assert limits == sorted(limits, key=float)  # type: ignore[arg-type]


def test_one_over_all_nodes_ends_at_its_limit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_program(folder / "dcgmi", "#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(dcgm, "_NODES_S", 0.2)
    for promise in (
        dcgm.DcgmNodes.model_validate({}),
        dcgm.DcgmNodes.model_validate({"within": "200 ms"}),
    ):
        order = replace(ReadOrder.of(DcgmNodesPass, promise), nodes=NODES)
        with soon():
            assert "no answer within 0.2 s" in read(order).why


def test_the_package_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        assert "install NVIDIA's DCGM" in rows_of(DcgmDiagnosticPasses, LEVEL).why


HOSTS = [{"host_id": i, "hostname": where} for i, (_, where) in enumerate(NODES)]


GPUS = (gpu(0, host_id=0), gpu(1, host_id=0), gpu(0, host_id=1))


def multi(*results: Any, **more: Any) -> str:
    tests = [{"name": "mnubergemm", "status": "Pass", "results": [*results]} | more]
    return json.dumps({"hosts": HOSTS, "test_categories": [{"tests": tests}]})


def nodes() -> dict[str, CheckRows]:
    order = ReadOrder.of(DcgmNodesPass, dcgm.DcgmNodes.model_validate({}))
    return {
        name: read(replace(order, nodes=NODES, index=index))
        for index, (name, _) in enumerate(NODES)
    }


@pytest.mark.parametrize(
    ("text", "verdict", "to_blame", "words"),
    [
        (multi(*GPUS, gpu(1, host_id=1)), "pp pp", "", ""),
        (multi(*GPUS, gpu(1, "Fail", host_id=1)), "pp fp", "b", "accelerator 1"),
        (multi(gpu(0, host_id=0), gpu(1, host_id=0)), "pp ii", "", "says nothing of b"),
        (multi(status="Fail", mpi_error={"warning": "no ssh"}), "ii ii", "", "no ssh"),
        (multi(*GPUS, gpu(1, host_id=1), status="Fail"), "ii ii", "", "dcgmi mndiag"),
        (GONE, "ii ii", "", "unable to establish"),
    ],
)
def test_nodes_are_judged_by_what_the_first_was_told(
    folder: Path, text: str, verdict: str, to_blame: str, words: str
) -> None:
    prints(folder, text)
    found = judged(DcgmNodesPass, "{}", nodes(), accelerators=TWO)
    assert verdicts(found) == verdict
    assert blamed(found) == set(to_blame)
    assert words in " ".join(str(one) for every in found.values() for one in every)
    asked = (folder / "argv").read_text()
    assert asked == "mndiag --hostList 10.0.0.1;10.0.0.2 --run mnubergemm --json\n"
