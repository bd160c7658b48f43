"""The rack drafts its own spec: it is correct, needs confirmation, and then certifies the rack."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.spec import load_spec
from tests.acceptance.certified import certify
from tests.inner import need_rack, run_here, run_pytest, write_files


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the first test that requested it had the rack's spec written."""
    need_rack()
    directory = tmp_path_factory.mktemp("discovered")
    # The smallest number with a fabric: each test starts the nodes again.
    done = run_pytest(directory, "--mnode-nodes=2", "--mnode-discover=page.yaml")
    assert done.returncode == pytest.ExitCode.OK, done.output
    assert "read node0, node1" in done.output
    assert "differ" not in done.output
    assert "written: " in done.output
    return directory


def test_the_drafted_page_matches_the_rack(place: Path) -> None:
    spec = load_spec(place / "page.yaml")
    assert spec.nodes == 2
    assert spec.accelerators.per_node == 0
    assert (spec.fabric.kind, spec.fabric.interfaces) == ("ethernet", ("fab0",))
    assert spec.fabric.line_rate_mbits_s == 200
    assert spec.fabric.mtu_bytes == 1500
    assert spec.management is not None
    assert spec.management.interfaces == ("mgmt0",)
    assert spec.management.line_rate_mbits_s == 20
    assert spec.scheduler is None
    assert any("namespaces" in line for line in spec.emulated)
    preflight: Any = spec.criteria.preflight  # with keys of checks, which read the nodes themselves
    assert (preflight.huge_pages, preflight.hardware.cpus) == ("same", os.cpu_count())
    assert preflight.versions.kernel == f">={re.match(r'[0-9.]+', os.uname().release)[0]}"  # type: ignore[index]
    text = (place / "page.yaml").read_text()
    assert "Then preflight was run with this page" in text
    assert not spec.confirmed


def test_unconfirmed_it_certifies_nothing(place: Path, pytester: pytest.Pytester) -> None:
    write_files(pytester.path, test_nothing="def test_nothing(): pass")
    page = place / "page.yaml"
    done = run_here(pytester, f"--mnode-spec={page}", "--mnode-report=report")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    report = pytester.path / "report/certificate.json"
    certificate: dict[str, Any] = json.loads(report.read_text())
    assert certificate["verdict"] == "incomplete"
    assert "cut short by confirmed: false in page.yaml" in certificate["reasons"]
    assert "doubtful spec: confirmed: false" in done.output


def test_confirmed_it_certifies_the_rack(place: Path, tmp_path: Path) -> None:
    text = (place / "page.yaml").read_text()
    text, confirmed = re.subn(r"(?m)^confirmed: false$", "confirmed: true", text)
    # Starting jobs, and rates of links and ranks, take longer than the rest of this spec. They, and
    # exact promises of any cluster, are certified elsewhere; here keys that come from the survey.
    text, slow = re.subn(r"(?m)^  (launch|fabric|devices):\n(    .*\n)+", "", text)
    text, exact = re.subn(r"(?m)^  (groups|data): \{\}\n", "", text)
    assert (confirmed, slow, exact) == (1, 3, 2)
    page = tmp_path / "page.yaml"
    page.write_text(text)
    assert set(load_spec(page).promised_criteria) == {"preflight", "mesh"}
    files = ("test_preflight.py", "test_mesh.py")
    args = f"--mnode-spec={page}", "--mnode-nodes=2"
    found = certify(tmp_path, *args, files=files, cold=False)
    assert found.certificate["verdict"] == "certified", found.run.output


def test_nodes_that_differ_are_named(tmp_path: Path) -> None:
    need_rack()
    done = run_pytest(
        tmp_path,
        "--mnode-nodes=3",
        "--mnode-discover=page.yaml",
        "--mnode-fault=slow_tx:node1,small_shm:node2",
    )
    assert done.returncode == pytest.ExitCode.OK, done.output
    text = (tmp_path / "page.yaml").read_text()
    assert re.search(r"fabric line rate \(most: 200 Mbit/s\): node1: \d+ Mbit/s", text)
    assert "mnode: nodes differ: fabric line rate (most: 200 Mbit/s): node1" in done.output
    assert "mnode: nodes do not meet the spec: node1 fab0" in done.output
    assert load_spec(tmp_path / "page.yaml").fabric.line_rate_mbits_s == 200
    assert re.search(r"size of /dev/shm \(most: \d+ [GM]iB\): node2: 64 MiB", text)
    assert "mnode: nodes do not meet the spec: node2 /dev/shm: " in done.output
    assert "limits: {shm: 64 MiB" not in text


def test_processes_of_one_machine_have_no_fabric_to_show(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "--mnode-launcher=local", "--mnode-discover=page.yaml")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    filled_in = (
        "mnode: keys to fill in before the page can be loaded: fabric.kind, fabric.interfaces"
    )
    assert filled_in in done.output
    assert "FILL IN, and uncomment" in (tmp_path / "page.yaml").read_text()


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["--mnode-discover=page.yaml", "--mnode-launcher=slurm"], "number of nodes is unknown; "),
        (["--mnode-discover=no/page.yaml", "--mnode-nodes=2"], "no directory "),
        (
            ["--mnode-discover=there.yaml", "--mnode-nodes=2"],
            "there.yaml: the file exists; accepted: ",
        ),
        (["--mnode-discover=page.yaml", "--mnode-nodes=2", "-n2"], "runs no tests; leave out"),
    ],
)
def test_impossible_requests_are_refused_before_the_start(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, args: list[str], line: str
) -> None:
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "")
    pytester.makefile(".yaml", there="mine")
    done = run_here(pytester, *args)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    [printed] = [one for one in done.output.splitlines() if one.strip()]
    assert printed.startswith("ERROR: --mnode-discover")
    assert line in printed
    assert not (pytester.path / "page.yaml").exists()
    assert (pytester.path / "there.yaml").read_text() == "mine"
