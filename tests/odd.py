"""`python -m tests.odd CONDITION[,…] COMMAND` runs it as on a machine that is not like ours.

The command starts in the root of the repository, so that `.venv/bin/python` is the environment's.
Needs root. Nothing changes for other processes: mounts, users and limits are those of namespaces
that end with the command.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pytest_mnode.machine import namespaces
from pytest_mnode.machine.namespaces import MS_BIND, MS_PRIVATE, MS_REC, NEWNS, mount

ROOT = Path(__file__).parents[1]
UID = 4321
QUOTED = "a b'c\"d"
_MS_RDONLY = 1
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_PR_CAPBSET_DROP = 24
# Of chown to setpcap, net_bind_service, net_raw, sys_chroot, mknod, audit_write and setfcap.
_OF_CONTAINERS = {*range(2), *range(3, 9), 10, 13, 18, 27, 29, 31}
_SYS_SOCKET = {"x86_64": 41, "aarch64": 198}
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Odd:
    """What was asked for. `own` is a directory that is removed after the command."""

    names: frozenset[str]
    own: Path

    @property
    def uid(self) -> int:
        return UID if self.names & {"ordinary", "nouserns"} else 0

    def directory(self, path: Path) -> Path:
        """A new directory of the user for whom the command runs."""
        path.mkdir(parents=True)
        os.chown(path, self.uid, self.uid)
        return path


Condition = Callable[[Odd], None]
CONDITIONS: dict[str, Condition] = {}
"""By name, in the order in which they are applied: rights are given up last."""


def condition(function: Condition) -> Condition:
    CONDITIONS[function.__name__] = function
    return function


@condition
def busy(_: Odd) -> None:
    """Two processes use all CPU time they get."""
    command = os.pidfd_open(os.getpid())
    if os.fork() == 0:
        if os.fork() == 0:
            os.fork()
            while not select.select([command], [], [], 0)[0]:
                sum(range(1_000_000))
        os._exit(0)
    os.wait()
    os.close(command)


@condition
def path(_: Odd) -> None:
    """PATH has nothing but Python and /usr/bin."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}:/usr/bin"


@condition
def locale(_: Odd) -> None:
    """The locale is C."""
    for name in [name for name in os.environ if name.startswith(("LC_", "LANG"))]:
        del os.environ[name]
    os.environ |= {"LANG": "C", "LC_ALL": "C"}


@condition
def long(odd: Odd) -> None:
    """TMPDIR has 120 characters."""
    os.environ["TMPDIR"] = str(odd.directory(odd.own / ("long" * 30)[: 119 - len(str(odd.own))]))
    assert len(os.environ["TMPDIR"]) == 120


@condition
def quoted(odd: Odd) -> None:
    """There are a blank and both quotes in TMPDIR and in the path of the repository."""
    os.environ["TMPDIR"] = str(odd.directory(odd.own / QUOTED / "tmp"))
    tree = odd.directory(odd.own / QUOTED / "tree")
    # Installed in place: the environment names the directory of the package.
    for pth in ROOT.glob(".venv/lib/python*/site-packages/*.pth"):
        if str(ROOT) in pth.read_text():
            moved = odd.own / pth.name
            moved.write_text(pth.read_text().replace(str(ROOT), str(tree)))
            mount(str(moved), str(pth), flags=MS_BIND)
    mount(str(ROOT), str(tree), flags=MS_BIND | MS_REC)
    os.chdir(tree)


@condition
def home(odd: Odd) -> None:
    """HOME is read-only."""
    place = odd.directory(odd.own / "home")
    mount("home", str(place), "tmpfs", _MS_RDONLY)
    os.environ["HOME"] = str(place)


@condition
def noipv6(_: Odd) -> None:
    """The kernel has no IPv6."""
    load, equal, give = 0x20, 0x15, 0x06  # BPF_LD | W | ABS, BPF_JMP | JEQ | K, BPF_RET | K
    program = [  # code, jump if true, jump if false, operand
        (load, 0, 0, 0),  # the number of the system call
        (equal, 0, 3, _SYS_SOCKET[os.uname().machine]),
        (load, 0, 0, 16),  # its first argument
        (equal, 0, 1, socket.AF_INET6),
        (give, 0, 0, 0x0005_0000 | errno.EAFNOSUPPORT),  # SECCOMP_RET_ERRNO
        (give, 0, 0, 0x7FFF_0000),  # SECCOMP_RET_ALLOW
    ]
    filters = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    whole = ctypes.create_string_buffer(struct.pack("HP", len(program), ctypes.addressof(filters)))
    if _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(whole), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_SECCOMP)")


@condition
def background(_: Odd) -> None:
    """No terminal, standard input is closed, and SIGINT, SIGQUIT and SIGHUP are ignored."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.setsid()
    os.close(0)


@condition
def container(_: Odd) -> None:
    """Root of a container: it may not mount, nor make namespaces."""
    _forbid_user_namespaces()
    for number in range(64):
        if number not in _OF_CONTAINERS:
            _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)


@condition
def nouserns(odd: Odd) -> None:
    """An ordinary user, who cannot make user namespaces."""
    _show_to_all(odd)
    _forbid_user_namespaces()
    _become(odd.uid)


@condition
def ordinary(odd: Odd) -> None:
    """An ordinary user, who can make user namespaces."""
    _show_to_all(odd)
    _become(odd.uid)


def _forbid_user_namespaces() -> None:
    """A limit holds for a namespace and all below it, and so for this command alone."""
    namespaces.become_root()
    Path("/proc/sys/user/max_user_namespaces").write_text("0")


def _show_to_all(odd: Odd) -> None:
    """Python, wherever it is; and a user with a name and a home."""
    for place in sorted({sys.base_prefix, sys.prefix, str(ROOT)}, key=len):
        way = [Path(place), *Path(place).parents]
        if shut := [step for step in way if step.stat().st_mode & 5 != 5]:
            fd = os.open(place, os.O_PATH)
            mount("open", str(shut[-1]), "tmpfs", 0, "mode=755")
            Path(place).mkdir(parents=True)
            mount(f"/proc/self/fd/{fd}", place, flags=MS_BIND | MS_REC)
            os.close(fd)
    if "home" not in odd.names:
        os.environ["HOME"] = str(odd.directory(odd.own / "home"))
    user = f"ordinary:x:{odd.uid}:{odd.uid}::{os.environ['HOME']}:/bin/sh"
    passwd = odd.own / "passwd"
    passwd.write_text(f"{Path('/etc/passwd').read_text()}{user}\n")
    mount(str(passwd), "/etc/passwd", flags=MS_BIND)
    os.environ |= {"USER": "ordinary", "LOGNAME": "ordinary"}


def _become(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def main(words: list[str]) -> int:
    names = frozenset(words[0].split(",")) if words else frozenset()
    if not names or not words[1:] or names - CONDITIONS.keys():
        table = "\n".join(f"  {name:12}{made.__doc__}" for name, made in CONDITIONS.items())
        print(f"{(__doc__ or '').splitlines()[0]}\n\n{table}", file=sys.stderr)
        return 2
    own = Path(tempfile.mkdtemp(prefix="odd-"))
    own.chmod(0o755)
    child = os.fork()
    if child == 0:
        os.chdir(ROOT)
        namespaces.unshare(NEWNS)
        mount("none", "/", flags=MS_REC | MS_PRIVATE)
        for name, made in CONDITIONS.items():
            if name in names:
                made(Odd(names, own))
        os.execvp(words[1], words[1:])
    # The command gets the terminal's signals itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: os.kill(child, number))
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        shutil.rmtree(own, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
