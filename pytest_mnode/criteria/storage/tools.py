"""Rates of a node's files by fio or elbencho, or by the suite's own writer."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from pytest_mnode.criteria.storage import files
from pytest_mnode.criteria.storage.files import BLOCK, DIRECT, Moved, error_text
from pytest_mnode.logs.elbencho import read_elbencho
from pytest_mnode.logs.fio import read_fio

PROGRAMS = ("fio", "elbencho")


def installed() -> list[str]:
    """Those of `PROGRAMS` that are on the PATH."""
    return [name for name in PROGRAMS if shutil.which(name)]


def move(  # noqa: PLR0917  what is moved
    tool: str,
    kind: str,
    paths: Sequence[Path],
    each_bytes: int,
    seeds: Sequence[int],
    limit_s: float,
) -> Moved:
    """Write or read files, each by a thread."""
    if tool == "own":
        own = files.write_all if kind == "write" else files.read_all
        return own(paths, each_bytes, seeds)
    block = min(BLOCK, each_bytes)
    return _run(tool, kind, paths, each_bytes, block, None, limit_s)


def read_at_random(  # noqa: PLR0917  what is read
    tool: str,
    paths: Sequence[Path],
    each_bytes: int,
    seeds: Sequence[int],
    block_bytes: int,
    duration_s: float,
    limit_s: float,
) -> Moved:
    """Read blocks at random places, each file by a thread, for a time."""
    if tool == "own":
        return files.read_at_random(paths, each_bytes, seeds, block_bytes, duration_s)
    return _run(tool, "randread", paths, each_bytes, block_bytes, duration_s, limit_s)


def fio_command(
    kind: str, paths: Sequence[Path], each_bytes: int, block_bytes: int, duration_s: float | None
) -> list[str]:
    """Its command line: past the page cache, as its rate has no fsync in it.

    Its jobs are threads: processes would go on writing after fio itself is killed.
    """
    general = ["--thread", "--direct=1", "--ioengine=psync", "--fallocate=none", f"--rw={kind}"]
    sizes = [f"--bs={block_bytes}", f"--size={each_bytes}"]
    if duration_s is not None:
        sizes += ["--time_based", f"--runtime={max(1, round(duration_s))}"]
    safe = ["--end_fsync=1"] if kind == "write" else ["--readonly"]
    names = [str(path).replace(":", "\\:") for path in paths]
    jobs = [[f"--name=file{n}", f"--filename={name}"] for n, name in enumerate(names)]
    common = ["--name=global", *general, *sizes, *safe]
    return ["fio", "--output-format=json", *common, *chain(*jobs)]


def elbencho_command(  # noqa: PLR0917  what is moved
    kind: str,
    paths: Sequence[Path],
    each_bytes: int,
    block_bytes: int,
    duration_s: float | None,
    results: str,
) -> list[str]:
    """Its command line; results: a file for them, as CSV."""
    what = ["--write"] if kind == "write" else ["--read"]
    if duration_s is not None:
        what += ["--rand", f"--randamount={2**50}", f"--timelimit={max(1, round(duration_s))}"]
    sizes = [f"--threads={len(paths)}", f"--size={each_bytes}", f"--block={block_bytes}"]
    return [
        "elbencho",
        *what,
        *sizes,
        "--direct",
        "--nolive",
        f"--csvfile={results}",
        *map(str, paths),
    ]


def _run(  # noqa: PLR0917  what is moved
    tool: str,
    kind: str,
    paths: Sequence[Path],
    each_bytes: int,
    block_bytes: int,
    duration_s: float | None,
    limit_s: float,
) -> Moved:
    how = f"{DIRECT} by {tool}"
    try:
        with tempfile.TemporaryDirectory(prefix="mnode-") as made:
            results = Path(made, "results.csv")
            of = (kind, paths, each_bytes, block_bytes, duration_s)
            command = fio_command(*of) if tool == "fio" else elbencho_command(*of, str(results))
            done = subprocess.run(
                command,
                cwd=made,  # fio leaves files of its own there
                capture_output=True,
                text=True,
                errors="replace",
                timeout=limit_s,
                check=False,
            )
            csv = results.read_text(errors="replace") if results.exists() else ""
    except subprocess.TimeoutExpired:
        return Moved(how=how, error=f"{tool} did not end within {limit_s:g} s")
    except OSError as error:
        return Moved(how=how, error=error_text(error))
    size, time_s, why = _of_fio(kind, done) if tool == "fio" else _of_elbencho(kind, done, csv)
    return Moved(size, time_s, how, error=why)


def _of_fio(kind: str, done: subprocess.CompletedProcess[str]) -> tuple[int, float, str]:
    found = read_fio(done.stdout, done.stderr)
    moved = found.write if kind == "write" else found.read
    if found.errors or moved is None or done.returncode:
        why = "; ".join(found.errors) or f"status {done.returncode}, and nothing moved"
        return 0, 0.0, _said("fio", why)
    return moved.size_bytes, moved.time_s, ""


def _of_elbencho(
    kind: str, done: subprocess.CompletedProcess[str], csv: str
) -> tuple[int, float, str]:
    wanted = "WRITE" if kind == "write" else "READ"
    phase = next((one for one in read_elbencho(csv) if one.operation == wanted), None)
    if done.returncode or phase is None or not phase.bytes_s or not phase.time_s:
        said = [line for line in done.stderr.splitlines() if "error" in line.lower()]
        why = said[0].strip() if said else f"status {done.returncode}, and no {wanted} phase"
        return 0, 0.0, _said("elbencho", why)
    return round(phase.bytes_s * phase.time_s), phase.time_s, ""


def _said(tool: str, why: str) -> str:
    """What a program said, behind the name of the error that it means, as in `error_text`."""
    meant = [number for number in errno.errorcode if os.strerror(number) in why]
    meant.sort(key=lambda number: -len(os.strerror(number)))  # "No such device or address"
    return " ".join([*(errno.errorcode[number] for number in meant[:1]), f"{tool}: {why}"])
