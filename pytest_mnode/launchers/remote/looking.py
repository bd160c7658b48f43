"""What is asked of a node before it is used: who it is, and whether our programs can run there."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# Runs on the node, by its Python with its site-packages: argv is a file to look for, and a
# directory. Prints one line, behind whatever else the node prints.
PROGRAM = r"""
import hashlib, json, os, platform, socket, sys
told = {"hostname": socket.gethostname(), "python": platform.python_version()}
told["executable"] = sys.executable
told["connection"] = os.environ.get("SSH_CONNECTION", "")
told["directory"] = os.path.isdir(sys.argv[2])
try:
    with open("/proc/sys/kernel/random/boot_id") as file:
        told["boot"] = file.read().strip() or None
except OSError:
    told["boot"] = None
try:
    with open(sys.argv[1]) as file:
        told["token"] = file.read()
except OSError:
    told["token"] = None
try:
    import pytest_mnode
    told["version"] = pytest_mnode.__version__
    root = os.path.dirname(pytest_mnode.__file__)
    told["place"], digest = root, hashlib.sha256()
    for folder, names, files in sorted(os.walk(root)):
        for name in sorted(f for f in files if f.endswith(".py")):
            path = os.path.join(folder, name)
            digest.update(os.path.relpath(path, root).encode() + b"\0")
            with open(path, "rb") as file:
                digest.update(file.read())
    told["code"] = digest.hexdigest()
except Exception as error:
    told["missing"] = f"{type(error).__name__}: {error}"
networks = {}
try:
    import psutil
    for name, found in psutil.net_if_addrs().items():
        ours = [a.address.partition("%")[0] for a in found if a.family in (2, 10)]
        networks[name] = [a for a in ours if not a.startswith("fe80")]
except Exception:
    networks = None
told["networks"] = networks
print("\nmnode-look " + json.dumps(told))
"""
_MARK = "mnode-look "
_OUR_PACKAGE = sys.modules[__name__.partition(".")[0]]


@dataclass(frozen=True, slots=True)
class Look:
    """What a node said of itself.

    version, code: of this package there, and a digest of its files; None where it cannot be
    imported, with the reason in `missing`. directory: whether the one asked for is there. token:
    content of the file asked for; None where it is not seen. networks: addresses by interface.
    connection: what sshd says of it, the client's address and port and the server's. boot: an id
    of its kernel's boot; None where not known.
    """

    hostname: str
    python: str
    executable: str
    directory: bool
    token: str | None
    version: str | None
    code: str | None
    place: str | None
    missing: str | None
    networks: Mapping[str, tuple[str, ...]] | None
    connection: str = ""
    boot: str | None = None

    @property
    def reached_at(self) -> str | None:
        """The node's address that ssh came to; None where it did not, or where that is none: sshd
        says UNKNOWN where its socket is no connection, as behind some proxies."""
        words = self.connection.split()
        address = words[2].partition("%")[0] if len(words) == 4 else ""
        try:
            return None if ipaddress.ip_address(address).is_unspecified else address
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class Here:
    """The same of the controller, as far as nodes must match it."""

    python: str
    version: str
    code: str


def argv(python: str, token: Path | None, directory: str) -> list[str]:
    """The command that looks. token: a file that is seen where directories are shared."""
    return [python, "-c", PROGRAM, str(token or "/dev/null/none"), directory]


def as_there(argv: Sequence[str], python: str, place: str) -> list[str]:
    """A command as a node is to run it: its own Python where it begins with this one, and its own
    files of this package, which lies in `place` there ("": where it lies here)."""
    program, *rest = argv
    root = str(_package())
    if place and place != root:
        rest = [
            place + word.removeprefix(root) if Path(word).is_relative_to(root) else word
            for word in rest
        ]
    return [python if program == sys.executable else program, *rest]


def here() -> Here:
    """This side of the comparison."""
    root, digest = _package(), hashlib.sha256()
    folders = sorted({root, *(path for path in root.rglob("*") if path.is_dir())}, key=str)
    for folder in folders:
        for path in sorted(folder.glob("*.py"), key=lambda path: path.name):
            digest.update(str(path.relative_to(root)).encode() + b"\0")
            digest.update(path.read_bytes())
    return Here(platform.python_version(), _OUR_PACKAGE.__version__, digest.hexdigest())


def read(output: str) -> Look | None:
    """What PROGRAM printed; None where it is not there."""
    for line in reversed(output.splitlines()):
        if line.startswith(_MARK):
            try:
                told = json.loads(line.removeprefix(_MARK))
                networks = told["networks"]
                return Look(
                    hostname=told["hostname"],
                    python=told["python"],
                    executable=told["executable"],
                    directory=told["directory"],
                    token=told["token"],
                    version=told.get("version"),
                    code=told.get("code"),
                    place=told.get("place"),
                    missing=told.get("missing"),
                    networks=None
                    if networks is None
                    else {name: tuple(found) for name, found in networks.items()},
                    connection=told["connection"],
                    boot=told["boot"],
                )
            except (ValueError, LookupError, TypeError):
                return None
    return None


def problem(look: Look, ours: Here, directory: str) -> str | None:
    """Why a node cannot be used, in one line; None where it can."""
    if look.missing is not None or look.version is None:
        return (
            f"pytest_mnode cannot be imported by {look.executable} there ({look.missing}); install "
            "pytest-mnode for it, or name another by --mnode-python"
        )
    if _minor(look.python) != _minor(ours.python):
        return (
            f"{look.executable} there is Python {look.python}, here it is {ours.python}; name one "
            "of the same minor version by --mnode-python"
        )
    if look.version != ours.version:
        return (
            f"pytest-mnode {look.version} in {look.place} there, {ours.version} here; install the "
            "same version"
        )
    if look.code != ours.code:
        return (
            f"pytest-mnode {look.version} in {look.place} there is other code than here; install "
            "the same"
        )
    if not look.directory:
        return (
            f"no directory {directory} there, from where pytest was started; tests must be at the "
            "same path on every node"
        )
    return None


def fabric_interface(look: Look, kind: str, has_interface: Sequence[str]) -> str | None:
    """Names of the interfaces of a TCP fabric, as GLOO_SOCKET_IFNAME takes them; None where not
    known, or where the fabric is not for sockets.

    has_interface: the spec's names or patterns.
    """
    from fnmatch import fnmatchcase

    if kind != "ethernet" or look.networks is None:
        return None
    found = [
        name
        for name, addresses in sorted(look.networks.items())
        if addresses and any(fnmatchcase(name, pattern) for pattern in has_interface)
    ]
    return ",".join(found) or None


def _package() -> Path:
    return Path(str(_OUR_PACKAGE.__file__)).parent


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])
