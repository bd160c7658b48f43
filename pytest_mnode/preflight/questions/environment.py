"""Do ranks find torchrun's environment, and nothing that ties a backend's hands?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase

from pytest_mnode.preflight.questions.answer import Answer, NotPromised, listed, unknown
from pytest_mnode.preflight.ranks import RankEnvironment
from pytest_mnode.spec import Spec
from pytest_mnode.verdict import Measurement, equals

_COMMON = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
_OFF = frozenset({"1", "true", "yes", "y", "on"})


def contract(
    ranks: Sequence[RankEnvironment] | None, spec: Spec, name: str, why: str = ""
) -> Answer:
    """How many of torchrun's variables are missing, wrong or unlike those of other ranks.

    ranks: of the whole world, by rank; None where there could be no world, and `why`.
    """
    promise = spec.criteria.preflight
    if promise is None or promise.environment is None:
        return NotPromised("the environment of ranks")
    label, source = "variables of torchrun that are wrong", "torchrun's contract"
    mine = _on(name, ranks or ())
    if ranks is None or not mine:
        return unknown(label, "", equals(0), source, why or f"no rank runs on {name}")
    faults = [fault for rank in mine for fault in _faults(rank, ranks)]
    culprit = f"{name}: {listed(faults, 1)}" if faults else None
    note = listed(faults, 3) or f"{len(mine)} ranks of {len(ranks)}"
    return (Measurement(label, len(faults), "", equals(0), source, culprit, note),)


def _on(name: str, ranks: Sequence[RankEnvironment]) -> list[RankEnvironment]:
    return [rank for rank in ranks if rank.node == name]


def _faults(rank: RankEnvironment, ranks: Sequence[RankEnvironment]) -> list[str]:
    """What is wrong with a rank's variables, where it is number `rank.number` of the world."""
    local = [other for other in ranks if other.node == rank.node]
    expected = {
        "RANK": str(rank.number),
        "WORLD_SIZE": str(len(ranks)),
        "LOCAL_RANK": str(local.index(rank)),
        "LOCAL_WORLD_SIZE": str(len(local)),
    }
    found = []
    for variable, wanted in expected.items():
        value = rank.variables.get(variable)
        if value is None:
            found.append(f"rank {rank.number}: {variable} is not set")
        elif value != wanted:
            found.append(f"rank {rank.number}: {variable}={value}, and it is {wanted}")
    for variable in _COMMON[:2]:
        value = rank.variables.get(variable)
        usual = _most_common([other.variables.get(variable) for other in ranks])
        if value is None or not value:
            found.append(f"rank {rank.number}: {variable} is not set")
        elif value != usual:
            found.append(f"rank {rank.number}: {variable}={value}, {usual} in most ranks")
    port = rank.variables.get("MASTER_PORT")
    if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        found.append(f"rank {rank.number}: MASTER_PORT={port} is no port")
    return found


def _on_loopback(ranks: Sequence[RankEnvironment]) -> bool:
    return all(rank.variables.get("MASTER_ADDR", "").startswith("127.") for rank in ranks)


def _most_common(values: Sequence[str | None]) -> str | None:
    known = [value for value in values if value]
    return max(known, key=known.count) if known else None


def _is(*values: str) -> Callable[[str, Spec], bool]:
    return lambda value, _: value.strip().lower() in values


def _set(value: str, _: Spec) -> bool:
    return bool(value.strip())


def _is_on(value: str, _: Spec) -> bool:
    return value.strip().lower() in _OFF


def _not_fabric(value: str, spec: Spec) -> bool:
    """Whether an interface list as NCCL and gloo take it leaves the fabric's interfaces out."""
    text = value.strip()
    if not text or spec.fabric.kind != "ethernet":
        return False  # on RDMA fabrics sockets only carry the bootstrap
    excludes, exact = text.startswith("^"), text.lstrip("^").startswith("=")
    names = [n.partition(":")[0] for n in text.lstrip("^").lstrip("=").split(",") if n]

    def matches(interface: str) -> bool:
        return any(interface == n if exact else interface.startswith(n) for n in names)

    wanted = [pattern.rstrip("*") for pattern in spec.fabric.interfaces]
    hit = [interface for interface in wanted if matches(interface)]
    if excludes:
        return bool(hit)
    foreign = [n for n in names if not any(fnmatchcase(n, p) for p in spec.fabric.interfaces)]
    return not hit or bool(foreign and exact)


