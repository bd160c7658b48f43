"""Real surveys of this machine: nodes with and without an answer, and the facts they read."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode import processes
from pytest_mnode.checks.node.clocks import ClocksAgree
from pytest_mnode.checks.node.disk import DisksHaveRoom
from pytest_mnode.checks.node.environment import TemporaryFilesCanBeWritten
from pytest_mnode.checks.node.limits import FilesCanBeOpen
from pytest_mnode.checks.node.mtu import FullSizePacketsPass
from pytest_mnode.checks.node.names import NamesAreFound
from pytest_mnode.checks.node.payloads import PayloadsArriveUnchanged
from pytest_mnode.checks.node.rdma import RdmaDevicesCanBeOpened, RdmaPortsAreActive
from pytest_mnode.checks.node.reachable import EveryNodeIsReached, FirstNodeIsReached
from pytest_mnode.checks.node.storage import DatasetsAreTheSame, StorageCanBeUsed, StorageIsShared
from pytest_mnode.criteria.preflight import survey as conduct
from pytest_mnode.criteria.preflight.answers import LastFacts, LookOrder, NodeFacts, PathFacts
from pytest_mnode.criteria.preflight.survey import look_order
from pytest_mnode.criteria.preflight.survey_check import promised_checks
from pytest_mnode.evidence.check import Check
from pytest_mnode.limits import Limits
from pytest_mnode.machine.encoding import decode, encode
from pytest_mnode.spec import Spec, load_spec
from tests.criteria.preflight.made import healthy, promising, verdicts
from tests.lone_nodes import LoneNodes

PIPE_BYTES = 1 << 16


PAGE = """
name: here
nodes: 4
accelerators: {{per_node: 0}}
fabric: {{kind: ethernet, interfaces: [lo], line_rate: 1 Gbit/s, nics_per_node: 1, mtu: 1500}}
storage: {{datasets: {place}, checkpoints: {place}}}
criteria: {{preflight: {preflight}}}
certificate: {{valid_for: 1 day}}
"""
ALL = (
    "{reachable: {}, mtu: {}, payload: {size: 3 MB}, clocks: {skew: 500 ms}, names: {within: 5 s}, "
    "storage: {}}"
)


def spec_here(directory: Path, preflight: str) -> Spec:
    page = directory / "spec.yaml"
    page.write_text(PAGE.format(place=directory / "a place", preflight=preflight))
    return load_spec(page)


class Here(LoneNodes):
    """Nodes that are this machine; some run other commands."""

    python = sys.executable

    def __init__(self, count: int, instead: dict[int, str] | None = None) -> None:
        super().__init__([f"here{index}" for index in range(count)])
        self._instead = instead or {}

    def commands(
        self, argv: Sequence[str], nodes: Sequence[str] | str | None = None
    ) -> list[list[str]]:
        assert isinstance(nodes, tuple)
        [name] = nodes
        code = self._instead.get(self.nodes.index(name))
        return [list(argv) if code is None else [sys.executable, "-S", "-c", code]]

    def address(self, node: str) -> str:
        return "127.0.0.1"


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    place = tmp_path / "a place"
    place.mkdir()
    (place / "part.bin").write_bytes(b"x" * 100)
    return spec_here(tmp_path, ALL)


def test_surveys_report_their_nodes_and_leave_nothing(spec: Spec) -> None:
    of_storage = (StorageCanBeUsed, StorageIsShared, DatasetsAreTheSame)
    found = conduct.survey(Here(3), spec, [], promised_checks(spec, of_storage))
    assert [node.problem for node in found.nodes] == ["", "", ""]
    on_paths = (
        FirstNodeIsReached,
        EveryNodeIsReached,
        FullSizePacketsPass,
        PayloadsArriveUnchanged,
    )
    for question in (*on_paths, ClocksAgree, NamesAreFound, *of_storage):
        assert verdicts(question, found, spec) == {}, question
    assert [len(one.payloads.sent) for one in found.nodes if one.payloads] == [2] * 3, "one round"
    assert spec.storage is not None
    assert [p.name for p in Path(str(spec.storage.datasets)).iterdir()] == ["part.bin"]


def test_payloads_are_sent_again_until_the_corrupter_is_clear_or_four_times(
    spec: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conduct, "is_corrupter_unclear", lambda *_: True)
    found = conduct.survey(Here(2), spec, [])
    for node in found.nodes:
        assert node.payloads is not None
        assert node.last is not None
        assert [sent.problem for sent in node.payloads.sent] == [""] * 4
        assert [one.size_bytes for one in node.last.received] == [3_000_000] * 4
    assert verdicts(PayloadsArriveUnchanged, found, spec) == {}


def test_what_payloads_showed_is_kept_if_a_node_is_silent_when_they_are_sent_again(
    spec: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange, answers, rounds = conduct._exchange, iter([True, False]), []

    def silent_in_the_second(running: Any, what: str, *others: Any) -> None:
        rounds.append(what)
        if rounds.count("payload") == 2:
            running[0].problem = "silent"
        exchange(running, what, *others)

    monkeypatch.setattr(conduct, "_exchange", silent_in_the_second)
    monkeypatch.setattr(conduct, "is_corrupter_unclear", lambda *_: next(answers))
    one, other = conduct.survey(Here(2), spec, []).nodes
    assert one.payloads is not None
    assert other.payloads is not None
    assert (len(one.payloads.sent), len(other.payloads.sent)) == (1, 2)


def test_the_other_nodes_go_on_without_a_silent_node(
    spec: Spec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The request is longer than a pipe holds, and the second node does not read it."""
    code = [str(tmp_path / "code")] * (PIPE_BYTES // len(str(tmp_path)))
    monkeypatch.setattr(conduct, "END_LIMIT_S", 2.0)
    instead = {
        1: "import signal; signal.signal(15, signal.SIG_IGN); signal.pause()",
        2: "import sys; sys.exit('no such module')",
        3: "print('welcome'); print('{\"tcp_port\": 1}', flush=True); input(); input()",
    }
    before = processes.children(os.getpid())
    monkeypatch.setattr(Here, "limits", Limits(start_s=4.0, report_s=1.0))
    found = conduct.survey(Here(5, instead), spec, code)
    assert not set(processes.children(os.getpid())).difference(before), "a program is left"
    assert [node.problem.partition(": ")[0] for node in found.nodes] == [
        "",
        "its survey gave no answer to 'look' within 5 s",
        "its survey ended with status 1",
        "its survey's answer to 'look' cannot be read",
        "",
    ]
    assert found.nodes[2].problem.endswith(": no such module")
    silent_nodes = ("here1", "here2", "here3")
    assert verdicts(EveryNodeIsReached, found, spec) == dict.fromkeys(silent_nodes, "inconclusive")


def test_an_answer_in_time_counts_even_if_read_late(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The controller reads late if its process was stopped meanwhile."""
    answer = encode(LastFacts((), None)) + "\n"
    nodes = Here(1, {0: f"import os, time; os.write(1, {answer.encode()!r}); time.sleep(60)"})
    monkeypatch.setattr(conduct, "END_LIMIT_S", 0.0)
    with contextlib.ExitStack() as stack:
        one = conduct._start(nodes, 0, "here0", tmp_path)
        stack.callback(conduct._end, [one])
        assert select.select([one.stdout], [], [], 10.0)[0]
        conduct._exchange([one], "end", [None], LastFacts, 0.0)
    assert (one.problem, one.answers) == ("", {"end": LastFacts((), None)})


LOOK = (
    '{{"do":"look","run":"00112233445566aa","index":0,"parts":[],"networks":{{}},"directories":'
    '[{{"key":"checkpoints","path":"{path}","writable":true}}]}}\n'
)


@contextlib.contextmanager
def surveying(place: Path, then: str = "p.main()", looks: bool = True) -> Iterator[Any]:
    """The survey program, once it has written its file to this directory if it looks there."""
    code = f"from pytest_mnode.criteria.preflight import node_probe as p; {then}"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if looks:
            process.stdin.write(LOOK.format(path=place))
            process.stdin.flush()
            assert process.stdout.readline().startswith("{")
            assert len(list(place.iterdir())) == 1
        yield process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, None])
def test_a_stopped_survey_removes_its_files(tmp_path: Path, number: int | None) -> None:
    with surveying(tmp_path) as process:
        if number is None:
            process.stdin.close()  # its controller has ended
        else:
            process.send_signal(number)
        process.wait(60)
    assert list(tmp_path.iterdir()) == []


def test_a_survey_that_nobody_goes_on_with_ends_itself(tmp_path: Path) -> None:
    """Its connection hangs, so that its input does not end."""
    with (
        surveying(tmp_path, "p._SELF_DESTRUCT_S = 0.2; p.main()", looks=False) as without_orders,
        surveying(tmp_path, "p._SELF_DESTRUCT_S = 5.0; p.main()") as looked,
    ):
        assert (without_orders.wait(30), looked.wait(30)) == (1, 1)
    assert list(tmp_path.iterdir()) == []


def test_a_survey_imports_little() -> None:
    heavy = "torch", "pytest", "pydantic", "pyroute2", "zmq"
    code = (
        "import sys, pytest_mnode.criteria.preflight.node_probe\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code]) == b"[]\n"


def test_facts_survive_json_and_other_input_is_refused() -> None:
    facts, paths = healthy().nodes[1].facts, healthy().nodes[1].paths
    assert decode(NodeFacts, encode(facts)) == facts
    assert decode(PathFacts, encode(paths)) == paths
    text = encode(facts)
    for bad in ("", "{}", text.replace('"tcp_port":4000', '"tcp_port":"4"')):
        with pytest.raises(ValueError):  # noqa: PT011  pydantic's own words
            decode(NodeFacts, bad)
    with pytest.raises(ValueError, match="Unexpected"):
        decode(NodeFacts, text[:-1] + ',"more":1}')


def _asked(preflight: str, *checks: type[Check]) -> LookOrder:
    spec = promising(preflight)
    promise = spec.criteria.preflight
    assert promise is not None
    return look_order(promise, spec, "ab", 0, [], checks=promised_checks(spec, checks))


def test_storage_paths_are_surveyed_only_if_a_test_asks_for_them() -> None:
    """A health check without storage tests runs as root: it must not write or hang there."""
    page = "{storage: {}, disk: [{path: /tmp, free: 1 GB}], environment: {}}"
    own = _asked(page, DisksHaveRoom, TemporaryFilesCanBeWritten)
    assert [one.key for one in own.directories] == [
        *("disk /tmp", "temporary files", "shared memory")
    ]
    for asks in (StorageCanBeUsed, StorageIsShared, DatasetsAreTheSame):
        stored = _asked(page, asks, StorageCanBeUsed).directories
        assert [(one.key, one.writable, one.shared) for one in stored] == [
            ("datasets", False, True),
            ("checkpoints", True, True),
        ]


def test_each_part_of_a_machine_is_read_where_a_check_needs_it() -> None:
    page = "{limits: {open_files: 1}, rdma: {}}"
    assert not {"limits", "verbs"}.intersection(_asked(page, RdmaPortsAreActive).parts)
    parts = _asked(page, FilesCanBeOpen, RdmaDevicesCanBeOpened).parts
    assert {"limits", "rdma", "verbs"} < set(parts)
    assert len(set(parts)) == len(parts)


# Both end with their input, so that nothing waits for them.
CLOSES = "import os, sys; os.close(1); sys.stdin.read()"
NEVER_PROBES = """
import asyncio, os, select, sys
sys.path[:] = {path!r}
from pytest_mnode.criteria.preflight import node_probe
async def probe(*_):
    input_end = select.poll()
    input_end.register(0, 0)
    await asyncio.to_thread(input_end.poll)
    os._exit(0)
node_probe.NodeProbe.probe = probe
asyncio.run(node_probe.serve())
"""


def test_surveys_that_fall_silent_later_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conduct, "_STATUS_S", 0.2)
    monkeypatch.setattr(conduct, "PROBE_SLACK_S", 2.0)
    instead = {1: CLOSES, 2: NEVER_PROBES.format(path=sys.path)}
    found = conduct.survey(Here(3, instead), spec_here(tmp_path, "{reachable: {}}"), [])
    assert [node.problem for node in found.nodes] == [
        "",
        "its survey closed its output: no message",
        "its survey gave no answer to 'probe' within 8 s",
    ]
