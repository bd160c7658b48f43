"""Busbw of collectives on the rack, compared with iperf3 over the same link.

It needs two nodes or more of the embedded rack, with its links shaped as usual; all traffic stays
in its namespaces. It measures in turns, in the same rack: iperf3 from the first node to the second
over the fabric, one way and both ways at once; a gloo all-reduce over all nodes (busbw = 2(n-1)/n x
S/t, nccl-tests' PERFORMANCE.md); a send from the first node to the second (busbw = S/t). A ring
all-reduce sends and receives at once, so it is compared with iperf3 both ways (mean of the two), a
send with one way. The size is large enough for the plateau; values are medians of repeats.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import peers, table
from pytest_mnode.launchers.node import Node
from pytest_mnode.launchers.rack import Rack

_LIMIT_S = 120.0
_PORT = 29551
_IPERF_PORT = 5201


def measure(seconds: int, rounds: int, nodes: int = 4) -> str:
    """The table, for a terminal; or why there is none."""
    title = "busbw on the rack"
    if reason := Rack.unavailable():
        return table.terminal(title, ("", ""), [("no rack here", reason)])
    iperf3 = peers.which("iperf3")
    found: dict[str, list[float]] = {name: [] for name in ("one", "both", "all_reduce", "send")}
    with Rack(nodes) as rack:
        for _ in range(rounds):
            if iperf3 is not None:
                found["one"] += _iperf3(rack, iperf3, seconds, both=False)
                found["both"] += _iperf3(rack, iperf3, seconds, both=True)
            busbw = _busbw(rack, seconds)
            found["all_reduce"].append(busbw["all_reduce"])
            found["send"].append(busbw["send"])
    rows = [
        _row(f"gloo all_reduce, {nodes} nodes", found["all_reduce"], found["both"]),
        _row("gloo send, 2 nodes", found["send"], found["one"]),
        _row("iperf3, one way", found["one"], found["one"]),
        _row("iperf3, each of both ways", found["both"], found["both"]),
    ]
    return table.terminal(title, ("what", "Mbit/s", "to iperf3"), rows)


def _row(name: str, values: list[float], to: list[float]) -> tuple[str, str, str]:
    if not values:
        return name, "not installed", "-"
    share = f"{statistics.median(values) / statistics.median(to):.3f} ×" if to else "-"
    return name, f"{statistics.median(values):.1f}", share


def _iperf3(rack: Rack, program: str, seconds: int, both: bool) -> list[float]:
    """Mbit/s received: one value, which is the mean of both directions if `both`."""
    server, client = rack.nodes[1], rack.nodes[0]
    address = str(server.fabric_address)
    serve = [program, "--server", "--one-off", "--bind", address, "--port", str(_IPERF_PORT)]
    ask = [program, "--client", address, "--port", str(_IPERF_PORT), "--json"]
    ask += ["--time", str(seconds), "--omit", "1", *(["--bidir"] if both else [])]
    listening = _start(rack, server, serve)
    try:
        time.sleep(0.5)
        done = subprocess.run(
            rack.commands([client], ask)[0],
            capture_output=True,
            text=True,
            check=True,
            timeout=_LIMIT_S,
        )
    finally:
        listening.kill()
        listening.wait()
    end: dict[str, Any] = json.loads(done.stdout)["end"]
    received = [end["sum_received"]] + ([end["sum_received_bidir_reverse"]] if both else [])
    return [statistics.mean(r["bits_per_second"] for r in received) / 1e6]


def _busbw(rack: Rack, seconds: int) -> dict[str, float]:
    """Busbw in Mbit/s by collective, from a job with one rank per node."""
    with tempfile.TemporaryDirectory(prefix="mnode-bench-") as folder:
        result = Path(folder) / "busbw.json"
        program = [sys.executable, str(peers.PROGRAMS / "wire_job.py"), str(result), str(seconds)]
        programs = [
            _start(rack, node, ["env", *_environment(rack.nodes, node), *program])
            for node in rack.nodes
        ]
        end = time.monotonic() + _LIMIT_S
        try:
            codes = [p.wait(max(0.1, end - time.monotonic())) for p in programs]
        finally:
            for started in programs:
                started.kill()
        if any(codes):
            raise RuntimeError(f"the job on the rack ended with {codes}")
        data: dict[str, float] = json.loads(result.read_text())
        return data


def _environment(nodes: Sequence[Node], node: Node) -> list[str]:
    return [
        f"RANK={node.index}",
        f"WORLD_SIZE={len(nodes)}",
        f"MASTER_ADDR={nodes[0].address}",
        f"MASTER_PORT={_PORT}",
        f"GLOO_SOCKET_IFNAME={node.fabric_interface}",
        "OMP_NUM_THREADS=1",
        f"PYTHONPATH={peers.ROOT}",
    ]


def _start(rack: Rack, node: Node, argv: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        rack.commands([node], argv)[0],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=dict(os.environ),
    )
