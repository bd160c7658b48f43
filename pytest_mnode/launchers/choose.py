"""Which launcher a run uses, and why."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.hosts import Host, read_hostfile
from pytest_mnode.launchers.kubernetes.api import in_pod
from pytest_mnode.launchers.kubernetes.options import KubernetesOptions
from pytest_mnode.launchers.local import Local
from pytest_mnode.launchers.node import Launcher
from pytest_mnode.launchers.rack import Layout, Link, Rack
from pytest_mnode.options import Settings
from pytest_mnode.spec import Spec


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """Options for nodes that are other machines.

    root: of the tests, where a directory that all nodes see is looked for. on: names of the nodes
    to use; (): any. Others: see Settings.
    """

    root: Path
    hostfile: Path | None = None
    slurm_args: tuple[str, ...] = ()
    python: str = ""
    shared_dir: Path | None = None
    kubernetes: KubernetesOptions = field(default_factory=KubernetesOptions)
    on: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: Settings, root: Path) -> Self:
        """The part of the settings that concerns such nodes."""
        kubernetes = KubernetesOptions(
            settings.k8s_context,
            settings.k8s_namespace,
            settings.k8s_template,
            settings.k8s_image,
            settings.k8s_wait_s,
        )
        return cls(
            root,
            settings.hostfile,
            settings.slurm_args,
            settings.python,
            settings.shared_dir,
            kubernetes,
            settings.on,
        )


def by_slurm(wanted: str) -> bool:
    """Whether Slurm gives the run its nodes: inside of an allocation also with `auto`."""
    inside = bool(os.environ.get("SLURM_JOB_ID"))
    return wanted == "slurm" or (wanted == "auto" and inside)


def by_ssh(wanted: str, hostfile: Path | None) -> bool:
    """Whether a run reaches its nodes by ssh."""
    named = wanted == "auto" and hostfile is not None
    return wanted == "ssh" or (named and not by_slurm(wanted))


def by_kubernetes(wanted: str, options: KubernetesOptions) -> bool:
    """Whether pods are the nodes of a run that neither Slurm nor a hostfile gives nodes."""
    return wanted == "kubernetes" or (wanted == "auto" and bool(options.given or in_pod()))


def hosts_on(path: Path, on: Sequence[str] = ()) -> tuple[Host, ...]:
    """The hosts of a file, in its order; on: only these, where any are named."""
    hosts = read_hostfile(path)
    return tuple(host for host in hosts if host.name in on) if on else hosts


def choose(
    wanted: str,
    nodes: int,
    spec: Spec,
    cleanup_dirs: Sequence[str],
    elsewhere: RemoteOptions | None = None,
) -> tuple[Launcher, str]:
    """A launcher for `nodes` nodes, not started, and the reason for it in a few words.

    Raises UsageError where the wanted launcher cannot work here.
    """
    elsewhere = elsewhere or RemoteOptions(Path.cwd())
    job = os.environ.get("SLURM_JOB_ID")
    if (unused := _unused(wanted, job is not None, spec, elsewhere)) is not None:
        raise UsageError(unused)
    if by_slurm(wanted):
        run_dir = cleanup_dirs[0] if cleanup_dirs else ""
        why = f"inside of job {job}" if job else "asked for"
        return _slurm(nodes, spec, run_dir, elsewhere), why
    if by_ssh(wanted, elsewhere.hostfile):
        why = "asked for" if wanted == "ssh" else f"hostfile {elsewhere.hostfile}"
        return _ssh(nodes, spec, cleanup_dirs[0], elsewhere), why
    if by_kubernetes(wanted, elsewhere.kubernetes):
        why = elsewhere.kubernetes.given or "inside of a pod" if wanted == "auto" else "asked for"
        return _kubernetes(nodes, spec, cleanup_dirs[0], elsewhere), why
    if wanted == "local":
        return Local(nodes), "asked for"
    reason = Rack.unavailable()
    if reason is None:
        why = "asked for" if wanted == "rack" else "no cluster was named"
        return _rack(nodes, spec, cleanup_dirs), why
    if wanted == "rack":
        raise UsageError(f"--mnode-launcher=rack: {reason}; use local, or allow namespaces")
    return Local(nodes), f"no rack: {reason}"


def _unused(wanted: str, in_job: bool, spec: Spec, elsewhere: RemoteOptions) -> str | None:
    """The option that names nodes which would not be used, with the remedy; None: there is none.

    Other nodes would be certified in their place. Inside of an allocation `auto` uses that, because
    a hostfile may be in an ini file.
    """
    file, args = elsewhere.hostfile, elsewhere.slurm_args
    kubernetes = elsewhere.kubernetes.given
    if kubernetes and (wanted not in ("auto", "kubernetes") or in_job or file is not None):
        return f"{kubernetes}: other nodes are used; give --mnode-launcher=kubernetes"
    if file is not None and wanted in ("rack", "local", "slurm"):
        return (
            f"--mnode-hostfile={file}: --mnode-launcher={wanted} uses other nodes; leave one of "
            "them out, or give --mnode-launcher=ssh"
        )
    if not args or wanted == "slurm" or (wanted == "auto" and in_job):
        return None
    to_gangs = spec.criteria.gang is not None  # whose jobs are submitted, whatever is launched
    if to_gangs and (wanted != "auto" or file is not None):
        return None
    given = f"--mnode-slurm-args={' '.join(args)}"
    if wanted == "auto" and file is None:
        return (
            f"{given}: this is outside of an allocation; add --mnode-launcher=slurm to ask for one"
        )
    by = f"--mnode-launcher={wanted}" if wanted != "auto" else f"--mnode-hostfile={file}"
    return f"{given}: nothing is asked of Slurm with {by}; leave one of them out"


def _slurm(nodes: int, spec: Spec, run_dir: str, elsewhere: RemoteOptions) -> Launcher:
    from pytest_mnode.launchers.slurm.launcher import Slurm

    return Slurm(
        nodes,
        spec,
        elsewhere.slurm_args,
        run_dir=run_dir,
        root=elsewhere.root,
        shared_dir=elsewhere.shared_dir,
        python=elsewhere.python,
        on=elsewhere.on,
    )


def _kubernetes(nodes: int, spec: Spec, run_dir: str, elsewhere: RemoteOptions) -> Launcher:
    from pytest_mnode.launchers.kubernetes.launcher import Kubernetes

    return Kubernetes(
        nodes,
        spec,
        elsewhere.kubernetes,
        run_dir=run_dir,
        root=elsewhere.root,
        shared_dir=elsewhere.shared_dir,
        python=elsewhere.python,
        on=elsewhere.on,
    )


def _ssh(nodes: int, spec: Spec, run_dir: str, elsewhere: RemoteOptions) -> Launcher:
    from pytest_mnode.launchers.ssh import Ssh

    if elsewhere.hostfile is None:
        raise UsageError("--mnode-launcher=ssh: which nodes? name them by --mnode-hostfile=FILE")
    hosts = read_hostfile(elsewhere.hostfile)
    if len(hosts) < nodes:
        names = ", ".join(host.name for host in hosts)
        raise UsageError(
            f"{nodes} nodes are needed, and {elsewhere.hostfile} names {len(hosts)}: {names}; add "
            f"hosts to it, or give --mnode-nodes={len(hosts)}"
        )
    used = hosts_on(elsewhere.hostfile, elsewhere.on)[:nodes]
    return Ssh(
        used,
        spec,
        unused=[host.name for host in hosts if host not in used],
        run_dir=run_dir,
        root=elsewhere.root,
        shared_dir=elsewhere.shared_dir,
        python=elsewhere.python,
    )


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
