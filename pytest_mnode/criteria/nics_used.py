"""Judges whether each NIC that is promised carried its share of the traffic. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_mnode.culprit import Culprit
from pytest_mnode.measurement import Measurement, all_of, at_least, listed, with_suspects
from pytest_mnode.measuring.traffic import SentByNode
from pytest_mnode.spec import Spec

_IDLE_BELOW = 0.5
"""Of an even share; the default of `fabric.transport.rail_fraction`."""


def partly(spec: Spec) -> str:
    """Why loads may use some of this platform's NICs only; "" if one of all ranks uses all."""
    if spec.accelerators.nodes_of_a_domain > 1:
        return "NVLink carries what stays in a domain"
    several = spec.fabric.nics_per_node > (spec.accelerators.per_node or 1)
    return "a rank of several NICs may send a small message over one" if several else ""


def judge_nics(
    traffic: Sequence[SentByNode],
    spec: Spec,
    ranks_per_node: int,
    during: str = "",
    why: str = "",
) -> list[Measurement]:
    """NICs that carried their share, of the node with fewest.

    With NCCL's port failover a dead port no longer ends a job, and a bound may hold without it.
    Judged are RDMA fabrics, on which NCCL spreads large collectives evenly over the NICs. during:
    what was sent, such as "the steps". why: it may use some NICs only, so that it is recorded.
    """
    on_nics = {one.node: one.on_network(spec.fabric) for one in traffic if one.least_bytes}
    return judge_sent(on_nics, spec, ranks_per_node, during, why)


def judge_sent(
    on_nics: Mapping[str, Mapping[str, int] | None],
    spec: Spec,
    ranks_per_node: int,
    during: str = "",
    why: str = "",
) -> list[Measurement]:
    """The same of bytes by node and NIC; None if no counter saw them."""
    promised = spec.nics_of_ranks(ranks_per_node)
    if promised < 2 or spec.fabric.protocol is None or not any(on_nics.values()):
        return []  # no counter of soft-RoCE shows bytes
    carrying, idle = dict[str, int](), dict[str, list[str]]()
    for node, sent in on_nics.items():
        if sent is not None:
            least = _IDLE_BELOW * sum(sent.values()) / promised
            idle[node] = sorted(name for name, count in sent.items() if count < least)
            carrying[node] = len(sent) - len(idle[node])
    fewest = min(carrying, key=carrying.__getitem__)
    few = [node for node, count in carrying.items() if count < promised]
    known = few or len(carrying) == len(on_nics)
    found = Measurement(
        f"NICs that carried their share{during and f' during {during}'}, of the node with fewest",
        carrying[fewest] if known else None,
        "",
        at_least(promised).of("fabric.nics_per_node", spec.fabric.nics_per_node),
        f"fabric.nics_per_node {spec.fabric.nics_per_node}: at least {_IDLE_BELOW:g} of an even"
        " share each",
        with_suspects(
            all_of(
                Culprit.device(f"{node} {listed(idle[node] or ['a NIC'])}", node, *idle[node])
                for node in few
            ),
            (Culprit(node, node) for node in on_nics if node not in carrying),
        ),
        listed([f"{node}: {listed(idle[node])} sent less" for node in few if idle[node]]),
    )
    return [replace(found, expected=None, source=f"recorded: {why}") if why else found]
