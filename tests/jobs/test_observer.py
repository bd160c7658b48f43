"""The observer: what ranks of a job note that knows nothing of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.criteria.goodput import read_notes
from pytest_mnode.errors import TimeLimitError
from pytest_mnode.jobs import observer
from pytest_mnode.jobs.observed import Notes, StalledError, notes
from pytest_mnode.launchers.node import CommandResult
from pytest_mnode.logs.stacks import where
from pytest_mnode.machine.mounts import Mount
from tests.programs import write_program
from tests.waiting import until

TRAINING = """
    import importlib.util, subprocess, sys, time
    assert importlib.util.find_spec("torch")  # as some programs do first
    import torch
    from torch.utils.data import DataLoader

    assert sys.argv.pop() == "hidden"  # by the sitecustomize of the site
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    other = torch.optim.SGD([torch.ones(1, requires_grad=True)], 0.001)

    def train(stop):
        for step, batch in enumerate(DataLoader([torch.ones(8)] * 20, 2), 1):
            model(batch).sum().backward()
            optimizer.step()
            other.step()
            if step == stop:
                break

    train(8)
    torch.save(model, sys.argv[1] + "/model.pt")
    {then}
"""
OWN_PROFILER = """
subprocess.run([sys.executable, "-c", ""], check=True)
import os, socket
held = open(sys.argv[0])
listening = socket.create_server(("127.0.0.1", 0))
sending = socket.create_connection(listening.getsockname())
receiving = listening.accept()[0]
receiving.settimeout(30)
for _ in range(16):
    sending.sendall(bytes(1 << 16))
    receiving.recv(1 << 16, socket.MSG_WAITALL)
for _ in range(2):
    train(8)
with torch.profiler.profile() as own:
    train(3)
assert own.key_averages()
links = [os.path.realpath(f"/proc/self/fd/{one}") for one in os.listdir("/proc/self/fd")]
assert links.count(os.path.realpath(held.name)) == 1
sending.sendall(b"is still open")
"""
"""It begins at step 25, and is running at step 27, after which a trace would begin."""
GROUPS = """
    import sys, torch

    model = torch.nn.Linear(8, 1)
    adam = torch.optim.Adam([{"params": [one]} for one in model.parameters()])
    groups = adam.param_groups

    def step():  # as DeepSpeed does
        for one in groups:
            adam.param_groups = [one]
            adam.step()
        adam.param_groups = groups

    step()
    run = torch.compile(model, backend="eager", fullgraph=True) if "compiled" in sys.argv else model
    for _ in range(8 if "cut" in sys.argv else 12):
        {forward}
        step()
    other = torch.optim.SGD(torch.nn.Linear(8, 1).parameters(), 0.1)
    for _ in range(12 if "replaced" in sys.argv else 0):
        other.step()
"""
FUNCTION = "torch.compile(lambda x: model(x), backend='eager', fullgraph=True)(torch.ones(8))"
FORKING = """
    import atexit, importlib.machinery, json, os, runpy, sys
    import torch, torch._dynamo, torch.utils.data

    class There:  # the import of torch, without its 2 s
        def find_spec(self, name, *_):
            return importlib.machinery.ModuleSpec(name, self) if name == "torch" else None
        def create_module(self, spec):
            return torch
        def exec_module(self, module):
            pass

    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if not pid:
            os.dup2(os.open(asked["stderr"], os.O_CREAT | os.O_WRONLY), 2)
            os.environ.clear()
            os.environ.update(asked["env"])
            sys.path[:0] = os.environ["PYTHONPATH"].split(":")
            sys.argv = asked["argv"]
            del sys.modules["torch"]
            sys.modules.pop("sitecustomize", None)
            sys.meta_path.insert(0, There())
            import sitecustomize
            runpy.run_path(sys.argv[0], run_name="__main__")
            atexit._run_exitfuncs()
            os._exit(0)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    os._exit(0)
