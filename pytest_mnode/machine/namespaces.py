"""Linux namespaces by system call: leave them, enter them, and mount file systems in them.

Python has `os.unshare` and `os.setns` only from 3.12, hence ctypes. Imports only the standard
library and nothing of this package, so that programs that use it start fast. Every failure is an
OSError whose file name is the step that failed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
from collections.abc import Iterator, Sequence

NEWNS = 0x00020000
NEWUTS = 0x04000000
NEWIPC = 0x08000000
NEWUSER = 0x10000000
NEWPID = 0x20000000
NEWNET = 0x40000000
KINDS = {"user": NEWUSER, "net": NEWNET, "uts": NEWUTS, "ipc": NEWIPC, "mnt": NEWNS, "pid": NEWPID}
"""Names as in /proc/PID/ns, in the order of entry: the user namespace grants the other rights."""
NODE_KINDS = ("net", "uts", "ipc", "mnt", "pid")
RACK_KINDS = ("net", "ipc", "mnt", "pid")

MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2
GROUP_PREFIX = "mnode-"
PR_SET_PDEATHSIG = 1
_LIMITS = {value for name, value in vars(resource).items() if name.startswith("RLIMIT_")}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = [ctypes.c_char_p] * 3 + [ctypes.c_ulong, ctypes.c_char_p]
_libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4


def _check(result: int, step: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), step)


def _names(flags: int) -> str:
    return "+".join(kind for kind, flag in KINDS.items() if flags & flag)


def unshare(flags: int) -> None:
    """Leave namespaces for fresh ones; a fresh PID namespace starts with the next child."""
    _check(_libc.unshare(flags), f"unshare({_names(flags)})")


def setns(fd: int, flag: int) -> None:
    """Enter the namespace behind `fd`; a PID namespace is entered by the next child."""
    _check(_libc.setns(fd, flag), f"setns({_names(flag)})")


def mount(
    source: str, target: str, kind: str | None = None, flags: int = 0, data: str | None = None
) -> None:
    """mount(2)."""
    _check(
        _libc.mount(
            os.fsencode(source),
            os.fsencode(target),
            kind.encode() if kind else None,
            flags,
            data.encode() if data else None,
        ),
        f"mount {kind or source} on {target}",
    )


def unmount(target: str) -> None:
    """Remove the uppermost mount from `target`; its bind mounts elsewhere stay."""
    _check(_libc.umount2(os.fsencode(target), MNT_DETACH), f"unmount {target}")


def set_hostname(name: str) -> None:
    """sethostname(2)."""
    encoded = name.encode()
    _check(_libc.sethostname(encoded, len(encoded)), f"sethostname({name})")


def die_with_parent(signal_number: int = signal.SIGKILL) -> None:
    """Have the kernel send this signal when the thread that forked this process ends.

    A parent that ended before this call goes unnoticed: the caller must check for that.
    """
    _check(_libc.prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def leave_host(rootless: bool) -> None:
    """Leave the host's network, mounts, IPC and, for the next child, its processes.

    With `rootless`, this happens in a fresh user namespace, in which the caller is root.
    """
    if rootless:
        become_root()
    unshare(NEWNET | NEWNS | NEWIPC | NEWPID)
    # Without this, mounts made from here on would show up on the host.
    mount("none", "/", flags=MS_REC | MS_PRIVATE)


def become_root() -> None:
    """Enter a fresh user namespace as its root."""
    uid, gid = os.geteuid(), os.getegid()
    if uid != 0:
        unshare(NEWUSER)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"0 {uid} 1")
        _write("/proc/self/gid_map", f"0 {gid} 1")
        return
    # Root maps all users, so that files keep their owners. Only a process outside the new
    # namespace has the right to write such a map.
    target = os.getpid()
    maps = {kind: _identity_map(f"/proc/self/{kind}") for kind in ("uid_map", "gid_map")}
    ready_read, ready_write = os.pipe()
    helper = os.fork()
    if helper == 0:
        try:
            os.close(ready_write)
            if os.read(ready_read, 1):
                for kind, text in maps.items():
                    _write(f"/proc/{target}/{kind}", text)
                os._exit(0)
        finally:
            os._exit(1)
    os.close(ready_read)
    try:
        unshare(NEWUSER)
        os.write(ready_write, b"x")
    finally:
        os.close(ready_write)
        _, status = os.waitpid(helper, 0)
    if status != 0:
        raise PermissionError(1, os.strerror(1), "write /proc/PID/uid_map")


def _identity_map(path: str) -> str:
    with open(path, encoding="ascii") as file:  # noqa: PTH123  pathlib costs 10 ms at start-up
        ranges = [line.split() for line in file]
    return "\n".join(f"{inside} {inside} {count}" for inside, _, count in ranges)


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def enter(pid: int) -> None:
    """Enter the node whose first process is `pid`: network, name, IPC, mounts and processes.

    The caller's next child is in the node's PID namespace; the caller itself cannot be. Keeps
    the working directory if the node has it too, else changes to `/`. The caller must be
    single-threaded, and in the rack's user namespace. Raises ProcessLookupError or
    FileNotFoundError if there is no such process (any more).
    """
    enter_kinds(pid, NODE_KINDS)


def enter_kinds(pid: int, kinds: Sequence[str], start_time: int | None = None) -> None:
    """Enter these namespaces of `pid`, after its user namespace if that differs from the caller's.

    start_time: result of `process_start` for the intended process; if a later process has the same
    pid, ProcessLookupError is raised.
    """
    directory = os.getcwd()  # noqa: PTH109
    wanted = list(kinds)
    if not _same_user_namespace(pid):
        wanted.insert(0, "user")
    with contextlib.ExitStack() as stack:
        files = []
        for kind in wanted:
            files.append((_opened(stack, pid, kind), KINDS[kind]))
        # Checked after opening, to detect that another process got the pid before.
        if start_time is not None and process_start(pid) != start_time:
            raise ProcessLookupError(3, os.strerror(3), f"process {pid} of that time")
        _take_on(pid)
        for fd, flag in files:
            setns(fd, flag)
    try:
        os.chdir(directory)  # entering a mount namespace moved the caller to /
    except OSError:
        os.chdir("/")


def _opened(stack: contextlib.ExitStack, pid: int | str, kind: str) -> int:
    """Descriptor of a namespace of a process, closed with the stack."""
    fd = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
    stack.callback(os.close, fd)
    return fd


def _take_on(pid: int) -> None:
    """Join the control groups of `pid`, and lower own limits, CPUs and priority to those of `pid`.

    They belong to a node as its namespaces do: they bind every process that enters it.
    """
    own, theirs = _groups("self"), _groups(str(pid))
    for hierarchy, group in theirs.items():
        if own.get(hierarchy) == group:
            continue
        mount, last = _hierarchy_mount(hierarchy), group.rpartition("/")[2]
        if last.startswith(GROUP_PREFIX):
            _write(f"{mount}/{last}/cgroup.procs", "0")
        else:  # somebody else's, which a container may not see
            with contextlib.suppress(OSError):
                _write(f"{mount}{group}/cgroup.procs", "0")
    for kind in _LIMITS:
        ours = resource.getrlimit(kind)
        least = tuple(map(_lower, ours, resource.prlimit(pid, kind)))
        if least != ours:
            resource.setrlimit(kind, (least[0], least[1]))
    own_cpus, cpus = os.sched_getaffinity(0), os.sched_getaffinity(pid)
    if not own_cpus <= cpus:
        os.sched_setaffinity(0, own_cpus & cpus or cpus)
    if (nice := os.getpriority(os.PRIO_PROCESS, pid)) > os.getpriority(os.PRIO_PROCESS, 0):
        os.setpriority(os.PRIO_PROCESS, 0, nice)


def _groups(pid: str) -> dict[str, str]:
    """Group of a process by hierarchy ("cpu,cpuacct", or "" for version 2)."""
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8") as file:  # noqa: PTH123
            lines = file.read().splitlines()
    except OSError:  # a kernel without control groups
        return {}
    return {names: group for _, names, group in (line.split(":", 2) for line in lines)}


def _hierarchy_mount(names: str) -> str:
    """Mount point of a hierarchy, on a machine with version 1, with version 2, or with both."""
    if names:
        return f"/sys/fs/cgroup/{names}"
    unified = "/sys/fs/cgroup/unified"
    return unified if os.path.isdir(unified) else "/sys/fs/cgroup"  # noqa: PTH112


def _lower(one: int, other: int) -> int:
    if resource.RLIM_INFINITY in (one, other):
        return other if one == resource.RLIM_INFINITY else one
    return min(one, other)


def _same_user_namespace(pid: int) -> bool:
    return os.stat(f"/proc/{pid}/ns/user").st_ino == os.stat("/proc/self/ns/user").st_ino  # noqa: PTH116


@contextlib.contextmanager
def network_of(pid: int) -> Iterator[None]:
    """Sockets opened in this block belong to the network namespace of process `pid`."""
    with contextlib.ExitStack() as stack:
        home, there = (_opened(stack, who, "net") for who in ("self", pid))
        setns(there, NEWNET)
        stack.callback(setns, home, NEWNET)
        yield


def process_start(pid: int) -> int:
    """Start time of `pid` in clock ticks since boot; pid and start time together are unique."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
        text = file.read()
    # The second field is the command's name and may hold anything, blanks and brackets too.
    return int(text.rpartition(")")[2].split()[19])


def child_outside(parent: int, inside: int) -> tuple[int, int] | None:
    """Pid here and start time of the child of `parent` that has pid `inside` for `parent`."""
    try:
        with open(f"/proc/{parent}/task/{parent}/children", encoding="ascii") as file:  # noqa: PTH123
            children = file.read().split()
    except OSError:  # a kernel without that file: check all processes
        children = [name for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208
    for child in children:
        try:
            with open(f"/proc/{child}/status", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
                fields = dict(line.split(":", 1) for line in file if ":" in line)
            start = process_start(int(child))
        except OSError:
            continue  # ended meanwhile
        # NSpid lists the pids of a process from our namespace inwards: … here, in the rack, on
        # the node.
        pids = fields.get("NSpid", "").split()
        if int(fields["PPid"]) == parent and pids[-2:-1] == [str(inside)]:
            return int(child), start
    return None
