"""NVLink's fabric: GPUs registered with NVSwitches, fabric manager, IMEX, domains over nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from pytest_mnode.checks.node.nvlink import STAND_IN
from pytest_mnode.culprit import Culprit
from pytest_mnode.evidence.check import Check, check
from pytest_mnode.evidence.row import Row, row, seen
from pytest_mnode.evidence.rules import Rows, Subject, Unread
from pytest_mnode.machine.nvlink import (
    NO_CLUSTER,
    Registration,
    imex_nodes,
    nvidia_smi,
    parse_fabric,
    read_imex,
    service,
)
from pytest_mnode.measurement import Measurement, equals, listed
from pytest_mnode.spec.fields import Section
from pytest_mnode.spec.inventory import Inventory

_STATE, _CLUSTER, _CLIQUE = "NVLink registration", "NVLink cluster UUID", "NVLink clique"
_MANAGER, _IMEX = "fabric manager", "IMEX daemon"
_DOMAIN, _NODES = "IMEX domain", "IMEX nodes file"
_COMPLETED, _RUNNING, _UP = "completed", "running", "UP"
Id = tuple[str, int | None]
"""Cluster UUID and clique: GPUs with the same pair reach each other over NVLink."""


class NvLinkFabric(Section):
    """State of NVLink's fabric. What is left out is not promised."""

    state: Literal["completed"] | None = None
    """Each accelerator is registered with the NVSwitches, with success and in health; and where
    `accelerators.domain` spans nodes, those of the run are in no more domains and cliques than
    they need. A100 registers otherwise, and shows no state."""
    manager: Literal["running"] | None = None
    """NVIDIA's fabric manager runs on each node, as HGX with NVSwitch needs; on NVL72 it runs on
    the switches."""
    imex: Literal["up"] | None = None
    """The IMEX daemon runs on each node, its domain is up, and its file of nodes is the same on all
    nodes of an NVLink domain; for NVLink over nodes."""


