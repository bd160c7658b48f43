"""Choice of the launcher that a run uses, with its reason."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.backends import NodeRequest, chosen, hostfile_without_users
from pytest_mnode.launchers.kubernetes.options import KubernetesOptions
from pytest_mnode.launchers.node import Launcher
from pytest_mnode.launchers.node_env import RunEnv
from pytest_mnode.launchers.remote.launcher import RemoteOptions
from pytest_mnode.options import Settings
from pytest_mnode.spec import Spec


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
        settings.start_limit_s,
        prologue=str(settings.prologue or ""),
    )
    launcher = backend.launcher(NodeRequest(settings, nodes, spec, remote, cleanup_dirs))
    launcher.env = RunEnv.of_launcher(launcher.name, settings.env)
    launcher.silence_limit_s = settings.silence_limit_s
    return launcher, why


def unused_option(settings: Settings, environ: Mapping[str, str], spec: Spec) -> str | None:
    """Error, with remedy, for an option that names nodes which the run would not use; else None.

    The run would certify other nodes instead. Inside of a job, `auto` uses the job's nodes and
    accepts an unused hostfile, because the hostfile may come from an ini file.
    """
    wanted, file, args = settings.launcher, settings.hostfile, settings.slurm_args
    if file is not None and (refused := hostfile_without_users(file, wanted)) is not None:
        return refused
    backend, why = chosen(settings, environ)
    by = why if wanted == "auto" else f"--mnode-launcher={wanted}"
    if wanted == "auto" and backend.name == "ssh":
        by = f"--mnode-hostfile={file}"
    given = {
        "kubernetes": KubernetesOptions.of(settings).given,
        "exec": f"--mnode-exec={' '.join(settings.exec)}" if settings.exec else None,
    }
    for name, option in given.items():
        if option and backend.name != name:
            return f"{option}: other nodes are used ({by}); give --mnode-launcher={name}"
    if not args or backend.name == "slurm":
        return None
    nowhere = wanted == "auto" and backend.name in ("rack", "local")
    if spec.criteria.gang is not None and not nowhere:
        return None  # gang jobs use `args` with any launcher
    option = f"--mnode-slurm-args={' '.join(args)}"
    if nowhere:
        return (
            f"{option}: this run is outside of an allocation; add --mnode-launcher=slurm to "
            "request one"
        )
    return f"{option}: Slurm is not used with {by}; leave one of them out"
