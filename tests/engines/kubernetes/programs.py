"""Programs of Kubernetes, built by the go command from their modules, once per user and version.

`python -m tests.engines.kubernetes.programs` builds what is missing; no binary is committed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KUBERNETES = "1.37.1"
"""Has its own PodGroup and gang scheduling."""


@dataclass(frozen=True, slots=True)
class Module:
    """A Go module: the programs (packages below its path) to build from it, and its version.

    folders: version of the modules that its go.mod replaces by folders of its own repository, such
    as k8s.io/api.
    """

    path: str
    version: str
    packages: tuple[str, ...]
    folders: str | None = None
    ldflags: str = "-s -w"

    @property
    def bin(self) -> Path:
        return cache() / f"{self.path.replace('/', '_')}@{self.version}"

    def program(self, package: str) -> str:
        """File name of the program of a package."""
        return f"{self.path}/{package}".removesuffix("/.").rsplit("/", 1)[-1]

    def missing(self) -> list[str]:
        return [
            package for package in self.packages if not (self.bin / self.program(package)).exists()
        ]


def _release(version: str) -> str:
    """Linker flags that set the version that a release's programs report."""
    major, minor, _ = version.split(".")
    values = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    return "-s -w " + " ".join(
        f"-X k8s.io/component-base/version.{name}={value}" for name, value in values.items()
    )


BED = (
    Module(
        "k8s.io/kubernetes",
        f"v{KUBERNETES}",
        (
            "cmd/kube-apiserver",
            "cmd/kube-controller-manager",
            "cmd/kube-scheduler",
            "cmd/kubelet",
            "cmd/kubectl",
        ),
        folders=f"v0.{KUBERNETES.split('.', 1)[1]}",
        ldflags=_release(KUBERNETES),
    ),
    Module(
        "github.com/containerd/containerd/v2",
        "v2.4.2",
        ("cmd/containerd", "cmd/containerd-shim-runc-v2", "cmd/ctr"),
    ),
)
KUEUE = Module("sigs.k8s.io/kueue", "v0.15.0", ("cmd/kueue",))
VOLCANO = Module(  # the last version whose own modules are all published
    "volcano.sh/volcano",
    "v1.10.0",
    ("cmd/scheduler", "cmd/controller-manager", "cmd/webhook-manager"),
)
JOBSET = Module("sigs.k8s.io/jobset", "v0.10.1", (".",))
KWOK = Module("sigs.k8s.io/kwok", "v0.8.0", ("cmd/kwok",))
MODULES = (*BED, KUEUE, VOLCANO, JOBSET, KWOK)
COSCHEDULING = Module("sigs.k8s.io/scheduler-plugins", "v0.33.5", ())
TRAINER = Module("github.com/kubeflow/trainer/v2", "v2.1.0", ())
TRAINING_OPERATOR = Module("github.com/kubeflow/training-operator", "v1.9.3", ())
"""Only manifests of these modules are read."""
FROM_DEBIAN = ("etcd", "runc")
CNI = Path("/usr/lib/cni")


def cache() -> Path:
    """Directory of the built programs."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "pytest-mnode" / "go"


OURS = {
    "pause": "",
    "stand_in": "",
    "device_plugin": f"require k8s.io/kubelet {BED[0].folders}",
}
"""Our own programs, with the modules that they require."""


def path() -> str:
    """PATH with all programs."""
    own = [str(module.bin) for module in MODULES]
    return os.pathsep.join([*own, os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def unavailable(modules: Sequence[Module] = BED) -> str | None:
    """Why programs of the cluster, or of these modules, are not available, in one line."""
    missing = [name for name in FROM_DEBIAN if shutil.which(name, path=path()) is None]
    missing += [f"CNI plugin {n}" for n in ("bridge", "host-local") if not (CNI / n).exists()]
    missing += [f"{m.path}/{package}" for m in modules for package in m.missing()]
    if missing:
        return (
            f"no Kubernetes here: {', '.join(missing)} missing; "
            "python -m tests.engines.kubernetes.programs builds what Go modules have"
        )
    return None


@contextmanager
def _lock() -> Iterator[None]:
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build() -> None:
    """Build what is missing; two runs at the same time build it once."""
    with _lock():
        for module in MODULES:
            if module.missing():
                _build(module)
    for name in OURS:
        ours(name)


def ours(name: str) -> Path:
    """One of our own programs, by its folder beside this file; built if missing."""
    source = Path(__file__).with_name(name) / "main.go"
    built = cache() / f"{name}@{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}"
    program = built / name
    with _lock():
        if not program.exists():
            built.mkdir(exist_ok=True)
            shutil.copy(source, built)
            (built / "go.mod").write_text(f"module build\n\ngo 1.26.0\n\n{OURS[name]}\n")
            _go(built, "build", "-mod=mod", "-ldflags=-s -w", "-o", program.name, ".", cgo=False)
    return program


def _build(module: Module) -> None:
    work = module.bin.with_name(f"{module.bin.name}.build")
    shutil.rmtree(work, ignore_errors=True)
    (work / "bin").mkdir(parents=True)
    (work / "go.mod").write_text(_go_mod(module))
    for package in module.missing():
        print(f"building {module.path}/{package} {module.version}", flush=True)
        target = str(work / "bin" / module.program(package))
        flags = ["-mod=mod", f"-ldflags={module.ldflags}"]
        _go(work, "build", *flags, "-o", target, f"{module.path}/{package}".removesuffix("/."))
    module.bin.mkdir(exist_ok=True)
    for program in (work / "bin").iterdir():
        program.rename(module.bin / program.name)
    shutil.rmtree(work)


def _go_mod(module: Module) -> str:
    """A go.mod that requires this module.

    Replacements in a module's own go.mod apply to that module alone, so they are repeated here.
    """
    given = _own_go_mod(module)
    lines = [f"module build\n\ngo {given['Go']}\n\nrequire {module.path} {module.version}\n"]
    for replace in given.get("Replace") or []:
        old, new = replace["Old"]["Path"], replace["New"]
        folder = new["Path"].startswith("./")
        target = f"{old} {module.folders}" if folder else f"{new['Path']} {new['Version']}"
        lines.append(f"replace {old} => {target}\n")
    return "".join(lines)


def _own_go_mod(module: Module) -> Any:
    """A module's go.mod, as printed by `go mod edit -json`."""
    return json.loads(_go(cache(), "mod", "edit", "-json", _downloaded(module)["GoMod"]))


def source(module: Module) -> Path:
    """The folder of a module's source, which has manifests beside the programs."""
    return Path(_downloaded(module)["Dir"])


def _downloaded(module: Module) -> Any:
    """The location of a module, as printed by `go mod download -json`."""
    return json.loads(_go(cache(), "mod", "download", "-json", f"{module.path}@{module.version}"))


def _go(directory: Path, *argv: str, cgo: bool = True) -> str:
    """Run the go command and return its output; its errors go to the terminal."""
    env = {**os.environ, "CGO_ENABLED": "1" if cgo else "0"}
    return subprocess.run(
        ["go", *argv], check=True, cwd=directory, env=env, stdout=subprocess.PIPE, text=True
    ).stdout


if __name__ == "__main__":
    build()
    sys.exit(unavailable(MODULES))
