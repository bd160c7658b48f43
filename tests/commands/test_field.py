"""Published measurements of real clusters, through `expect --of`: healthy ones do not fail, and
faulty ones do where a size is judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from pytest_mnode.measurement import Verdict
from pytest_mnode.measuring.tools.own_results import Asked, Result, judge_output, verdict_of
from pytest_mnode.spec import Spec
from pytest_mnode.spec.bandwidth import bus_factor
from pytest_mnode.spec.expect import COLLECTIVES
from tests.spec.test_schema import CLUSTERS

KINDS = {"slingshot": "infiniband", "omnipath": "infiniband", "tcpx": "roce", "tcpxo": "roce"}
PROGRAMS = {"all_to_all": "alltoall", "send_recv": "sendrecv"}
NOT_JUDGED = {
    "one node": "nothing crosses the fabric",
    "nodes, NICs or their rate are not known": "no line follows",
}


@dataclass(frozen=True, slots=True)
class Table:
    """One line of fixtures/field.yaml."""

    id: str
    platform: str
    collective: str
    health: str
    rows: Mapping[int, float]
    source: str
    gpu: str | None = None
    gpus: int | None = None
    nics: int | None = None
    gbit_s: int | None = None
    fabric: str | None = None
    domain: int | None = None
    nodes: int | None = None
    ranks: int | None = None
    algorithm: str | None = None
    fault: str | None = None
    about: bool = False

    @property
    def why_not(self) -> str | None:
        """Why it cannot be judged; None if it can."""
        if self.nodes == 1:
            return "one node"
        if self.nodes and self.ranks and self.nics and self.gbit_s and self.fabric:
            return None
        return "nodes, NICs or their rate are not known"

    @property
    def spec(self) -> Spec:
        promise = {"at_least_fraction": 0.85, "sizes": ["1 GiB"], "plateau_from": "1 GiB"}
        return Spec.model_validate(
            {
                "name": self.platform,
                "nodes": self.nodes,
                "accelerators": {"per_node": self.gpus},
                "fabric": {
                    "kind": KINDS.get(self.fabric or "", self.fabric),
                    "interfaces": ["*"],
                    "line_rate": f"{self.gbit_s} Gbit/s",
                    "nics_per_node": self.nics,
                    "mtu": 4096,
                },
                "criteria": {"fabric": {f"{name}_busbw": promise for name in COLLECTIVES}},
                "certificate": {"valid_for": "7 days"},
            }
        )

    def text(self) -> str:
        """As nccl-tests prints it."""
        assert self.ranks
        assert self.nodes
        factor = bus_factor(self.collective, self.ranks)
        program = f"{PROGRAMS.get(self.collective, self.collective)}_perf"
        pinned = f"NCCL_ALGO={self.algorithm} " if self.algorithm else ""
        per_node = self.ranks // self.nodes
        lines = [
            f"$ {pinned}{program} -b 1M -e 8G -f 2",
            *(f"#  Rank {r} Pid {r} on n{r // per_node} device 0" for r in range(self.ranks)),
            "#  size  count  type  redop  root  time  algbw  busbw #wrong",
            *(
                f"  {size} {size // 4} float none -1 {size * factor / busbw / 1e3 if busbw else 0} "
                f"{busbw / factor:.4f} {busbw} 0"
                for size, busbw in self.rows.items()
            ),
            "# Out of bounds values : 0 OK",
        ]
        return "\n".join(lines)

    def csv(self) -> str:
        lines = [f"{size},{busbw}" for size, busbw in self.rows.items()]
        return "\n".join(["size_bytes,busbw_gbytes_s", *lines])


def tables() -> list[Table]:
    read: list[dict[str, Any]] = yaml.safe_load((CLUSTERS.parent / "field.yaml").read_text())
    return [Table(**one) for one in read]


TABLES = tables()
JUDGED = [one for one in TABLES if one.why_not is None]


def result(table: Table) -> Result:
    [found] = judge_output(table.text().encode(), Asked(table.spec))
    return found
