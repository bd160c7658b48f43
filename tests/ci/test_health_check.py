"""The health check and the prolog: a broken promise drains a node, and nothing else does."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_mnode.evidence.check import catalogue
from tests.ci.running import READY, ROOT, place, program, run

__all__ = ["place"]

UNKNOWN = """\
echo '.E'
echo '=================================== ERRORS ==================================='
echo '______ ERROR at teardown of test_accelerators_are_as_promised[node0] ______'
echo 'inconclusive: accelerators: not measured, expected equals 8, NVML cannot be used'
echo '/a/fixtures.py:27: Failed: no place to begin'
"""
FAILED_RUN = f"""\
{UNKNOWN}
echo '================================== FAILURES =================================='
echo '/a b/it.py:236: Failed: fabric speed: 0, "expected" at least 1, culprit fab0'
echo 'FAILED acceptance/test_preflight.py::test_interfaces_are_up[node0]'
exit 1"""


@pytest.mark.parametrize("script", ["healthcheck.sh", "prolog.sh"])
@pytest.mark.parametrize("unset", ["MNODE_SPEC", "MNODE_ROOT"])
def test_without_a_setting_no_node_is_drained(place: Path, script: str, unset: str) -> None:
    """Otherwise all nodes would be drained: slurmd passes no environment to its programs."""
    settings = {"MNODE_ROOT": str(ROOT), "MNODE_SPEC": "s", unset: ""}
    ran = run(place, script, FAILED_RUN, **settings)
    assert ran.status == 0
    [call] = ran.calls
    assert call.startswith("logger -t mnode ")
    assert unset in call
    assert f"mnode: {unset}" in ran.stderr or unset == "MNODE_ROOT"


def test_a_prolog_without_its_check_drains_nothing(place: Path) -> None:
    copy = place / "copy of prolog.sh"
    program(copy, (READY / "prolog.sh").read_text())
    ran = run(place, copy, FAILED_RUN, MNODE_SPEC="s")
    assert ran.status == 0
    [call] = ran.calls
    assert f"no {place}/fixtures/ci/healthcheck.sh" in call


def test_a_prolog_whose_check_ends_abnormally_drains_nothing(place: Path) -> None:
    (place / "fixtures/ci").mkdir(parents=True)
    program(place / "fixtures/ci/healthcheck.sh", "kill -9 $$")
    assert run(place, "prolog.sh", FAILED_RUN, MNODE_SPEC="s").status == 0


@pytest.mark.parametrize("there", [True, False])
def test_the_documented_slurmd_setting_needs_no_environment(place: Path, there: bool) -> None:
    match = re.search(
        r"^```sh\n(#!/bin/bash\n.*?)^```$", (ROOT / "docs/slurm.md").read_text(), re.DOTALL | re.M
    )
    assert match is not None
    shown, shared = match[1], "/shared/pytest-mnode"
    assert f"MNODE_ROOT={shared} " in shown
    assert "\nexport PATH=$PATH:/opt/slurm/bin" in shown  # for scontrol
    root = ROOT if there else place / "nothing"
    wrapper = place / "mnode-prolog.sh"
    program(wrapper, shown.replace(shared, shlex.quote(str(root))))
    ran = run(place, wrapper, FAILED_RUN, MNODE_ROOT="", MNODE_SPEC="")
    assert ran.status == (1 if there else 0)
    assert f"no {root}/fixtures/ci/prolog.sh" in ran.calls[-1] or there


def test_a_node_that_keeps_its_promise_is_not_drained(place: Path) -> None:
    ran = run(place, "healthcheck.sh", "exit 0", MNODE_SPEC="spec.yaml")
    assert ran.status == 0
    [call] = ran.calls
    assert "--mnode-launcher=local --mnode-nodes=1 --mnode-spec=spec.yaml" in call


def test_a_node_that_breaks_its_promise_is_drained_with_the_reason(place: Path) -> None:
    ran = run(place, "healthcheck.sh", FAILED_RUN, MNODE_SPEC="s", SLURMD_NODENAME="gpu07")
    assert ran.status == 1
    [drained] = [call for call in ran.calls if call.startswith("scontrol")]
    assert drained.startswith(
        "scontrol update nodename=gpu07 state=drain reason=mnode: fabric speed: 0"
    )
    assert drained.endswith(", expected at least 1, culprit fab0")


@pytest.mark.parametrize(
    ("did", "failed"),
    [
        (f"{UNKNOWN}\nexit 1", "inconclusive: accelerators: not measured"),
        ("echo no module named pytest; exit 1", "no module named pytest"),
    ],
)
@pytest.mark.parametrize("script", ["healthcheck.sh", "prolog.sh"])
def test_an_inconclusive_check_drains_nothing(
    place: Path, script: str, did: str, failed: str
) -> None:
    ran = run(place, script, did, MNODE_SPEC="s", MNODE_ROOT=str(ROOT))
    assert ran.status == 0
    assert not any(call.startswith("scontrol") for call in ran.calls)
    assert any("not all could be asked" in call and failed in call for call in ran.calls)


def test_the_check_finds_programs_although_slurmd_sets_no_path(place: Path) -> None:
    does = f"/usr/bin/env >{shlex.quote(str(place / 'environment'))}"
    ran = run(place, "healthcheck.sh", does, MNODE_SPEC="s", PATH="")
    assert ran.status == 0
    environment = "\n" + (place / "environment").read_text()
    assert "\nPATH=/" in environment
    assert "\nPYTHONDONTWRITEBYTECODE=1\n" in environment


@pytest.mark.parametrize("code", [2, 5])
def test_a_check_that_could_not_run_drains_nothing(place: Path, code: int) -> None:
    ran = run(place, "healthcheck.sh", f"echo ERROR: no such spec; exit {code}", MNODE_SPEC="s")
    assert ran.status == 0
    assert not any(call.startswith("scontrol") for call in ran.calls)
    assert any(f"did not run (status {code}): ERROR: no such spec" in call for call in ran.calls)


def test_a_check_that_hangs_ends_at_its_limit(place: Path) -> None:
    ran = run(place, "healthcheck.sh", "exec sleep 60", MNODE_SPEC="s", MNODE_SECONDS="1")
    assert ran.status == 0
    assert any("did not run (status 124)" in call for call in ran.calls)


def test_a_failed_prolog_leaves_draining_to_slurm(place: Path) -> None:
    ran = run(place, "prolog.sh", FAILED_RUN, MNODE_SPEC="s", MNODE_ROOT=str(ROOT))
    assert ran.status == 1
    assert not any(call.startswith("scontrol") for call in ran.calls)


def test_the_check_selects_the_tests_of_one_node(place: Path) -> None:
    """What one node can answer by itself, and what is its own."""
    ran = run(place, "healthcheck.sh", "exit 0", MNODE_SPEC="s")
    assert " -m alone " in ran.calls[-1]
    suite = str(ROOT / "acceptance/test_preflight.py")
    options = ("--mnode-nodes=1", "--mnode-launcher=local", "--co", "-q", "-m", "alone")
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", suite, *options, "-p", "no:cacheprovider"],
        cwd=place,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    asked = set(re.findall(r"::test_(\w+)\[node0\]", listed))
    assert asked == {
        one.case().removeprefix("test_") for one in catalogue("preflight") if one.alone
    }
    # A file server belongs to no node, and the limits of slurmd are not those of a user's job.
    others = "reached|names|packets|clocks|same|ranks|ties|storage|payloads|alike|locked|be_open$"
    assert [name for name in asked if re.search(others, name)] == []
    assert {"interfaces_are_up", "accelerators_are_as_promised", "disks_have_room"} < asked


def test_a_failed_drain_is_reported(place: Path) -> None:
    refused = "echo slurm_update error: Unable to contact slurm controller >&2; exit 1"
    ran = run(place, "healthcheck.sh", FAILED_RUN, {"scontrol": refused}, MNODE_SPEC="s")
    assert ran.status == 1
    assert any(call.startswith("scontrol update") for call in ran.calls)
    [complaint] = [call for call in ran.calls if "could not be drained" in call]
    assert complaint.endswith("slurm_update error: Unable to contact slurm controller")
    assert " could not be drained (status 1): " in ran.stderr


def test_a_drain_without_scontrol_or_with_a_hung_one_is_reported(place: Path) -> None:
    text = (READY / "healthcheck.sh").read_text()
    assert text.count(" timeout 5 scontrol ") == 1
    copy = place / "copy of the check"
    for instead, status in (("timeout 0.2 scontrol", 124), ("timeout 5 no-scontrol-here", 127)):
        program(copy, text.replace("timeout 5 scontrol", instead))
        ran = run(place, copy, FAILED_RUN, {"scontrol": "exec sleep 60"}, MNODE_SPEC="s")
        assert ran.status == 1
        assert any(f"could not be drained (status {status})" in call for call in ran.calls)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is refused")
@pytest.mark.parametrize(
    ("script", "of", "how"),
    [
        ("healthcheck.sh", "acceptance/test_preflight.py", "others"),
        ("healthcheck.sh", "spec.yaml", "owner"),
        ("healthcheck.sh", "python", "others"),
        ("healthcheck.sh", "python", "owner"),
        ("healthcheck.sh", "", "others"),
        ("healthcheck.sh", "", "owner"),
        ("prolog.sh", "acceptance/test_preflight.py", "owner"),  # which runs healthcheck.sh
    ],
)
def test_root_runs_nothing_that_others_can_write(
    place: Path, script: str, of: str, how: str
) -> None:
    root = place / "tree"
    (root / "acceptance").mkdir(parents=True)
    (root / "fixtures").symlink_to(READY.parent)
    for name in ("acceptance/test_preflight.py", "spec.yaml"):
        (root / name).touch(0o644)
    program(root / "python", "true")
    settings = {"MNODE_ROOT": str(root), "MNODE_SPEC": str(root / "spec.yaml")}
    assert run(place, script, "exit 0", **settings).calls[-1].startswith("python -m pytest")
    path = root / of
    if of == "python":
        settings["MNODE_PYTHON"] = str(path)
    if how == "others":
        path.chmod(0o777)
    else:
        os.chown(path, 12345, -1)
    (place / "calls").unlink()
    ran = run(place, script, "exit 0", **settings)
    assert ran.status == 0
    [said] = ran.calls
    assert f"root would run {root}, but others than root can write {path}" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is refused")
@pytest.mark.parametrize("writable", ["tree/acceptance/test_preflight.py", "tree", "."])
def test_root_looks_behind_a_link_to_the_tree(place: Path, writable: str) -> None:
    """A site may link its current release: /opt/mnode -> /opt/releases/tree."""
    (place / "releases/tree/acceptance").mkdir(parents=True)
    (place / "releases/tree/acceptance/test_preflight.py").touch(0o644)
    (place / "current").symlink_to("releases/tree")
    settings = {"MNODE_ROOT": str(place / "current"), "MNODE_SPEC": "s"}
    assert run(place, "healthcheck.sh", "exit 0", **settings).calls[-1].startswith("python -m")
    (place / "calls").unlink()
    path = place / "releases" / writable
    path.chmod(0o777)
    [said] = run(place, "healthcheck.sh", "exit 0", **settings).calls
    assert f"others than root can write {path.resolve()}" in said
