"""Reasons why the connection to a node ended, from the words of ssh and srun."""

from __future__ import annotations

import pytest

from pytest_mnode.launchers.cleanup.ssh_connections import was_dropped, why_no_connection
from pytest_mnode.launchers.node import CommandResult
from pytest_mnode.launchers.remote.remote_proxy import why_given_up, why_it_ended
from pytest_mnode.launchers.remote.run_all import why_no_report

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
        (1, ["srun: error: Unable to create step: x"], False, "srun: Unable to create step: x"),
        # A step that Slurm ended is no lost connection.
        (143, ["srun: error: n1: task 0: Terminated"], True, "srun: n1: task 0: Terminated"),
        (1, ["srun: Force Terminated StepId=17.3"], True, "srun: Force Terminated StepId=17.3"),
        (None, [f"slurmstepd: error: {CANCELLED}", "srun: error: n1: task 0: Terminated"], True,
         f"Slurm says {CANCELLED.strip('* ')}"),
        (None, ["srun: Job step aborted: Waiting", f"slurmstepd-n1: error: {CANCELLED}"], False,
         f"Slurm says {CANCELLED.strip('* ')}"),
        (2, [f"slurmstepd: error: {NO_PYTHON}", "srun: error: n1: task 0: Exited with 2"], False,
         f"Python did not start on the node ({NO_PYTHON})"),
    ],
)  # fmt: skip
def test_reason_of_an_ended_connection(
    code: int | None, printed: list[str], greeted: bool, line: str
) -> None:
    assert why_it_ended(code, printed, greeted) == line


def test_a_missing_python_has_the_same_remedy_on_slurm() -> None:
    line = why_it_ended(2, [f"slurmstepd: error: {NO_PYTHON}"], False)
    why = why_no_report(CommandResult("n1", 255, "", f"n1: {line}\n", 0.1), 60.0)
    assert why.startswith(f"Python did not start on the node ({NO_PYTHON}); name the Python of the")


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
    ("printed", "greeted", "line"),
    [
        ([], False, f"no answer within 30 s: {LATE}"),
        (["Enter OTP: ", ""], False, f"no answer within 30 s (Enter OTP:): {LATE}"),
        (["srun: Job 17 step creation temporarily disabled, retrying"], False,
         "no answer within 30 s (srun: Job 17 step creation temporarily disabled, retrying): "
         f"{LATE}"),
        (["x"], True, "the connection was lost: no data for 30 s"),
    ],
)  # fmt: skip
def test_a_failure_without_further_text(printed: list[str], greeted: bool, line: str) -> None:
    slow = "its Prolog is slow"
    assert why_given_up(30.0, printed, greeted, slow) == line
