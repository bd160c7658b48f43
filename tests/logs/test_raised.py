"""Exceptions at the end of tracebacks, whatever their class and whatever stands before a line."""

from __future__ import annotations

import pytest

from pytest_mnode.logs.causes import causes

TRACEBACK = 'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\n    main()\n'
STAMPED = "10/21/2026 11:30:{} - ERROR - __main__ - rank {} - {}\n"


def prefixed(prefix: str, text: str) -> str:
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


def stamped(rank: int, text: str) -> list[str]:
    return [STAMPED.format(41 + at, rank, line) for at, line in enumerate(text.splitlines())]


BUILD = TRACEBACK + "datasets.utils.BuildFailure: index map is missing\n"
TWO = zip(stamped(3, BUILD), stamped(4, BUILD.replace("Build", "Read")), strict=True)
SAVED = BUILD.replace("last):", "last): (RANK 6)")
BOTH = zip(stamped(3, SAVED), stamped(4, SAVED), strict=True)


@pytest.mark.parametrize(
    ("text", "culprits"),
    [
        (prefixed("[rank6]: ", BUILD), ["rank 6"]),
        (prefixed("pt-worker-3 pytorch [rank24]: ", BUILD), ["rank 24"]),
        (prefixed("  1%|1  | 7/99 [45:39<51:20, 1.8s/it][rank2]: ", BUILD), ["rank 2"]),
        ("".join(line for pair in TWO for line in pair), ["rank 3", "rank 4"]),
        ("".join(line for pair in BOTH for line in pair), ["rank 6"]),
        (f"x.py:3 -- Raise exception from f36 with rank id: 3\n{BUILD}", ["rank 3"]),
        (f"| ERROR | train:33 - [rank 5] An error has been caught in 'main'\n{BUILD}", ["rank 5"]),
        (f"-- Process 5 terminated with the following error:\n{BUILD}", ["rank 5"]),
        (f"INFO rank 5 of 8 is ready\n{BUILD}", [""]),
        (
            "[rank1]:   + Exception Group Traceback (most recent call last):\n"
            "[rank1]:   | ExceptionGroup: errors in a TaskGroup (1 sub-exception)\n"
            "[rank1]:     | ValueError: bad shard 12\n",
            ["rank 1"],
        ),
        (TRACEBACK + "StopIteration\n", [""]),
        # What stands below without a traceback, or ends one that goes on elsewhere, is none.
        ("datasets.utils.BuildFailure: index map is missing\n", []),
        (f"{TRACEBACK}step 3\nBuildFailure: index map is missing\n", []),
        (f"{TRACEBACK}SystemExit: 0\n", []),
        (f"Exception ignored in: <function Loader.__del__ at 0x7f>\n{BUILD}", []),
        (f"Exception ignored in: <x>\n{prefixed('[rank6]: ', BUILD)}", ["rank 6"]),
        (f"{TRACEBACK}Training:  3%|#\n", []),
    ],
)
def test_the_exception_and_its_rank(text: str, culprits: list[str]) -> None:
    found = [one for one in causes(text) if one.name == "Python error"]
    assert [one.culprit for one in found] == culprits
    assert all(one.line in text for one in found)


def test_an_exception_that_is_known_is_that_cause() -> None:
    text = "".join(stamped(3, TRACEBACK + "MemoryError\n"))
    [one] = causes(text)
    assert (one.name, one.culprit) == ("host out of memory", "rank 3")
    assert causes(TRACEBACK + "KeyboardInterrupt\n")[0].name == "ended by the launcher"
