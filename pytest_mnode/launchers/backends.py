"""Backends: where a run's nodes come from. One class each; an installed package adds its own.

An entry point of the group `pytest_mnode.backends` names a class like these. `auto` asks the
backends in the order of `known`, and takes the first that says why it is meant.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import ClassVar

from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.hosts import read_hostfile, slots_of
from pytest_mnode.launchers.node import Launcher
from pytest_mnode.launchers.remote.launcher import RemoteOptions
from pytest_mnode.machine.programs import NoOutput, output_of
from pytest_mnode.options import BACKENDS_GROUP, Settings
from pytest_mnode.spec import Spec

_BUILT_IN = (
    "pytest_mnode.launchers.site_command:SiteCommandBackend",
    "pytest_mnode.launchers.flux:FluxBackend",
    "pytest_mnode.launchers.slurm.backend:SlurmBackend",
    "pytest_mnode.launchers.pbs:PbsBackend",
    "pytest_mnode.launchers.lsf:LsfBackend",
    "pytest_mnode.launchers.ssh:SshBackend",
    "pytest_mnode.launchers.mpi:MpiBackend",
    "pytest_mnode.launchers.kubernetes.backend:KubernetesBackend",
    "pytest_mnode.launchers.rack.backend:RackBackend",
    "pytest_mnode.launchers.local:LocalBackend",
)


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """What a run wants of a backend: `nodes` nodes, as the settings and the spec describe them.

    cleanup_dirs: removed once the controller has ended, however it ended.
    """

    settings: Settings
    nodes: int
    spec: Spec
    remote: RemoteOptions
    cleanup_dirs: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Here:
    """Where a run starts: what the user set for it, and the environment of its process."""

    settings: Settings
    environ: Mapping[str, str]


class Backend:
    """A kind of nodes."""

    name: ClassVar[str]
    """--mnode-launcher=NAME."""
    reads_hostfile: ClassVar[bool] = False
    """Whether --mnode-hostfile names its nodes."""

    def meant(self, here: Here) -> str | None:  # noqa: ARG002
        """Why `auto` takes this backend, in a few words; None if it does not."""
        return None

    def names(self, here: Here) -> tuple[str, ...] | None:  # noqa: ARG002
        """Names of the nodes that are there to be used; None if the run makes or requests its own.

        Raises UsageError if they are named wrongly.
        """
        return None

    def count(self, here: Here) -> int | None:
        """Number of `names`, where it is known without them too."""
        names = self.names(here)
        return None if names is None else len(names)

    def slots(self, settings: Settings) -> int | None:
        """Ranks per node that the user gave with the nodes: the fewest slots of any host of the
        hostfile that the run uses; None if not given."""
        if not self.reads_hostfile or settings.hostfile is None:
            return None
        hosts = read_hostfile(settings.hostfile)
        on = [host for host in hosts if not settings.on or host.name in settings.on]
        return slots_of(on[: settings.nodes])

    def launcher(self, request: NodeRequest) -> Launcher:
        """An unstarted launcher. Raises UsageError if it cannot work here."""
        raise NotImplementedError


@cache
def known() -> tuple[Backend, ...]:
    """Our own backends after those of installed packages. Raises UsageError for a bad one."""
    found: list[Backend] = []
    for entry in sorted(entry_points(group=BACKENDS_GROUP), key=lambda one: one.name):
        found.append(_installed(entry))
    for path in _BUILT_IN:
        module, _, name = path.partition(":")
        found.append(getattr(import_module(module), name)())
    return tuple(found)


def _installed(entry: EntryPoint) -> Backend:
    try:
        backend = entry.load()()
        if not isinstance(backend, Backend):
            raise TypeError("no subclass of pytest_mnode.launchers.backends.Backend")
        backend.name = entry.name  # type: ignore[misc]  # the name that the option accepts
    except Exception as error:  # modules of other people may raise anything
        package = f"package {entry.dist.name}" if entry.dist else "a package"
        why = " ".join(f"{type(error).__name__}: {error}".split())
        named = f"entry point {entry.name} = {entry.value!r} of {BACKENDS_GROUP}"
        raise UsageError(f"{package}, {named}: {why}; correct or uninstall it") from None
    return backend


def named(name: str) -> Backend:
    return next(backend for backend in known() if backend.name == name)


def chosen(settings: Settings, environ: Mapping[str, str] | None = None) -> tuple[Backend, str]:
    """The backend of these settings, and why in a few words. environ: None for os.environ."""
    if settings.launcher != "auto":
        return named(settings.launcher), "requested"
    here = Here(settings, os.environ if environ is None else environ)
    meant = ((backend, backend.meant(here)) for backend in known())
    return next((backend, why) for backend, why in meant if why is not None)


def listed_nodes(here: Here) -> tuple[str, ...] | None:
    """Nodes of the hostfile, else of the allocation that this process is in; None without both.

    Raises UsageError if they are named wrongly.
    """
    file = here.settings.hostfile
    if file is None:
        found = (backend.names(here) for backend in _allocations(here))
        return next((names for names in found if names is not None), None)
    hosts = read_hostfile(file)
    for host in hosts:
        if host.user or host.port is not None:
            raise UsageError(
                f"{file}:{host.line}: {host.target}: only ssh takes a user or a port; leave it "
                "out, or give --mnode-launcher=ssh"
            )
    return tuple(host.name for host in hosts)


def scheduler_of(here: Here, hosts: Sequence[str]) -> str:
    """The scheduler in whose allocation this process is, and which gave all of these hosts; "" if
    there is none, or it cannot say."""
    here = replace(here, settings=replace(here.settings, hostfile=None))
    for backend in _allocations(here):
        with suppress(UsageError):
            names = backend.names(here)
            if names is not None and set(map(_short, hosts)) <= set(map(_short, names)):
                return backend.name
    return ""


def _allocations(here: Here) -> Iterator[Backend]:
    """The backends whose allocation this process seems to be in."""
    return (one for one in known() if not one.reads_hostfile and one.meant(here))


def _short(host: str) -> str:
    return host if host.replace(".", "").isdecimal() else host.lower().partition(".")[0]


def printed(*argv: str, package: str) -> str:
    """What a scheduler's command prints. Raises UsageError, in one line, if it fails."""
    try:
        return output_of(*argv, package=package)
    except NoOutput as error:
        raise UsageError(str(error)) from None


def hostfile_without_users(path: Path, wanted: str) -> str | None:
    """Error, with remedy, for a hostfile that --mnode-launcher=`wanted` does not read; else None"""
    if wanted == "auto" or named(wanted).reads_hostfile:
        return None
    return (
        f"--mnode-hostfile={path}: --mnode-launcher={wanted} uses other nodes; leave one of "
        "them out, or give --mnode-launcher=ssh"
    )
