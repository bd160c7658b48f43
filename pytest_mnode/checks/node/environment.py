"""The environment of ranks: temporary files, torchrun's variables, and settings of backends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_mnode.checks.node.disk import SHM
from pytest_mnode.checks.node.storage import can_be_used
from pytest_mnode.criteria.preflight.answers import Directory, Survey
from pytest_mnode.criteria.preflight.environment import TORCH, RankCheck, RankEnvironment, Ranks
from pytest_mnode.criteria.preflight.survey_check import NEED_RANKS, SurveyCheck
from pytest_mnode.criteria.transport.settings import Selection, cost, is_default
from pytest_mnode.culprit import Culprit
from pytest_mnode.evidence.check import check
from pytest_mnode.evidence.rules import Subject, difference, listed
from pytest_mnode.measurement import Measurement, equals
from pytest_mnode.spec.fields import Section, Setting

if TYPE_CHECKING:
    from pytest_mnode.spec import Spec

_COMMON = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
_INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
_HCA = "NCCL_IB_HCA"
_HOST = "NCCL_HOSTID"
_OF_NODE = (*_INTERFACES, _HCA, "NCCL_IB_GID_INDEX", "UCX_NET_DEVICES", _HOST)
"""Nodes may name and number their devices differently."""
_OF_RANK = (
    *("NCCL_DEBUG_FILE", "NCCL_GRAPH_DUMP_FILE", "NCCL_TOPO_DUMP_FILE", "UCX_LOG_FILE"),
    *("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"),
    *("OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"),
)
"""Files that a rank or a node writes for itself (this package gives ranks an NCCL_DEBUG_FILE), and
the CPUs that a rank is pinned to."""
_TEMPORARY, _SHARED = "temporary files", "shared memory"


class EnvironmentPromise(Section):
    """Ranks find torchrun's variables, and no setting that restricts a backend."""

    allowed: tuple[Setting, ...] = ()
    """Settings of NCCL, gloo and torch that belong to this cluster: NAME, or NAME=VALUE."""


@check("preflight.environment")
class TemporaryFilesCanBeWritten(SurveyCheck):
    """Can a process on this node write to its directory of temporary files, and to /dev/shm?

    No rank starts without: torch, compilers and data loaders write there.
    """

    promise: EnvironmentPromise
    alone = True
    stops = NEED_RANKS

    def directories(self) -> Iterator[Directory]:
        yield Directory(_TEMPORARY, "", writable=True)  # its path is the node's
        yield Directory(_SHARED, SHM, writable=True)

    def judge(self, evidence: Survey, node: str) -> Iterator[Measurement]:
        me = evidence.node(node)
        source = "TMPDIR of the node, or /tmp: torch, compilers and data loaders write there"
        subject = Subject("temporary files can be written", "", equals(1), source)
        yield can_be_used(me, _TEMPORARY, "written to", subject)
        source = f"{SHM}: torch, NCCL and data loaders share memory there"
        subject = Subject("shared memory can be written", "", equals(1), source)
        yield can_be_used(me, _SHARED, "written to", subject)


# Of ranks: by now it is known whether they can meet.
@check("preflight.environment", on="rank")
class RanksFindTheirEnvironment(RankCheck):
    """Do this node's ranks find torchrun's variables, correct and consistent with all ranks?"""

    promise: EnvironmentPromise
    stops = NEED_RANKS
    counted, source = "variables of torchrun that are wrong", "torchrun's contract"

    def measured(self, ranks: Ranks, node: str) -> Measurement:
        mine = ranks.on(node)
        usual = {name: ranks.most_common(name) for name in _COMMON[:2]}
        faults = [f for rank in mine for f in _faults(rank, mine, len(ranks.all), usual)]
        note = listed(faults, 3) or f"{len(mine)} ranks of {len(ranks.all)}"
        culprit = Culprit(f"{node}: {listed(faults, 1)}", node) if faults else None
        return Measurement(self.counted, len(faults), "", equals(0), self.source, culprit, note)


@check("preflight.environment", on="rank")
class NothingTiesTheHandsOfBackends(RankCheck):
    """Is every NCCL, gloo and torch override on this node on the spec's allow-list?

    They come from the environment and from the files that NCCL reads; the environment wins. A
    setting that differs between ranks of the node or from most nodes counts, whatever its effect.
    """

    promise: EnvironmentPromise
    counted, source = "settings that cost speed", "preflight.environment.allowed"

    def measured(self, ranks: Ranks, node: str) -> Measurement:
        mine, allowed = ranks.on(node), self.promise.allowed
        settings = {(k, v, origin) for rank in mine for k, (v, origin) in rank.settings.items()}
        found: dict[str, str] = {}
        for variable, value, origin in sorted(settings):
            if variable in allowed or f"{variable}={value}" in allowed:
                continue
            if (costs := _cost(variable, value, mine, self.spec)) is not None:
                found[f"{variable}={value}"] = f"{variable}={value}{origin} ({costs})"
        variables = ranks.variables - {
            *allowed,
            *_OF_RANK,
            *(costly.partition("=")[0] for costly in found),
        }
        sure = bool(found)
        for variable in sorted(variables):
            text, tied = _differs(ranks.all, variable, node)
            if text:
                found[variable] = text
                sure = sure or not tied
        harmless = sorted(
            {f"{k}={v}" for k, v, _ in settings if not k.startswith(TORCH)} - found.keys()
        )
        also = f"also set: {listed(harmless)}" if harmless else ""
        note = "; ".join(filter(None, [listed([*found.values()]), also]))
        words = f"{node}: {listed([*found.values()], 2)}"
        culprit = Culprit(words, node) if sure else Culprit(words, either=[[node]])
        return Measurement(self.counted, len(found), "", equals(0), self.source, culprit, note)


