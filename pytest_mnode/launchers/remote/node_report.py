"""Report of a node before it is used: its identity, and whether this package can run there."""

from __future__ import annotations

import hashlib
import ipaddress
import platform
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mnode.launchers.node import Node

if TYPE_CHECKING:
    from pytest_mnode.spec import Spec

# Runs in the node's Python, with its site-packages. Arguments: a file to read, and a directory to
# look for. Prints one line, after any other output of the node.
PROGRAM = r"""
import hashlib, json, os, platform, socket, sys
found = {"hostname": socket.gethostname(), "python": platform.python_version()}
found["executable"] = sys.executable
found["connection"] = os.environ.get("SSH_CONNECTION", "")
found["directory"] = os.path.isdir(sys.argv[2])
try:
    with open("/proc/sys/kernel/random/boot_id") as file:
        found["boot"] = file.read().strip() or None
except OSError:
    found["boot"] = None
try:
    with open(sys.argv[1]) as file:
        found["token"] = file.read()
except OSError:
    found["token"] = None
try:
    import pytest_mnode
    found["version"] = pytest_mnode.__version__
    root = os.path.dirname(pytest_mnode.__file__)
    found["package_dir"], digest = root, hashlib.sha256()
    for folder, names, files in sorted(os.walk(root)):
        for name in sorted(f for f in files if f.endswith(".py")):
            path = os.path.join(folder, name)
            digest.update(os.path.relpath(path, root).encode() + b"\0")
            with open(path, "rb") as file:
                digest.update(file.read())
    found["code"] = digest.hexdigest()
except Exception as error:
    found["missing"] = f"{type(error).__name__}: {error}"
networks = {}
try:
    import psutil
    for name, addresses in psutil.net_if_addrs().items():
        ours = [a.address.partition("%")[0] for a in addresses if a.family in (2, 10)]
        ours = [a for a in ours if not a.startswith("fe80")]
        networks.setdefault(name.partition(":")[0], []).extend(ours)  # a label, such as eth0:1
except Exception:
    networks = None
found["networks"] = networks
print("\nmnode-report " + json.dumps(found))
"""
_PREFIX = "mnode-report "
_OUR_PACKAGE = sys.modules[__name__.partition(".")[0]]


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node's report about itself.

    directory: whether the requested directory exists. token: content of the requested file; None if
    it cannot be read. networks: addresses by interface. connection: sshd's SSH_CONNECTION: address
    and port of the client, then of the server. boot: the kernel's boot id; None if unknown.
    version, code, package_dir: this package's version, digest of its files, and directory on the
    node; None if it cannot be imported, with the reason in `missing`.
    """

    hostname: str
    python: str
    executable: str
    directory: bool
    token: str | None
    networks: Mapping[str, tuple[str, ...]] | None
    connection: str
    boot: str | None
    version: str | None = None
    code: str | None = None
    package_dir: str | None = None
    missing: str | None = None

    @property
    def reached_at(self) -> str | None:
        """The node's address that ssh connected to; None without ssh, or if sshd reports UNKNOWN
        because its socket is not a network connection, as behind some proxies."""
        words = self.connection.split()
        address = words[2].partition("%")[0] if len(words) == 4 else ""
        try:
            return None if ipaddress.ip_address(address).is_unspecified else address
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class Here:
    """Versions of the controller, which nodes must match."""

    python: str
    version: str
    code: str


def argv(python: str, token: Path | None, directory: str) -> list[str]:
    """The command that prints a report. token: a file that nodes see if its directory is shared."""
    return [python, "-c", PROGRAM, str(token or "/dev/null/none"), directory]


def as_there(
    argv: Sequence[str], python: str, place: str, ours: Collection[str] = (sys.executable,)
) -> list[str]:
    """A command as a node must run it: with the node's Python and the node's copy of this package.

    python: takes the place of `ours`. place: directory of the package on the node; "" if it is the
    same as here.
    """
    program, *rest = argv
    root = str(_package())
    if place and place != root:
        rest = [
            place + word.removeprefix(root) if Path(word).is_relative_to(root) else word
            for word in rest
        ]
    return [python if program in ours else program, *rest]


def here() -> Here:
    """The controller's own versions."""
    root, digest = _package(), hashlib.sha256()
    folders = sorted({root, *(path for path in root.rglob("*") if path.is_dir())}, key=str)
    for folder in folders:
        for path in sorted(folder.glob("*.py"), key=lambda path: path.name):
            digest.update(str(path.relative_to(root)).encode() + b"\0")
            digest.update(path.read_bytes())
    return Here(platform.python_version(), _OUR_PACKAGE.__version__, digest.hexdigest())


def read(output: str) -> NodeReport | None:
    """The report in the output of PROGRAM; None if there is none."""
    from pydantic import TypeAdapter, ValidationError  # not needed in jobs on nodes

    for line in reversed(output.splitlines()):
        if line.startswith(_PREFIX):
            try:
                return TypeAdapter(NodeReport).validate_json(line.removeprefix(_PREFIX))
            except ValidationError:
                return None
    return None


def problem(report: NodeReport, ours: Here, directory: str) -> str | None:
    """Why a node cannot be used, in one line; None if it can."""
    installed = f"pytest-mnode {report.version} in {report.package_dir}"
    if report.missing is not None or report.version is None:
        return (
            f"pytest_mnode cannot be imported by {report.executable} ({report.missing}); install "
            "pytest-mnode for it, or name another Python with --mnode-python"
        )
    if _minor(report.python) != _minor(ours.python):
        return (
            f"{report.executable} is Python {report.python}, but the controller's is "
            f"{ours.python}; name a Python of the same minor version with --mnode-python"
        )
    if report.version != ours.version:
        return f"{installed}, but {ours.version} on the controller; install the same version"
    if report.code != ours.code:
        return f"{installed}: its code differs from the controller's; install the same build"
    if not report.directory:
        return (
            f"no directory {directory}, in which pytest was started; tests must be at the same "
            "path on every node"
        )
    return None


def fabric_interface(report: NodeReport, kind: str, patterns: Sequence[str]) -> str | None:
    """Interfaces of a TCP fabric, in the form of GLOO_SOCKET_IFNAME; None if they are unknown, or
    if the fabric is not used through sockets.

    patterns: the spec's interface names or patterns.
    """
    if kind != "ethernet" or report.networks is None:
        return None
    found = [
        name
        for name, addresses in sorted(report.networks.items())
        if addresses and any(fnmatchcase(name, pattern) for pattern in patterns)
    ]
    return ",".join(found) or None


def node_from_report(index: int, address: str, report: NodeReport, spec: Spec) -> Node:
    """A node of the run, under its own name. address: address at which other nodes reach it."""
    interface = fabric_interface(report, spec.fabric.kind, spec.fabric.interfaces)
    found = (report.networks or {}).get(interface.partition(",")[0], ()) if interface else ()
    return Node(
        name=report.hostname,
        index=index,
        address=address,
        fabric_address=found[0] if found else None,
        fabric_interface=interface,
    )


def _package() -> Path:
    return Path(str(_OUR_PACKAGE.__file__)).parent


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])
