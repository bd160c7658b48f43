"""All experiments: their questions, settings, and the lines that make a setting last. Pure, but for
the order of nodes, which is measured first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_mnode.criteria.tuning.experiment import Experiment, Metric, NotHere, Place, Setting
from pytest_mnode.spec.scaling import ReferenceModel, ScalingCriterion

_SIZES = (1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20)
"""[choice] By gloo: there trees and rings of our own cross."""
_NCCL_SIZES = tuple(1 << power for power in (12, 14, 16, 18, 20, 22, 24, 26, 28))
_LARGE_S = 0.05
"""Time of a large message at the line rate."""
_MOST = 1 << 30
_OF_A_PAIR = 64 << 20
"""[choice] Large enough for any line rate: more costs memory and time of each pair of nodes."""
TIME = Metric("time", "µs")
RATE = Metric("rate", "Mbit/s", more=True)
_PASS = Metric("time", "ms")
_SENT = Metric("sent", "MB")
_HIDDEN = Metric("hidden", "ms")
"""Communication of a pass beside computing."""
LOSS = Metric("loss", "", at_most_worse=0.02)
"""[choice] Runs with other seeds differ by about as much."""
_ON_CPUS = ReferenceModel(layers=4, width=128, heads=2, context=16, vocab=32)
"""[choice] 3.2 MB of gradients, where the spec has no job to train on CPUs."""
_EMULATED_S = 0.1


def _algorithms(place: Place) -> Sequence[Setting]:
    if place.backend != "nccl":
        sizes: dict[str, Any] = {"sizes": _SIZES}
        own = [Setting(f"own {how}", {"how": how, **sizes}) for how in ("ring", "tree")]
        return [Setting(f"{place.backend}'s choice", sizes), *own]
    sizes = {"sizes": _NCCL_SIZES}
    found = [Setting("NCCL's choice", sizes)]
    for algorithm in ("Ring", "Tree", "NVLS", "NVLSTree", "CollnetDirect", "CollnetChain"):
        found.append(Setting.of_env(NCCL_ALGO=algorithm))
    for algorithm in ("Ring", "Tree"):
        for protocol in ("LL", "LL128", "Simple"):
            found.append(Setting.of_env(NCCL_ALGO=algorithm, NCCL_PROTO=protocol))
    return [found[0], *(_with(one, sizes) for one in found[1:])]


def _with(setting: Setting, arguments: Mapping[str, Any]) -> Setting:
    return Setting(setting.name, arguments, setting.env, lines=setting.lines)


def _large(place: Place) -> int:
    """Bytes that a node's NICs send in `_LARGE_S`, in whole values."""
    return _sent(place, place.spec.nics_of_ranks(place.ranks_per_node), _MOST)


