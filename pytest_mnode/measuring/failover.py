"""Takes ports of the fabric down, one of one node at a time, while it exchanges with the next.

Judges import this in the controller, so that torch is imported by what measures.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_mnode.machine.counters import sent_bytes
from pytest_mnode.measuring.at_once import node_gbits_s, targets_of
from pytest_mnode.measuring.port_meanwhile import Port

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from pytest_mnode.rank.world import World
    from pytest_mnode.spec import Spec
    from pytest_mnode.spec.traffic import FailoverPromise

STEADY_S = 1.5
"""[choice] For how long a rate is measured before a port goes down, and after it came up again."""
_CALL_S = 0.04
"""[choice] A call at the line rate: the shortest pause that is told from a call."""
_WARM_UP = 2


@dataclass(frozen=True, slots=True)
class PortFailover:
    """What became of the calls of a node while one of its ports went down and up again.

    why: why it was not measured, or "". calls: begin and end of each. down_s, up_s: when the port
    was set down and up, by the same clock. sent: bytes of each port before it went down, and while
    it was. wrong: calls with a wrong sum.
    """

    node: str
    port: str
    why: str = ""
    calls: tuple[tuple[float, float], ...] = ()
    down_s: float = 0.0
    up_s: float = 0.0
    sent: Mapping[str, tuple[int, int]] | None = None
    wrong: int = 0


def fail_over(
    world: World, spec: Spec, promise: FailoverPromise, device: torch.device
) -> list[PortFailover]:
    """Take each port of each node down, or of some nodes of many. All ranks call this together."""
    import torch.distributed as dist

    from pytest_mnode.measuring.ranks import barrier, gathered

    found, nodes, each = list[PortFailover](), world.nodes, world.local_size
    for node in targets_of(nodes):
        at = nodes.index(node)
        pair = [at, (at + 1) % len(nodes)]
        ranks = [rank for one in pair for rank in range(one * each, (one + 1) * each)]
        group = dist.new_group(ranks)
        left = list(promise.ports)
        while left:
            mine = None
            if world.rank in ranks:
                lead = node if world.rank == ranks[0] else ""
                mine = _one(lead, left, promise, spec, world, group, device)
            barrier(device)
            done = gathered(mine)[ranks[0]]
            assert done is not None
            found.append(done)
            left.remove(done.port)
        if world.rank in ranks:
            dist.destroy_process_group(group)
    return found


def _one(  # noqa: PLR0917  of one port
    lead: str,
    ports: Sequence[str],
    promise: FailoverPromise,
    spec: Spec,
    world: World,
    group: dist.ProcessGroup,
    device: torch.device,
) -> PortFailover:
    """Calls of one group, before, while and after the port that sends most is down.

    lead: the node, on the rank that takes it down. Its vote, the first value, ends the calls of
    all: the ranks of a group call equally often.
    """
    import torch
    import torch.distributed as dist

    from pytest_mnode.measuring.ranks import finish

    size = max(8, int(node_gbits_s(spec, world) * 1e9 / 8 * _CALL_S / 2 / 4))
    values = torch.empty(size, dtype=torch.float32, device=device)
    calls, wrong, over = list[tuple[float, float]](), 0, False
    found, port = PortFailover(lead, ports[0]), None
    at_first, at_down = dict[str, int](), dict[str, int]()
    began_s = time.monotonic()
    try:
        while True:
            values.fill_(1.0)
            values[0] = float(over)
            start_s = time.monotonic()
            dist.all_reduce(values, group=group)
            finish(device)
            calls.append((start_s, time.monotonic()))
            wrong += int((values[1:] != dist.get_world_size(group)).any())
            if values[0].item() > 0:
                break
            if not lead:
                continue
            now = time.monotonic()
            if len(calls) == _WARM_UP:
                began_s, at_first = now, sent_bytes()
            elif port is None and len(calls) > _WARM_UP and now > began_s + STEADY_S:
                at_down = sent_bytes()
                name = max(ports, key=lambda one: at_down.get(one, 0) - at_first.get(one, 0))
                found = replace(found, port=name)
                port = Port(name, promise.down_for_s)
                over = bool(port.why)
            elif port is not None and port.ended:
                if found.sent is None:
                    found = replace(
                        found, sent=_sent(promise.ports, at_first, at_down, sent_bytes())
                    )
                over = bool(port.why) or now > port.restored_s + promise.within_s + STEADY_S
    finally:
        if port is not None:
            port.close()
    if port is None:
        return found
    kept = tuple(calls[_WARM_UP:])
    return replace(
        found, why=port.why, calls=kept, down_s=port.changed_s, up_s=port.restored_s, wrong=wrong
    )


def _sent(ports: Sequence[str], *read: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    first, down, up = read
    known = [one for one in ports if all(one in reading for reading in read)]
    return {one: (down[one] - first[one], up[one] - down[one]) for one in known}
