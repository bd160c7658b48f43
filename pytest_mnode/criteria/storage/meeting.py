"""Where ranks meet that use one directory, and the directory, which is removed with them."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mnode.criteria.storage.files import error_text

if TYPE_CHECKING:
    from pytest_mnode.rank.world import World

PREFIX = ".mnode-storage-"
_STALE_S = 86400.0
"""Age of a directory that a killed run left, and that a later run removes."""
_POLL_S = 0.01
_POLL_OF_A_RANK_S = 1e-4
"""Between two looks of a rank, times the number of ranks: all ask one store."""
# It ignores the SIGTERM that ends processes of a killed run, and has a second before their SIGKILL.
GUARD = """
trap "" TERM HUP INT
read -r told || { rm -rf -- "$1"*; sleep 1; }
rm -rf -- "$1"*
"""


@dataclass(frozen=True, slots=True)
class Directory:
    """Where ranks read and write.

    name: of the directory, in `path`. shared: whether all nodes see one; else each has its own,
    with its rank behind the name. need_bytes: what each node
    writes at most; free_fraction: most of the free space that all together may use. seen_s: how
    long a new directory may be unseen by other nodes. limit_s: of each wait for the other ranks.
    seed: of this experiment alone.
    """

    path: str
    name: str
    shared: bool
    need_bytes: int
    free_fraction: float
    seen_s: float
    limit_s: float
    seed: int


UNSEEN = "does not see a directory that another node made"


class Unusable(Exception):
    """Why no rank can use a directory, by the nodes that say so."""

    def __init__(self, why: dict[str, str]) -> None:
        super().__init__(str(why))
        self.why = why


class CalledOff(Exception):
    """Another rank cannot go on."""


class Meeting:
    """The ranks of an experiment: they wait for each other, and tell each other short texts."""

    def __init__(self, place: Directory, world: World) -> None:
        from torch._C._distributed_c10d import TCPStore

        self.world, self._name = world, f"mnode-storage-{place.seed}"
        self._limit_s = place.limit_s
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self._store = TCPStore(address, port, None, False, timedelta(seconds=place.limit_s), False)
        self._count = 0

    def barrier(self) -> None:
        """Wait until all ranks are here. Raises CalledOff, or RuntimeError at the limit."""
        self._count += 1
        key = f"{self._name}/{self._count}"
        if self._store.add(key, 1) == self.world.size:
            self._store.set(f"{key}/all", "yes")
        self._await(f"{key}/all")

    def tell(self, key: str, text: str) -> None:
        self._store.set(f"{self._name}/{key}", text)

    def hear(self, key: str) -> str:
        """The text of another rank; waits for it as `barrier` does."""
        self._await(f"{self._name}/{key}")
        found: bytes = self._store.get(f"{self._name}/{key}")
        return found.decode()

    def all_of(self, text: str) -> list[str]:
        """The texts that all ranks give here, by rank."""
        self._count += 1
        key = f"all/{self._count}"
        self.tell(f"{key}/{self.world.rank}", text)
        return [self.hear(f"{key}/{rank}") for rank in range(self.world.size)]

    def call_off(self) -> None:
        """Have all other ranks stop, as this one cannot go on."""
        self.tell("off", "yes")

    def _await(self, key: str) -> None:
        off, pause_s = f"{self._name}/off", _POLL_OF_A_RANK_S * self.world.size
        end = time.monotonic() + self._limit_s
        while not self._store.check([key]):
            if self._store.check([off]):
                raise CalledOff
            if time.monotonic() > end:
                raise RuntimeError(f"other ranks did not come within {self._limit_s:g} s")
            time.sleep(pause_s)


@contextlib.contextmanager
def directory(place: Directory, meeting: Meeting) -> Iterator[Path]:
    """A new directory, of all ranks or of each rank; removed at the end, also after a kill.

    Raises Unusable, in all ranks, if one of them cannot use it.
    """
    with contextlib.ExitStack() as undo:
        world, problem = meeting.world, ""
        path = Path(place.path, place.name if place.shared else f"{place.name}-{world.rank}")
        if place.shared and world.rank:
            if meeting.hear("made") and until(path.is_dir, place.seen_s) is None:
                problem = UNSEEN
        else:
            try:
                undo.enter_context(_made(path, place, len(world.nodes) if place.shared else 1))
            except OSError as error:
                problem = error_text(error)
            if place.shared:
                meeting.tell("made", "" if problem else "yes")
        every = zip(world.nodes, meeting.all_of(problem), strict=True)
        if why := {node: text for node, text in every if text}:
            raise Unusable(why)
        yield path
        meeting.barrier()  # so that nobody uses it any more


@contextlib.contextmanager
def _made(path: Path, place: Directory, nodes: int) -> Iterator[None]:
    _remove_stale(Path(place.path))
    volume, need = os.statvfs(place.path), place.need_bytes * nodes
    free = volume.f_bavail * volume.f_frsize
    if need > place.free_fraction * free:
        raise OSError(
            0,
            f"{need} B are needed, more than {place.free_fraction:g} of the {free} B that are free",
        )
    with guarded(path, place.limit_s):
        path.mkdir(0o700)
        yield


@contextlib.contextmanager
def guarded(path: Path, limit_s: float) -> Iterator[None]:
    """Remove a directory, and others that begin like it, at the end: by a process that also sees
    the end of this one."""
    guard = subprocess.Popen(
        ["sh", "-c", GUARD, "sh", str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        yield
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            guard.communicate("ended\n", timeout=limit_s)


def _remove_stale(parent: Path) -> None:
    """Remove directories of runs whose machine was lost before they could."""
    for left in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _STALE_S:
                shutil.rmtree(left, ignore_errors=True)


def until(is_so: Callable[[], bool], limit_s: float) -> float | None:
    """Seconds until it is so; None if it never was."""
    began = time.monotonic()
    while not is_so():
        if time.monotonic() > began + limit_s:
            return None
        time.sleep(_POLL_S)
    return time.monotonic() - began
