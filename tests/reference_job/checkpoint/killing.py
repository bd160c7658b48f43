"""Has every single step of saving fail, or kill the process: `python killing.py DIRECTORY`.

Steps are what the process asks of the file system, as told by audit events. Prints a line a step.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import signal
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch

from pytest_mnode.errors import CheckpointError
from pytest_mnode.rank.world import World
from pytest_mnode.reference_job.checkpoint import (
    Store,
    loading,  # noqa: F401  imports torch's part once
    saving,  # noqa: F401
)

ALONE = World(0, 1, 0, 1, "node0", ("node0",))
LIMIT = 200


def state(value: float) -> dict[str, Any]:
    return {"weight": torch.full((8, 8), value)}


def save(directory: Path, step: int, value: float) -> None:
    Store(directory, keep=2).save(state(value), step=step, world=ALONE)


def saved(directory: Path, number: int, step: int, value: float, kill: bool) -> str:
    """Fork, and save; kill it at that event, or have that fail. "ended" where it came not so far.

    "ignored": it failed, and saving did not.
    """
    pid = os.fork()
    if pid == 0:
        seen = 0

        def hook(event: str, args: tuple[Any, ...]) -> None:
            nonlocal seen
            if args and str(args[0]).startswith(str(directory)):
                seen += 1
                if seen == number and kill:
                    os.kill(os.getpid(), signal.SIGKILL)
                if seen == number:
                    raise OSError(errno.EIO, "Input/output error", str(args[0]))

        sys.addaudithook(hook)
        try:
            save(directory, step, value)
        except CheckpointError as error:
            os._exit(3 if "Input/output error" in str(error) else 1)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(4 if seen >= number else 0)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return "killed"
    return {0: "ended", 3: "failed", 4: "ignored"}[os.WEXITSTATUS(status)]


def main() -> None:
    warnings.simplefilter("ignore")
    base = Path(sys.argv[1])
    # A killed process takes nothing with it that it wrote, synced or not.
    os.fsync = lambda fd: None
    for old in (1, 2):
        save(base / "old", old, old)
    # A later step, and the same step again, which takes the place of a complete one.
    for kill, step in itertools.product((True, False), (3, 2)):
        for number in range(1, LIMIT):
            directory = base / f"{kill}-{step}-{number}"
            shutil.copytree(base / "old", directory)
            how = saved(directory, number, step, 9, kill)
            left = [path.name for path in directory.iterdir() if path.name.endswith(".partial")]
            assert how in ("killed", "ignored") or not left, left
            target = state(0)
            loaded = Store(directory).load(target, world=ALONE)
            assert loaded is not None
            value = float(target["weight"][0, 0])
            assert torch.equal(target["weight"], state(value)["weight"])
            save(directory, 4, 4)
            names = sorted(path.name for path in directory.iterdir())
            print(kill, step, number, how, loaded.step, value, " ".join(names), flush=True)
            if how == "ended":
                break


if __name__ == "__main__":
    main()
