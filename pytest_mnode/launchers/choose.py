"""Choice of the launcher that a run uses, with its reason."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.hosts import Host, read_hostfile
from pytest_mnode.launchers.kubernetes.options import KubernetesOptions
from pytest_mnode.launchers.local import Local
from pytest_mnode.launchers.node import Launcher
from pytest_mnode.launchers.node_env import RunEnv
from pytest_mnode.launchers.rack import Layout, Link, Rack
from pytest_mnode.launchers.remote.launcher import RemoteOptions
from pytest_mnode.options import Settings
from pytest_mnode.spec import Spec


def kubernetes_of(settings: Settings) -> KubernetesOptions:
    return KubernetesOptions(
        settings.k8s_context,
        settings.k8s_namespace,
        settings.k8s_template,
        settings.k8s_image,
        settings.k8s_wait_s,
    )


def by_slurm(wanted: str) -> bool:
    """Whether Slurm provides the run's nodes: with `slurm`, or with `auto` inside an allocation."""
    inside = bool(os.environ.get("SLURM_JOB_ID"))
    return wanted == "slurm" or (wanted == "auto" and inside)


def by_ssh(wanted: str, hostfile: Path | None) -> bool:
    named = wanted == "auto" and hostfile is not None
    return wanted == "ssh" or (named and not by_slurm(wanted))


def by_kubernetes(wanted: str, options: KubernetesOptions) -> bool:
    """Whether the run's nodes are pods, if neither Slurm nor a hostfile provides them.

    Only an option chooses Kubernetes: the pod of a CI runner has a service account too, and its
    runs are not meant to create pods.
    """
    return wanted == "kubernetes" or (wanted == "auto" and options.given is not None)


def hosts_on(path: Path, on: Sequence[str] = ()) -> tuple[Host, ...]:
    """Hosts of a hostfile, in file order; `on`: names of the hosts to keep, () for all."""
    hosts = read_hostfile(path)
    return tuple(host for host in hosts if host.name in on) if on else hosts


def choose(
    settings: Settings, nodes: int, spec: Spec, cleanup_dirs: Sequence[str], root: Path
) -> tuple[Launcher, str]:
    """As `_choose`, with the environment that the user gives nodes."""
    launcher, why = _choose(settings, nodes, spec, cleanup_dirs, root)
    launcher.env = RunEnv.of_launcher(launcher.name, settings.env)
    launcher.silence_limit_s = settings.silence_limit_s
    return launcher, why


def _choose(
    settings: Settings, nodes: int, spec: Spec, cleanup_dirs: Sequence[str], root: Path
) -> tuple[Launcher, str]:
    """An unstarted launcher for `nodes` nodes, and the reason for choosing it in a few words.

    root: root of the tests, below which a directory shared by all nodes may be made. Raises
    UsageError if the requested launcher cannot work here.
    """
    wanted, kubernetes = settings.launcher, kubernetes_of(settings)
    job = os.environ.get("SLURM_JOB_ID")
    if (unused := _unused(settings, job is not None, spec)) is not None:
        raise UsageError(unused)
    run_dir = cleanup_dirs[0] if cleanup_dirs else ""
    remote = RemoteOptions(
        run_dir, root, settings.shared_dir, settings.python, settings.start_limit_s
    )
    if by_slurm(wanted):
        why = f"inside of job {job}" if job else "requested"
        return _slurm(settings, nodes, spec, remote), why
    if by_ssh(wanted, settings.hostfile):
        why = "requested" if wanted == "ssh" else f"hostfile {settings.hostfile}"
        return _ssh(settings, nodes, spec, remote), why
    if by_kubernetes(wanted, kubernetes):
        why = str(kubernetes.given) if wanted == "auto" else "requested"
        return _kubernetes(settings, nodes, spec, remote), why
    if wanted == "local":
        return Local(nodes), "requested"
    reason = Rack.unavailable()
    if reason is None:
        why = "requested" if wanted == "rack" else "no cluster was named"
        return _rack(nodes, spec, cleanup_dirs), why
    if wanted == "rack":
        raise UsageError(f"--mnode-launcher=rack: {reason}; use local, or allow namespaces")
    return Local(nodes), f"no rack: {reason}"


def _unused(settings: Settings, in_job: bool, spec: Spec) -> str | None:
    """Error, with remedy, for an option that names nodes which the run would not use; else None.

    The run would certify other nodes instead. Inside an allocation, `auto` uses the allocation and
    accepts an unused hostfile, because the hostfile may come from an ini file.
    """
    wanted, file, args = settings.launcher, settings.hostfile, settings.slurm_args
    kubernetes = kubernetes_of(settings).given
    if file is not None and wanted in ("rack", "local", "slurm", "kubernetes"):
        return (
            f"--mnode-hostfile={file}: --mnode-launcher={wanted} uses other nodes; leave one of "
            "them out, or give --mnode-launcher=ssh"
        )
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


def _slurm(settings: Settings, nodes: int, spec: Spec, remote: RemoteOptions) -> Launcher:
    from pytest_mnode.launchers.slurm.launcher import Slurm

    return Slurm(nodes, spec, remote, settings.slurm_args, settings.on)


def _kubernetes(settings: Settings, nodes: int, spec: Spec, remote: RemoteOptions) -> Launcher:
    from pytest_mnode.launchers.kubernetes.launcher import Kubernetes

    return Kubernetes(nodes, spec, remote, kubernetes_of(settings), settings.on)


def _ssh(settings: Settings, nodes: int, spec: Spec, remote: RemoteOptions) -> Launcher:
    from pytest_mnode.launchers.ssh import Ssh

    if settings.hostfile is None:
        raise UsageError("--mnode-launcher=ssh: no nodes given: use --mnode-hostfile=FILE")
    hosts = read_hostfile(settings.hostfile)
    if len(hosts) < nodes:
        names = ", ".join(host.name for host in hosts)
        raise UsageError(
            f"{nodes} nodes are needed, but {settings.hostfile} names {len(hosts)}: {names}; add "
            f"hosts to it, or give --mnode-nodes={len(hosts)}"
        )
    used = hosts_on(settings.hostfile, settings.on)[:nodes]
    return Ssh(used, spec, remote, unused=[host.name for host in hosts if host not in used])


def _rack(nodes: int, spec: Spec, cleanup_dirs: Sequence[str]) -> Rack:
    fabric = Link(spec.fabric.interfaces[0], spec.fabric.line_rate_mbits_s, spec.fabric.mtu_bytes)
    management = None
    if spec.management is not None:
        management = Link(
            spec.management.interfaces[0],
            spec.management.line_rate_mbits_s,
            spec.management.mtu_bytes or 1500,
        )
    layout = None
    if spec.topology is not None and cleanup_dirs:
        layout = Layout(
            sockets=spec.topology.sockets,
            accelerators=spec.topology.accelerator_sockets,
            fabric=spec.topology.fabric_socket,
            management=spec.topology.management_socket,
        )
    return Rack(
        nodes,
        fabric=fabric,
        management=management,
        layout=layout,
        shown_at=Path(cleanup_dirs[0], "sysfs") if layout else "",
        cleanup_dirs=list(cleanup_dirs),
    )
