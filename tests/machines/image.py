"""The image that guests boot: Debian's kernel and packages, made once per user.

`python -m tests.machines.image` makes it in the user's cache directory (about 200 MB of packages
from the configured mirror of apt); it is not committed, and is rebuilt when its inputs change.
Debian's kernel does not include siw, so it is compiled from the source of the same kernel.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.machines import debian

_HERE = Path(__file__).parent
GUEST_FILES = _HERE / "guest"
QEMU = "qemu-system-x86_64"
_KERNEL = "linux-image-amd64"
_PACKAGES = (
    *("bash", "coreutils", "grep", "mount", "sed", "util-linux", "kmod", "busybox-static"),
    *("iproute2", "iputils-ping", "nftables", "ethtool", "numactl", "procps", "pciutils"),
    *("rdma-core", "ibverbs-utils", "ibverbs-providers", "perftest"),
    *("openssh-server", "python3", "libstdc++6"),
    *("openmpi-bin", "ucx-utils", "python3-mpi4py"),
)
_COMPILER = (
    *("linux-headers-amd64", "linux-source", "gcc", "make"),
    *("bash", "coreutils", "findutils", "grep", "mawk", "sed"),
)
_NOT_NEEDED = (
    *("gpu", "media", "net/wireless", "staging", "iio", "hid", "mtd", "scsi", "usb", "ata"),
    *("infiniband/hw", "infiniband/ulp", "isdn", "input", "power", "video", "platform", "nvme"),
)
"""Drivers of devices that no guest has."""
_INITRD_MODULES = ("virtio_pci", "virtio_blk", "ext4", "overlay")
_LIBRARIES = "usr/lib/x86_64-linux-gnu"


@dataclass(frozen=True, slots=True)
class Image:
    """Files of a guest. root: an ext4 file system that no guest writes to."""

    directory: Path

    @property
    def kernel(self) -> Path:
        return self.directory / "vmlinuz"

    @property
    def initrd(self) -> Path:
        return self.directory / "initrd.gz"

    @property
    def root(self) -> Path:
        return self.directory / "root.ext4"


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "pytest-mnode" / "machines"


def image() -> Image:
    """The image for the current source; see `unavailable`."""
    digest = hashlib.sha256()
    for file in (Path(__file__), Path(debian.__file__), *sorted(GUEST_FILES.iterdir())):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return Image(_cache() / digest.hexdigest()[:16])


def unavailable() -> str | None:
    """Why guests cannot be booted here, in one line; None if they can."""
    if shutil.which(QEMU) is None:
        return f"no guests here: {QEMU} is not installed (Debian: qemu-system-x86)"
    if not image().directory.is_dir():
        return "no guests here: no image of them; python -m tests.machines.image makes it"
    return None


def build() -> None:
    """Make the image if it is missing; two runs at the same time make it once."""
    made = image()
    with _lock():
        if made.directory.is_dir():
            return
        with tempfile.TemporaryDirectory(dir=_cache(), prefix="new-") as name:
            work = Path(name)
            _build(work)
            for old in _cache().iterdir():
                if old.is_dir() and old != work:
                    shutil.rmtree(old)
            (work / "image").rename(made.directory)


@contextmanager
def _lock() -> Iterator[None]:
    _cache().mkdir(parents=True, exist_ok=True)
    with (_cache() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(work: Path) -> None:
    """Build directory `image` in `work`, which may keep temporary files."""
    root, made = work / "root", Image(work / "image")
    made.directory.mkdir()
    print("downloading Debian packages", flush=True)
    packages = debian.download((_KERNEL, *_PACKAGES), work / "packages")
    debian.unpack(packages, root)
    [modules] = (root / "lib/modules").iterdir()
    for driver in _NOT_NEEDED:
        shutil.rmtree(modules / "kernel/drivers" / driver, ignore_errors=True)
    shutil.rmtree(modules / "kernel/sound")
    (modules / "updates").mkdir()
    shutil.copy(_siw(work / "compiler", modules.name), modules / "updates")
    _run_of(root, "usr/bin/kmod", "depmod", "-b", str(root), modules.name)
    shutil.move(root / f"boot/vmlinuz-{modules.name}", made.kernel)
    for unread in ("boot", "usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/perl"):
        shutil.rmtree(root / unread, ignore_errors=True)
    shutil.copy(GUEST_FILES / "init.sh", root / "sbin/guest-init")
    (root / "sbin/guest-init").chmod(0o755)
    (root / "etc/passwd").write_text(
        "root:x:0:0::/root:/bin/bash\nsshd:x:100:65534::/run/sshd:/usr/sbin/nologin\n"
    )
    (root / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n")
    print("writing the file systems", flush=True)
    _write_initrd(root, modules, work / "initrd", made.initrd)
    size_kib = sum(file.lstat().st_size // 1024 + 8 for file in root.rglob("*")) + (32 << 10)
    make = ["mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d"]
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    words = [*make, str(root), str(made.root), f"{size_kib * 5 // 4}k"]
    subprocess.run(words, check=True, env={**os.environ, "PATH": path})


def _run_of(root: Path, program: str, *argv: str) -> str:
    """Run a program of the tree with the tree's libraries; argv has the name it runs under."""
    libraries = str(root / _LIBRARIES)
    loader = [f"{libraries}/ld-linux-x86-64.so.2", "--library-path", libraries]
    words = [*loader, "--argv0", argv[0], str(root / program), *argv[1:]]
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout


