"""The manifest of a run: which tests of criteria it collected, and which have no result of one run.

Pure. A certificate holds for all tests of its suite, so each that is missing is named.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import NonNegativeInt
from pydantic.dataclasses import dataclass

from pytest_mnode.launchers.node import count
from pytest_mnode.measurement import listed

_MOST_NAMED = 4


@dataclass(frozen=True)
class Manifest:
    """The tests of criteria that pytest made while it collected, before anything left one out.

    collected: their number. deselected: ids that options, or plugins that announced it, left out.
    removed: ids that a plugin or a conftest.py took away without a word. not_run: ids of the others
    that have no result, or one without a run of the test. repeated: ids that ran more than once,
    without a plugin's report of a rerun, so that an earlier result may be lost.
    """

    collected: NonNegativeInt = 0
    deselected: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    not_run: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()

    def reasons(self, ended_early: bool) -> Iterator[str]:
        """Why it is no manifest of a whole run. ended_early: whether another reason, which is given
        elsewhere, explains tests that have no result."""
        for tests, text in (
            (self.deselected, "deselected"),
            (self.removed, "removed by a plugin or conftest.py, without announcing it"),
            (() if ended_early else self.not_run, "not run (a plugin?)"),
            (self.repeated, "run more than once, by no plugin that reports reruns"),
        ):
            if tests:
                named = listed([test.rpartition("/")[2] for test in tests], _MOST_NAMED, ", ")
                yield f"{count(len(tests), 'test')} {text}: {named}"
