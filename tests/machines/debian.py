"""Debian packages from the configured mirror of apt, unpacked and not installed."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

_MERGED = ("bin", "sbin", "lib", "lib64")
"""Links to the directories of these names in usr, as Debian has them."""
_ALTERNATIVES = {"sh": "bash", "awk": "mawk"}
"""Links in bin that package scripts would create."""


def download(packages: Sequence[str], directory: Path) -> list[Path]:
    """Files of these packages and all their dependencies, as for an empty system.

    Raises CalledProcessError; apt's output goes to the terminal.
    """
    (directory / "partial").mkdir(parents=True, exist_ok=True)
    status = directory / "status"
    status.touch()
    options = {
        "Dir::State::status": status,
        "Dir::Cache::archives": directory,
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
        "Debug::NoLocking": "1",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    subprocess.run(
        ["apt-get", *words, "-qq", "--yes", "--download-only", "install", *packages], check=True
    )
    return sorted(directory.glob("*.deb"))


def unpack(files: Sequence[Path], root: Path) -> None:
    """The contents of packages as a tree; their scripts do not run."""
    for name in _MERGED:
        (root / "usr" / name).mkdir(parents=True, exist_ok=True)
        if not (root / name).exists():
            (root / name).symlink_to(f"usr/{name}")
    for file in files:
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", file], stdout=subprocess.PIPE) as deb:
            extract = ["tar", "-x", "--keep-directory-symlink", "-C", str(root)]
            subprocess.run(extract, stdin=deb.stdout, check=True)
        if deb.returncode:
            raise subprocess.CalledProcessError(deb.returncode, deb.args)
    for name, program in _ALTERNATIVES.items():
        link = root / "bin" / name
        if (root / "bin" / program).exists() and not link.is_symlink():
            link.symlink_to(program)