def _siw(tree: Path, release: str) -> Path:
    """siw.ko for a kernel, compiled by Debian's compiler in a separate tree."""
    print("compiling siw", flush=True)
    debian.unpack(debian.download(_COMPILER, tree / "packages"), tree)
    [source] = (tree / "usr/src").glob("linux-source-*.tar.xz")
    with tarfile.open(source) as archive:
        for member in archive:
            if "/drivers/infiniband/sw/siw/" in member.name and member.isfile():
                member.name = Path(member.name).name
                archive.extract(member, tree / "siw", filter="data")
    version = max(int(file.name[4:]) for file in (tree / "usr/bin").glob("gcc-[0-9]*"))
    make = ["make", "-s", "-C", f"/usr/src/linux-headers-{release}", "M=/siw"]
    make += ["CONFIG_RDMA_SIW=m", f"CC=gcc-{version}", "modules"]
    (tree / "dev").mkdir(exist_ok=True)
    script = f'mount --rbind /dev "{tree}/dev" && exec chroot "{tree}" "$@"'
    subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh", *make],
        check=True,
        env={"PATH": "/usr/bin:/usr/sbin:/bin:/sbin", "TMPDIR": "/"},
    )
    return tree / "siw/siw.ko"


def _write_initrd(root: Path, modules: Path, tree: Path, target: Path) -> None:
    """busybox, our init, and the modules that the root disk needs, in dependency order."""
    (tree / "modules").mkdir(parents=True)
    busybox = root / "bin/busybox"
    shutil.copy(busybox, tree)
    shutil.copy(GUEST_FILES / "initrd.sh", tree / "init")
    (tree / "init").chmod(0o755)
    order: list[str] = []
    for name in _INITRD_MODULES:
        shown = ["modprobe", "-d", str(root), "-S", modules.name, "--show-depends", name]
        for line in _run_of(root, "usr/bin/kmod", *shown).splitlines():
            kind, _, file = line.strip().partition(" ")
            if kind == "insmod" and Path(file).name not in order:
                shutil.copy(file.strip(), tree / "modules")
                order.append(Path(file).name.strip())
    (tree / "modules/order").write_text("\n".join(order) + "\n")
    names = "\n".join(str(file.relative_to(tree)) for file in sorted(tree.rglob("*")))
    packed = subprocess.run(
        [busybox, "cpio", "-o", "-H", "newc"],
        cwd=tree, check=True, input=names.encode(), stdout=subprocess.PIPE,
    ).stdout  # fmt: skip
    target.write_bytes(gzip.compress(packed, 1))


if __name__ == "__main__":
    build()
    sys.exit(unavailable())
