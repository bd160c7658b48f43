"""Notes where the ranks of a job spend their time that knows nothing of it.

The text of this file is a folder's `sitecustomize.py`, which Python imports at its start if the
folder is on PYTHONPATH. It imports nothing of this package, and nothing of it may end the job: what
fails is said once on stderr. It times batches of a DataLoader and files of checkpoints, notes the
first call of a module and the end of each step, and traces two steps now and then by torch's own
profiler, unless the job has one running; then it notes what the kernel counted of its TCP
connections. A rank writes lines of JSON, each a kind and times in
seconds since 1970. If the file DUMP appears beside them, it writes its flight recorder's dump and
its stacks there.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import gzip
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import shutil
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

DIRECTORY = "MNODE_OBSERVED"
"""Variable with the folder of the notes; taken out of the environment, so that programs which a
rank starts write none."""
TRACED = (7, 27)
"""[choice] Steps of each TRACED_EVERY after which a trace begins: not those after which jobs
usually evaluate or save."""
TRACED_EVERY = 200
TRACED_STEPS = 2
_TRACES = 6
_TRACED_S = 30.0
"""[choice] A trace that takes longer has met something else than two steps, and grows."""
_REPLACED = 10
"""[choice] Steps of other parameters without one of the first, after which these count."""
_POLL_S = 0.5
_TCP_INFO = struct.Struct("=16xI100xQ40xQQ8xI")
"""Of Linux's struct tcp_info (4.18): most bytes of a segment; bytes acknowledged; microseconds
busy, and held by the receiver; segments delivered."""
_said: set[str] = set()


def _ours(function: Callable[..., Any], *args: object) -> Any:
    """Call what is no part of the job. Its errors are said once each, and None is returned."""
    try:
        return function(*args)
    except Exception as error:  # whatever it is, the job goes on
        text = f"observing: {type(error).__name__}: {error}\n"
        with contextlib.suppress(Exception):
            if text not in _said:
                _said.add(text)
                sys.stderr.write(text)


class _Notes:
    """The notes of one rank."""

    def __init__(self, directory: Path) -> None:
        asked = os.environ
        self._rank = int(asked["RANK"])
        self._name = f"rank{self._rank}.{time.time_ns()}"
        self._directory = directory
        self._file = os.open(directory / f"{self._name}.jsonl", os.O_CREAT | os.O_WRONLY, 0o644)
        self._own = (os.getpid(), threading.get_ident())
        self._inside = self._forward = False
        self._steps = self._traces = self._trace_began = 0
        self._mark: int | None = None
        self._others: dict[int, list[float]] = {}
        self._trace: Any = None
        self._trace_s = 0.0
        started = (os.getpid(), asked.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self.note("begin", time.time(), asked.get("MNODE_JOB_NODE", ""), *started)
        atexit.register(_ours, self.drop_trace)
        threading.Thread(target=self._dump_when_asked, daemon=True).start()

    def note(self, *words: object) -> None:
        with contextlib.suppress(OSError, ValueError):  # no space, quota, or folder: it is missing
            os.write(self._file, f"{json.dumps(words)}\n".encode())

    def timed(self, kind: str, module: Any, *names: str) -> None:
        """Time these functions of a module or class; calls within a timed one belong to it."""
        for name in names:
            if function := getattr(module, name, None):
                setattr(module, name, self._timing(kind, function))

    def _timing(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._inside or (os.getpid(), threading.get_ident()) != self._own:
                return function(*args, **kwargs)
            self._inside = True
            if self._trace is not None and time.time() - self._trace_s > _TRACED_S:
                self._observing(self.drop_trace)
            event = _ours(_queued) if kind == "input" else None
            began = time.time()
            try:
                return function(*args, **kwargs)
            finally:
                self._inside = False
                ended = time.time()
                hidden = event is not None and _ours(event.query) is False
                self.note("hidden input" if hidden else kind, began, ended)

        return call

    def called(self, at: float) -> None:
        """The first call of a module; what stepped before belongs to the start."""
        if not self._forward and os.getpid() == self._own[0]:
            self._forward = True
            self._others.clear()
            self.note("forward", at)

    def stepped(self, optimizer: Any) -> None:
        """After a step of an optimizer. Some step group by group, some have several optimizers:
        a step is one of the parameter that stepped first, until it no longer does."""
        groups = (one["params"] for one in optimizer.param_groups)
        mark, now = id(next((some[0] for some in groups if some), optimizer)), time.time()
        times = self._others.setdefault(mark, [])
        times.append(now)
        if not self._forward:
            if len(times) == 1:  # as DeepSpeed does at its start
                return
            self.called(times[0])  # compiled whole: no module is called
            times = [now]
        if self._mark is None or mark == self._mark or len(times) == _REPLACED:
            times, self._mark = times if mark != self._mark else [now], mark
            self._others.clear()
            self._steps += len(times)
            for one in times:
                self.note("step", one)
            self._trace_steps()

    def _trace_steps(self) -> None:
        traced = self._steps - self._trace_began
        if self._trace is not None and traced >= TRACED_STEPS:
            late = traced > TRACED_STEPS or time.time() - self._trace_s > _TRACED_S
            self._observing(self.drop_trace if late else self.end_trace)
            self.note("sent", time.time(), _ours(_sent))
        elif self._traces < _TRACES and self._steps % TRACED_EVERY in TRACED:
            self._observing(self._begin_trace)

    def _observing(self, function: Callable[[], Any]) -> None:
        began = time.time()
        _ours(function)
        self.note("observing", began, time.time())

    def _begin_trace(self) -> None:
        torch: Any = sys.modules["torch"]
        kinds = torch.profiler.ProfilerActivity
        if torch.autograd._profiler_enabled():
            return
        self._traces += 1
        some = [kinds.CPU, *([kinds.CUDA] if torch.cuda.is_available() else ())]
        self._trace = torch.profiler.profile(activities=some)
        self._trace_began, self._trace_s = self._steps, time.time()
        self._trace.start()

    def end_trace(self) -> None:
        """Write the trace."""
        if (trace := self.drop_trace()) is not None:
            # By torch's own name.gz a trace that cannot be written whole would stay in TMPDIR.
            path = self._directory / f"{self._name}.{self._steps}.trace.json"
            try:
                trace.export_chrome_trace(str(path))
                with path.open("rb") as whole, gzip.open(f"{path}.gz", "wb") as packed:
                    shutil.copyfileobj(whole, packed)
            finally:
                path.unlink(missing_ok=True)

    def drop_trace(self) -> Any:
        """End the trace, if there is one, unwritten: also when the job begins one of its own."""
        trace, self._trace = self._trace, None
        if trace is not None:
            trace.stop()
        return trace

    def of_torch(self, torch: Any) -> None:
        compiling = torch.compiler.is_compiling
        self.timed("save", torch, "save")
        self.timed("input", torch.utils.data.dataloader._BaseDataLoaderIter, "__next__")
        optimizers: Any = sys.modules["torch.optim.optimizer"]  # no attribute of torch.optim

        def stepped(optimizer: Any, *_: object) -> None:
            if not compiling():
                _ours(self.stepped, optimizer)

        optimizers.register_optimizer_step_post_hook(stepped)
        module = torch.nn.Module
        call = module.__call__

        @functools.wraps(call)  # a global hook would end compiling of whole graphs
        def first(*args: Any, **kwargs: Any) -> Any:
            if not compiling():
                if module.__call__ is first:  # else another has wrapped it
                    module.__call__ = call
                _ours(self.called, time.time())
            return call(*args, **kwargs)

        module.__call__ = first
        theirs = torch.autograd.profiler.profile
        start = theirs._prepare_trace

        @functools.wraps(start)
        def prepare(profiler: Any, *args: Any, **kwargs: Any) -> Any:
            if self._trace is not None and self._trace.profiler is not profiler:
                self._observing(self.drop_trace)
            return start(profiler, *args, **kwargs)

        theirs._prepare_trace = prepare

    def _dump_when_asked(self) -> None:
        while not os.path.exists(self._directory / "DUMP"):  # noqa: PTH110 - it never raises
            time.sleep(_POLL_S)
        _ours(self._dump)

    def _dump(self) -> None:
        with (self._directory / f"stack_rank_{self._rank}.txt").open("w") as file:
            faulthandler.dump_traceback(file)
        c10d: Any = sys.modules.get("torch._C._distributed_c10d")
        if dump := getattr(c10d, "_dump_fr_trace", None) or getattr(c10d, "_dump_nccl_trace", None):
            hidden = self._directory / f".dump_{self._rank}"
            hidden.write_bytes(dump())
            hidden.rename(self._directory / f"flight_recorder_rank_{self._rank}")


def _sent() -> list[tuple[str, str, int, float, int]]:
    """Of each TCP connection of this process: the addresses of both ends, bytes that it sent,
    seconds in which its network was busy with them, and the bytes that as many segments can hold.
    """
    found: list[tuple[str, str, int, float, int]] = []
    if socket.getdefaulttimeout() is not None:  # of new objects: it would end up on the connections
        return found
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with contextlib.suppress(OSError, struct.error):
            one = socket.socket(fileno=int(name))
            try:
                counted = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
                mss, acked, busy_us, held_us, segments = _TCP_INFO.unpack(counted)
                ends = one.getsockname()[0], one.getpeername()[0]
            finally:
                one.detach()  # it stays open: it is the job's
            found.append((*ends, acked, (busy_us - held_us) / 1e6, segments * mss))
    return found


def _queued() -> Any:
    """An event behind the kernels that are queued on the accelerator; None without one. While they
    run, a rank that waits for a batch loses nothing."""
    cuda: Any = sys.modules["torch"].cuda
    if not cuda.is_initialized() or cuda.is_current_stream_capturing():
        return None
    event = cuda.Event()
    event.record()
    return event


class _After(importlib.abc.MetaPathFinder):
    """Calls functions after the import of their modules. Some programs find them without that."""

    def __init__(self, calls: dict[str, Callable[[Any], None]]) -> None:
        self._calls = calls
        self._finds = False

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG002
        target: Any = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        if self._finds or name not in self._calls:
            return None
        self._finds = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._finds = False
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def run_and_call(module: Any) -> None:
            run(module)
            _ours(self._calls[name], module)  # of another version, less is observed

        _ours(setattr, spec.loader, "exec_module", run_and_call)
        return spec


def _begin(directory: str) -> None:
    notes = _Notes(Path(directory))
    saver = functools.partial(notes.timed, "save")
    calls: dict[str, Callable[[Any], None]] = {
        "torch": notes.of_torch,
        "torch.distributed.checkpoint.state_dict_saver": lambda m: saver(m, "save", "async_save"),
        "safetensors.torch": lambda m: saver(m, "save_file"),
    }
    sys.meta_path.insert(0, _After(calls))


def _run_the_hidden() -> None:
    """The sitecustomize that this one hides, if there is one."""
    here = Path(__file__).parent
    spec = importlib.machinery.PathFinder.find_spec(
        "sitecustomize", [one for one in sys.path if Path(one).absolute() != here]
    )
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if __name__ == "sitecustomize":
    if "RANK" in os.environ and DIRECTORY in os.environ:
        _ours(_begin, os.environ.pop(DIRECTORY))
    _run_the_hidden()
