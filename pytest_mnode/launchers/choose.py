"""Choice of the launcher that a run uses, with its reason."""

from __future__ import annotations

import os
from collections.abc import Sequence
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
    unused = unused_option(settings, bool(os.environ.get("SLURM_JOB_ID")), spec)
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


def unused_option(settings: Settings, in_job: bool, spec: Spec) -> str | None:
    """Error, with remedy, for an option that names nodes which the run would not use; else None.

    The run would certify other nodes instead. Inside an allocation, `auto` uses the allocation and
    accepts an unused hostfile, because the hostfile may come from an ini file.
    """
    wanted, file, args = settings.launcher, settings.hostfile, settings.slurm_args
    kubernetes = KubernetesOptions.of(settings).given
    if file is not None and (why := hostfile_without_users(file, wanted)) is not None:
        return why
    by_auto = wanted == "auto" and not in_job and file is None
    if kubernetes and wanted != "kubernetes" and not by_auto:
        return f"{kubernetes}: other nodes are used; give --mnode-launcher=kubernetes"
    if not args or wanted == "slurm" or (wanted == "auto" and in_job):
        return None
    to_gangs = spec.criteria.gang is not None  # gang jobs use `args` with any launcher
    if to_gangs and (wanted != "auto" or file is not None):
        return None
    given = f"--mnode-slurm-args={' '.join(args)}"
    if wanted == "auto" and file is None:
        return (
            f"{given}: this run is outside of an allocation; add --mnode-launcher=slurm to request "
            "one"
        )
    by = f"--mnode-launcher={wanted}" if wanted != "auto" else f"--mnode-hostfile={file}"
    return f"{given}: Slurm is not used with {by}; leave one of them out"