"""


class Rank:
    """A rank that is running. server: it forks ranks that have torch, one after the other."""

    def __init__(
        self, server: subprocess.Popen[str], argv: list[str], env: dict[str, str], stderr: Path
    ) -> None:
        assert server.stdin is not None
        assert server.stdout is not None
        asked = {"argv": argv, "env": env, "stderr": str(stderr)}
        server.stdin.write(json.dumps(asked) + "\n")
        server.stdin.flush()
        self._answers, self._stderr = server.stdout, stderr
        self.pid = int(self._answers.readline())

    def ended(self) -> tuple[int, str]:
        """Its exit status, once it has ended, and what it wrote to stderr."""
        return int(self._answers.readline()), self._stderr.read_text()


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", dedent(FORKING)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe) as process:
        yield process


def prepared(
    tmp_path: Path,
    then: str = "pass",
    *,
    script: str = "",
    argv: Sequence[str] = (),
    change: Mapping[str, str] | None = None,
    faults: str = "",
) -> tuple[list[str], dict[str, str]]:
    """Arguments and environment of a rank; its notes are in tmp_path/notes."""
    for name in ("notes", "site", "job"):
        (tmp_path / name).mkdir()
    source = Path(observer.__file__).read_text()
    (tmp_path / "notes/sitecustomize.py").write_text(source)
    hidden = "import sys; sys.argv.append('hidden')\n"
    (tmp_path / "site/sitecustomize.py").write_text(hidden + dedent(faults))
    program = tmp_path / "train.py"
    program.write_text(script or dedent(TRAINING).replace("{then}", dedent(then).strip()))
    env = {**os.environ, "MNODE_JOB_NODE": "node1", "RANK": "3"}
    env["PYTHONPATH"] = str(tmp_path / "site")
    env |= Notes(tmp_path / "notes").env(env) | dict(change or {})
    return [str(program), *(argv or [str(tmp_path / "job")])], env


def observing(said: str) -> list[str]:
    """What the observer says; kineto says other things."""
    assert "Traceback" not in said
    return [one[11:] for one in said.splitlines() if one.startswith("observing: ")]


def test_what_a_rank_notes(tmp_path: Path) -> None:
    """A process of its own, as ranks have it: torch is imported after the observer began."""
    argv, env = prepared(tmp_path, OWN_PROFILER)
    program = [sys.executable, *argv]
    done = subprocess.run(
        program, env=env, text=True, capture_output=True, timeout=600, check=False
    )
    said = done.stderr
    assert done.returncode == 0, said
    assert observing(said) == []
    [[noted]] = read_notes(Notes(tmp_path / "notes").files())
    assert (noted.rank, noted.node, len(noted.steps)) == (3, "node1", 27)
    assert {kind: len(some) for kind, some in noted.spans.items()} == {
        "input": 27,
        "save": 1,
        "observing": 3,
    }
    assert noted.forward is not None
    assert noted.began is not None
    assert noted.began < noted.forward < noted.steps[0]
    [traced] = noted.traces.items()
    assert traced[0] == 9
    assert traced[1].computing > 0
    assert {(one.local, one.peer) for one in noted.sent} == {("127.0.0.1", "127.0.0.1")}
    [one] = [one for one in noted.sent if one.sent > 1]
    assert one.sent == pytest.approx(1 << 20, abs=2)
    assert 0 <= one.busy_s < 60  # loopback is quicker than the clock
    assert one.sent <= one.room < 16 * one.sent


@pytest.mark.parametrize(
    ("asked", "forward", "noted"),
    [
        (["eager"], "run(torch.ones(8))", (12, [9])),
        (["compiled"], "run(torch.ones(8))", (12, [9])),
        (["replaced"], "run(torch.ones(8))", (24, [9])),
        (["cut"], "run(torch.ones(8))", (8, [])),
        (["no forward"], "pass", (12, [9])),
        (["function"], FUNCTION, (12, [9])),
    ],
    ids=["eager", "compiled", "replaced", "cut", "no forward", "function"],
)
def test_steps_that_count(
    server: subprocess.Popen[str],
    tmp_path: Path,
    asked: list[str],
    forward: str,
    noted: tuple[int, list[int]],
) -> None:
    """noted: how many steps, and after which of them a trace."""
    script = dedent(GROUPS).replace("{forward}", forward)
    argv, env = prepared(tmp_path, script=script, argv=asked)
    status, said = Rank(server, argv, env, tmp_path / "stderr").ended()
    assert (status, observing(said)) == (0, []), said
    [[found]] = read_notes(Notes(tmp_path / "notes").files())
    assert (len(found.steps), list(found.traces)) == noted
    assert found.forward is not None
    assert found.forward <= found.steps[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"RANK": "x"}, ["ValueError:"]),
        ({observer.DIRECTORY: "/proc/no"}, ["FileNotFoundError:"]),
        ({"FULL": "1"}, []),
        ({"BROKEN": "1"}, ["ZeroDivisionError:"]),
    ],
    ids=["rank", "folder", "full", "broken"],
)
def test_nothing_of_it_ends_the_job(
    server: subprocess.Popen[str], tmp_path: Path, change: dict[str, str], said: list[str]
) -> None:
    faults = """
        import os
        if "FULL" in os.environ:
            write = os.write
            def full(file, data):
                if data.startswith(b"["):
                    raise OSError(28, "No space left on device")
                return write(file, data)
            os.write = full
        if "BROKEN" in os.environ:
            import torch
            torch.profiler.profile = lambda **_: 1 / 0
            torch.cuda.is_initialized = lambda: 1 / 0
    """
    argv, env = prepared(tmp_path, then="train(8)", change=change, faults=faults)
    status, error = Rank(server, argv, env, tmp_path / "stderr").ended()
    assert status == 0, error
    assert (tmp_path / "job/model.pt").exists()
    assert [one.partition(" ")[0] for one in observing(error)] == said


def test_input_while_kernels_are_queued_is_hidden(
    server: subprocess.Popen[str], tmp_path: Path
) -> None:
    faults = """
        import torch
        class Event:
            asked = 0
            def record(self):
                self.recorded = True
            def query(self):  # the first four are still running
                assert self.recorded
                Event.asked += 1
                return Event.asked > 4
        torch.cuda.is_initialized = lambda: True
        torch.cuda.is_current_stream_capturing = lambda: False
        torch.cuda.Event = Event
    """
    argv, env = prepared(tmp_path, faults=faults)
    status, said = Rank(server, argv, env, tmp_path / "stderr").ended()
    assert (status, observing(said)) == (0, []), said
    [[noted]] = read_notes(Notes(tmp_path / "notes").files())
    assert {kind: len(some) for kind, some in noted.spans.items()} == {
        "hidden input": 4,
        "input": 4,
        "save": 1,
        "observing": 1,
    }


class Endless:
    """A job that never ends."""

    def wait(self, timeout: float) -> None:
        time.sleep(timeout)
        raise TimeLimitError(f"the job still runs on node1 after {timeout:g} s")


@pytest.mark.parametrize("stalls", [True, False])
def test_a_rank_that_hangs_says_where_it_is(
    server: subprocess.Popen[str], tmp_path: Path, stalls: bool
) -> None:
    argv, env = prepared(tmp_path, "def load():\n    time.sleep(100)\nload()")
    rank = Rank(server, argv, env, tmp_path / "stderr")
    try:
        job, there = Endless(), Notes(tmp_path / "notes")
        until(lambda: any(b'["step"' in one for one in there.files().values()), limit_s=60)
        with pytest.raises(StalledError if stalls else TimeLimitError) as ended:
            there.wait(job, 60 if stalls else 1, 1 if stalls else None)  # type: ignore[arg-type]
        assert ("no step for 1 s" in str(ended.value)) is stalls
        assert ("after 1 s" in str(ended.value)) is not stalls
        files = there.files()
        assert where(files["stack_rank_3.txt"].decode()).endswith(" in load")
        assert "flight_recorder_rank_3" in files
    finally:
        os.kill(rank.pid, signal.SIGKILL)
        assert rank.ended()[0] == -signal.SIGKILL


@pytest.mark.parametrize(("kind", "delays"), [("ext4", False), ("nfs4", True), ("newfs", True)])
def test_notes_on_a_file_server_come_later(
    kind: str, delays: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = (Mount("/", kind, "of"),)
    monkeypatch.setattr("pytest_mnode.machine.mounts.read_mounts", lambda: mounts)
    with notes(SimpleNamespace(scratch=tmp_path)) as there:  # type: ignore[arg-type]
        assert (there.delay_s > 30) is delays


def test_the_folder_of_the_notes_is_removed(tmp_path: Path) -> None:
    with notes(SimpleNamespace(scratch=tmp_path)) as there:  # type: ignore[arg-type]
        asked = there.env({"NCCL_PROFILER_PLUGIN": "libnccl-profiler-inspector.so"})
        assert int(asked["NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS"]) >= 0
        assert [one.name for one in tmp_path.rglob("*.py")] == ["sitecustomize.py"]
        assert there.env({"PYTHONPATH": "/x"})["PYTHONPATH"] == f"{there.folder}:/x"
    assert list(tmp_path.iterdir()) == []


def test_ranks_that_say_nothing_are_not_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_mnode.jobs.observed._DUMPED_S", 0.3)
    (tmp_path / "rank0.7.jsonl").write_text('["step", 1.0]\n')
    write_program(tmp_path / "py-spy", "#!/bin/sh\necho $*")
    write_program(tmp_path / "ncclras", "#!/bin/sh\necho $NODE says $*\n[ $NODE != node2 ]")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    ran = list[str]()

    def run(argv: tuple[str, ...], node: str, *, timeout: float) -> list[CommandResult]:
        ran.append(node)
        env = {**os.environ, "NODE": node}
        done = subprocess.run(
            argv, env=env, capture_output=True, text=True, timeout=timeout, check=False
        )
        return [CommandResult(node, done.returncode, done.stdout, "", timeout)]

    cluster: Any = SimpleNamespace(run=run)
    with contextlib.ExitStack() as stack:
        for rank, number in {2: 2, 4: 4, 10: 7}.items():  # that of rank 10 is another's
            command = ["sleep", "60"]
            process = subprocess.Popen(command, env={**os.environ, "RANK": str(number)})
            stack.enter_context(process)
            stack.callback(process.kill)
            text = f'["begin", 1.0, "node{rank}", {process.pid}]\n'
            (tmp_path / f"rank{rank}.17.jsonl").write_text(text)
            (tmp_path / f"rank{rank}.7.jsonl").write_text('["begin", 1.0, "old", 1]\n')
        for rank in range(90, 99):
            (tmp_path / f"rank{rank}.7.jsonl").write_text('["begin", 1.0, "node9", 1]\n')
            (tmp_path / f"stack_rank_{rank}.txt").touch()
        with pytest.raises(StalledError) as ended:
            Notes(tmp_path, 0.5, cluster).wait(Endless(), 60, 0.1)  # type: ignore[arg-type]
    assert ran == ["node2", "node4", *("node2", "node4", "node10")]
    assert (tmp_path / "ras.json").read_text() == "node4 says -f json\n"
    assert (tmp_path / "stack_rank_4.txt").read_text().startswith("dump --json --pid ")
    assert not (tmp_path / "stack_rank_10.txt").exists()
    assert "no step for 0.5 s" in str(ended.value)  # not sooner than a note comes
    assert (tmp_path / "DUMP").exists()
