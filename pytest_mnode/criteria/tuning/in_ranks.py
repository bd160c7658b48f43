"""What is measured under a setting. All ranks of a world call each function together, and each
returns `Values` of the slowest rank, or of all together: the same on every rank."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import resource
import socket
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from pytest_mnode.criteria.tuning.experiment import Broken, NotHere, Values, longer
from pytest_mnode.culprit import Culprit
from pytest_mnode.jobs.observer import TRACED_STEPS
from pytest_mnode.machine.cpus import read_cpulist
from pytest_mnode.machine.fabric_nics import nic_of_rank, read_fabric_nics
from pytest_mnode.measuring import port_meanwhile
from pytest_mnode.measuring.algorithms import DEFAULT, Algorithm, fresh_group
from pytest_mnode.measuring.locating.rounds import circle
from pytest_mnode.measuring.nic_counters import Counted
from pytest_mnode.measuring.port_meanwhile import Port
from pytest_mnode.measuring.ranks import (
    backend_on,
    barrier,
    boot_id,
    by_rank,
    elapsed_s,
    gathered,
    send_and_receive,
    slowest_call_s,
    traced,
)
from pytest_mnode.rank import binding
from pytest_mnode.rank.accelerators import accelerator_address, home_of
from pytest_mnode.rank.world import World
from pytest_mnode.reference_job.config import JobConfig, device_for
from pytest_mnode.reference_job.data import Feed
from pytest_mnode.reference_job.device import device_of
from pytest_mnode.reference_job.model import Transformer
from pytest_mnode.reference_job.parallel import parallel, summing_up
from pytest_mnode.reference_job.randomness import seed_all
from pytest_mnode.reference_job.spans import Spans, clock_of, pace_of
from pytest_mnode.spec import Spec
from pytest_mnode.spec.quantity import SIZE

MTU_S = 120.0
"""[choice] After this an MTU is put back in any case: twice the limit of a measurement, and as that
`longer` with more nodes."""
REPEAT_S = 0.2
"""[choice] Calls of one size in a measurement: several bursts of a shaper."""
_SAMPLE_BYTES, _SAMPLES = 1 << 18, 32
_TRAFFIC_BYTES = 1 << 18


def device_here(spec: Spec, world: World) -> torch.device:
    """This rank's device."""
    return device_of(device_for(spec.accelerators.per_node), world.local_rank)


def _slowest(seconds: float, device: torch.device) -> float:
    return max(one for [one] in by_rank([seconds], device))


def ring(values: torch.Tensor, group: Any = None) -> None:
    """Sum over all ranks, in place: 2 (n-1) steps, in each of which 1/n of the values moves on."""
    ranks, me = dist.get_world_size(), dist.get_rank()
    parts = [*values.tensor_split(ranks)]
    landing = torch.empty_like(parts[0])
    for step in range(2 * (ranks - 1)):
        given, taken = parts[(me - step) % ranks], parts[(me - step - 1) % ranks]
        sums = step < ranks - 1
        into = landing[: len(taken)] if sums else taken
        send_and_receive(given, (me + 1) % ranks, into, (me - 1) % ranks, group)
        if sums:
            taken += into


def tree(values: torch.Tensor, group: Any = None) -> None:
    """Sum over all ranks, in place: up a binomial tree to rank 0, and down again, whole."""
    ranks, me = dist.get_world_size(), dist.get_rank()
    landing = torch.empty_like(values)
    distances = [1 << power for power in range((ranks - 1).bit_length())]
    below = [d for d in distances if me % (2 * d) == 0 and me + d < ranks]
    above = next((d for d in distances if me % (2 * d) == d), None)
    for distance in below:
        dist.recv(landing, me + distance, group=group)
        values += landing
    if above is not None:
        dist.send(values, me - above, group=group)
        dist.recv(values, me - above, group=group)
    for distance in reversed(below):
        dist.send(values, me + distance, group=group)


