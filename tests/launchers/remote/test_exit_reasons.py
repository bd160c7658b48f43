"""Reasons why the connection to a node ended, from the words of ssh and srun."""

from __future__ import annotations

import pytest

from pytest_mnode.launchers.dial_in.bridge import last_words
from pytest_mnode.launchers.remote.openssh import was_dropped, why_no_connection
from pytest_mnode.launchers.remote.run_all import with_remedy
from pytest_mnode.launchers.remote.stdio_bridge import why_late, why_over

CANCELLED = "*** STEP 17.3 ON n1 CANCELLED AT 2026-11-21T17:00:00 DUE TO TIME LIMIT ***"
LATE = "its Prolog is slow; raise --mnode-start-limit if it is slow"
NO_PYTHON = "execve(): /no/python: No such file or directory"


@pytest.mark.parametrize(
    ("code", "printed", "greeted", "line"),
    [
        (255, ["x", "n1: Permission denied."], False, "n1: Permission denied."),
        (255, [], False, "ssh ended and printed nothing"),
        (1, ["No shell."], False, "Python did not start on the node (status 1: No shell.)"),
        (None, [""], False, "Python did not start on the node (no status)"),
        (255, ["Broken pipe", ""], True, "the connection was lost: Broken pipe"),
        (255, [], True, "the connection was lost"),
    ],
)  # fmt: skip
def test_reason_of_an_ended_connection(
    code: int | None, printed: list[str], greeted: bool, line: str
) -> None:
    assert why_over(code, printed, greeted=greeted) == line


def test_a_missing_python_has_the_same_remedy_on_slurm() -> None:
    remedy = "name the Python of the nodes with --mnode-python"
    over_ssh = why_over(127, ["sh: no"], greeted=False)
    assert with_remedy(over_ssh).endswith(f"(status 127: sh: no); {remedy}")
    by_slurm = last_words(f"slurmstepd: error: {NO_PYTHON}\nsrun: error: n1: task 0: Exited")
    assert by_slurm == f"Python did not start on the node ({NO_PYTHON}); {remedy}"


@pytest.mark.parametrize("program", ["slurmstepd", "slurmstepd-n1"])
def test_slurms_reason_of_a_steps_end_comes_before_sruns(program: str) -> None:
    text = f"srun: Job step aborted\n{program}: error: {CANCELLED}\nsrun: error: n1: task 0: Killed"
    assert last_words(text) == f"Slurm says {CANCELLED.strip('* ')}"


KEX = "kex_exchange_identification: Connection closed by remote host"
NOBODY = "Connection closed by UNKNOWN port 65535"


@pytest.mark.parametrize(
    ("printed", "line", "dropped"),
    [
        ([], "", False),
        (["n1: Permission denied (publickey).", ""], "n1: Permission denied (publickey).", False),
        (["ssh: connect to host jump port 22: Connection refused\r", KEX, NOBODY],
         f"ssh: connect to host jump port 22: Connection refused ({NOBODY})", False),
        (["channel 0: open failed: connect failed: No route to host",
          "stdio forwarding failed", NOBODY],
         f"channel 0: open failed: connect failed: No route to host ({NOBODY})", False),
        # A jump host with too many connections, and a node with too many.
        ([KEX, "Connection closed by 10.0.0.9 port 22", KEX, NOBODY],
         f"Connection closed by 10.0.0.9 port 22 ({NOBODY})", True),
        # For a jump host ssh prints the banner, and a notice that its key is new.
        (["* Authorised users only. *", KEX], f"* Authorised users only. * ({KEX})", False),
        (["Warning: Permanently added 'gate' (ED25519) to the list of known hosts.",
          KEX, "Connection closed by 10.0.0.9 port 22", KEX, NOBODY],
         f"Connection closed by 10.0.0.9 port 22 ({NOBODY})", True),
        (["kex_exchange_identification: read: Connection reset by peer",
          "Connection reset by 10.0.0.9 port 22"], "Connection reset by 10.0.0.9 port 22", True),
        ([KEX, NOBODY], NOBODY, True),
        # A host that recognises the user and refuses.
        (["Connection closed by 10.0.0.9 port 22"], "Connection closed by 10.0.0.9 port 22", False),
    ],
)  # fmt: skip
def test_reason_of_a_failed_connection(printed: list[str], line: str, dropped: bool) -> None:
    assert why_no_connection(printed) == line
    assert was_dropped(printed) is dropped


@pytest.mark.parametrize(
    ("printed", "line"),
    [
        ([], f"no answer within 30 s: {LATE}"),
        (["Enter OTP: ", ""], f"no answer within 30 s (Enter OTP:): {LATE}"),
    ],
)  # fmt: skip
def test_a_failure_without_further_text(printed: list[str], line: str) -> None:
    assert why_late(30.0, printed, "its Prolog is slow") == line
