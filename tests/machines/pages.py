"""Specs of guests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

# A tenth of the line rate holds on a busy machine too; on an idle one perftest reaches most of it.
# Few writes are queued, and answers may take seconds, so that next to nothing is retransmitted. One
# retransmission waits 4.3 s (-u 20): perftest measures over 6 of its 10 seconds.
_PAGE = """
name: two guests
nodes: 2
accelerators: {per_node: 0}
fabric:
  {kind: roce, interfaces: [rxe0], line_rate: 40 Mbit/s, nics_per_node: 1, mtu: 4200,
   lost_at_most_fraction: 0.001}
management: {interfaces: [mgmt0], line_rate: 100 Mbit/s}
criteria:
  preflight:
    reachable: {within: 20 s, networks: [fabric, management]}
    interfaces: {}
    mtu: {}
    payload: {size: 1 MiB, within: 30 s}
    same: [python, kernel, sysctl]
    rdma: {gid_types: [RoCE v2]}
    limits: {memlock: unlimited}
  fabric:
    write_bandwidth:
      {at_least_fraction: 0.1, size: 64 KiB, duration: 10 s, repeats: 1,
       arguments: [-u, "20", -t, "8"]}
certificate: {valid_for: 1 day}
"""


def one_rail() -> dict[str, Any]:
    """RoCE over fab0."""
    page: dict[str, Any] = yaml.safe_load(_PAGE)
    return page


def two_rails() -> dict[str, Any]:
    """RoCE over both rails."""
    page = one_rail()
    page["fabric"] |= {"interfaces": ["rxe[01]"], "nics_per_node": 2}
    return page


def write(page: dict[str, Any], directory: Path) -> Path:
    """Write the spec as spec.yaml in a directory."""
    path = directory / "spec.yaml"
    path.write_text(yaml.safe_dump(page, sort_keys=False))
    return path
