"""Process descriptors (pidfd), in Python versions with and without the call."""

from __future__ import annotations

import errno
import os
import select
import subprocess

import pytest

from pytest_mnode.machine import pidfd
from pytest_mnode.machine.pidfd import pidfd_open


@pytest.fixture(params=["Python's own", "the system call"], autouse=True)
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "the system call":
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    elif not hasattr(os, "pidfd_open"):
        pytest.skip("this Python was built without it")


def test_a_pidfd_is_readable_once_its_process_has_ended() -> None:
    program = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    assert program.stdin is not None
    fd = pidfd_open(program.pid)
    try:
        assert not os.get_inheritable(fd)
        assert select.select([fd], [], [], 0)[0] == []
        program.stdin.close()
        assert select.select([fd], [], [], 10)[0] == [fd]
    finally:
        os.close(fd)
        program.wait()


def test_a_process_that_has_ended() -> None:
    program = subprocess.Popen(["true"])
    program.wait()
    with pytest.raises(ProcessLookupError):
        pidfd_open(program.pid)


def test_a_kernel_without_pidfd_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_such(pid: int) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    if hasattr(os, "pidfd_open"):
        monkeypatch.setattr(os, "pidfd_open", none_such)
    monkeypatch.setattr(pidfd, "NUMBER", 9999)
    with pytest.raises(OSError, match=r"Function not implemented: 'pidfd_open'") as raised:
        pidfd_open(os.getpid())
    assert raised.value.errno == errno.ENOSYS
