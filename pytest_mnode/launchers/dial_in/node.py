"""A node's program: `python -m pytest_mnode.launchers.dial_in.node FILE`; dials in, and serves.

FILE holds the order, if all nodes see it; otherwise the order is the first line of standard input.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import psutil

from pytest_mnode.launchers.dial_in.connections import Dealer, Keys, endpoint_of
from pytest_mnode.launchers.remote import remote_exec, wire
from pytest_mnode.launchers.remote.command_process import OF_A_TASK, OF_THE_JOB

_OF_STARTERS = (*OF_A_TASK, "OMPI_", "PRTE_", "HYDRA_", "HYDI_", "MPIR_", "FLUX_TASK_", "FLUX_JOB_")
"""Variables of this program as a task of the site's command, which no command may inherit."""


@dataclass(frozen=True, slots=True)
class DialOrder:
    """What a node's program has to know, from a file or its standard input.

    addresses: of this machine, to be tried in this order. silence_s: how long it may hear nothing.
    connect_s: how long all of them may take to be connected to.
    step: the program is a job step of the run itself, whose variables are by the rule of node_env.
    """

    addresses: Sequence[str]
    port: int
    keys: Keys
    silence_s: float
    connect_s: float
    step: bool = False

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Self:
        found = json.loads(text)
        return cls(**{**found, "keys": Keys(**found["keys"])})


def read_order(file: Path) -> DialOrder:
    """Raises SystemExit, in one line; with status 0 if the run has all its nodes already."""
    try:
        text = file.read_text()
        if not text:
            print(f"{socket.gethostname()}: a second program of a node", file=sys.stderr)
            sys.exit(0)
    except OSError as error:
        text = sys.stdin.readline()
        if not text:
            sys.exit(
                f"{socket.gethostname()}: {file}: {error.strerror}: this node sees no directory in "
                "common (--mnode-shared-dir), and the command forwards no standard input"
            )
    return DialOrder.read(text)


def way_to(order: DialOrder) -> str:
    """The first address of the run that can be connected to. Raises SystemExit."""
    reasons, each_s = [], order.connect_s / len(order.addresses)
    for one in order.addresses:
        try:
            socket.create_connection((one, order.port), each_s).close()
        except OSError as error:
            reasons.append(f"{one}: {error.strerror or error}")
        else:
            return endpoint_of(one, order.port)
    there = f"port {order.port} of the machine of pytest"
    sys.exit(f"{socket.gethostname()}: cannot connect to {there}: {'; '.join(reasons)}")


def names() -> dict[str, object]:
    """The node's host name, Slurm's name of it, and its addresses that are no loopback's."""
    every = [one for some in psutil.net_if_addrs().values() for one in some]
    numeric = (socket.AF_INET, socket.AF_INET6)
    found = [one.address.partition("%")[0] for one in every if one.family in numeric]
    own = [one for one in found if not one.startswith(("127.", "::1", "fe80"))]
    slurm = os.environ.get("SLURMD_NODENAME")
    return {"hostname": socket.gethostname(), "slurm": slurm, "addresses": own}


class DialedIn(remote_exec.Stdio):
    """The stream over a line to the bridge."""

    def __init__(self, line: Dealer) -> None:
        self._line = line
        self.greeting = wire.frame(wire.NAMES, 0, json.dumps(names()).encode())

    def register(self, poll: select.poll, writes: bool) -> bool:  # noqa: ARG002  it takes all
        """The descriptor tells of a change once, which the line may have noticed already."""
        poll.register(self._line.descriptor, select.POLLIN)
        return self._line.pending

    def read(self) -> bytes | None:
        return self._line.receive()

    def write(self, data: bytearray) -> int:
        self._line.send(bytes(data))
        return len(data)


def main(file: str) -> None:
    remote_exec.adopt_orphans(b"mnode-node")
    order = read_order(Path(file))
    name = f"node/{uuid.uuid4().hex}"
    line = Dealer(name, way_to(order), order.keys)
    for one in [] if order.step else list(os.environ):
        if one.startswith(_OF_STARTERS) and one not in OF_THE_JOB:
            del os.environ[one]
    try:
        remote_exec.RemoteExec(DialedIn(line), order.silence_s).serve()
    finally:
        remote_exec.kill_all()
        line.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
