"""Cabling: the switches that a node's NICs are on, against those that the site declares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from pytest_mnode.criteria.preflight.nic_rows import fabric_names, names_of
from pytest_mnode.culprit import Culprit, Parts
from pytest_mnode.errors import UsageError
from pytest_mnode.evidence.check import Check, check
from pytest_mnode.evidence.row import Row, row
from pytest_mnode.evidence.rules import Rows, Unread, difference
from pytest_mnode.logs import lldp, subnet
from pytest_mnode.machine import sysfs
from pytest_mnode.machine.programs import NoOutput
from pytest_mnode.machine.rdma import RdmaDevice, read_rdma
from pytest_mnode.machine.switches import cabled_to, ethernet_ports, lldp_heard
from pytest_mnode.measurement import Measurement, listed
from pytest_mnode.spec.fields import AbsolutePath, Interface, Section, Text

_SEEN, _LEAF, _PORT = "switch of a NIC", "declared switch of a node", " port "


def _expanded(text: str) -> tuple[str, ...]:
    from pytest_mnode.launchers.hosts import expand  # only here: every rank imports the checks

    return expand(text)


def _hosts(text: str) -> str:
    try:
        _expanded(text)
    except UsageError as error:
        raise ValueError(str(error)) from None
    return text


class Cabling(Section):
    """NICs that are on one switch."""

    switch: Text
    """The name by which the switch introduces itself, or a shell pattern such as *-leaf1."""
    nodes: Annotated[Text, AfterValidator(_hosts)]
    """Nodes, as Slurm lists them: node[01-16]."""
    nics: tuple[Interface, ...] | None = Field(None, min_length=1)
    """NICs of the fabric, by names or patterns; left out: all of them."""
    port: Text | None = None
    """Port of the switch, or a pattern, as the switch names it: Ethernet1/3, or 12."""


class TopologyPromise(Section):
    """NICs are on the declared switches."""

    switches: tuple[Cabling, ...] | None = Field(None, min_length=1)
    """The declared cables; a NIC that is in none of them is not judged."""
    file: AbsolutePath | None = None
    """Slurm's topology.conf or topology.yaml, on the nodes: those of one leaf switch, or of one
    block, see the same switch on the same NIC. A NIC that sees a switch of a declared name on some
    node has to see that of each node."""
    ibnetdiscover: AbsolutePath | None = None
    """Output of ibnetdiscover, on the nodes: for InfiniBand where nodes may not ask switches."""

    @model_validator(mode="after")
    def _declares_something(self) -> Self:
        if self.switches is None and self.file is None:
            raise ValueError("declares nothing; accepted: switches, file")
        return self


@check("preflight.topology")
class CablesAreAsDeclared(Check):
    """Is every fabric NIC of this node on the switch and port that the site declares?

    Ethernet switches introduce themselves by LLDP, which lldpd hears; where a NIC answers LLDP
    itself, its firmware keeps it from lldpd. InfiniBand is asked by iblinkinfo, one hop far, from
    each port, as root. A crossed cable moves traffic of a rail over the spines, and is as fast as
    others until all nodes send.
    """

    promise: TopologyPromise
    read_by = frozenset(("file", "ibnetdiscover"))

    def read(self, root: Path) -> Iterator[Row]:
        devices = read_rdma(root) or ()
        if self.promise is not None and self.promise.file is not None:
            yield _leaf(root, self.promise.file)
        found = self.promise.ibnetdiscover if self.promise is not None else None
        yield from _infiniband(root, devices, found)
        yield from _ethernet(root, devices)

    def rule(self, rows: Rows) -> Iterator[Measurement]:
        names = fabric_names(rows, self.spec.fabric.interfaces)
        mine = {nic: known for (node, nic), known in names.items() if node == rows.node}
        read = rows.by_node[rows.node]
        if not mine:
            why = read.why if isinstance(read, Unread) else "no NIC of the fabric has a switch"
            heard = {one.why for one in rows.of(_SEEN) if one.why}
            why = listed([why, *sorted(heard)])
            name = "NICs on another switch than declared"
            yield Measurement.unknown(name, f"{rows.node}: {why}", source=self.key)
            return
        if self.promise.switches is not None:
            yield from self._of_switches(rows, mine, self.promise.switches)
        if self.promise.file is not None:
            yield self._of_leaves(rows, mine, self.promise.file)

    def _of_switches(
        self, rows: Rows, mine: Mapping[str, list[str]], declared: tuple[Cabling, ...]
    ) -> Iterator[Measurement]:
        """By the names of switches and ports; a NIC may be declared on any of several."""
        nodes = [(one, _expanded(one.nodes)) for one in declared]
        here = [one for one, among in nodes if rows.node in among]
        names = [name for known in mine.values() for name in known]
        culprits, judged = list[Culprit](), 0
        unseen = [
            f"{' or '.join(one.nics)}, which is not there, or has no link"
            for one in here
            if one.nics is not None and not _is_one_of(names, one.nics)
        ]
        if not any(name in among for _, among in nodes for name in rows.by_node):
            unseen.append("no node of the run is declared")
        for nic, known in mine.items():
            wanted = [one for one in here if _is_one_of(known, one.nics)]
            seen = [str(one.value) for one in rows.of(_SEEN) if one.device == nic and one.value]
            if not wanted:
                continue
            judged += 1
            if not seen:
                unseen.append(_unseen(rows, nic))
            elif not any(_fits(switch, one) for switch in seen for one in wanted):
                words = " or ".join(f"{w.switch}{_PORT}{w.port or '(any)'}" for w in wanted)
                text = f"{rows.node} {nic} is on {listed(seen)}, declared {words}"
                culprits.append(Culprit.device(text, rows.node, nic))
        if judged or unseen:
            name, source = "NICs on another switch or port than declared", f"{self.key}.switches"
            yield Measurement.none_allowed(name, culprits, source, unsure=listed(unseen))

    def _of_leaves(self, rows: Rows, mine: Mapping[str, list[str]], file: str) -> Measurement:
        """By what other nodes of the same leaf see on the same NIC."""
        name, source = "NICs on another switch than others of their leaf", f"{self.key}.file {file}"
        leaf_of, seen = dict[str, str](), dict[str, dict[str, str]]()
        for node, read in rows.by_node.items():
            for one in read:
                if one.metric == _LEAF and one.value is not None:
                    leaf_of[node] = str(one.value)
                elif one.metric == _SEEN and one.value is not None:
                    seen.setdefault(one.device, {}).setdefault(node, _switch(str(one.value)))
        if (leaf := leaf_of.get(rows.node)) is None:
            why = listed([one.why for one in rows.of(_LEAF)]) or "not read"
            return Measurement.unknown(name, f"{rows.node}: {why}", source=source)
        culprits, unseen = [], []
        for nic in mine:
            there = {node: switch for node, switch in seen.get(nic, {}).items() if node in leaf_of}
            if rows.node not in there:
                unseen.append(_unseen(rows, nic))
                continue
            by_name = any(switch.lower() == leaf_of[node].lower() for node, switch in there.items())
            alike = {node: switch for node, switch in there.items() if leaf_of[node] == leaf}
            odd = difference(alike, rows.node) if len(alike) > 1 else None
            is_wrong = there[rows.node].lower() != leaf.lower() if by_name else odd is not None
            if not by_name and len(alike) < 2:
                unseen.append(f"{nic}: no other node of {leaf} to compare with")
            if not is_wrong:
                continue
            declared = leaf if by_name or odd is None else f"{leaf}: {odd.usual} on {odd.who}"
            at = listed([str(o.value) for o in rows.of(_SEEN) if o.device == nic and o.value])
            text = f"{rows.node} {nic} is on {at}, declared {declared}"
            parts = Parts(devices=((rows.node, nic),))
            tied = not by_name and odd is not None and odd.tied
            culprits.append(
                Culprit(text, either=[[*alike]], parts=parts)
                if tied
                else Culprit(text, rows.node, parts=parts)
            )
        return Measurement.none_allowed(name, culprits, source, unsure=listed(unseen))


def _unseen(rows: Rows, nic: str) -> str:
    why = [one.why for one in rows.of(_SEEN) if one.device == nic]
    return f"{nic}: {listed(why) or 'sees no switch'}"


def _is_one_of(names: list[str], patterns: tuple[str, ...] | None) -> bool:
    return patterns is None or any(fnmatchcase(name, p) for name in names for p in patterns)


def _fits(seen: str, declared: Cabling) -> bool:
    """Whether a switch and port that were seen are those of a declared cable; a switch may tell its
    name with a domain, and InfiniBand's with its model."""
    switch, _, port = seen.rpartition(_PORT)
    short = subnet.switch_name(switch)
    names = {name.lower() for name in (switch, short, short.partition(".")[0])}
    if not any(fnmatchcase(name, declared.switch.lower()) for name in names):
        return False
    ports = port.lower().split(" / ")
    return declared.port is None or any(fnmatchcase(one, declared.port.lower()) for one in ports)