_TIES: Mapping[str, tuple[Callable[[str, Spec], bool], str]] = {
    "NCCL_IB_DISABLE": (_is_on, "no RDMA"),
    "NCCL_NET": (_is("socket"), "sockets instead of RDMA"),
    "NCCL_P2P_DISABLE": (_is_on, "no direct copies between accelerators"),
    "NCCL_P2P_LEVEL": (_set, "direct copies only that near"),
    "NCCL_SHM_DISABLE": (_is_on, "no shared memory"),
    "NCCL_NVLS_ENABLE": (_is("0"), "no NVLink SHARP"),
    "NCCL_NET_GDR_LEVEL": (_set, "GPUDirect only that near"),
    "NCCL_NET_GDR_READ": (_is("0"), "no GPUDirect reads"),
    "NCCL_DMABUF_ENABLE": (_is("0"), "no dma-buf"),
    "NCCL_IB_HCA": (_set, "chosen RDMA devices only"),
    "NCCL_IB_GID_INDEX": (_set, "one GID for all devices"),
    "NCCL_IB_SPLIT_DATA_ON_QPS": (_is("0"), "one queue for a message"),
    "NCCL_IB_PCI_RELAXED_ORDERING": (_is("0"), "no relaxed ordering"),
    "NCCL_ALGO": (_set, "one algorithm"),
    "NCCL_PROTO": (_set, "one protocol"),
    "NCCL_MAX_NCHANNELS": (_set, "few channels"),
    "NCCL_MIN_NCHANNELS": (_set, "many channels"),
    "NCCL_MAX_CTAS": (_set, "few thread blocks"),
    "NCCL_MAX_P2P_NCHANNELS": (_set, "few channels"),
    "NCCL_NTHREADS": (_set, "threads by hand"),
    "NCCL_BUFFSIZE": (_set, "buffers by hand"),
    "NCCL_CROSS_NIC": (_set, "rails by hand"),
    "NCCL_NSOCKS_PERTHREAD": (_set, "sockets by hand"),
    "NCCL_SOCKET_NTHREADS": (_set, "sockets by hand"),
    "NCCL_COLLNET_ENABLE": (_set, "in-network reduction by hand"),
    "NCCL_TOPO_FILE": (_set, "another topology than the machine's"),
    "NCCL_GRAPH_FILE": (_set, "another graph than NCCL would search"),
    "NCCL_TUNER_PLUGIN": (_set, "a tuner"),
    "NCCL_CHECKS_DISABLE": (_is("0"), "checks in every call"),
    "NCCL_LAUNCH_MODE": (_set, "launches by hand"),
    "NCCL_HOSTID": (_set, "hosts that NCCL takes for others"),
    "NCCL_DEBUG": (_is("trace"), "a log that slows it down"),
    "NCCL_SOCKET_IFNAME": (_not_fabric, "not the fabric's interface"),
    "GLOO_SOCKET_IFNAME": (_not_fabric, "not the fabric's interface"),
    "TORCH_NCCL_BLOCKING_WAIT": (_is_on, "a wait in every collective"),
    "NCCL_BLOCKING_WAIT": (_is_on, "a wait in every collective"),
    "TORCH_DISTRIBUTED_DEBUG": (_is("detail"), "a check in every collective"),
    "CUDA_LAUNCH_BLOCKING": (_is_on, "a wait in every kernel"),
}
"""What ties a backend's hands: when a value does, and what it costs.

Source: NCCL user guide, Environment Variables; torch.distributed and ProcessGroupNCCL docs.
"""


def overrides(
    ranks: Sequence[RankEnvironment] | None, spec: Spec, name: str, why: str = ""
) -> Answer:
    """How many settings of this node's ranks tie a backend's hands and are not the cluster's own.

    From the environment, and from the files that NCCL reads too; the environment has the last word.
    Settings that ranks of a node do not share count, whatever they do.
    """
    promise = spec.criteria.preflight
    if promise is None or promise.environment is None:
        return NotPromised("settings of backends")
    label, source = "settings that tie a backend's hands", "preflight.environment.allowed"
    ranks = ranks or ()
    mine = _on(name, ranks)
    if not mine:
        return unknown(label, "", equals(0), source, why or f"no rank runs on {name}")
    allowed = promise.environment.allowed
    settings = {(k, v, origin) for rank in mine for k, (v, origin) in rank.settings.items()}
    found: dict[str, str] = {}
    for variable, value, origin in sorted(settings):
        ties = _TIES.get(variable)
        if ties is None or variable in allowed or f"{variable}={value}" in allowed:
            continue
        if variable.endswith("_SOCKET_IFNAME") and value == "lo" and _on_loopback(mine):
            continue  # nodes that share one machine have nothing else
        if ties[0](value, spec):
            found[f"{variable}={value}"] = f"{variable}={value}{origin} ({ties[1]})"
    for variable in sorted({variable for variable, *_ in settings} - set(allowed)):
        values = {rank.settings.get(variable, ("not set", ""))[0] for rank in ranks}
        if len(values) > 1 and f"{variable}=" not in "".join(found):
            shown = listed(sorted(values))
            found[variable] = f"{variable} differs between ranks ({shown})"
    harmless = sorted({f"{k}={v}" for k, v, _ in settings} - found.keys())
    note = listed(list(found.values()))
    if harmless:
        note = "; ".join(filter(None, [note, f"set as well: {listed(harmless)}"]))
    culprit = f"{name}: {listed(list(found.values()), 2)}"
    return (Measurement(label, len(found), "", equals(0), source, culprit, note),)
