"""Makes every single step of saving fail, or kill the process; run by test_killed.py.

The steps are the audit events of file operations below the directory in argv[1]. Prints one line
of JSON per step.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import signal
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

from pytest_mnode.errors import CheckpointError
from pytest_mnode.reference_job.checkpoint import Store
from tests.reference_job.checkpoint.made import ALONE, loaded_value, save, state

LIMIT = 200


def saved(directory: Path, number: int, step: int, kill: bool) -> str:
    """Save in a child process; kill it at this event, or make the event fail.

    "ended": there is no such event. "ignored": the event failed, and saving did not.
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
            Store(directory).save(state(9), step=step, world=ALONE)
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
    # A killed process loses nothing that it has written, synced or not.
    os.fsync = lambda fd: None
    save(Store(base / "old"), 1, 2)
    # A later step, and the same step again, which replaces a complete checkpoint.
    for kill, step in itertools.product((True, False), (3, 2)):
        for number in range(1, LIMIT):
            directory = base / f"{kill}-{step}-{number}"
            shutil.copytree(base / "old", directory)
            how = saved(directory, number, step, kill)
            left = [path.name for path in directory.iterdir() if path.name.endswith(".partial")]
            assert how in ("killed", "ignored") or not left, left
            loaded, value = loaded_value(Store(directory))
            if how != "failed":  # which leaves nothing that a next one could remove
                save(Store(directory), 4)
            names = sorted(path.name for path in directory.iterdir())
            print(json.dumps([kill, step, how, loaded, value, names]), flush=True)
            if how == "ended":
                break


if __name__ == "__main__":
    main()
