"""The backends that there are, and the one that a run uses.

An entry point of the group `pytest_mnode.backends` names a class like ours. `auto` asks the
backends in the order of `known`, and takes the first that says why it is meant.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from pytest_mnode.backends.backend import Backend, Here, NodeRequest
from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.hosts import read_hostfile
from pytest_mnode.launchers.node import Launcher
from pytest_mnode.launchers.node_env import RunEnv
from pytest_mnode.launchers.remote.launcher import RemoteOptions
from pytest_mnode.options import BACKENDS_GROUP, Settings
from pytest_mnode.spec import Spec

_BUILT_IN = (
    "pytest_mnode.backends.site_command:SiteCommandBackend",
    "pytest_mnode.backends.slurm:SlurmBackend",
    "pytest_mnode.backends.pbs:PbsBackend",
    "pytest_mnode.backends.lsf:LsfBackend",
    # FLUX_URI may be left of the shell that submitted a job to another scheduler.
    "pytest_mnode.backends.flux:FluxBackend",
    "pytest_mnode.backends.ssh:SshBackend",
    "pytest_mnode.backends.mpi:MpiBackend",
    "pytest_mnode.backends.kubernetes:KubernetesBackend",
    "pytest_mnode.backends.rack:RackBackend",
    "pytest_mnode.backends.local:LocalBackend",
)


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
            raise TypeError("no subclass of pytest_mnode.backends.Backend")
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


def choose(
    settings: Settings, nodes: int, spec: Spec, cleanup_dirs: Sequence[str], root: Path
) -> tuple[Launcher, str]:
    """An unstarted launcher for `nodes` nodes, and the reason for choosing it in a few words.

    root: root of the tests, below which a directory shared by all nodes may be made. Raises
    UsageError if the requested launcher cannot work here.
    """
    unused = unused_option(settings, os.environ, spec)
    if unused is not None:
        raise UsageError(unused)
    backend, why = chosen(settings)
    run_dir = cleanup_dirs[0] if cleanup_dirs else ""
    remote = RemoteOptions(
        run_dir,
        root,
        settings.shared_dir,
        settings.python,
        prologue=str(settings.prologue or ""),
    )
    launcher = backend.launcher(NodeRequest(settings, nodes, spec, remote, cleanup_dirs))
    launcher.name = backend.name
    launcher.env = RunEnv.of_launcher(launcher.name, settings.env)
    launcher.limits = settings.limits(nodes)
    return launcher, why


def unused_option(settings: Settings, environ: Mapping[str, str], spec: Spec) -> str | None:
    """Error, with remedy, for an option that names nodes which the run would not use; else None.

    The run would certify other nodes instead. Inside of a job, `auto` uses the job's nodes and
    accepts an unused hostfile, because the hostfile may come from an ini file.
    """
    wanted, file = settings.launcher, settings.hostfile
    if file is not None and wanted != "auto" and not named(wanted).reads_hostfile:
        return (
            f"--mnode-hostfile={file}: --mnode-launcher={wanted} uses other nodes; leave one of "
            "them out, or give --mnode-launcher=ssh"
        )
    backend, why = chosen(settings, environ)
    by = why if wanted == "auto" else f"--mnode-launcher={wanted}"
    if wanted == "auto" and backend.name == "ssh":
        by = f"--mnode-hostfile={file}"
    found = (other.unused(settings, spec, backend, by) for other in known() if other != backend)
    return next((why for why in found if why), None)


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
        if host.user or host.port is not None or host.python:
            raise UsageError(
                f"{file}:{host.line}: {host.target}: only ssh takes a user, a port or a Python; "
                "leave it out, or give --mnode-launcher=ssh"
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