def _switch(seen: str) -> str:
    return subnet.switch_name(seen.rpartition(_PORT)[0]).partition(".")[0]


def _leaf(root: Path, file: str) -> Row:
    """The leaf that Slurm's file declares for this host."""
    from pytest_mnode.launchers.slurm.topology import leaves

    host = (sysfs.text(root / "proc/sys/kernel/hostname") or "").partition(".")[0]
    try:
        text = (root / file.removeprefix("/")).read_text(errors="replace")
        found = [name for name, nodes in leaves(text).items() if host in nodes]
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return row(_LEAF, why=f"{file}: {why.lower()}")
    return row(_LEAF, found[0] if found else None, why=f"{file} has no node {host}")


def _infiniband(root: Path, devices: tuple[RdmaDevice, ...], found: str | None) -> Iterator[Row]:
    by_port: dict[tuple[str, int], subnet.PortLink] = {}
    why_none = ""
    if found is not None:
        try:
            text = (root / found.removeprefix("/")).read_text(errors="replace")
            by_port = {(one.guid, one.port): one for one in subnet.net_discovered(text)}
            why_none = "" if by_port else f"{found} has no links"
        except OSError as error:
            why_none = f"{found}: {(error.strerror or str(error)).lower()}"
    for device in devices:
        for port in device.ports:
            if port.protocol != "InfiniBand" or port.state == "DOWN":
                continue
            yield names_of(port.name, [device.name, *(port.netdevs or device.netdevs)])
            guid = sysfs.text(root / f"sys/class/infiniband/{device.name}/node_guid") or ""
            link, why = by_port.get((guid.replace(":", ""), port.number)), why_none
            if found is None:
                try:
                    link = cabled_to(device.name, port.number)
                    why = "iblinkinfo lists no link of it"
                except NoOutput as error:
                    why = str(error)
            seen = None if link is None else f"{link.peer}{_PORT}{link.peer_port}"
            yield row(_SEEN, seen, why=why or f"{found} has no link of {guid}", device=port.name)


def _ethernet(root: Path, devices: tuple[RdmaDevice, ...]) -> Iterator[Row]:
    """What each interface hears; those with hardware that hear nothing have a row too."""
    heard: dict[str, list[str]] = {}
    why = "hears no switch by LLDP"
    try:
        for one in lldp.neighbours(lldp_heard()):
            port = one.port + (f" / {one.description}" if one.description != one.port else "")
            heard.setdefault(one.interface, []).append(f"{one.switch}{_PORT}{port.rstrip(' /')}")
    except (NoOutput, ValueError) as error:
        why = f"LLDP: {error}"
    names = ethernet_ports(root, devices)
    for name in heard:
        names.setdefault(name, [name])
    for name, every in names.items():
        yield names_of(name, every)
        for seen in heard.get(name, [None]):
            yield row(_SEEN, seen, why=why, device=name)