@check("preflight.nvlink_fabric")
class NvLinkFabricIsComplete(Check):
    """Is this node's NVLink fabric set up as promised: registration, fabric manager, IMEX, domain?

    From section Fabric of `nvidia-smi -q`, the processes or systemd, and `nvidia-imex-ctl -N`.
    """

    promise: NvLinkFabric
    """Registration of accelerators with NVSwitches, fabric manager, and IMEX."""
    of_accelerators = True

    def read(self, root: Path) -> Iterator[Row]:
        promise = self.promise
        if promise is None or promise.state is not None:
            yield from _registered()
        if promise is None or promise.manager is not None:
            yield _service(_MANAGER, "nv-fabricmanager", "nvidia-fabricmanager", root)
        if promise is None or promise.imex is not None:
            yield _service(_IMEX, "nvidia-imex", "nvidia-imex", root)
            yield from _imex(root)

    def rule(self, rows: Rows) -> Iterator[Measurement]:
        if self.promise.state is not None:
            yield rows.equals(_STATE, _COMPLETED, part="state")
            if self.spec.accelerators.nodes_of_a_domain > 1:
                yield self._domain(rows)
        if self.promise.manager is not None:
            yield rows.equals(_MANAGER, _RUNNING, part="manager")
        if self.promise.imex is not None:
            yield rows.equals(_IMEX, _RUNNING, part="imex")
            yield _imex_domain(rows)
            members = _ids(rows)
            mine = {n for n in rows.by_node if members.get(n) == members.get(rows.node)}
            files = rows.where(lambda one: one.metric == _NODES and one.node in mine)
            if sum(map(bool, files.by_node.values())) > 1:
                yield files.same(_NODES)

    def _domain(self, rows: Rows) -> Measurement:
        """Number of domains and cliques of this node's accelerators that are not those of the
        nodes it shares a domain with."""
        size, ids = self.spec.accelerators.nodes_of_a_domain, _ids(rows)
        source = f"accelerators.domain gpus {self.spec.accelerators.domain.gpus}"
        subject = Subject("NVLink domains other than those of most nodes", "", equals(0), source)
        if not (mine := ids.get(rows.node)):
            why = next((one.why for one in rows.of(_CLUSTER) if one.why), "no NVLink cluster UUID")
            found = rows.by_node[rows.node]
            return subject.unknown(
                f"{rows.node}: {found.why if isinstance(found, Unread) else why}"
            )
        counts = Counter(
            one for found in ids.values() for one in set(found) if one[0] != NO_CLUSTER
        )
        kept, tied = _largest(_of_clusters(counts), -(-len(ids) // size))
        for cluster in list(kept):
            cliques = Counter({one: n for one, n in counts.items() if one[0] == cluster})
            good, even = _largest(cliques, -(-cliques.total() // size))
            kept, tied = kept | good, tied | even
        odd = [one for one in dict.fromkeys(mine) if not {one[0], one} <= kept]
        words = [_text(one) for one in odd or mine]
        usual = [f"{_text(one)} on {n} nodes" for one, n in counts.most_common() if one not in mine]
        named = f"{rows.node} NVLink domain ({listed(words)})"
        sure = len(set(mine)) > 1 or any(one not in tied and one[0] not in tied for one in odd)
        culprit = Culprit(named, rows.node) if sure else Culprit(named, either=[[rows.node]])
        return subject.measured(
            len(odd), culprit, f"{rows.node}: {listed([*dict.fromkeys(words), *usual])}"
        )

    @classmethod
    def programs(cls, promise: NvLinkFabric) -> tuple[str, ...]:
        imex = ("nvidia-imex-ctl",) if promise.imex is not None else ()
        return ("nvidia-smi", *imex) if promise.state is not None else imex

    def doubts(self, cluster: Inventory) -> Iterator[str]:
        yield from super().doubts(cluster)
        if self.promise.imex is not None and cluster.accelerators.nodes_of_a_domain == 1:
            yield ".imex: given, but no accelerators.domain spans nodes"

    fault = STAND_IN
    promised_as = "{state: completed}"

    @classmethod
    def draft(cls, rows: Mapping[str, Sequence[Row]]) -> dict[str, str | None] | None:
        found: dict[str, str | None] = {
            key: value
            for key, metric, value, expected in (
                ("state", _STATE, "completed", _COMPLETED),
                ("manager", _MANAGER, "running", _RUNNING),
                ("imex", _DOMAIN, "up", _UP),
            )
            if seen(rows, metric) == [expected]
        }
        every = [one for read in rows.values() for one in read if one.value is not None]
        if {*seen(rows, _CLUSTER)} - {NO_CLUSTER} and _DOMAIN not in {e.metric for e in every}:
            found["imex"] = None  # which profiles of such nodes promise: a scheduler may start it
        return found or None


def _of_clusters(counts: Mapping[Id, int]) -> Counter[Id | str]:
    found = Counter[Id | str]()
    for (cluster, _), nodes in counts.items():
        found[cluster] += nodes
    return found


def _largest(
    counts: Mapping[Id, int] | Mapping[Id | str, int], need: int
) -> tuple[set[Id | str], set[Id | str]]:
    """The `need` groups with the most nodes, and those of which nobody knows whether they are."""
    ranked = sorted(counts.items(), key=lambda one: -one[1])
    if len(ranked) <= need:
        return set(counts), set()
    edge = ranked[need][1]
    tied = {one for one, n in ranked if n == edge} if ranked[need - 1][1] == edge else set()
    return {one for one, n in ranked if n > edge}, tied


def _text(one: Id) -> str:
    return f"{one[0]} clique {one[1]}"


def _ids(rows: Rows) -> dict[str, list[Id]]:
    """Cluster UUID and clique of each accelerator, by node; without nodes that show none."""
    found = dict[str, list[Id]]()
    for node, read in rows.by_node.items():
        cliques = {one.device: one.value for one in read if one.metric == _CLIQUE}
        for one in read:
            if one.metric == _CLUSTER and isinstance(one.value, str):
                clique = cliques.get(one.device)
                at = clique if isinstance(clique, int) else None
                found.setdefault(node, []).append((one.value, at))
    return found


def _imex_domain(rows: Rows) -> Measurement:
    """A domain that is not up is the fault of nodes whose daemon does not run, if there are any."""
    found = rows.equals(_DOMAIN, _UP, part="imex")
    down = [
        name
        for name, read in rows.by_node.items()
        if any(r.metric == _IMEX and r.value not in (None, _RUNNING) for r in read)
    ]
    if found.culprit is None or not down:
        return found
    named = Culprit(f"IMEX daemon of {listed(down, separator=', ')}", down)
    return Measurement(
        found.name, found.value, "", found.expected or equals(0), found.source, named, found.note
    )


def _registered() -> Iterator[Row]:
    for number, one in enumerate(parse_fabric(nvidia_smi("-q"))):
        device = f"accelerator {number}"
        shown = one or Registration()
        state = None if shown.state is None else _state(shown)
        yield row(_STATE, state, device=device, why="its driver shows no state of the fabric")
        yield row(_CLUSTER, shown.cluster, device=device, why=f"none: {shown.state or 'no state'}")
        yield row(_CLIQUE, shown.clique, device=device, why="none")


def _state(one: Registration) -> str:
    """completed, or what is not well."""
    words = [one.state or ""] if (one.state or "").lower() != _COMPLETED else []
    if not words and (one.status or "").lower() != "success":
        words = [one.status or "no status"]
    return ", ".join([*words, *one.ills]) or _COMPLETED


def _service(metric: str, process: str, unit: str, root: Path) -> Row:
    why = f"neither a process {process} nor systemd is seen here: is this a container?"
    return row(metric, service(process, unit, root), why=why)


def _imex(root: Path) -> Iterator[Row]:
    if (nodes := imex_nodes(root)) is not None:
        yield row(_NODES, ", ".join(sorted(nodes)) or "empty")
    if root == Path("/"):
        try:
            domain = read_imex()
        except OSError as error:
            yield row(_DOMAIN, why=str(error))
            return
        late = [f"{node} {state}" for node, state in domain.nodes.items() if state != "READY"]
        yield row(_DOMAIN, " ".join(filter(None, [domain.state, listed(late, separator=", ")])))
