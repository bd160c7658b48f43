"""PCIe links of accelerators, NICs, and the switches above them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from pytest_mnode.criteria.preflight.answers import Survey
from pytest_mnode.criteria.preflight.survey_check import SurveyCheck
from pytest_mnode.culprit import Culprit
from pytest_mnode.evidence.check import check
from pytest_mnode.evidence.rules import Subject, listed
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.netdev import physical_below
from pytest_mnode.machine.pci import PciFunction, full_link
from pytest_mnode.measurement import Measurement, equals


@check("preflight.pcie")
class PcieLinksAreFull(SurveyCheck):
    """Do this node's accelerators and NICs have the PCIe width and speed of card and slot?

    An idle accelerator may run slower, to save power: the devices criterion judges its speed.
    """

    promise: Literal["full"]
    """PCIe links of accelerators and of the fabric's NICs have the full width of card and slot;
    links of NICs the full speed too. An idle accelerator may run slower: `devices` judges it."""
    parts = ("pci",)
    alone = True

    def judge(self, evidence: Survey, node: str) -> Iterator[Measurement]:
        """Number of links narrower than card and slot support, and of slower links of NICs."""
        me, fabric = evidence.node(node), self.spec.fabric.interfaces
        links = pci_links(me.machine, fabric)
        wide = (*links, *_uplinks(me.machine, fabric))
        nics = [one for one in links if not one.accelerator]
        for label, unit, ends in (
            ("width", "x", [(one.name, one.width, one.full_width) for one in wide]),
            ("speed", "GT/s ", [(n.name, n.gtransfers_s, n.full_gtransfers_s) for n in nics]),
        ):
            name = f"PCIe links below their full {label}"
            subject = Subject(name, "", equals(0), "preflight.pcie full")
            low = {n: f"{n} {unit}{a:g} of {b:g}" for n, a, b in ends if a and b and a < b}
            mute = [n for n, a, b in ends if a is None or b is None]
            if not ends:
                why = me.why() or me.machine.unread.get("pci", "no such link found")
                yield subject.unknown(f"{node}: {why}")
            elif mute and not low:
                yield subject.unknown(f"{node}: {listed(mute)} does not report its {label}")
            else:
                words = listed([*low.values()])
                culprit = Culprit.device(f"{node} {words}", node, *low)
                yield subject.measured(len(low), culprit, words)


@dataclass(frozen=True, slots=True)
class PciLink:
    """The PCIe link of an accelerator or a NIC.

    name: such as "accelerator 0000:1b:00.0" or "mlx5_0". full_…: the most that both card and slot
    support.
    """

    name: str
    accelerator: bool
    width: int | None
    full_width: int | None
    gtransfers_s: float | None
    full_gtransfers_s: float | None


def pci_links(machine: Machine, fabric: Sequence[str]) -> tuple[PciLink, ...]:
    """PCIe links of accelerators, and of the NICs that match a pattern of the fabric.

    Source: Linux, Documentation/ABI/testing/sysfs-bus-pci.
    """
    return tuple(
        _pci_link(machine, card, card.bridges[-1] if card.bridges else None, name, is_accelerator)
        for card, name, is_accelerator in _cards(machine, fabric)
    )


def _cards(machine: Machine, fabric: Sequence[str]) -> list[tuple[PciFunction, str, bool]]:
    """Functions with a link, each with its name and whether it is an accelerator."""
    known = machine.by_name
    physical = (name for one in machine.matching(fabric) for name in physical_below(one, known))
    nics = {known[name].pci_address: name for name in physical}
    for device in machine.rdma or ():
        of_fabric = any(fnmatchcase(device.name, pattern) for pattern in fabric)
        if not device.virtual and (of_fabric or device.pci_address in nics):
            nics[device.pci_address] = device.name
    tree = machine.pci
    found = [(f, f"accelerator {f.address}", True) for f in tree.accelerators]
    found += [(f, nics[f.address], False) for f in tree.networks if f.address in nics]
    # A virtual function has no link of its own.
    return [one for one in found if one[0].physical_function is None]


def _uplinks(machine: Machine, fabric: Sequence[str]) -> Iterator[PciLink]:
    """Links of the PCIe switches above accelerators and NICs, as far as they are known.

    A switch is two bridges deep, and some accelerators have one inside.
    """
    seen = set()
    for card, name, _ in _cards(machine, fabric):
        above = card.bridges[:-1]
        for address, slot in zip(above[::-2], above[-2::-2], strict=False):
            switch = machine.pci.function(address)
            if switch is None or address in seen:
                continue
            seen.add(address)
            link = _pci_link(machine, switch, slot, f"switch {address} above {name}", False)
            if link.width and link.full_width:
                yield link


def _pci_link(
    machine: Machine, card: PciFunction, slot_address: str | None, name: str, accelerator: bool
) -> PciLink:
    slot = machine.pci.function(slot_address)
    full_width, full_gtransfers_s = full_link(card, slot)
    return PciLink(
        name,
        accelerator,
        card.link_width,
        full_width,
        card.link_gtransfers_s,
        full_gtransfers_s,
    )
