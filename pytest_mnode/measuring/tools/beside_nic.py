"""A program that runs another program near an RDMA device, and reports where that program ran.

`python -m pytest_mnode.measuring.tools.beside_nic DEVICE BINDING MEMORY PROGRAM [ARGUMENT …]`, with
BINDING nic or none, and MEMORY host or gpu. It prints STARTED when PROGRAM runs, the output of
PROGRAM when it has ended, then a line of JSON, and ends with the status of PROGRAM. It does not use
numactl, which may be missing on nodes. It kills a PROGRAM whose TCP connection is not answered.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from pytest_mnode.criteria.placement.near import Home, Locality, near
from pytest_mnode.machine import sysfs
from pytest_mnode.machine.cpus import read_cpus
from pytest_mnode.machine.encoding import encode
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.netdev import plain
from pytest_mnode.machine.numa import read_numa
from pytest_mnode.machine.pci import read_pci
from pytest_mnode.machine.process import bytes_by_node, read_process
from pytest_mnode.machine.rdma import read_rdma
from pytest_mnode.processes import descendants, die_with_parent, end_programs
from pytest_mnode.rank import mempolicy

STARTED = "beside_nic: the program runs"
_LOOK_EVERY_S = 0.2
_CONNECT_LIMIT_S = 8.0
"""By then TCP has sent four SYNs, at 0, 1, 3 and 7 s; perftest itself would wait for minutes."""
_HELP_LIMIT_S = 20.0
_NOT_STARTED = 127


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPlacement:
    """Where a program ran, and the CPUs and memory near the device that it used.

    place: the device in words. near_cpus, near_memory: None if unknown, with the reason in
    `unknown`. cpus, memory_bytes (by NUMA node): those of the process with the most memory; None if
    it ended before it was observed. problem: why the program was not bound, not started, or
    killed. status: its exit status, negative for a signal; None if it was not started, or killed.
    """

    place: str
    near_cpus: frozenset[int] | None = None
    near_memory: frozenset[int] | None = None
    unknown: str = ""
    cpus: frozenset[int] | None = None
    memory_bytes: dict[int, int] | None = None
    problem: str = ""
    status: int | None = None


def locate(machine: Machine, name: str) -> tuple[ToolPlacement, Locality | None]:
    """A placement with the CPUs and memory near an RDMA device, and these as a Locality or None."""
    device = next((one for one in machine.rdma or () if one.name == name), None)
    if device is None:
        return ToolPlacement(place=name, unknown=f"this node shows no RDMA device {name}"), None
    number, with_cpus = device.numa_node, machine.numa.with_cpus
    if number is None and len(with_cpus) == 1:
        number = with_cpus[0].number
    if number is None:
        why = f"the kernel does not know the NUMA node of {name} (numa_node is −1 or unreadable)"
        return ToolPlacement(place=name, unknown=why), None
    found = near(machine, Home(name, number), "node")  # a measurement is bound as near as can be
    if isinstance(found, str):
        return ToolPlacement(place=f"{name} on NUMA node {number}", unknown=found), None
    located = ToolPlacement(place=found.place, near_cpus=found.cpus, near_memory=found.memory_nodes)
    return located, found


def cuda_arguments(machine: Machine, name: str, help_text: str, root: Path) -> tuple[str, ...]:
    """perftest's arguments to use memory of the GPU nearest to an RDMA device.

    Raises ValueError if there is no GPU, or if `help_text` has no such argument.

    Source: perftest, src/perftest_parameters.c, usage.
    """
    if "--use_cuda" not in help_text:
        raise ValueError(
            "it was built without CUDA (its help has no --use_cuda): install a perftest with CUDA,"
            " or promise memory: host"
        )
    device = next((one for one in machine.rdma or () if one.name == name), None)
    gpus = [one.address for one in machine.pci.accelerators if one.is_nvidia]
    if device is None or not gpus:
        raise ValueError(f"this node shows no {'NVIDIA GPU' if device else f'RDMA device {name}'}")

    def far(address: str) -> int:
        distance = machine.pci.distance(device.pci_address, address)
        return len(gpus) if distance is None else distance.rank

    nearest = min(gpus, key=far)
    by_address = "--use_cuda_bus_id" in help_text
    chosen = f"--use_cuda_bus_id={nearest}" if by_address else f"--use_cuda={gpus.index(nearest)}"
    peermem = sysfs.text(root / "sys/module/nvidia_peermem/initstate") == "live"
    open_driver = machine.software is not None and machine.software.driver_is_open
    dmabuf = "--use_cuda_dmabuf" in help_text and (open_driver or not peermem)
    return (chosen, *(["--use_cuda_dmabuf"] if dmabuf else []))


def run(
    name: str, binding: str, memory: str, argv: Sequence[str], root: Path = Path("/")
) -> tuple[str, ToolPlacement]:
    """Run `argv` near an RDMA device; its output, and where it ran.

    It is bound before it starts, so that all its allocations are near, and ends with this process.
    """
    # Read without a time limit, because a part missing on a slow machine would prevent binding.
    machine = Machine(
        rdma=read_rdma(root), pci=read_pci(root), cpus=read_cpus(root), numa=read_numa(root)
    )
    placed, beside = locate(machine, name)
    try:
        if memory == "gpu":
            argv = [*argv, *cuda_arguments(machine, name, _help(argv[0]), root)]
        with contextlib.ExitStack() as bound, tempfile.TemporaryFile("w+", errors="replace") as out:
            problem = ""
            if binding == "nic" and beside is not None:
                problem = _bind(machine, beside, bound)
            program = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                # --use_cuda=N counts GPUs, here in the order of their PCI addresses.
                env={**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
                preexec_fn=partial(die_with_parent, os.getpid()),  # noqa: PLW1509  no threads here
            )
            print(STARTED, flush=True)
            placed = _watched(program, replace(placed, problem=problem))
            out.seek(0)
            return out.read(), placed
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return "", replace(placed, problem=f"{argv[0]} cannot be run: {why}")


def _help(program: str) -> str:
    done = subprocess.run(
        [program, "--help"], capture_output=True, timeout=_HELP_LIMIT_S, check=False, text=True
    )
    return done.stdout + done.stderr


def _bind(machine: Machine, beside: Locality, bound: contextlib.ExitStack) -> str:
    """Bind this process and its children. Returns why that failed, or ""."""
    usable = beside.cpus & os.sched_getaffinity(0)
    if not usable:
        return f"none of the CPUs beside {beside.place} may be used here"
    os.sched_setaffinity(0, usable)
    memories = {node.number for node in machine.numa.nodes if node.memory_bytes}
    wanted = sorted(memories & beside.memory_nodes, key=lambda n: n != beside.numa_node)
    if not wanted or len(memories) < 2:
        return ""
    try:
        bound.enter_context(mempolicy.only(wanted[0]))
    except OSError as error:
        return f"memory cannot be bound to NUMA node {wanted[0]}: {error.strerror}"
    return ""


def _watched(program: subprocess.Popen[bytes], placed: ToolPlacement) -> ToolPlacement:
    """Wait for the program; record where it, or a descendant, was when it had the most memory."""
    most, peer, asked = 0, "", time.monotonic()
    while True:
        try:
            return replace(placed, status=program.wait(_LOOK_EVERY_S))
        except subprocess.TimeoutExpired:
            pass
        if time.monotonic() > asked + _CONNECT_LIMIT_S:
            before, peer, asked = peer, _unanswered(program.pid), time.monotonic()
            if peer and peer == before:
                end_programs([program])
                words = f"{peer} did not answer a connection within {_CONNECT_LIMIT_S:g} s"
                return replace(placed, problem=words)
        for pid in (program.pid, *descendants(program.pid)):
            process = read_process(pid)
            memory = bytes_by_node(process.memory) if process and process.memory else {}
            if process is not None and sum(memory.values()) >= max(most, 1):
                most = sum(memory.values())
                placed = replace(placed, cpus=process.cpus_allowed, memory_bytes=memory)


def _unanswered(pid: int) -> str:
    """Address and port that a process tries to connect to by TCP; "" if it waits for none."""
    import psutil  # imported late, because most programs end before it is needed

    try:
        found = psutil.Process(pid).net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return ""
    asked = [one.raddr for one in found if one.status == psutil.CONN_SYN_SENT]
    return f"{plain(asked[0].ip)} port {asked[0].port}" if asked else ""


def main(words: Sequence[str], root: Path = Path("/")) -> NoReturn:
    """Run this program with these command-line arguments."""
    name, binding, memory, *argv = words
    printed, placed = run(name, binding, memory, argv, root)
    print(printed, encode(placed), sep="\n", flush=True)
    sys.exit(_NOT_STARTED if placed.status is None else min(abs(placed.status), 255))


if __name__ == "__main__":
    main(sys.argv[1:])