def all_reduces(
    spec: Spec, *, sizes: Sequence[int], how: str = "", world: World
) -> dict[str, dict[str, float]]:
    """Time of an all-reduce of each size. how: "ring" or "tree", our own over messages between
    ranks; "" for the library's. Raises Broken for a wrong sum."""
    device, found = device_here(spec, world), {}
    call = {"ring": ring, "tree": tree}.get(how, dist.all_reduce)
    for size in sizes:
        values = torch.full((max(1, size // 4),), float(world.rank + 1), device=device)
        call(values)
        right = bool((values == world.size * (world.size + 1) / 2).all())
        if wrong := {node: None for node, good in gathered((world.node, right)) if not good}:
            words = f"wrong sum of {SIZE.text(size)} by {how or 'the library'}"
            raise Broken(Culprit(f"{words} on {', '.join(wrong)}", either=[wrong]))
        values.zero_()
        time_s = slowest_call_s(functools.partial(call, values), REPEAT_S, device)
        found[SIZE.text(size)] = {"time": 1e6 * time_s}
    return found


@contextlib.contextmanager
def with_mtu(spec: Spec, mtu: int, world: World) -> Iterator[None]:
    """An MTU of the fabric's interfaces on all nodes meanwhile, also if ranks are killed. Raises
    NotHere where it cannot be set, Broken where it could not be put back."""
    network = boot_id(), Path("/proc/self/ns/net").stat().st_ino
    leads = gathered(network).index(network) == world.rank
    before, ports, why = dict[str, int](), list[Port](), ""
    try:
        try:
            names = interfaces(spec) if leads else []
            before = {name: port_meanwhile.mtu_of(name) for name in names}
            for name, was in before.items():
                ports.append(Port(name, MTU_S * longer(len(world.nodes)), mtu, was))
            missing = f"no interface of {', '.join(spec.fabric.interfaces)}"
            why = next((one.why for one in ports if one.why), missing * (leads and not names))
        except OSError as error:
            why = str(error)
        for node, refused in gathered((world.node, why)):
            if refused:
                raise NotHere(f"{node}: {refused}")
        yield
    finally:
        for port in ports:
            port.close()
        for name, was in before.items():
            if (now := port_meanwhile.mtu_of(name)) != was:
                words = f"{world.node} {name}: its MTU is left at {now}, and was {was}"
                raise Broken(Culprit.device(words, world.node, name))


def interfaces(spec: Spec, sys_net: Path = Path("/sys/class/net")) -> list[str]:
    """The fabric's interfaces here whose MTU is theirs: a bond takes its members along. One that is
    on top of another comes after it."""
    names = [
        name
        for name in psutil.net_if_addrs()
        if spec.fabric.has_interface(name) and not (sys_net / name / "master").exists()
    ]
    return sorted(names, key=socket.if_nametoindex)


def mtus(spec: Spec, *, world: World) -> list[int]:  # noqa: ARG001  as all functions here
    """All MTUs that the fabric's interfaces of all nodes have."""
    found = set[int]()
    for name in interfaces(spec):
        with contextlib.suppress(OSError):
            found.add(port_meanwhile.mtu_of(name))
    return sorted(set[int]().union(*gathered(found)))


def bandwidth(spec: Spec, *, size: int, mtu: int | None = None, world: World) -> Values:
    """Rate and CPU time of an all-reduce over new connections, which follow the MTU; mtu: None for
    that of the nodes."""
    device = device_here(spec, world)
    values = torch.zeros(size // 4, device=device)
    with (
        with_mtu(spec, mtu, world) if mtu else contextlib.nullcontext(),
        fresh_group(Algorithm(DEFAULT, False, True, ""), device) as group,
    ):
        call = functools.partial(dist.all_reduce, values, group=group)
        once_s = _slowest(elapsed_s(call, 1, device), device)
        calls = max(2, math.ceil(5 * REPEAT_S / once_s))
        before = resource.getrusage(resource.RUSAGE_SELF)
        time_s = _slowest(elapsed_s(call, calls, device) / calls, device)
        after = resource.getrusage(resource.RUSAGE_SELF)
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    used = sum(one for [one] in by_rank([used_s], device))
    moved = 2 * (world.size - 1) / world.size * size
    cpu = 1e9 * used / calls / (moved * world.size)
    return {"": {"rate": 8e-6 * moved / time_s, "CPU": cpu}}


@contextlib.contextmanager
def other_traffic(spec: Spec, network: str, world: World) -> Iterator[None]:
    """Bytes by TCP from each node to the next over a network, as fast as they go, meanwhile."""
    over = spec.fabric if network == "fabric" else spec.management
    addresses = [
        one.address
        for name, every in psutil.net_if_addrs().items()
        for one in every
        if over is not None and over.has_interface(name) and one.family == socket.AF_INET
    ]
    there = socket.create_server((addresses[0] if addresses else "127.0.0.1", 0))
    at = gathered((there.getsockname() if addresses else None, world.node))
    if not all(where for where, _ in at):
        there.close()
        raise NotHere(f"no address of {network} on {next(n for where, n in at if not where)}")
    over_s, sent = threading.Event(), bytes(_TRAFFIC_BYTES)
    following: Any = at[(world.rank + world.local_size) % world.size][0]
    client = socket.create_connection(following)  # the call has a limit
    peer, _ = there.accept()

    def send() -> None:
        with contextlib.suppress(OSError):
            while not over_s.is_set():
                client.sendall(sent)

    def receive() -> None:
        with contextlib.suppress(OSError):
            while peer.recv(_TRAFFIC_BYTES):
                pass

    threads = [threading.Thread(target=one, daemon=True) for one in (send, receive)]
    for thread in threads:
        thread.start()
    try:
        time.sleep(REPEAT_S)
        yield
    finally:
        over_s.set()
        for end in (client, peer):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        for end in (client, peer, there):
            end.close()


def beside(spec: Spec, *, size: int, network: str = "", world: World) -> Values:
    """Rate of an all-reduce beside other traffic of every node over this network."""
    device = device_here(spec, world)
    call = functools.partial(dist.all_reduce, torch.zeros(size // 4, device=device))
    call()
    with other_traffic(spec, network, world) if network else contextlib.nullcontext():
        time_s = slowest_call_s(call, REPEAT_S, device)
        barrier(device)
    return {"": {"rate": 8e-6 * 2 * (world.size - 1) / world.size * size / time_s}}


def pair_times(spec: Spec, *, size: int, world: World) -> list[list[float]]:
    """Seconds of an exchange between every two nodes, by their first ranks; 0 of a node itself."""
    device = device_here(spec, world)
    nodes, each = len(world.nodes), world.local_size
    found = [[0.0] * nodes for _ in range(nodes)]
    mine = 0 if world.local_rank else size
    out, into = (torch.zeros(mine, dtype=torch.uint8, device=device) for _ in range(2))
    node = world.rank // each
    for pairs in circle(nodes):
        other = next((sum(pair) - node for pair in pairs if node in pair), None)

        def exchange(partner: int | None = other) -> None:
            if partner is not None and not world.local_rank:
                send_and_receive(out, partner * each, into, partner * each)

        exchange()
        barrier(device)
        every = by_rank([elapsed_s(exchange, 4, device) / 4], device)
        for a, b in pairs:
            found[a][b] = found[b][a] = max(every[a * each][0], every[b * each][0])
    return found


def train(
    spec: Spec, *, job: Mapping[str, Any], passes: int, hook: str = "", prefetch: int = 0,
    whole: bool = False, sync_every: int = 0, hidden: bool = False, world: World,
) -> Values:  # fmt: skip
    """Time of a pass, bytes that a node sends for it, and the loss at the end of all passes.

    job: keys of `JobConfig`. hook: of DDP's, such as "fp16". prefetch: blocks that FSDP2 gathers
    ahead; 0 as it does by itself. whole: it gathers all at once. sync_every: passes between
    averages of all parameters, without any sum of gradients (local SGD); 0 to sum gradients.
    hidden: whether to trace two more passes for the time of communication that computing hides, on
    the rank that waits least.
    """
    with tempfile.TemporaryDirectory() as directory:
        config = JobConfig(
            directory=directory, device=device_for(spec.accelerators.per_node),
            deterministic=False, dropout=0.0, **job,
        )  # fmt: skip
        device = device_of(config.device, world.local_rank)
        spans = Spans(clock_of(device), pace_of(config, device))
        seed_all(config.seed)
        bare = Transformer(config, spans).to(device)
        if hook:
            model: nn.Module = _with_hook(bare, config, device, hook)
        else:
            model = parallel(bare, config, device, dist.group.WORLD, spans, whole=whole)
        for number, block in enumerate(bare.blocks if prefetch else ()):
            block.set_modules_to_forward_prefetch(  # type: ignore[operator]
                [*bare.blocks[number + 1 : number + 1 + prefetch]]
            )
            block.set_modules_to_backward_prefetch(  # type: ignore[operator]
                [*reversed([*bare.blocks[max(0, number - prefetch) : number]])]
            )
        optimiser = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
        feed = Feed(config, world.rank, world.size, device)
        losses = list[float]()

        def one(number: int) -> None:
            _, tokens, targets = feed.next()
            last = (number + 1) % config.accumulation == 0 and not sync_every
            with summing_up(model, last):
                total = model(tokens, targets)
                (total * world.size / (config.global_batch * config.context)).backward()
            losses.append(float(total.detach()))
            if last or sync_every:
                optimiser.step()
                optimiser.zero_grad()
                spans.next_step()
            if sync_every and (number + 1) % sync_every == 0:
                flat = torch.cat([p.detach().flatten() for p in bare.parameters()])
                dist.all_reduce(flat.div_(world.size))
                nn.utils.vector_to_parameters(flat, bare.parameters())

        counted = Counted(world)
        first = max(config.accumulation, sync_every, 4)  # PowerSGD sends all of its first ones
        for number in range(first):
            one(number)
        barrier(device)
        with counted:
            began = time.perf_counter()
            for number in range(first, first + passes):
                one(number)
            time_s = _slowest((time.perf_counter() - began) / passes, device)
        sent = max(
            sum(node.own_bytes().values()) for node in counted.by_node([1] * len(world.nodes))
        )
        found = {"time": 1e3 * time_s, "sent": sent / passes / 1e6}
        if hidden:
            numbers = itertools.count(first + passes)
            trace = traced(lambda: one(next(numbers)), TRACED_STEPS, device, directory)
            seen = [trace.exposed, trace.hidden] if trace else [math.inf, math.nan]
            found["hidden"] = 1e3 * min(by_rank(seen, device))[1] / TRACED_STEPS
        feed.close()
        loss = sum(sum(tail) for tail in by_rank(losses[-4:], device)) / (4 * world.size)
        per_token = loss / (config.local_batch(world.size) * config.context)
        return {"": {**found, "loss": per_token}}


def _with_hook(
    bare: Transformer, config: JobConfig, device: torch.device, hook: str
) -> DistributedDataParallel:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    model = DistributedDataParallel(
        bare,
        device_ids=[device.index] if device.type != "cpu" else None,
        bucket_cap_mb=config.bucket_bytes / (1 << 20),
    )
    if hook == "powerSGD":
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=2, start_powerSGD_iter=2
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif hook == "8bit":
        model.register_comm_hook(None, eight_bit_hook(backend_on(device)))
    else:
        model.register_comm_hook(None, getattr(default_hooks, f"{hook}_compress_hook"))
    return model


def eight_bit_hook(backend: str) -> Any:
    """torch's own. It reads results of an all_gather as NCCL leaves them in a future: one list
    deeper than gloo does."""
    from torch.distributed.algorithms.ddp_comm_hooks import quantization_hooks

    hook: Any = quantization_hooks.quantization_pertensor_hook
    if backend != "gloo":
        return hook

    def all_gather(*args: Any, **more: Any) -> Any:
        gathering: Any = dist.all_gather(*args, **more)
        future = gathering.get_future().then(lambda done: [done.value()])
        return SimpleNamespace(get_future=lambda: future)

    nested = SimpleNamespace(**{**vars(dist), "all_gather": all_gather})
    return FunctionType(hook.__code__, {**hook.__globals__, "dist": nested}, hook.__name__)


class _Samples(Dataset[torch.Tensor]):
    """Samples that are decompressed, as images are decoded: 1 to 2 ms of CPU each."""

    def __init__(self) -> None:
        few = bytes(number & 63 for number in range(256))  # values, so that there is work to do
        self._packed = zlib.compress(os.urandom(_SAMPLE_BYTES).translate(few), 1)

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.frombuffer(bytearray(zlib.decompress(self._packed)), dtype=torch.uint8)


def load(
    spec: Spec, *, workers: int, prefetch: int = 2, pinned: bool = False, world: World
) -> Values:
    """Samples per second of all ranks' loaders together, on their devices."""
    device = device_here(spec, world)
    more: dict[str, Any] = {"prefetch_factor": prefetch} if workers else {}
    batches = iter(
        DataLoader(_Samples(), batch_size=4, num_workers=workers, pin_memory=pinned, **more)
    )
    for _ in range(2 * max(1, workers)):
        next(batches)
    barrier(device)

    def call() -> None:
        next(batches).to(device, non_blocking=pinned)

    time_s = _slowest(elapsed_s(call, _SAMPLES // 4, device), device)
    call = batches = None  # type: ignore[assignment]  # ends the workers
    return {"": {"rate": _SAMPLES * world.size / time_s}}


def copies(spec: Spec, *, where: str, size: int, world: World) -> Values:
    """Rate at which a rank that is bound to CPUs near its accelerator, else its NIC, or far from
    it, moves its memory.

    On accelerators to the device, else within the host's memory. Raises NotHere where all CPUs are
    equally near.
    """
    device = device_here(spec, world)
    near, bound = _near_cpus(spec, world, device), os.sched_getaffinity(0)
    every = set(read_cpulist(Path("/sys/devices/system/cpu/online")) or bound)
    if not all(gathered(bool(near & every and every - near))):
        raise NotHere("all CPUs are equally near, or nothing says which are")
    os.sched_setaffinity(0, {"near": near & every, "far": every - near, "unbound": every}[where])
    try:
        source = torch.zeros(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
        target = torch.zeros(size, dtype=torch.uint8, device=device)
        time_s = slowest_call_s(lambda: target.copy_(source, non_blocking=True), REPEAT_S, device)
    finally:
        os.sched_setaffinity(0, bound)
    return {"": {"rate": size / time_s / 1e9}}


def _near_cpus(spec: Spec, world: World, device: torch.device) -> frozenset[int]:
    """CPUs beside this rank's accelerator, else beside its NIC of the fabric, by the kernel; empty
    if it does not say."""
    if device.type != "cpu":
        shown = binding.of_this_rank().shown
        at = home_of(shown, accelerator_address(shown, device.index or 0))
    else:
        nics = read_fabric_nics(spec.fabric.interfaces)
        nic = nic_of_rank(nics, world.local_rank, world.local_size)
        at = nic.numa_node if nic else None
    return read_cpulist(Path(f"/sys/devices/system/node/node{at}/cpulist")) or frozenset()