def _sent(place: Place, nics: int, most: int) -> int:
    rate = place.spec.fabric.line_rate_bits_s * nics / 8
    return min(most, max(1 << 16, int(rate * _LARGE_S) // 64 * 64))


def _several_nodes(place: Place, least: int = 2) -> None:
    if len(place.nodes) < least:
        raise NotHere(f"it needs {least} nodes; give --mnode-nodes={least} or more")


def _mtus(place: Place) -> Sequence[Setting]:
    _several_nodes(place)
    if (kind := place.spec.fabric.kind) != "ethernet":
        raise NotHere(f"the MTU of {kind} is not that of an interface; only ethernet is tried")
    size = {"size": _large(place)}
    have = place.in_ranks("mtus")
    if len(have) != 1:
        found = ", ".join(map(str, have)) or "none"
        raise NotHere(f"it compares with one MTU of all the fabric's interfaces; found: {found}")
    return [
        Setting(f"MTU {have[0]}", size),
        *(
            Setting(f"MTU {mtu}", {**size, "mtu": mtu}, lines=(f"ip link set dev NIC mtu {mtu}",))
            for mtu in (1500, 9000)
            if mtu != have[0]
        ),
    ]


def _job(place: Place, **more: Any) -> dict[str, Any]:
    """The training job: the one that `scaling` promises, else a small one on CPUs."""
    scaling = place.spec.criteria.scaling
    emulated = not place.spec.accelerators.per_node
    promise = scaling or ScalingCriterion.model_validate({})
    compute_s = promise.compute_s or (_EMULATED_S if emulated else None)
    model = _ON_CPUS if scaling is None and emulated else promise.model
    passes = more.get("accumulation", 1)
    batch = promise.samples_per_rank * len(place.nodes) * place.ranks_per_node * passes
    return {
        **model.model_dump(),
        "dtype": promise.dtype,
        "global_batch": batch,
        "samples": batch * 64,
        "compute_s": None if compute_s is None else compute_s * passes,
        "bucket_bytes": promise.bucket_bytes,
        **more,
    }


def _gradient_bytes(place: Place) -> int:
    """About: twelve width² of a block, and the two tables."""
    job = _job(place)
    width, tables = job["width"], 2 * job["vocab"] + job["context"]
    return int(4 * (12 * job["layers"] * width**2 + tables * width))


def _overlaps(place: Place) -> Sequence[Setting]:
    whole = _gradient_bytes(place)
    cut = {"no overlap, one bucket": 2 * whole, "4 buckets": whole // 4, "16 buckets": whole // 16}
    if whole > 25 << 20:
        cut["buckets of 25 MiB"] = 25 << 20
    return [
        Setting(
            name,
            {"job": _job(place, bucket_bytes=size), "passes": 4, "hidden": True},
            lines=(f"DistributedDataParallel(…, bucket_cap_mb={size / (1 << 20):.3g})",),
        )
        for name, size in cut.items()
    ]


def _compressions(place: Place) -> Sequence[Setting]:
    job = {"job": _job(place), "passes": 8}
    hooks = "torch.distributed.algorithms.ddp_comm_hooks"
    # Its buckets call collectives when others end: by gloo in another order on each rank.
    one = {"bucket_bytes": 2 * _gradient_bytes(place)} if place.backend == "gloo" else {}
    in_one = {**job, "job": _job(place, **one)}
    of_one = ", one bucket" * bool(one)
    settings = (
        ("fp16", job, "fp16", "None, {}.default_hooks.fp16_compress_hook"),
        ("bf16", job, "bf16", "None, {}.default_hooks.bf16_compress_hook"),
        (
            f"8 bit{of_one}",
            in_one,
            "8bit",
            "None, {}.quantization_hooks.quantization_pertensor_hook",
        ),
        (
            f"PowerSGD, rank 2{of_one}",
            in_one,
            "powerSGD",
            "PowerSGDState(None, 2), {}.powerSGD_hook.powerSGD_hook",
        ),
    )
    return [
        Setting("uncompressed", job),
        *(
            Setting(
                name,
                {**given, "hook": hook},
                lines=(f"model.register_comm_hook({line.format(hooks)})",),
            )
            for name, given, hook, line in settings
        ),
    ]


def _accumulations(place: Place) -> Sequence[Setting]:
    found = [Setting("a sum with each pass", {"job": _job(place), "passes": 8})]
    for every in (2, 4):
        line = f"with model.no_sync(): all but the last of {every} passes"
        job = _job(place, accumulation=every)
        found.append(Setting(f"a sum every {every}", {"job": job, "passes": 8}, lines=(line,)))
    local = {"job": _job(place), "passes": 8, "sync_every": 4}
    line = "PeriodicModelAverager(period=4, warmup_steps=0)"
    return [*found, Setting("local SGD, mean every 4", local, lines=(line,))]


def _networks(place: Place) -> Sequence[Setting]:
    _several_nodes(place)
    if place.spec.management is None:
        raise NotHere("the spec names no management network")
    if place.ranks_per_node > 1:
        raise NotHere("it has one rank on each node; give --mnode-procs-per-node=1")
    size = {"size": _large(place)}
    return [
        Setting("other traffic on the fabric", {**size, "network": "fabric"}),
        Setting(
            "other traffic on management",
            {**size, "network": "management"},
            lines=("storage and logs: mount and send over the addresses of management",),
        ),
    ]


def nearest_first(times: Sequence[Sequence[float]]) -> list[int]:
    """An order of nodes in which each is followed by the one nearest to it of those left."""
    order, left = [0], set(range(1, len(times)))
    while left:
        order.append(min(left, key=lambda node: (times[order[-1]][node], node)))
        left.remove(order[-1])
    return order


def _orders(place: Place) -> Sequence[Setting]:
    _several_nodes(place, 4)
    size = {"size": _large(place)}
    near = nearest_first(place.in_ranks("pair_times", size=_sent(place, 1, _OF_A_PAIR)))
    far = [*near[::2], *near[1::2]]
    named = {"nearest first": near, "scattered": far}
    found = [Setting("as given", size)]
    for name, order in named.items():
        nodes = tuple(place.nodes[node] for node in order)
        lines = ("# hostfile, in this order", *nodes)
        found.append(Setting(name, size, nodes=nodes, lines=lines))
    return found


def _placements(place: Place) -> Sequence[Setting]:
    size = {"size": 64 << 20}
    what = "accelerator" if place.spec.accelerators.per_node else "NIC"
    names = {"unbound": "unbound", "near": f"CPUs near the {what}", "far": f"far from the {what}"}
    bind = ("torchrun --numa-binding=node",)
    return [
        Setting(name, {**size, "where": where}, lines=bind if where == "near" else ())
        for where, name in names.items()
    ]


def _loaders(place: Place) -> Sequence[Setting]:
    found = []
    pins = (False, True) if place.spec.accelerators.per_node else (False,)
    for workers, prefetch in ((0, 2), (2, 2), (4, 2), (4, 4)):
        for pinned in pins:
            ahead = f", {prefetch} batches ahead" if workers else ""
            name = f"{workers} workers{ahead}{', pinned' if pinned else ''}"
            more = f", prefetch_factor={prefetch}" if workers else ""
            line = f"DataLoader(…, num_workers={workers}{more}, pin_memory={pinned})"
            given = {"workers": workers, "prefetch": prefetch, "pinned": pinned}
            found.append(Setting(name, given, lines=(line,)))
    return found


def _prefetches(place: Place) -> Sequence[Setting]:
    job = {"job": _job(place, parallel="fsdp2"), "passes": 4, "hidden": True}
    found = [
        Setting("as FSDP2 does", job),
        Setting("no overlap, all at once", {**job, "whole": True}, lines=("fully_shard(model)",)),
    ]
    for ahead in (1, 2):
        line = f"block.set_modules_to_forward_prefetch(the next {ahead}); …backward_prefetch(…)"
        found.append(Setting(f"{ahead} blocks ahead", {**job, "prefetch": ahead}, lines=(line,)))
    return found


def _channels(place: Place) -> Sequence[Setting]:
    if place.backend != "nccl":
        raise NotHere(f"{place.backend} has no such settings; NCCL has")
    sizes = {"sizes": (1 << 20, 1 << 26, 1 << 28)}
    found = [
        *(Setting.of_env(NCCL_MIN_NCHANNELS=n, NCCL_MAX_NCHANNELS=n) for n in ("4", "16", "32")),
    ]
    if place.spec.fabric.kind in ("infiniband", "roce"):
        found += [
            *(Setting.of_env(NCCL_IB_QPS_PER_CONNECTION=n) for n in ("2", "4", "8")),
            Setting.of_env(NCCL_IB_QPS_PER_CONNECTION="4", NCCL_IB_SPLIT_DATA_ON_QPS="1"),
            *(Setting.of_env(NCCL_IB_ADAPTIVE_ROUTING=n) for n in ("0", "1")),
        ]
    elif place.spec.fabric.kind == "ethernet":
        found += [
            Setting.of_env(NCCL_SOCKET_NTHREADS="4", NCCL_NSOCKS_PERTHREAD=n) for n in ("2", "4")
        ]
    return [Setting("NCCL's choice", sizes), *(_with(one, sizes) for one in found)]


_ALL = (
    Experiment(
        *(
            "algorithm",
            "Which algorithm is fastest for an all-reduce of which size?",
            "all_reduces",
        ),
        *((TIME,), _algorithms, 1.5),
        crosses=("ring", "tree"),
    ),
    Experiment(
        *("mtu", "What does another MTU gain?", "bandwidth"),
        *((RATE, Metric("CPU", "ns/B")), _mtus, 1.5),
    ),
    Experiment(
        *("overlap", "What does overlap of gradients with the backward pass gain?", "train"),
        *((_PASS, _SENT, _HIDDEN), _overlaps, 6.0),
    ),
    Experiment(
        *("compression", "What does compression of gradients gain, and cost?", "train"),
        *((_PASS, _SENT, LOSS), _compressions, 8.0),
    ),
    Experiment(
        *("accumulation", "What do fewer sums of gradients gain, and cost?", "train"),
        *((_PASS, _SENT, LOSS), _accumulations, 8.0),
    ),
    Experiment(
        *("network", "What does a network of their own gain for collectives?", "beside"),
        *((RATE,), _networks, 0.5),
    ),
    Experiment(
        *("topology", "What does an order of ranks by distance gain?", "bandwidth"),
        *((RATE,), _orders, 2.0),
    ),
    Experiment(
        *("placement", "What does binding beside accelerator or NIC gain?", "copies"),
        *((Metric("rate", "GB/s", more=True),), _placements, 0.5),
    ),
    Experiment(
        *("loader", "How many workers, and batches ahead, load fastest?", "load"),
        *((Metric("rate", "samples/s", more=True),), _loaders, 1.0),
    ),
    Experiment(
        *("fsdp", "What do overlap and gathering parameters further ahead gain?", "train"),
        *((_PASS, _SENT, _HIDDEN), _prefetches, 6.0),
    ),
    Experiment(
        *("channels", "What do channels, queue pairs and routing of NCCL gain?", "all_reduces"),
        *((TIME,), _channels, 3.0),
    ),
)
CATALOGUE: Mapping[str, Experiment] = {one.name: one for one in _ALL}
