"""Criteria after a failed preflight, unpromised tests, and a test per node."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.controller.trial import trial
from pytest_mnode.errors import TimeLimitError
from pytest_mnode.protocol.messages import Shape
from pytest_mnode.stop_rules import StopRules, _Finding
from tests.inner import InnerRun, need_rack, run_here, run_pytest, write_files

CRITERIA = {
    "test_aaa": """
        import pytest
        pytestmark = pytest.mark.criterion

        def test_in_ranks(world):
            \"\"\"Is it well in ranks?\"\"\"

        def test_in_the_controller(cluster):
            \"\"\"Is it well in the controller?\"\"\"
    """,
    "test_mesh": """
        import pytest
        import pytest_mnode
        pytestmark = pytest.mark.criterion

        def test_open():
            \"\"\"Is it promised?\"\"\"
            pytest_mnode.not_promised("the colour of the cables")

        def test_open_in_ranks(world):
            \"\"\"Is it promised in ranks?\"\"\"
            pytest_mnode.not_promised(key="mesh.colour")

        def test_kept(world, measure):
            \"\"\"Is it kept?\"\"\"
            measure("it", 1, at_least=1)
    """,
    "test_zzz": """
        import pytest
        pytestmark = pytest.mark.criterion(first=True)

        @pytest.mark.stops("aaa")
        def test_each(node, measure):
            \"\"\"Is the node well?\"\"\"
            measure("cables", 1 if node == "node1" else 2, equals=2, source="two", culprit=node)

        @pytest.mark.stops("mesh")
        def test_inconclusive(measure):
            \"\"\"Is it known?\"\"\"
            measure("cables", None, equals=2, source="two")

        def test_in_words():
            \"\"\"Does it stop with words of ours, and of its own will?\"\"\"
            assert False, "not run: zzz failed"

        def test_in_ranks_too(world, measure):
            \"\"\"Is it kept in ranks?\"\"\"
            measure("cables", 1, equals=2, source="two")

        def test_two_causes(world, measure):
            \"\"\"Is it kept in one rank?\"\"\"
            measure("cables", 1, equals=2, source="two")
            assert world.rank == 0, "a cause of its own"
    """,
    "test_hung": """
        import time
        import pytest
        from pytest_mnode.measurement import Measurement, equals
        pytestmark = [pytest.mark.criterion, pytest.mark.stops("hung", only_hung=True)]

        def limit_s(spec, settings, nodes, ranks_per_node):
            assert (spec.name, settings.nodes, nodes, ranks_per_node) == ("rack", 2, 2, 1)
            return 2

        def corrupters(nodes, spec):
            return [Measurement("corrupt paths", 1, "", equals(0), "none", "node1 fab0")]

        def test_fails(world):
            \"\"\"Is it well?\"\"\"
            assert world.size == 3

        def test_is_tried(world):
            \"\"\"Is it well?\"\"\"

        @pytest.mark.mnode(timeout=limit_s, on_failure=corrupters)
        def test_hangs(world):
            \"\"\"Does it end?\"\"\"
            if world.rank == 1:
                time.sleep(1000)

        def test_is_run_after_it(world):
            \"\"\"Is it well?\"\"\"
    """,
}
HUNG = {
    "test_fails": "failure",
    "test_is_tried": "passed",
    "test_hangs": "failure",
    "test_is_run_after_it": "passed",
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> InnerRun:
    need_rack()
    directory = tmp_path_factory.mktemp("rules")
    write_files(directory, **CRITERIA)
    return run_pytest(directory, "--mnode-nodes=2", "--mnode-report=report", "-v")


def test_tests_after_failed_preflight_are_skipped_and_unpromised_ones_not_judged(
    ran: InnerRun,
) -> None:
    assert ran.outcomes() == {
        "test_each[node0]": "passed",
        "test_each[node1]": "failure",
        "test_inconclusive": "error",
        "test_in_words": "failure",
        "test_in_ranks_too": "failure",
        "test_two_causes": "failure",
        "test_in_ranks": "error",
        "test_in_the_controller": "error",
        "test_open": "skipped",
        "test_open_in_ranks": "skipped",
        "test_kept": "passed",
        **HUNG,
    }, ran.output
    assert next(iter(ran.cases())) == "test_each[node0]"  # first because of its mark
    reason = "not run: zzz failed (node1"
    assert ran.output.count(reason) >= 2
    certificate = json.loads((ran.junit.parent / "report/certificate.json").read_text())
    criteria = {c["name"]: c for c in certificate["criteria"]}
    cases = {c["test"].partition("::")[2]: c for c in criteria["mesh"]["cases"]}
    assert {name: c["verdict"] for name, c in cases.items()} == {
        "test_open": "not promised",
        "test_open_in_ranks": "not promised",
        "test_kept": "pass",
    }
    assert cases["test_open"]["message"] == "not promised by the spec: the colour of the cables"
    lacks = [cases[name]["lacks"] for name in ("test_open", "test_open_in_ranks")]
    assert lacks == [None, "mesh.colour"]
    stopped = {c["test"].partition("::")[2]: c["stopped_by"] for c in criteria["aaa"]["cases"]}
    assert stopped == {"test_in_ranks": "failure", "test_in_the_controller": "failure"}
    ended = {c["test"].partition("::")[2]: c for c in criteria["zzz"]["cases"]}
    assert {name: one["by_bounds"] for name, one in ended.items()} == {
        "test_each[node0]": False,
        "test_each[node1]": True,
        "test_inconclusive": True,
        "test_in_words": False,
        "test_in_ranks_too": True,
        "test_two_causes": False,
    }
    assert not any(one["stopped_by"] for one in ended.values())
    assert criteria["mesh"]["verdict"] == "pass"  # an inconclusive test stops nothing
    assert criteria["aaa"]["verdict"] == "inconclusive"
    assert criteria["zzz"]["verdict"] == "fail"


def test_a_test_per_node_covers_every_node(tmp_path: Path) -> None:
    need_rack()
    write_files(
        tmp_path,
        test_each="""
            import pytest

            def test_each(node):
                pass

            @pytest.mark.mnode(nodes=3)
            def test_of_three(node):
                assert node in ("node0", "node1", "node2")

            @pytest.fixture
            def own():
                return 1

            class TestOwn:
                @pytest.fixture
                def node(self):
                    return "mine"

                def test_own(self, node):
                    assert node == "mine"
        """,
    )
    run = run_pytest(tmp_path)
    assert run.outcomes() == {
        "test_each[node0]": "error",
        "test_each[node1]": "error",
        "test_of_three[node0]": "passed",
        "test_of_three[node1]": "passed",
        "test_of_three[node2]": "passed",
        "test_own": "passed",
    }, run.output
    assert "each of 2 nodes, and there are 3; give --mnode-nodes=3" in run.output


def test_an_interrupted_test_has_not_passed(pytester: pytest.Pytester) -> None:
    text = """
        import pytest
        pytestmark = pytest.mark.criterion

        def test_before(): pass
        def test_interrupted(): raise KeyboardInterrupt
        def test_after(): pass
    """
    write_files(pytester.path, test_mesh=text)
    run = run_here(pytester, "--mnode-report=report")
    assert run.returncode == pytest.ExitCode.INTERRUPTED, run.output
    certificate = json.loads((pytester.path / "report/certificate.json").read_text())
    assert certificate["verdict"] == "incomplete"
    [mesh] = [c for c in certificate["criteria"] if c["name"] == "mesh"]
    cases = {c["test"].partition("::")[2]: c for c in mesh["cases"]}
    assert {name: c["outcome"] for name, c in cases.items()} == {
        "test_before": "passed",
        "test_interrupted": "error",
    }
    assert mesh["verdict"] == "inconclusive"
    assert cases["test_interrupted"]["stopped_by"] == "interruption"


def test_a_failure_or_a_hang_that_does_not_recur_stops_no_other_test(ran: InnerRun) -> None:
    """The limit of the hanging test follows from the spec."""
    assert {name: ran.outcomes()[name] for name in HUNG} == HUNG
    assert "no end within 2 s" in ran.output


def test_a_hang_that_recurs_stops_the_rest_of_its_criterion(tmp_path: Path) -> None:
    """Full packets are lost: ranks meet, and a collective of many packets hangs."""
    need_rack()
    collectives = """
        import pytest
        import torch
        import torch.distributed as dist
        from pytest_mnode.measurement import Measurement, equals
        pytestmark = [pytest.mark.criterion, pytest.mark.stops("mesh", only_hung=True)]

        def holes(nodes, spec):
            return [Measurement("paths with a hole", 1, "", equals(0), "none", "node1 fab0")]

        @pytest.mark.mnode(timeout=1, on_failure=holes)
        def test_hangs(process_group):
            \"\"\"Does it end?\"\"\"
            dist.all_reduce(torch.ones(1 << 16))

        def test_after(world):
            \"\"\"Is it well?\"\"\"

        def test_in_the_controller(cluster):
            \"\"\"Is it well?\"\"\"
    """
    write_files(tmp_path, test_mesh=collectives)
    fault = "--mnode-fault=mtu_hole:node1"
    run = run_pytest(tmp_path, "--mnode-nodes=2", fault, "--mnode-timeout=4")
    assert run.outcomes() == {
        "test_hangs": "failure",
        "test_after": "error",
        "test_in_the_controller": "error",
    }, run.output
    reason = "not run: mesh failed (node1 fab0); trial collective after it: [ranks 0-1 of 2 on"
    assert run.output.count(reason) >= 2, run.output
    # The trial is ended at about the time when its packets have been sent often enough to say so.
    found = r"rank \d on node\d gets no TCP acknowledgement from |waits? in all_reduce at trial\.py"
    trials = re.findall(rf"no end within 4 s: (?:{found})", run.output)
    assert len(trials) >= 2, run.output


@pytest.mark.parametrize(
    ("hung", "trial", "reason"),
    [
        ([True], "", None),
        ([True], "no end", "not run: mesh failed (node1); trial collective after it: no end"),
        ([True], None, "not run: mesh failed (node1)"),
        ([True, True], "", "not run: mesh failed (node1) and 1 more"),  # trials pass
        ([False], "", "not run: mesh failed (node1)"),
        ([True, False], "", "not run: mesh failed (node1) and 1 more"),
    ],
)
def test_a_trial_decides_only_after_one_hang(
    pytester: pytest.Pytester, hung: list[bool], trial: str | None, reason: str | None
) -> None:
    write_files(pytester.path, test_mesh=CRITERIA["test_mesh"])
    items, _ = pytester.inline_genitems("--collect-only")
    kept = next(item for item in items if item.name == "test_kept")
    rules, asked = StopRules(), list[str]()

    def tried(item: pytest.Item) -> str:
        asked.append(item.name)
        return str(trial)

    rules.trial = None if trial is None else tried
    rules._found["mesh"] = {
        f"test_mesh.py::test_{number}": _Finding("node1", one) for number, one in enumerate(hung)
    }
    assert rules.stop_reason(kept) == reason
    assert asked == (["test_kept"] if hung == [True] and trial is not None else [])


def test_a_shape_whose_trial_failed_twice_is_not_tried_again() -> None:
    """A fault that lasts would cost each remaining test the limit of a trial."""
    opened = list[Shape]()

    def open_world(lease: Any, *_: object, **__: object) -> None:
        opened.append(lease.shape)
        raise TimeLimitError(f"no end of {lease.shape.nodes}")

    run: Any = SimpleNamespace(
        console=SimpleNamespace(shows_line=lambda _: nullcontext()),
        open_world=open_world,
        shape_of=lambda item: item.shape,
        **dict.fromkeys(("request_of", "procs_of", "repair", "release"), lambda given: given),
        seconds_of=lambda _, need: need,
        lease=lambda need, _: need,
    )
    failed = dict[Shape, list[str]]()
    shapes = (Shape(4, 1), Shape(4, 1), Shape(4, 1), Shape(2, 1))
    items: list[Any] = [SimpleNamespace(nodeid="test_it", shape=shape) for shape in shapes]
    found = [trial(run, failed, item) for item in items]
    assert found == ["no end of 4", "no end of 4", "no end of 4", "no end of 2"]
    assert opened == [Shape(4, 1), Shape(4, 1), Shape(2, 1)]


def test_marks_say_what_is_first_and_last(pytester: pytest.Pytester) -> None:
    files = {
        f"test_{name}": f"""
            import pytest
            pytestmark = pytest.mark.criterion({mark})

            def test_{name}(): pass
        """
        for name, mark in (("a", "last=True"), ("b", ""), ("c", "first=True"))
    }
    write_files(pytester.path, **files, test_d="def test_d(): pass")
    run = run_here(pytester, "--collect-only", "-q")
    assert re.findall(r"::test_(\w)$", run.output, re.MULTILINE) == ["c", "b", "d", "a"]
