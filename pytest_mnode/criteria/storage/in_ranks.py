"""Experiments on storage, done by one rank of each node at the same time; each returns rows.

A rate is of one node. Its row has the repeat, and the path as its device. A row without a value has
the reason; one of metric `UNUSABLE` says why nothing was measured at all.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_mnode.criteria.storage import tools
from pytest_mnode.criteria.storage.files import (
    BLOCK,
    PAGE,
    Block,
    Moved,
    drop,
    error_text,
    read_all,
    read_block,
    write_all,
    write_block,
)
from pytest_mnode.criteria.storage.meeting import (
    CalledOff,
    Directory,
    Meeting,
    Unusable,
    directory,
    until,
)
from pytest_mnode.evidence.row import Row, row

if TYPE_CHECKING:
    from pytest_mnode.rank.world import World

UNUSABLE = "cannot be used"
WAITED = "waited"
_CHECKED_BYTES = 64 << 20
"""[choice] Bytes of a node whose content is compared where another program measured the rates."""
_FILE_BYTES = 1 << 20
"""[choice] Size of the files whose semantics are tried: many pages, and quick."""

Work = Callable[..., Iterator[Row]]


def run(work: Work, place: Directory, repeat: int, *, world: World) -> list[Row]:
    """The rows of one experiment in this rank, with its node, rank and path."""
    meeting = Meeting(place, world)
    about = {"node": world.node, "rank": world.rank, "device": place.path, "repeat": repeat}
    found: list[Row] = []
    try:
        with directory(place, meeting) as made:
            found.extend(work(made, meeting, place, repeat=repeat))
    except Unusable as error:
        why = error.why.get(world.node, "")
        found = [row(UNUSABLE, why=why), row(WAITED, place.seen_s, "s")] if why else []
    except CalledOff:
        pass  # the rank that did it says why
    except OSError as error:
        meeting.call_off()
        found.append(row(UNUSABLE, why=error_text(error)))
    return [_with(one, about) for one in found]


def _with(one: Row, about: dict[str, Any]) -> Row:
    return replace(one, **about)


def installed(*, world: World) -> list[str]:
    """The programs that this node has, of those that can measure."""
    del world
    return tools.installed()


def _seeds(place: Directory, rank: int, files: int) -> list[int]:
    return [(place.seed << 28) + (rank << 8) + number for number in range(files)]


def _files(made: Path, rank: int, number: int) -> list[Path]:
    return [made / f"{rank}.{one}" for one in range(number)]


def checkpoint(
    made: Path,
    meeting: Meeting,
    place: Directory,
    tool: str,
    threads: int,
    *,
    alone: bool = False,
    repeat: int,
) -> Iterator[Row]:
    """Write files on all nodes at once and read those of the next node; or on one node alone."""
    world, each = meeting.world, place.need_bytes // threads
    acts = not alone or world.rank == repeat % world.size
    mine = world.rank
    theirs = (mine + 1) % world.size if place.shared and not alone else mine
    for kind, whose in (("write", mine), ("read", theirs)):
        meeting.barrier()
        if acts:
            paths, seeds = _files(made, whose, threads), _seeds(place, whose, threads)
            moved = tools.move(tool, kind, paths, each, seeds, place.limit_s)
            yield from _rate(f"{kind} alone" if alone else kind, moved)
            if kind == "read" and tool == "own":
                yield _wrong(moved, world.nodes[whose])
    meeting.barrier()
    if tool == "own" or alone:
        return
    each = max(PAGE, min(each, _CHECKED_BYTES // threads) // PAGE * PAGE)
    write_all(_files(made, mine, threads), each, _seeds(place, mine, threads))
    meeting.barrier()
    again = read_all(_files(made, theirs, threads), each, _seeds(place, theirs, threads))
    yield _wrong(again, world.nodes[theirs])


def _rate(metric: str, moved: Moved) -> Iterator[Row]:
    value = moved.size_bytes / moved.time_s if moved.time_s and not moved.error else None
    yield row(metric, value, "B/s", why=moved.error, size_bytes=moved.size_bytes)
    yield row(f"{metric} how", moved.how)


def _wrong(moved: Moved, writer: str) -> Row:
    value = None if moved.error else moved.wrong
    return row("wrong pages", value, why=moved.error, size_bytes=moved.size_bytes, peer=writer)


def small_files(
    made: Path, meeting: Meeting, place: Directory, files: int, threads: int, *, repeat: int
) -> Iterator[Row]:
    """Create small files, look up those of another node, and remove the own ones."""
    del repeat
    world, content = meeting.world, os.urandom(PAGE)
    (made / str(world.rank)).mkdir()

    def create(path: str) -> None:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(file, content)
        os.close(file)

    theirs = (world.rank + 1) % world.size if place.shared else world.rank
    steps: tuple[tuple[str, int, Callable[[str], object]], ...] = (
        ("create", world.rank, create),
        ("stat", theirs, os.stat),
        ("delete", world.rank, os.unlink),
    )
    for name, whose, step in steps:
        meeting.barrier()
        names = [f"{made}/{whose}/{number}" for number in range(files)]
        shares = [names[first::threads] for first in range(min(threads, files))]
        began = time.perf_counter()
        with ThreadPoolExecutor(len(shares)) as pool:
            errors = [*pool.map(partial(_each, step), shares)]
        took_s = time.perf_counter() - began
        why = next(filter(None, errors), "")
        yield row(name, None if why else files / took_s, "/s", why=why)


def _each(step: Callable[[str], object], paths: Sequence[str]) -> str:
    """Do it with each path; the first error, "" if there was none."""
    try:
        for path in paths:
            step(path)
    except OSError as error:
        return error_text(error)
    return ""


def random_reads(  # noqa: PLR0917  a work
    made: Path,
    meeting: Meeting,
    place: Directory,
    tool: str,
    threads: int,
    block_bytes: int,
    duration_s: float,
    *,
    repeat: int,
) -> Iterator[Row]:
    """Read at random places of the files of the next node, for a time."""
    del repeat
    world, each = meeting.world, place.need_bytes // threads
    theirs = (world.rank + 1) % world.size if place.shared else world.rank
    mine = write_all(_files(made, world.rank, threads), each, _seeds(place, world.rank, threads))
    meeting.barrier()
    moved = (
        mine
        if mine.error
        else tools.read_at_random(
            tool,
            _files(made, theirs, threads),
            each,
            _seeds(place, theirs, threads),
            block_bytes,
            duration_s,
            place.limit_s,
        )
    )
    yield from _rate("random read", moved)
    if tool == "own":
        yield _wrong(moved, world.nodes[theirs])


def beside_collectives(  # noqa: PLR0917  a work
    made: Path,
    meeting: Meeting,
    place: Directory,
    tool: str,
    threads: int,
    size_bytes: int,
    *,
    repeat: int,
) -> Iterator[Row]:
    """Write a checkpoint by itself, run all-reduces by themselves for as long, and both at once."""
    del repeat
    world, each = meeting.world, place.need_bytes // threads
    paths, seeds = _files(made, world.rank, threads), _seeds(place, world.rank, threads)
    moved: list[Moved] = []

    def write() -> None:
        moved.append(tools.move(tool, "write", paths, each, seeds, place.limit_s))

    meeting.barrier()
    write()
    took_s = max(float(text) for text in meeting.all_of(f"{moved[0].time_s}"))
    _all_reduces(size_bytes, lambda: True)  # connects
    end = time.monotonic() + took_s
    alone_per_s = _all_reduces(size_bytes, lambda: time.monotonic() > end)
    meeting.barrier()
    writer = threading.Thread(target=write, name="mnode-writer")
    writer.start()
    beside_per_s = _all_reduces(size_bytes, lambda: not writer.is_alive())
    writer.join(place.limit_s)
    yield from _rate("write without collectives", moved[0])
    yield from _rate("write beside collectives", moved[-1])
    yield row("all-reduces without storage", alone_per_s, "/s", size_bytes=size_bytes)
    yield row("all-reduces beside storage", beside_per_s, "/s", size_bytes=size_bytes)


def _all_reduces(size_bytes: int, is_over: Callable[[], bool]) -> float:
    """All-reduces a second, until it is over in all ranks."""
    import torch
    import torch.distributed as dist

    device = "cpu" if dist.get_backend() == "gloo" else torch.accelerator.current_accelerator()
    values = torch.zeros(max(2, size_bytes // 4), device=device)
    calls, began = 0, time.perf_counter()
    while True:
        values[-1] = float(is_over())
        dist.all_reduce(values)
        calls += 1
        if values[-1].item() >= dist.get_world_size():
            return calls / (time.perf_counter() - began)


def renames(
    made: Path, meeting: Meeting, place: Directory, rounds: int, *, repeat: int
) -> Iterator[Row]:
    """Each node in turn writes a file, renames it over the one before, and says so."""
    del repeat
    world, path = meeting.world, made / "latest"
    for number in range(rounds):
        writer, wanted = number % world.size, f"{place.seed} {number}"
        before = _text(path)  # what this node keeps of it in memory is old from now on
        meeting.barrier()
        if world.rank == writer:
            part = made / "latest.part"
            part.write_text(wanted)
            with part.open("rb+") as file:
                os.fsync(file.fileno())
            part.rename(path)
            meeting.tell(f"renamed/{number}", "yes")
            continue
        meeting.hear(f"renamed/{number}")
        odd: set[str] = set()

        def sees() -> bool:
            found = _text(path)
            odd.update({found} - {before, wanted, ""})  # noqa: B023  called at once
            return found == wanted  # noqa: B023

        began = time.monotonic()
        seen_s = until(sees, place.seen_s)
        waited_s = time.monotonic() - began if seen_s is None else seen_s
        peer = world.nodes[writer]
        yield row("renamed file seen", waited_s, "s", peer=peer)
        yield row("renamed file with other content", len(odd), peer=peer)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError as error:
        return "" if isinstance(error, FileNotFoundError) else error_text(error)


def locks(
    made: Path, meeting: Meeting, place: Directory, kinds: Sequence[str], *, repeat: int
) -> Iterator[Row]:
    """The first node locks a file, the others try to; then it lets go, and they take turns."""
    del place, repeat
    world = meeting.world
    for kind in kinds:
        lock = fcntl.flock if kind == "flock" else fcntl.lockf
        with (made / kind).open("a+b") as file:
            meeting.barrier()
            held = meeting.all_of("" if world.rank else _taken(lock, file))[0]
            if world.rank:
                found = _taken(lock, file)
                yield row(f"{kind} that another node holds", found, peer=world.nodes[0])
            else:
                yield row(f"{kind} of an unlocked file", held)
            meeting.barrier()
            _released(lock, file)
            for turn in range(1, world.size):
                meeting.barrier()
                if turn == world.rank:
                    yield row(f"{kind} of an unlocked file", _taken(lock, file))
                    _released(lock, file)
            meeting.barrier()


def _released(lock: Callable[[Any, int], None], file: Any) -> None:
    with contextlib.suppress(OSError):  # where none was given
        lock(file, fcntl.LOCK_UN)


def _taken(lock: Callable[[Any, int], None], file: Any) -> str:
    """Whether a lock is granted or refused, or its error."""
    try:
        lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # fcntl may say either
        return "refused"
    except OSError as error:
        return error_text(error)
    return "granted"


def replaced(made: Path, meeting: Meeting, place: Directory, *, repeat: int) -> Iterator[Row]:
    """The first node replaces a file that the others have read half of."""
    del repeat
    world, path = meeting.world, made / "file"
    old, new = _seeds(place, 0, 2)
    if world.rank == 0:
        _write_whole(path, old)
    meeting.barrier()
    if world.rank == 0:
        meeting.barrier()
        _write_whole(made / "part", new)
        (made / "part").rename(path)
        meeting.barrier()
        return
    if until(path.exists, place.seen_s) is None:
        meeting.barrier()
        meeting.barrier()
        yield row("replaced file read on", why="it was never seen", peer=world.nodes[0])
        return
    half, block = _FILE_BYTES // 2, Block(_FILE_BYTES // 2, old)
    with path.open("rb", buffering=0) as file:
        read_block(file.fileno(), block, 0, half)
        meeting.barrier()
        meeting.barrier()
        found = "whole"
        try:
            drop(file.fileno())
            count = read_block(file.fileno(), block, half, half)
            wrong = block.wrong(half // PAGE, count) + (half - count) // PAGE
            if wrong:
                found = f"{wrong} of {half // PAGE} pages with other content"
        except OSError as error:
            found = error_text(error)
    yield row("replaced file read on", found, peer=world.nodes[0])
    fresh = Block(_FILE_BYTES, new)

    def is_new() -> bool:
        with path.open("rb", buffering=0) as file:
            count = read_block(file.fileno(), fresh, 0, _FILE_BYTES)
        return count == _FILE_BYTES and not fresh.wrong(0, count)

    seen_s = until(is_new, place.seen_s)
    anew = "new" if seen_s is not None else "old or mixed"
    yield row("replaced file opened anew", anew, peer=world.nodes[0])


def _write_whole(path: Path, seed: int, size_bytes: int = _FILE_BYTES) -> None:
    """Write a file, sync and close it. Raises OSError."""
    block = Block(min(BLOCK, size_bytes), seed)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        for place in range(0, size_bytes, BLOCK):
            write_block(file, block, place, min(BLOCK, size_bytes - place))
        os.fsync(file)
    finally:
        os.close(file)


def exceeded(
    made: Path, meeting: Meeting, place: Directory, limit_bytes: int, *, repeat: int
) -> Iterator[Row]:
    """Write a checkpoint, then one that is larger than the path's limit, beside it."""
    del repeat
    if meeting.world.rank and place.shared:
        return
    volume = os.statvfs(made)
    size, free = volume.f_blocks * volume.f_frsize, volume.f_bavail * volume.f_frsize
    most = (limit_bytes + limit_bytes // 10) // PAGE * PAGE
    fills = most + most // 10 > free
    if fills and size > limit_bytes + limit_bytes // 4:
        why = f"it would fill a file system of {size} B, which is not limited to {limit_bytes} B"
        yield row("error of a checkpoint that exceeds the limit", why=why)
        return
    old, part = made / "old", made / "part"
    old_bytes = max(PAGE, limit_bytes // 20 // PAGE * PAGE)
    try:
        _write_whole(old, place.seed, old_bytes)
    except OSError as error:
        why = f"not even {old_bytes} B could be written: {error_text(error)}"
        yield row("error of a checkpoint that exceeds the limit", why=why)
        return
    found = "none"
    try:
        _write_whole(part, place.seed + 1, most)
    except OSError as error:
        found = error_text(error)
    yield row("error of a checkpoint that exceeds the limit", found, size_bytes=most)
    moved = read_all([old], old_bytes, [place.seed])
    intact = moved.error or ("whole" if not moved.wrong else f"{moved.wrong} wrong pages")
    yield row("checkpoint before it", intact, size_bytes=old_bytes)
    part.unlink(missing_ok=True)
    again = "none"
    try:
        _write_whole(made / "next", place.seed + 2, old_bytes)
    except OSError as error:
        again = error_text(error)
    yield row("error of the next checkpoint", again, size_bytes=old_bytes)
