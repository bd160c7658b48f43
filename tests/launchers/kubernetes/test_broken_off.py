"""Truncated answers of the API server, to single requests and to watches."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.launchers.cleanup.leftovers import Cleanup, Leftovers
from pytest_mnode.launchers.kubernetes import bridge
from pytest_mnode.launchers.kubernetes.api import Api, ApiError
from pytest_mnode.processes import end_programs
from tests.launchers.kubernetes.given import settings, use_kubeconfig

LIMIT_S = 30.0
RESET = b"\0reset"
"""At the end of an answer: the connection is reset instead of closed."""
HELD = b"\0held"
"""At the end of an answer: the connection stays open, and nothing more comes."""
PATH = "/api/v1/namespaces/default/pods"


def answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """Sends the whole text, whatever length the headers announce."""
    # Each answer ends its connection: a client that kept it might send again before it notices.
    head = (f"HTTP/1.1 {status}", "Connection: close", *headers, "", "")
    return "\r\n".join(head).encode() + body


def whole(found: Any) -> bytes:
    body = json.dumps(found).encode()
    return answer(body, f"Content-Length: {len(body)}")


HALF = b'{"items": ['
CUT = answer(HALF, "Content-Length: 100")
AWAY = answer(b"{}", "Content-Length: 2", status="503 Service Unavailable")
FORBIDDEN = answer(b"{}", "Content-Length: 2", status="403 Forbidden")
BROKEN_OFF = {
    "length": (CUT, "IncompleteRead(11 bytes read, 89 more expected)"),
    "reset": (CUT + RESET, "[Errno 104] Connection reset by peer"),
    "chunk": (answer(b"ff\r\n" + HALF, "Transfer-Encoding: chunked"), "IncompleteRead("),
    "no last chunk": (answer(b"2\r\n{}\r\n", "Transfer-Encoding: chunked"), "IncompleteRead("),
    "JSON": (answer(HALF), "Expecting value: line 1 column 12"),
    "nothing": (answer(b"", "Content-Length: 0"), "Expecting value: line 1 column 1"),
}
"""Answers, and the reported reason of each."""
Serve = Callable[[Sequence[bytes]], list[str]]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Gives one answer per connection, then repeats the last one; the requested paths."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = {"server": f"http://127.0.0.1:{listener.getsockname()[1]}"}
    use_kubeconfig(monkeypatch, tmp_path, server)
    asked: list[str] = []
    held: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def run(answers: Sequence[bytes]) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # the connection is closed
                return
            with connection, connection.makefile("rb") as lines:
                asked.append(lines.readline().decode().split()[1])
                while lines.readline().strip():
                    pass
                data = answers[min(len(asked), len(answers)) - 1]
                connection.sendall(data.removesuffix(RESET).removesuffix(HELD))
                if data.endswith(HELD):
                    held.append(connection.dup())
                if data.endswith(RESET):
                    linger = struct.pack("ii", 1, 0)
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    def start(answers: Sequence[bytes]) -> list[str]:
        threads.append(threading.Thread(target=run, args=(answers,)))
        threads[0].start()
        return asked

    yield start
    listener.shutdown(socket.SHUT_RDWR)
    for one in (listener, *held):
        one.close()
    for thread in threads:
        thread.join(LIMIT_S)


@pytest.mark.parametrize("how", BROKEN_OFF)
def test_a_truncated_answer_to_a_request_is_an_error(serve: Serve, how: str) -> None:
    data, why = BROKEN_OFF[how]
    serve([data])
    api = Api()
    with pytest.raises(ApiError) as error:
        api.request("GET", PATH)
    assert str(error.value).startswith(f"{api.host}: its answer is incomplete: {why}")
    assert error.value.status == 0


@pytest.mark.parametrize("status", [400, 403, 500])
def test_a_refusal_keeps_its_status(serve: Serve, status: int) -> None:
    serve([answer(b'{"message": "no', "Content-Length: 100", status=f"{status} No")])
    with pytest.raises(ApiError, match=rf"^HTTP status {status}$") as error:
        Api().request("GET", PATH)
    assert error.value.status == status


def made_bridge(directory: Path) -> bridge.KubernetesBridge:
    """A bridge whose object exists."""
    made = bridge.KubernetesBridge(settings(directory))
    made.made = True
    return made


def test_a_delete_is_tried_again_while_the_server_is_away(serve: Serve, tmp_path: Path) -> None:
    asked = serve([AWAY, AWAY, whole({})])
    made = made_bridge(tmp_path)
    made.delete()
    assert (len(asked), made.made) == (3, False)


class Recovering(Sequence[Any]):
    """Answers of a server that is away, and then has the run's Job until it is deleted."""

    def __init__(self, away: bytes) -> None:
        self.asked: list[str] = []
        self.answer = away
        self.away, self.deleted = True, False

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, _: Any) -> Any:
        path = self.asked[-1]
        if self.away:
            return self.answer
        if path.startswith("/apis/batch") and "jobs" not in path:
            version = {"groupVersion": "batch/v1"}
            return whole({"versions": [version], "resources": [{"name": "jobs"}]})
        if "labelSelector" not in path:
            self.deleted = True
            return whole({})
        shown = "/jobs" in path and not self.deleted
        return whole({"items": [{"metadata": {"name": "mnode-a"}}] * shown})


