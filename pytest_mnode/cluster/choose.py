"""Which launcher a run uses, and why."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_mnode.cluster.local import Local
from pytest_mnode.cluster.node import Launcher
from pytest_mnode.cluster.rack import Layout, Link, Rack
from pytest_mnode.errors import UsageError
from pytest_mnode.spec import Spec


def choose(
    wanted: str, nodes: int, spec: Spec, cleanup_dirs: Sequence[str]
) -> tuple[Launcher, str]:
    """A launcher for `nodes` nodes, not started, and the reason for it in a few words.

    Raises UsageError where the launcher that was asked for cannot work here.
    """
    if wanted == "local":
        return Local(nodes), "asked for"
    reason = Rack.unavailable()
    if reason is None:
        why = "asked for" if wanted == "rack" else "no cluster was named"
        return _rack(nodes, spec, cleanup_dirs), why
    if wanted == "rack":
        raise UsageError(f"--mnode-launcher=rack: {reason}; use local, or allow namespaces")
    return Local(nodes), f"no rack: {reason}"


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