@check("preflight.environment", on="rank")
class RanksNameRdmaDevicesThatAreThere(RankCheck):
    """Is every name in NCCL_IB_HCA of this node's ranks an RDMA device that they can open?

    NCCL skips a name without a device, and sends over fewer NICs or over TCP.
    """

    promise: EnvironmentPromise
    counted, source = f"names in {_HCA} without a device", "preflight.environment"

    def judge(self, evidence: Ranks, node: str) -> Iterable[Measurement]:
        of_rdma = self.spec.fabric.kind in ("infiniband", "roce")
        return super().judge(evidence, node) if of_rdma else ()

    def measured(self, ranks: Ranks, node: str) -> Measurement:
        mine = [rank for rank in ranks.on(node) if _HCA in rank.settings]
        lists = {(rank.settings[_HCA][0], rank.hcas) for rank in mine}
        if any(hcas is None for _, hcas in lists):
            why = f"{node}: its RDMA devices cannot be read"
            return Measurement.unknown(self.counted, why, source=self.source)
        absent = sorted({fault for value, hcas in lists for fault in _absent(value, hcas or ())})
        there = sorted({hca for _, hcas in lists for hca in hcas or ()})
        values = sorted({f"{_HCA}={value}" for value, _ in lists})
        note = f"{node}: {listed(values) or f'{_HCA} is not set'}"
        if lists:
            note += f"; ranks can open {listed(there) or 'no device'}"
        culprit = Culprit(f"{node}: {_HCA} names {listed(absent)}", node)
        return Measurement(self.counted, len(absent), "", equals(0), self.source, culprit, note)


def _faults(
    rank: RankEnvironment,
    local: Sequence[RankEnvironment],
    ranks: int,
    usual: Mapping[str, str | None],
) -> list[str]:
    """Faults of a rank's variables; `rank.number` is its actual position in the world. local: ranks
    of its node. ranks: of the world. usual: values that most ranks have."""
    expected = {
        "RANK": str(rank.number),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(local.index(rank)),
        "LOCAL_WORLD_SIZE": str(len(local)),
    }
    found = []
    for variable, wanted in expected.items():
        value = rank.variables.get(variable)
        if value is None:
            found.append(f"rank {rank.number}: {variable} is not set")
        elif value != wanted:
            found.append(f"rank {rank.number}: {variable}={value}, expected {wanted}")
    for variable, most in usual.items():
        if not (value := rank.variables.get(variable)):
            found.append(f"rank {rank.number}: {variable} is not set")
        elif value != most:
            found.append(f"rank {rank.number}: {variable}={value}, {most} in most ranks")
    port = rank.variables.get("MASTER_PORT")
    if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        found.append(f"rank {rank.number}: MASTER_PORT={port} is not a port")
    return found


def _on_loopback(ranks: Sequence[RankEnvironment]) -> bool:
    return all(rank.variables.get("MASTER_ADDR", "").startswith("127.") for rank in ranks)


def _not_fabric(variable: str, value: str, spec: Spec) -> bool:
    """Whether a list of interfaces omits the fabric's, or names others."""
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
    ours = len(foreign) < len(chosen.names)  # a whole name that matches a pattern of the fabric
    return not (hit or ours) or bool(foreign and chosen.exact)


def _cost(variable: str, value: str, mine: Sequence[RankEnvironment], spec: Spec) -> str | None:
    """Why a setting of a node's ranks costs speed; None if it does not."""
    # Nodes that share one machine have no interface but lo, and need identities of their own.
    one_machine = _on_loopback(mine)
    if variable == _HOST and one_machine:
        return None
    if variable in _INTERFACES and not (value.removeprefix("=") == "lo" and one_machine):
        return "not the fabric's interface" if _not_fabric(variable, value, spec) else None
    return cost(variable, value, spec.fabric.kind, mine[0].nccl)


def _differs(ranks: Sequence[RankEnvironment], variable: str, name: str) -> tuple[str, bool]:
    """Difference of a setting between ranks of this node, or from most nodes; "" if none. And
    whether no value is that of most nodes, so that nobody knows which is wrong."""
    values: dict[str, set[str]] = {}
    for rank in ranks:
        value, _ = rank.settings.get(variable, ("not set", ""))
        of_node = values.setdefault(rank.node, set())
        of_node.add("not set" if is_default(variable, value) else value)
    if len(values[name]) > 1:
        return f"{variable} differs between ranks ({listed(sorted(values[name]))})", False
    alike = {node: next(iter(found)) for node, found in values.items() if len(found) == 1}
    odd = None if variable in _OF_NODE else difference(alike, name)
    if odd is None:
        return "", False
    return f"{variable} is {alike[name]}, {odd.usual} on {odd.who}", odd.tied


def _absent(value: str, hcas: Sequence[str]) -> list[str]:
    """Names of a list that match none of these ports; the whole list if it excludes every port."""
    chosen = Selection.of(value)
    known = [(device, int(port)) for device, _, port in (hca.partition(":") for hca in hcas)]
    if chosen.excludes:
        return [] if any(chosen.takes(*one) for one in known) else [value]
    return [
        device if port is None else f"{device}:{port}"
        for device, port in chosen.names
        if not any(replace(chosen, names=((device, port),)).takes(*one) for one in known)
    ]
