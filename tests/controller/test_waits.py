"""Waits for the hub that are interrupted: their requests are withdrawn, whatever ended them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode import errors
from pytest_mnode.controller import client as client_module
from pytest_mnode.controller.client import Client
from pytest_mnode.limits import Limits
from pytest_mnode.protocol import channel
from pytest_mnode.protocol.messages import Answer, Call, Lease
from tests.controller.desk import Desk
from tests.inner import run_pytest, write_files


class Line(channel.Line):
    """The hub's end: stores sent messages; answers with what `answer` returns or raises."""

    def __init__(self, answer: Callable[[int], Any]) -> None:
        self.answer = answer
        self.sent: list[Any] = []

    def send(self, destination: str, message: Any) -> None:
        self.sent.append(message)

    def receive(self, timeout_s: float | None) -> Any:
        return self.answer(self.sent[-1].seq)

    def close(self) -> None: ...


def raises(error: BaseException) -> Callable[[int], Any]:
    def answer(_: int) -> Any:
        raise error

    return answer


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (raises(KeyboardInterrupt()), KeyboardInterrupt),
        (raises(pytest.fail.Exception("Timeout >1.0s")), pytest.fail.Exception),
        (raises(SystemExit(1)), SystemExit),
        (lambda _: None, errors.TimeLimitError),
        (lambda seq: Answer(seq, errors.ClusterError("no")), errors.ClusterError),
    ],
    ids=["interrupt", "time limit of a plugin", "exit", "limit", "refused"],
)
@pytest.mark.parametrize(
    "wait",
    [lambda c: c.lease(2, False, "a test"), lambda c: c.open_world(Lease(1, ("n0",)), 1, False)],
    ids=["nodes", "world"],
)
def test_a_wait_that_ends_without_its_answer_withdraws_its_request(
    wait: Callable[[Client], Any],
    answer: Callable[[int], Any],
    error: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_module, "LEASE_LIMIT_S", 0.01)
    line = Line(answer)
    with pytest.raises(error):
        wait(Client("client/1", line, Limits(0.001, 0.001)))
    asked, withdrawn = line.sent
    assert withdrawn == Call(0, "forget", ("client/1", asked.seq))


def test_an_answer_that_arrived_is_kept() -> None:
    line = Line(lambda seq: Answer(seq, Lease(4, ("n0",))))
    assert Client("client/1", line, Limits()).lease(1, False, "a test") == Lease(4, ("n0",))
    assert [message.method for message in line.sent] == ["lease"]


@pytest.mark.parametrize("came_up", [False, True])
def test_a_world_without_a_waiting_client_is_stopped(came_up: bool) -> None:
    desk = Desk()
    other, name = desk.ask(0, 2), desk.ask(1, 2)
    if came_up:
        desk.has_started(name)
    assert desk.forget(1, 3) == []
    assert desk.forget(1, 2) == [Call(0, "stop_world", ("n1", name))]
    assert set(desk.worlds.worlds) == {other}
    sent = len(desk.sent)
    desk.has_started(name)
    assert len(desk.sent) == sent, "a world was given to no client"


@pytest.mark.parametrize(("file", "limit_s"), [("", 60.0), ("/a/test_it.py", 120.0)])
def test_a_world_that_never_becomes_ready_is_given_up(file: str, limit_s: float) -> None:
    """Ranks that import their modules themselves have longer."""
    desk = Desk()
    desk.worlds.import_in_ranks({"/a/test_it.py": "starts a thread"}, "/a")
    name = desk.ask(1, 2, file=file)
    desk.clock_s = limit_s
    desk.requests.go_on()
    assert (set(desk.worlds.worlds), desk.sent) == ({name}, [])
    desk.clock_s += 0.1
    desk.requests.go_on()
    [(client, refused)] = desk.sent
    assert (client, refused.seq, type(refused.value)) == ("client/n1", 2, errors.WorldError)
    assert desk.worlds.worlds == {}
    assert f"rank 0 on n1 did not start within {limit_s:.0f} s" in str(refused.value)
    assert desk.to_agents[-1] == Call(0, "stop_world", ("n1", name))


def test_a_withdrawn_world_that_is_not_launched_yet_never_starts() -> None:
    desk = Desk()
    desk.worlds.leases.nodes["n2"].store_port = None
    assert desk.ask(2, 2) == ""
    assert desk.forget(2, 2) == []
    desk.worlds.leases.nodes["n2"].store_port = 5
    desk.requests.go_on()
    assert desk.worlds.worlds == {}


def test_an_idle_world_answers_the_last_request_it_was_given_for() -> None:
    desk = Desk()
    name = desk.ask(3, 2)
    desk.has_started(name)
    desk.worlds.close(name, True)
    assert desk.forget(3, 2) == [], "the world is idle, and may serve other clients"
    assert desk.ask(3, 3) == ""
    assert [m.seq for _, m in desk.sent if isinstance(m, Answer)] == [2, 3]
    assert desk.forget(3, 2) == []
    assert desk.forget(3, 3) == [Call(0, "stop_world", ("n3", name))]


def test_a_test_interrupted_while_it_waits_leaves_no_lease(tmp_path: Path) -> None:
    """Under pytest-xdist its worker continues, and would keep a lease that is granted too late."""
    pytest.importorskip("xdist")
    write_files(
        tmp_path,
        conftest="""
            import signal, pytest

            def cut(*_):
                open("cut", "w").close()
                pytest.fail("Timeout >0.5s")

            @pytest.hookimpl(wrapper=True)
            def pytest_runtest_protocol(item):
                if item.name == "test_cut":
                    signal.signal(signal.SIGALRM, cut)
                    signal.setitimer(signal.ITIMER_REAL, 0.5)
                return (yield)
        """,
        test_holds="""
            import os, time

            def test_holds(cluster):
                open("held", "w").close()
                while not os.path.exists("cut"):
                    time.sleep(0.01)
        """,
        test_waits="""
            import os, time

            def test_held():
                while not os.path.exists("held"):
                    time.sleep(0.01)

            def test_cut(world): pass
            def test_after(world): pass
        """,
    )
    args = ("-n2", "--dist=loadfile", "--mnode-nodes=2", "--mnode-launcher=local")
    run = run_pytest(tmp_path, *args, limit_s=240)
    outcomes = run.outcomes()
    assert outcomes.pop("test_cut") == "error", run.output
    assert "Timeout >0.5s" in run.output
    assert set(outcomes.values()) == {"passed"}, run.output
