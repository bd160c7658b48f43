"""Nodes that the run makes on this machine, with the links that the spec describes."""

from __future__ import annotations

from pathlib import Path

from pytest_mnode.backends.backend import Backend, Here, NodeRequest
from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.node import Launcher
from pytest_mnode.launchers.rack import Layout, Link, Rack


class RackBackend(Backend):
    name = "rack"

    def meant(self, here: Here) -> str | None:  # noqa: ARG002
        return "default: no cluster given" if Rack.unavailable() is None else None

    def launcher(self, request: NodeRequest) -> Launcher:
        if (reason := Rack.unavailable()) is not None:
            raise UsageError(f"--mnode-launcher=rack: {reason}; use local, or allow namespaces")
        spec, at = request.spec, request.cleanup_dirs
        criterion = spec.criteria.fabric
        failover = criterion.failover if criterion else None
        name, ports = spec.fabric.interfaces[0], failover.ports if failover else ()
        fabric, *spare = (
            Link(one, spec.fabric.line_rate_mbits_s, spec.fabric.mtu_bytes)
            for one in (ports or [name])
        )
        if len(spare) > 1 or name in ports:
            raise UsageError(
                f"criteria.fabric.failover.ports [{', '.join(ports)}]: accepted on the rack: two "
                f"names other than {name}, which joins them"
            )
        management = None
        if spec.management is not None:
            management = Link(
                spec.management.interfaces[0],
                spec.management.line_rate_mbits_s,
                spec.management.mtu_bytes or 1500,
            )
        layout = None
        if spec.topology is not None and at:
            layout = Layout(
                sockets=spec.topology.sockets,
                accelerators=spec.topology.accelerator_sockets,
                fabric=spec.topology.fabric_socket,
                management=spec.topology.management_socket,
            )
        return Rack(
            request.nodes,
            fabric=fabric,
            spare=spare[0] if spare else None,
            joined=name if spare else "",
            management=management,
            layout=layout,
            shown_at=Path(at[0], "sysfs") if layout else "",
            cleanup_dirs=list(at),
        )
