"""A job whose ranks note where their time goes, by `observer`; the job itself is as it is."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_mnode.errors import MnodeError, TimeLimitError
from pytest_mnode.jobs import observer
from pytest_mnode.jobs.job import JobResult
from pytest_mnode.jobs.launched import NFS_DELAY_S, LaunchedJob
from pytest_mnode.launchers.nodes import Nodes
from pytest_mnode.logs.aftermath import RAS_REPORT
from pytest_mnode.machine.mounts import mount_here

_POLL_S = 0.2
_DUMPED_S = 5.0
_MOST_SPIED = 8
_MOST_ASKED = 2
_RAS = "command -v ncclras >/dev/null && exec ncclras -f json"
"""Of NCCL 2.28.7 and later: what its ranks say of one another. Any node speaks for all."""
_SPY = r"""env=/proc/$1/environ
[ ! -r $env ] || tr '\0' '\n' < $env | grep -qx "RANK=$2" || exit 1
exec py-spy dump --json --pid $1"""
"""In a container, the number of a rank's process may be that of another one on its node."""


class StalledError(TimeLimitError):
    """A job that made no step for too long."""


class _Files(Mapping[str, bytes]):
    """Files of a folder; each is read when it is asked for, as traces may be large."""

    def __init__(self, folder: Path) -> None:
        self._paths = {one.name: one for one in folder.iterdir() if one.is_file()}

    def __getitem__(self, name: str) -> bytes:
        return self._paths[name].read_bytes()

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


@dataclass(frozen=True, slots=True)
class Notes:
    """The folder of the notes, which all nodes see. delay_s: until all do, of a new line. cluster:
    where py-spy is run for ranks that hang; None for nowhere."""

    folder: Path
    delay_s: float = 0.0
    cluster: Nodes | None = None

    def env(self, given: Mapping[str, str]) -> dict[str, str]:
        """Variables of the job. given: those that it has otherwise."""
        paths = [str(self.folder), *filter(None, [given.get("PYTHONPATH")])]
        dumps = {
            "TORCH_FR_BUFFER_SIZE": "2000",
            "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
            "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(self.folder / "nccl_trace_rank_"),
        }
        if "NCCL_PROFILER_PLUGIN" in given:  # read if it is the inspector
            dumps |= {
                "NCCL_INSPECTOR_ENABLE": "1",
                "NCCL_INSPECTOR_DUMP_DIR": str(self.folder),
                "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "500",  # else it writes nothing
            }
        own = {"PYTHONPATH": ":".join(paths), observer.DIRECTORY: str(self.folder)}
        return {name: value for name, value in dumps.items() if name not in given} | own

    def files(self) -> Mapping[str, bytes]:
        """What ranks have written, by name."""
        return _Files(self.folder)

    def steps(self) -> int:
        """Steps of the rank that has made most, over all starts."""
        counted: Counter[str] = Counter()
        for one in self.folder.glob("rank*.jsonl"):
            counted[one.name.partition(".")[0]] += one.read_text(errors="replace").count('["step"')
        return max(counted.values(), default=0)

    def wait(
        self,
        job: LaunchedJob,
        limit_s: float,
        stalled_after_s: float | None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> JobResult:
        """Wait for its end. Raises StalledError, after ranks were asked what they wait for;
        TimeLimitError. meanwhile: called again and again."""
        end = time.monotonic() + limit_s
        if stalled_after_s is not None:
            stalled_after_s = max(stalled_after_s, self.delay_s)
        size, grew = 0, time.monotonic()
        while True:
            try:
                return job.wait(min(_POLL_S, max(0.0, end - time.monotonic())))
            except TimeLimitError as error:
                now = time.monotonic()
                meanwhile()
                if (found := self._size(known=size > 0)) != size:
                    size, grew = found, now
                if stalled_after_s is not None and size and now - grew > stalled_after_s:
                    self._ask()
                    raise StalledError(f"no step for {stalled_after_s:g} s") from None
                if now >= end:
                    self._ask()
                    still = str(error).rpartition(" after ")[0]
                    raise TimeLimitError(f"{still} after {limit_s:g} s") from None

    def _size(self, *, known: bool) -> int:
        """Bytes of notes; 0 before the first step. known: whether there has been one."""
        notes = list(self.folder.glob("rank*.jsonl"))
        if known or any('["step"' in one.read_text(errors="replace") for one in notes):
            return sum(one.stat().st_size for one in notes)
        return 0

    def _ask(self) -> None:
        """Let the ranks write what they wait for, and NCCL what its ranks do."""
        (self.folder / "DUMP").touch()
        ranks = {one.name.partition(".")[0] for one in self.folder.glob("rank*.jsonl")}
        end = time.monotonic() + _DUMPED_S + self.delay_s
        if self.cluster is not None:
            self._ask_nccl(self.cluster)
        while time.monotonic() < end:
            if len(list(self.folder.glob("flight_recorder_rank_*"))) >= len(ranks):
                return
            time.sleep(_POLL_S)
        if self.cluster is not None:
            self._spy(self.cluster)

    def _places(self) -> dict[int, tuple[str, int]]:
        """Node and process of each rank's last start."""
        starts = (
            ([int(number) for number in re.findall(r"\d+", one.name)], one)
            for one in self.folder.glob("rank*.jsonl")
        )
        places = {}
        for rank, path in {rank: one for (rank, _), one in sorted(starts)}.items():
            with contextlib.suppress(OSError, TypeError, ValueError):
                [_, _, node, pid, *_] = json.loads(path.read_text().partition("\n")[0])
                places[rank] = node, pid
        return places

    def _ask_nccl(self, cluster: Nodes) -> None:
        for node in list(dict.fromkeys(node for node, _ in self._places().values()))[:_MOST_ASKED]:
            with contextlib.suppress(MnodeError, OSError):
                [said] = cluster.run(("sh", "-c", _RAS), node, timeout=_DUMPED_S)
                if said.ok and said.stdout.strip():
                    (self.folder / RAS_REPORT).write_text(said.stdout)
                    return

    def _spy(self, cluster: Nodes) -> None:
        """Stacks of ranks that cannot write them, as where C code keeps Python's lock: by py-spy,
        where it is installed."""
        places = self._places()
        stacks = {rank: self.folder / f"stack_rank_{rank}.txt" for rank in places}
        mute = [(rank, at) for rank, at in places.items() if not stacks[rank].exists()]
        for rank, (node, pid) in mute[:_MOST_SPIED]:
            with contextlib.suppress(MnodeError, OSError):
                argv = ("sh", "-c", _SPY, "sh", str(pid), str(rank))
                [dumped] = cluster.run(argv, node, timeout=_DUMPED_S)
                if dumped.ok:
                    stacks[rank].write_text(dumped.stdout)


@contextlib.contextmanager
def notes(cluster: Nodes) -> Iterator[Notes]:
    """A folder for the notes of a job, which is removed in the end."""
    folder = Path(tempfile.mkdtemp(prefix="observed-", dir=cluster.scratch))
    try:
        text = Path(observer.__file__).read_text(encoding="utf-8")
        (folder / "sitecustomize.py").write_text(text, encoding="utf-8")
        mount = mount_here(folder)
        yield Notes(folder, 0.0 if mount and mount.local else NFS_DELAY_S, cluster)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
