"""Light client that speaks the protocol for a whole cluster: one process is agent and all ranks.

The hub starts it in place of the agent, with the agent's order on standard input. Ranks pass a
test, with two exceptions by its name: in `hang` the last rank never enters the collective in which
all others wait; in `differ` each rank raises a different error.
"""

from __future__ import annotations

import os
import pickle
import select
import sys
import time
from dataclasses import dataclass
from typing import Any

from pytest_mnode.agent.orders import read_order
from pytest_mnode.outcome.call_record import INSIDE, RETURNED, SEPARATOR
from pytest_mnode.protocol.channel import Line, UnixLine
from pytest_mnode.protocol.messages import (
    BEAT,
    HUB,
    AgentOrder,
    Call,
    Collect,
    Launch,
    NodeEntry,
    PhaseReport,
    StackTexts,
    TakeStacks,
    TornDown,
)

BEAT_S = 1.0
_STACK = """Current thread 0x00007f0000000000 (most recent call first):
  File "{file}", line {line} in {function}
  File "/bench/test_growth.py", line {at} in test_hang
"""
_WAITS = _STACK.format(
    file="/x/torch/distributed/distributed_c10d.py", line=2501, function="all_reduce", at=12
)
_ABSENT = _STACK.format(file="/bench/data.py", line=31, function="read_shard", at=11)


@dataclass(slots=True)
class _LightRank:
    world: str
    rank: int
    line: Line
    test: str = ""


class _Cluster:
    def __init__(self, order: AgentOrder) -> None:
        self.order = order
        self.line = UnixLine(order.peer, order.path, order.token)
        self.epoll = select.epoll()
        for source in (0, self.line.descriptor):
            self.epoll.register(source, select.EPOLLIN)
        self.ranks: dict[int, _LightRank] = {}
        """By the descriptors of their lines."""
        self.by_node: dict[tuple[str, str], list[_LightRank]] = {}
        self.last = -1
        self.per_node = 1

    def serve(self) -> None:
        next_beat = 0.0
        while True:
            if time.monotonic() >= next_beat:
                self.line.send_bytes(HUB, BEAT)
                next_beat = time.monotonic() + BEAT_S
            for ready, _ in self.epoll.poll(BEAT_S):
                if ready == 0:
                    if not os.read(0, 4096):
                        return
                elif ready == self.line.descriptor:
                    while (message := self.line.receive(0)) is not None:
                        self._obey(message)
                elif (rank := self.ranks.get(ready)) is not None:  # else it was stopped
                    while (message := rank.line.receive(0)) is not None:
                        self._answer(rank, message)

    def _obey(self, message: Any) -> None:
        match message:
            case Collect():
                for port, entry in enumerate(self.order.nodes, start=1):
                    self.line.send(HUB, Call(0, "node_ready", (entry.name, port)))
            case NodeEntry() as entry:
                self.line.send(HUB, Call(0, "node_ready", (entry.name, 1)))
            case Launch():
                self._launch(message)
            case Call(method="stop_world", args=(node, world)):
                self._stop(node, world)
            case TakeStacks():
                self._stacks(message)

    def _launch(self, launch: Launch) -> None:
        world = launch.world
        self.per_node = world.shape.procs_per_node
        self.last = world.shape.size - 1
        for local in range(self.per_node):
            rank = launch.node_rank * self.per_node + local
            name = f"rank/{world.id}/{rank}"
            line = UnixLine(name, self.order.path, self.order.token)
            self.epoll.register(line.descriptor, select.EPOLLIN)
            self.ranks[line.descriptor] = light = _LightRank(world.id, rank, line)
            self.by_node.setdefault((launch.node, world.id), []).append(light)
            line.send(HUB, Call(0, "hello", (world.id, rank)))
        if launch.node_rank == 0:
            self.line.send(HUB, Call(0, "node_ready", (launch.node, 1)))

    def _stop(self, node: str, world: str) -> None:
        for rank in self._on(node, world):
            del self.ranks[rank.line.descriptor]
            rank.line.close()
        self.by_node.pop((node, world), None)

    def _on(self, node: str, world: str) -> list[_LightRank]:
        return self.by_node.get((node, world), [])

    def _answer(self, rank: _LightRank, call: Call) -> None:
        def tell(method: str, value: Any) -> None:
            rank.line.send(rank.line.sender, Call(call.seq, method, (rank.rank, value)))

        match call.method:
            case "run_item":
                rank.test = call.args[0].nodeid
                tell("report", _report(rank, "setup"))
                if "hang" not in rank.test:
                    tell("body_done", (_report(rank, "call"),))
            case "call_function":  # the handlers of atexit, of which none raises
                tell("ended", TornDown(value=pickle.dumps([])))
            case "tear_down":
                tell("ended", TornDown(entered=3, reports=(_report(rank, "teardown"),)))

    def _stacks(self, message: TakeStacks) -> None:
        here = self._on(message.node, message.world)
        hangs = {rank.rank: "hang" in rank.test for rank in here}
        texts = {r: _ABSENT if r == self.last else _WAITS for r in hangs if hangs[r]}
        self.line.send(
            HUB,
            StackTexts(
                message.node,
                message.world,
                texts if message.poll_id is None else {},
                calls={r: _calls(r == self.last, hangs[r]) for r in hangs},
                poll_id=message.poll_id,
            ),
        )


def _calls(absent: bool, hangs: bool) -> str:
    """Record of 20 collectives; in a hang the last one has not returned."""
    made = 19 if absent else 20
    return "\n".join(
        SEPARATOR.join(
            (
                INSIDE if hangs and number == 20 else RETURNED,
                *(str(number), str(number), "", "all_reduce", ""),
                *("float32[1024]", "test_growth.py:12"),
            )
        )
        for number in range(1, made + 1)
    )


def _report(rank: _LightRank, when: str) -> PhaseReport:
    """A report as a rank sends it."""
    failed = when == "call" and "differ" in rank.test
    times: dict[str, Any] = {"duration": 0.001, "start": time.time(), "stop": time.time()}
    if not failed:
        return PhaseReport(when, "passed", times)
    error = f"loss on shard {rank.rank} is {rank.rank**0.5 + 0.1:.6f}, not finite"
    data: dict[str, Any] = {
        "nodeid": rank.test,
        "location": (rank.test.partition("::")[0], 0, rank.test.partition("::")[2]),
        "keywords": {"test_growth.py": 1, rank.test: 1, "pytestmark": 1},
        "outcome": "failed",
        "longrepr": error,
        "when": when,
        "user_properties": [],
        "sections": [],
        **times,
        "$report_type": "TestReport",
    }
    return PhaseReport(when, "failed", data)


def main() -> None:
    _Cluster(read_order(sys.stdin.readline())).serve()


if __name__ == "__main__":
    main()
