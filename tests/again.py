"""Tests that failed beside others run once more, alone.

Of some thousand tests on two cores one misses a limit now and then, by what runs beside it. After
a pytest run with exit status STATUS, `python -m tests.again STATUS` runs what failed once more, one
test after another, and lists it: a test that passes only then is to be mended. Failures in more
than a few files are no accident, and do not run again. Files, since tests of one may share a run.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

MOST = 8
KEY = "mnode/failed"


class Failed:
    """pytest plugin that keeps which tests of a session, of all workers, have failed."""

    def __init__(self) -> None:
        self._failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        cache = getattr(session.config, "cache", None)  # none with -p no:cacheprovider
        if cache and not hasattr(session.config, "workerinput"):
            cache.set(KEY, sorted(self._failed))


def main(status: str) -> int:
    """Exit status of the tests that failed, or that of their session if it failed otherwise."""
    if int(status) != pytest.ExitCode.TESTS_FAILED:
        return int(status)
    failed = json.loads(Path(".pytest_cache/v", KEY).read_text(encoding="utf-8"))
    files = {name.partition("::")[0] for name in failed}
    if not 0 < len(files) <= MOST:
        print(f"tests of {len(files)} files failed; of at most {MOST} they run again alone")
        return int(status)
    print("failed beside others, and run again alone:", *failed, sep="\n  ", flush=True)
    return os.execv(sys.executable, [sys.executable, "-m", "pytest", "-rs", *failed])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
