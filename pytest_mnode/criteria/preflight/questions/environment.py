"""Do ranks find torchrun's environment, and nothing that ties a backend's hands?"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_mnode.criteria.preflight.questions.answer import Answer, NotPromised, listed, unknown
from pytest_mnode.criteria.preflight.ranks import RankEnvironment
from pytest_mnode.criteria.transport.selection import Selection
from pytest_mnode.criteria.transport.settings import cost, is_default
from pytest_mnode.measurement import Measurement, equals
from pytest_mnode.spec import Spec

_COMMON = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
_INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


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


def _not_fabric(variable: str, value: str, spec: Spec) -> bool:
    """Whether a list of interfaces leaves the fabric's out, or takes others by name."""
    if spec.fabric.kind != "ethernet":
        return False  # on RDMA fabrics sockets only carry the bootstrap
    if variable == "GLOO_SOCKET_IFNAME":  # whole names
        names = [name.strip() for name in value.split(",") if name.strip()]
        return not all(map(spec.fabric.has_interface, names))
    chosen = Selection.of(value)
    hit = [p for p in spec.fabric.interfaces if chosen.takes(p.rstrip("*"))]
    foreign = [name for name, _ in chosen.names if not spec.fabric.has_interface(name)]
    if chosen.excludes:
        return len(hit) < len(spec.fabric.interfaces)
    return not hit or bool(foreign and chosen.exact)


def overrides(
    ranks: Sequence[RankEnvironment] | None, spec: Spec, name: str, why: str = ""
) -> Answer:
    """How many settings of this node's ranks cost speed and are not the cluster's own.

    From the environment, and from the files that NCCL reads too; the environment has the last word.
    Settings that ranks of a node do not share count, whatever they do.
    """
    promise = spec.criteria.preflight
    if promise is None or promise.environment is None:
        return NotPromised("settings of backends")
    label, source = "settings that cost speed", "preflight.environment.allowed"
    ranks = ranks or ()
    mine = _on(name, ranks)
    if not mine:
        return unknown(label, "", equals(0), source, why or f"no rank runs on {name}")
    allowed = promise.environment.allowed
    settings = {(k, v, origin) for rank in mine for k, (v, origin) in rank.settings.items()}
    found: dict[str, str] = {}
    for variable, value, origin in sorted(settings):
        if variable in allowed or f"{variable}={value}" in allowed:
            continue
        costs = cost(variable, value, spec.fabric.kind, mine[0].nccl)
        # Nodes that share one machine have nothing but lo.
        if variable in _INTERFACES and not (value == "lo" and _on_loopback(mine)):
            costs = "not the fabric's interface" if _not_fabric(variable, value, spec) else None
        if costs is not None:
            found[f"{variable}={value}"] = f"{variable}={value}{origin} ({costs})"
    for variable in sorted({variable for variable, *_ in settings} - set(allowed)):
        told = [rank.settings.get(variable, ("not set", ""))[0] for rank in ranks]
        values = {"not set" if is_default(variable, value) else value for value in told}
        if len(values) > 1 and f"{variable}=" not in "".join(found):
            shown = listed(sorted(values))
            found[variable] = f"{variable} differs between ranks ({shown})"
    harmless = sorted({f"{k}={v}" for k, v, _ in settings} - found.keys())
    note = listed(list(found.values()))
    if harmless:
        note = "; ".join(filter(None, [note, f"set as well: {listed(harmless)}"]))
    culprit = f"{name}: {listed(list(found.values()), 2)}"
    return (Measurement(label, len(found), "", equals(0), source, culprit, note),)
