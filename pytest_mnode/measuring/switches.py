"""What InfiniBand's tools say of the switches, before and after all nodes have sent."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pytest_mnode.logs import subnet
from pytest_mnode.logs.subnet import PortLink, SubnetManager
from pytest_mnode.machine.programs import NoOutput, output_of
from pytest_mnode.measuring.limits import REPEAT_S, SCAN_S

if TYPE_CHECKING:
    import torch

    from pytest_mnode.rank.world import World
    from pytest_mnode.spec import Spec
    from pytest_mnode.spec.traffic import SwitchesPromise

_REPEATS = 12
"""[choice] Three seconds in which every port of every node sends and receives."""
Errors = Mapping[tuple[str, int, str], int]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Errors by stage of ibdiagnet, their lines, and on how many switches routing is adaptive."""

    errors: Mapping[str, int]
    lines: tuple[str, ...]
    adaptive: int | None


@dataclass(frozen=True, slots=True)
class Switches:
    """What was found on `node`; a text says why something was not, None that it was not asked.
    Pairs are from before and after the traffic."""

    node: str
    links: tuple[PortLink, ...] | str | None
    errors: tuple[Errors | str | None, Errors | str | None]
    managers: tuple[SubnetManager | str | None, SubnetManager | str | None]
    diagnosis: Diagnosis | str | None


def look_at_switches(
    world: World, spec: Spec, promise: SwitchesPromise, device: torch.device
) -> Switches:
    """Ask on rank 0's node, let all nodes send to the next, and ask again. All ranks call this."""
    from pytest_mnode.measuring.at_once import Flows, node_gbits_s
    from pytest_mnode.measuring.ranks import gathered

    first = world.rank == 0
    asks_errors, asks_manager = promise.errors_at_most is not None, promise.subnet_manager
    errors = [_errors() if first and asks_errors else None]
    managers = [_manager() if first and asks_manager else None]
    following = [(rank, (rank + world.local_size) % world.size) for rank in range(world.size)]
    size = int(node_gbits_s(spec, world) * 1e9 / 8 / world.local_size * REPEAT_S)
    flows = Flows(following if len(world.nodes) > 1 else (), size, device)
    for _ in range(_REPEATS):
        flows.received_gbits_s()
    errors.append(_errors() if first and asks_errors else None)
    managers.append(_manager() if first and asks_manager else None)
    links = links_of_subnet() if first and promise.links else None
    asks_diagnosis = promise.ibdiagnet or promise.adaptive_routing
    diagnosis = diagnosis_of_subnet() if first and asks_diagnosis else None
    pairs = (errors[0], errors[1]), (managers[0], managers[1])
    return gathered(Switches(world.node, links, *pairs, diagnosis))[0]


def _asked(parse: Callable[[str], T], *argv: str, may_fail: bool = False) -> T | str:
    try:
        package = "ibutils2 (MLNX_OFED, DOCA)" if argv[0] == "ibdiagnet" else subnet.PACKAGE
        return parse(output_of(*argv, package=package, may_fail=may_fail, limit_s=SCAN_S))
    except NoOutput as error:
        return str(error)


def links_of_subnet() -> tuple[PortLink, ...] | str:
    found = _asked(lambda text: tuple(subnet.link_info(text)), "iblinkinfo", "--line")
    return found or "iblinkinfo lists no link"


def _errors() -> Errors | str:
    """ibqueryerrors has status 1 if a port has errors, and prints a summary in any case."""

    def parse(text: str) -> Errors | str:
        return subnet.port_errors(text) if "nodes checked" in text else "ibqueryerrors: cut short"

    return _asked(parse, "ibqueryerrors", may_fail=True)


def _manager() -> SubnetManager | str:
    return _asked(lambda text: subnet.subnet_manager(text) or f"sminfo: {text[:60]!r}", "sminfo")


def diagnosis_of_subnet() -> Diagnosis | str:
    def parse(text: str) -> Diagnosis | str:
        stages, lines = subnet.diagnosed(text)
        if not stages:
            return "ibdiagnet wrote no summary"
        return Diagnosis(stages, tuple(lines), subnet.adaptive_switches(text))

    with tempfile.TemporaryDirectory() as directory:  # it writes a dozen files
        return _asked(parse, "ibdiagnet", "-o", directory, may_fail=True)
