"""What a run believes of the certificates of earlier runs: no more than each can vouch for."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_mnode.certificate import CaseResult, Certificate, SpecFacts
from pytest_mnode.certificate.difference import MOST_RUNS
from pytest_mnode.certificate.kept import EarlierRuns, earlier_runs, keep
from pytest_mnode.certificate.results import CriterionResult
from pytest_mnode.certificate.run_facts import facts_of
from pytest_mnode.commands import main
from pytest_mnode.culprit import Culprit
from pytest_mnode.measurement import Measurement, at_least
from pytest_mnode.path_rates import State
from pytest_mnode.spec import Spec, default_spec_path, load_spec
from tests.certificate.conftest import RIGHT, certify
from tests.certificate.test_coverage import rates
from tests.inner import need_program

NOW = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=1)


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    """A spec that promises mesh alone, for a week."""
    page = yaml.safe_load(default_spec_path().read_text())
    page |= {"criteria": {"mesh": {}}, "not_promised": [], "certificate": {"valid_for": "7 days"}}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(page))
    return load_spec(tmp_path / "spec.yaml")


def night(spec: Spec, *nodes: str, days_ago: float = 1, **more: Any) -> Certificate:
    case = CaseResult("t/test_mesh.py::test_it", "?", "passed", measurements=(RIGHT,))
    if paths := more.pop("paths", None):
        case = replace(case, paths=(paths,))
    end = NOW - timedelta(days=days_ago)
    facts: dict[str, Any] = {"cluster_nodes": 3, "start": end, "end": end}
    facts["spec"] = facts_of(spec, Path("spec.yaml"))
    return certify(case, promised=["mesh"], nodes=nodes, validity_s=7 * 86400.0, **facts | more)


def found(directory: Path, spec: Spec) -> EarlierRuns:
    return earlier_runs(directory, facts_of(spec, Path("spec.yaml")), spec=spec)


def tonight(directory: Path, spec: Spec, *nodes: str) -> Certificate:
    return night(spec, *nodes, days_ago=0, earlier=found(directory, spec).coverage)


def edit(path: Path, change: Callable[[Any], None]) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def forge(data: Any) -> None:
    """Two more nodes with a pass, and every pass until 2036."""
    [node] = data["coverage"]["nodes"]
    data["coverage"]["nodes"] = [{**node, "name": name} for name in "abc"]
    for one in data["coverage"]["nodes"]:
        one["until"] = "2036-01-01T00:00:00+00:00"
    data["coverage"]["unnamed"] = 0
    data["run"]["validity_s"] = 1e9


def test_a_pass_holds_for_its_own_run_and_no_longer(tmp_path: Path, spec: Spec) -> None:
    certified = tonight(tmp_path, spec, "a", "b", "c")
    assert (certified.verdict, certified.count) == ("certified", "3 of 3 nodes")
    edit(keep(tmp_path, night(spec, "a")), forge)
    after = tonight(tmp_path, spec, "b")
    assert after.coverage.names(State.PASSED) == ("b", "a")
    assert (after.verdict, after.count) == ("partly certified", "2 of 3 nodes")
    assert after.until == NOW + timedelta(days=6)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda data: data.update(criteria=[]), "it lacks promised criteria: mesh"),
        (lambda data: data["run"]["spec"].update(page={}), "its spec was another: "),
        (lambda data: data["run"]["nodes"].append("a"), "names a node twice"),
        (lambda data: data["run"].update(end=NOW.isoformat()), "its name is not that of its run"),
        (
            lambda data: data["criteria"][0]["cases"][0].update(nodes=["x"]),
            "it has tests of nodes that were not in its run: x",
        ),
    ],
)
def test_what_is_not_the_certificate_of_its_run_is_left_out(
    tmp_path: Path, spec: Spec, change: Callable[[Any], None], why: str
) -> None:
    path = keep(tmp_path, night(spec, "a"))
    edit(path, change)
    earlier = found(tmp_path, spec)
    assert earlier.certificates == ()
    assert earlier.left_out[0].startswith(f"{path}: ")
    assert why in earlier.left_out[0]


@pytest.mark.parametrize(
    ("outcome", "measurements"), [("failed", (RIGHT,)), ("skipped", (RIGHT,)), ("passed", ())]
)
def test_a_pass_has_to_follow_from_the_criteria(
    tmp_path: Path, spec: Spec, outcome: str, measurements: Any
) -> None:
    def change(data: Any) -> None:
        case = data["criteria"][0]["cases"][0]
        case["outcome"] = outcome
        case["measurements"] = case["measurements"] if measurements else []

    edit(keep(tmp_path, night(spec, "a")), change)
    assert tonight(tmp_path, spec, "b").coverage.names(State.PASSED) == ("b",)


def hide(data: Any) -> None:
    data["coverage"]["nodes"][0] |= {"state": "not tested", "evidence": "", "until": None}


def remove(data: Any) -> None:
    data["coverage"] |= {"nodes": [], "unnamed": 3}


@pytest.mark.parametrize("change", [hide, remove])
def test_a_failed_node_stays_one_whatever_the_file_says_of_it(
    tmp_path: Path, spec: Spec, change: Callable[[Any], None]
) -> None:
    slow = Measurement("rate", 1, "", at_least(2), "spec", Culprit("a", "a"))
    case = CaseResult("t/test_mesh.py::test_it", "?", "failed", "slow", measurements=(slow,))
    bad = replace(night(spec, "a"), criteria=(CriterionResult("mesh", True, None, (case,)),))
    edit(keep(tmp_path, bad), change)
    assert tonight(tmp_path, spec, "b").coverage.names(State.FAILED) == ("a",)


@pytest.fixture
def signed(tmp_path: Path, spec: Spec) -> Path:
    """A kept certificate with its statement and signature."""
    need_program("ssh-keygen", "openssh-client")
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    path = keep(tmp_path / "kept", night(spec, "a"))
    assert main(["sign", str(path), f"--key={key}"]) == 0
    assert len(found(tmp_path / "kept", spec).certificates) == 1
    return path


def other_signature(path: Path) -> None:
    signature = path.with_suffix(".intoto.json.sig")
    signature.write_text(signature.read_text().replace("U1NIU0lH", "U1NIU0lX"))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (other_signature, ".intoto.json.sig is no signature of its statement"),
        (lambda path: path.with_suffix(".intoto.json.sig").unlink(), " is no signature of its"),
        (lambda path: path.with_suffix(".intoto.json").unlink(), "its signature cannot be checked"),
        (lambda path: path.with_suffix(".intoto.json").write_text("{}"), "no statement about a"),
        (
            lambda path: edit(path, lambda data: data["run"].update(backend="nccl")),
            "changed since it was signed",
        ),
    ],
)
def test_a_signed_certificate_that_is_not_as_it_was_signed_is_left_out(
    signed: Path, spec: Spec, change: Callable[[Path], object], why: str
) -> None:
    change(signed)
    earlier = found(signed.parent, spec)
    assert earlier.certificates == ()
    [line] = earlier.left_out
    assert line.startswith(f"{signed}: ")
    assert why in line


def test_with_a_key_only_what_its_owner_signed_is_believed(
    signed: Path, spec: Spec, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    unsigned = keep(signed.parent, night(spec, "b", days_ago=2))
    facts = facts_of(spec, Path("spec.yaml"))
    for name, believed in (("key", ["a"]), ("other", [])):
        key = tmp_path / f"{name}.pub"
        earlier = earlier_runs(signed.parent, facts, spec=spec, key=key)
        assert [node.name for one in earlier.coverage for node in one.nodes] == believed
        why = f"accepted: signed by the owner of {key}"
        assert f"{unsigned}: not signed; {why}" in earlier.left_out
        by_another = f"{signed}: signed by another key; {why}"
        assert (by_another in earlier.left_out) is (not believed)
    assert len(found(signed.parent, spec).certificates) == 2


def test_a_pass_counts_however_many_runs_came_after_it(tmp_path: Path, spec: Spec) -> None:
    keep(tmp_path, night(spec, "a", days_ago=2))
    later = night(spec, "b")
    for minute in range(MOST_RUNS):
        end = NOW - timedelta(days=1, minutes=minute)
        keep(tmp_path, replace(later, run=replace(later.run, start=end, end=end)))
    assert tonight(tmp_path, spec, "c").count == "3 of 3 nodes"


def test_a_failed_path_is_remembered_and_a_passed_one_expires(tmp_path: Path, spec: Spec) -> None:
    slow = replace(rates("a", "b"), states=("-f", "p-"))
    keep(tmp_path, night(spec, "a", "b", days_ago=8, paths=slow))
    (path,) = tmp_path.glob("*Z-*.json")
    keep(tmp_path, night(spec, "b", days_ago=1, earlier=found(tmp_path, spec).coverage))
    path.unlink()  # the failure is in the second file too
    after = tonight(tmp_path, spec, "a", "b", "c").coverage
    assert [path[:3] for path in after.each_path()] == [("a", "b", State.FAILED)]


def test_a_new_optional_key_or_a_digest_of_another_version_drops_no_history(
    tmp_path: Path, spec: Spec
) -> None:
    earlier = night(spec, "a")
    page = dict(earlier.run.spec.page)
    assert page.pop("power", 1) is None  # an optional key that the other version did not have
    facts = SpecFacts(spec.name, "spec.yaml", "5e" * 32, page)
    whole = keep(tmp_path, replace(earlier, run=replace(earlier.run, spec=facts)))
    assert tonight(tmp_path, spec, "b", "c").count == "3 of 3 nodes"
    cut = whole.with_name(f"{NOW:%Y%m%dT%H%M%S.%fZ}-5e5e5e5e.json")
    cut.write_text(whole.read_text()[:99])
    assert tonight(tmp_path, spec, "b", "c").count == "3 of 3 nodes"
    assert [why.partition(": ")[0] for why in found(tmp_path, spec).left_out] == [str(cut)]


def test_the_reason_is_given_when_a_history_ends(tmp_path: Path, spec: Spec) -> None:
    kept = tmp_path / "kept"
    keep(kept, night(spec, "a", days_ago=2))
    page = yaml.safe_load((tmp_path / "spec.yaml").read_text())
    page["nodes"] = 3
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(page))
    other = load_spec(tmp_path / "spec.yaml")
    assert found(kept, other).left_out == (
        f"1 run, as spec {spec.name} was another: nodes null → 3",
    )
    keep(kept, night(other, "a"))
    after = found(kept, other)
    assert (len(after.certificates), after.left_out) == (1, ())
