"""Notes where the ranks of a job spend their time that knows nothing of it.

The text of this file is a folder's `sitecustomize.py`, which Python imports at its start if the
folder is on PYTHONPATH. It imports nothing of this package, and changes nothing of the job: it
times batches of a DataLoader and files of checkpoints, notes the first call of a module and the
end of each optimizer step, and
traces two steps now and then by torch's own profiler, unless the job has one running. A rank
writes lines of JSON, each a kind and times in seconds since 1970. If the file DUMP appears beside
them, it writes its flight recorder's dump and its stacks there.
"""

from __future__ import annotations

import faulthandler
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

DIRECTORY = "MNODE_OBSERVED"
"""Variable with the folder of the notes; taken out of the environment, so that programs which a
rank starts write none."""
TRACED = (5, 25)
TRACED_EVERY = 200
TRACED_STEPS = 2
_LOOK_S = 0.5


class _Notes:
    """The notes of one rank."""

    def __init__(self, directory: Path) -> None:
        asked = os.environ
        self._rank = int(asked["RANK"])
        self._name = f"rank{self._rank}.{time.time_ns()}"
        self._directory = directory
        self._file = (directory / f"{self._name}.jsonl").open("a", buffering=1)
        self._own = (os.getpid(), threading.get_ident())
        self._inside = False
        self._steps = 0
        self._first: Any = None
        self._trace: Any = None
        self.note("begin", time.time(), asked.get("MNODE_JOB_NODE", ""))
        threading.Thread(target=self._dump_when_asked, daemon=True).start()

    def note(self, *words: object) -> None:
        self._file.write(json.dumps(words) + "\n")

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
            self._inside, began = True, time.time()
            try:
                return function(*args, **kwargs)
            finally:
                self._inside = False
                self.note(kind, began, time.time())

        return call

    def stepped(self, optimizer: Any, *_: object) -> None:
        """After a step of an optimizer; of several, the first that stepped counts."""
        self._first = self._first or optimizer
        if optimizer is not self._first:
            return
        self._steps += 1
        self.note("step", time.time())
        began = time.time()
        if self._trace is not None and self._steps % TRACED_EVERY in self._ends:
            self.end_trace()
        elif self._trace is None and self._steps % TRACED_EVERY in TRACED:
            self._begin_trace()
        else:
            return
        self.note("observing", began, time.time())

    _ends = tuple(one + TRACED_STEPS for one in TRACED)

    def _begin_trace(self) -> None:
        torch: Any = sys.modules["torch"]
        kinds = torch.profiler.ProfilerActivity
        if torch.autograd._profiler_enabled():
            return
        some = [kinds.CPU, *([kinds.CUDA] if torch.cuda.is_available() else ())]
        self._trace = torch.profiler.profile(activities=some)
        self._trace.start()

    def end_trace(self) -> None:
        """Write the trace, if there is one: also when the job begins one of its own."""
        trace, self._trace = self._trace, None
        if trace is not None:
            trace.stop()
            path = self._directory / f"{self._name}.{self._steps}.trace.json.gz"
            trace.export_chrome_trace(str(path))

    def of_torch(self, torch: Any) -> None:
        self.timed("save", torch, "save")
        self.timed("input", torch.utils.data.dataloader._BaseDataLoaderIter, "__next__")
        optimizers: Any = sys.modules["torch.optim.optimizer"]  # no attribute of torch.optim
        optimizers.register_optimizer_step_post_hook(self.stepped)

        def called(*_: object) -> None:
            first.remove()
            self.note("forward", time.time())

        first: Any = torch.nn.modules.module.register_module_forward_pre_hook(called)
        theirs = torch.autograd.profiler.profile
        start = theirs._prepare_trace

        def prepare(profiler: Any, *args: Any) -> Any:
            if self._trace is not None and self._trace.profiler is not profiler:
                self.end_trace()
            return start(profiler, *args)

        theirs._prepare_trace = prepare

    def _dump_when_asked(self) -> None:
        while not (self._directory / "DUMP").exists():
            time.sleep(_LOOK_S)
        with (self._directory / f"stack_rank_{self._rank}.txt").open("w") as file:
            faulthandler.dump_traceback(file)
        c10d: Any = sys.modules.get("torch._C._distributed_c10d")
        if dump := getattr(c10d, "_dump_fr_trace", None) or getattr(c10d, "_dump_nccl_trace", None):
            hidden = self._directory / f".dump_{self._rank}"
            hidden.write_bytes(dump())
            hidden.rename(self._directory / f"flight_recorder_rank_{self._rank}")


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
            try:
                self._calls[name](module)
            except AttributeError as error:  # of another version: less is observed
                sys.stderr.write(f"observing {name}: {error}\n")

        spec.loader.exec_module = run_and_call  # type: ignore[method-assign]
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
        _begin(os.environ.pop(DIRECTORY))
    _run_the_hidden()