@pytest.mark.parametrize("away", [AWAY, FORBIDDEN], ids=["away", "refuses"])
def test_a_delete_is_given_up_at_its_limit(
    away: bytes, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clean-up process goes on, for an hour, also when this one has ended; the user is told."""
    monkeypatch.setattr(bridge, "DELETE_S", 0.5)
    server = Recovering(away)
    told: list[dict[str, str]] = []
    server.asked = serve(server)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))  # for the clean-up process
    made = made_bridge(tmp_path)
    cleanup = made.cleanup = Cleanup(Leftovers(**made.settings.leftovers))
    monkeypatch.setattr(made, "tell", told.append)
    asyncio.run(made.ending())
    assert not server.deleted
    label = f"pytest-mnode/run={made.settings.run_id}"
    [event] = told
    assert event["left"].startswith(f"objects labelled {label} may be left; ")
    assert event["left"].endswith(f"; or run kubectl delete jobs -l {label}")
    server.away = False
    try:
        assert cleanup._wait(LIMIT_S) == 0
    finally:
        end_programs([cleanup._process])
    assert server.deleted
    asked = len(server.asked)
    made.end()
    assert len(server.asked) == asked, "it is the clean-up process's now"


def pod(name: str) -> dict[str, Any]:
    state = [{"name": "main", "state": {"running": {}}}]
    return {
        "metadata": {"name": name, "uid": name},
        "spec": {"nodeName": "n1"},
        "status": {"phase": "Running", "podIP": "10.0.0.1", "containerStatuses": state},
    }


EVENT = json.dumps({"type": "ADDED", "object": pod("a")}).encode() + b"\n"
CHUNK = b"%x\r\n%s\r\n" % (len(EVENT), EVENT)
WATCHES = {
    "chunk": answer(CHUNK + b"ff\r\n{", "Transfer-Encoding: chunked"),
    "no last chunk": answer(CHUNK, "Transfer-Encoding: chunked"),
    "reset": answer(CHUNK, "Transfer-Encoding: chunked") + RESET,
    "JSON": answer(EVENT + b'{"type": \n'),
    "half a line": answer(EVENT + b'{"type": '),
}


@pytest.mark.parametrize("how", WATCHES)
def test_a_truncated_watch_ends_after_its_complete_events(serve: Serve, how: str) -> None:
    serve([WATCHES[how]])
    assert list(Api().watch(PATH, {})) == [("ADDED", pod("a"))]


def test_the_bridge_lists_and_watches_again_after_a_truncated_watch(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge, "AGAIN_S", 0.01)

    def listed(*pods: dict[str, Any]) -> bytes:
        return whole({"metadata": {"resourceVersion": "7"}, "items": pods})

    asked = serve(
        [*(data for data, _ in BROKEN_OFF.values()), listed(), WATCHES["chunk"], listed()]
    )
    made = made_bridge(tmp_path)
    events: list[dict[str, Any]] = []
    loop = asyncio.new_event_loop()

    def tell(event: dict[str, Any]) -> None:
        events.append(event)
        if "lost" in event:
            loop.stop()

    monkeypatch.setattr(made, "tell", tell)
    watching = threading.Thread(target=made.watch, args=(loop,))
    watching.start()
    loop.call_later(LIMIT_S, loop.stop)
    loop.run_forever()
    loop.close()
    watching.join(LIMIT_S)
    *problems, up, lost = events
    assert len(problems) == len(BROKEN_OFF)
    assert all("its answer is incomplete: " in event["problem"] for event in problems)
    assert (up["pods"]["0"]["pod"], lost) == ("a", {"lost": "0", "why": "its pod was deleted"})
    kinds = ["watch=true" in one for one in asked[len(BROKEN_OFF) : len(BROKEN_OFF) + 3]]
    assert kinds == [False, True, False]
