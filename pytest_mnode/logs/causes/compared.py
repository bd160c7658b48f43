"""What differs between nodes that should be alike, in the output of programs of the machine. Pure.

Read are ip, ibstat, ibstatus, iblinkinfo, perfquery, ethtool -S, nvidia-smi -q, lspci -vv, taskset
and /proc/PID/status, of files that name their node, or with prompts or headings that do. A value is
a finding if one node, or few, differ from the others, and those agree. Compared are nodes whose
names differ in their numbers only and that have the same devices: others may differ by design.
What idle GPUs save, power caps and old counters accuse nobody.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import PurePath
from statistics import mean, median

from pytest_mnode.logs.causes.culprits import DEVICE, first, split_prefix
from pytest_mnode.logs.causes.table import Cause, known_cause
from pytest_mnode.logs.node_names import node_in
from pytest_mnode.logs.subnet import PortLink, link_info, switch_name
from pytest_mnode.machine.cpus import parse_cpulist
from pytest_mnode.machine.pci import full_address

_MARKS = (
    *(" mtu ", "CA '", "Infiniband device '", "PortSelect", "_phy: ", "NVSMI LOG", "LnkSta:"),
    *("affinity list: ", "Cpus_allowed_list:", "PCIe Bus Error", "==("),
)
_PROMPT = re.compile(r"\[?(?:[\w.-]+@)?(?P<node>[A-Za-z][\w.-]*)\]?(?:[: ][^\s$#]*)?\]? ?[$#] \S")
_HEADING = re.compile(
    r"[#=*>-]+ *(?P<says>(?:node|host(?:name)?)[: ] *)?(?P<node>[a-z][\w.-]*\d[\w.-]*)"
    r"(?=[\s:=*-]|$)"
)
_IP_LINK = re.compile(r"(?:(?P<node>[A-Za-z][\w.-]*): +)?(?:\d+: +)?(?P<row>[\w.-]+(?:@\S+)?: <.*)")
"""A prefix could be its number or its name, too."""
_OF_DEVICE = re.compile(
    r"(?:CA|Infiniband device) '(?P<device>\w+)'(?:$| port )|.*\bethtool -S (?P<device2>[\w.-]+)|"
    r"GPU (?P<device3>[\dA-F]{4,8}:[\dA-F:]{5}\.\d)$|"
    r"(?P<device4>(?:[\da-f]{4}:)?[\da-f]{2}:[\da-f]{2}\.[0-7]) (?P<kind>[\w /]+: .+)"
)
_TELL = (
    *("$ ", "# ", "== ", "-- ", "** ", "> ", " mtu ", "LnkC", "LnkS", "Slowdown", "Name"),
    *("ate:", "_allowed_list", "affinity list", "Counter:", "Errors:", "_phy:", "PCIe Bus", "GPU "),
    *("CA '", "device '", "Gpu ", " SM ", "Max ", "Current ", *(f".{n} " for n in range(8))),
)
"""Most lines of a log have none of these."""
_PRODUCT = re.compile(r"Product Name\s*: (.+)")
_VALUES = (
    r"(?P<own>[\w.-]+)(?:@\S+)?: <(?=[^>]*\bUP\b)[^>]*\bLOWER_UP\b[^>]*> mtu (?P<mtu>\d+)",
    r"(?P<own>[\w.-]+): flags=\d+<[^>]*\bRUNNING\b[^>]*> +mtu (?P<mtu>\d+)",
    r"[Ss]tate:\s+(?:\d: )?(?P<state>\w+)",
    r"[Rr]ate:\s+(?P<rate>\d+)",
    r"(?:pid (?!1')\d+'s current affinity list|Cpus_allowed_list):\s*(?P<cpus>[\d,-]+)$",
    r"(?P<counter>SymbolErrorCounter|LocalLinkIntegrityErrors|LinkErrorRecoveryCounter|PortRcvErrors|"
    r"rx_(?:crc_errors|(?:pcs_)?symbol_err)_phy):[. ]*(?P<errors>\d+)$",
    r"(?P<slowed>HW (?:Thermal |Power Brake )?Slowdown|SW Thermal Slowdown)\s*: Active",
    r"SM\s*: (?P<mhz>\d+) MHz|G[Pp][Uu]\s*: (?P<busy>\d+) %",
    r"Max\s*: (?:(?P<full>\d+)x|(?P<cap>\d)$)|LnkCap:.*Speed (?P<cap2>\d+).*Width x(?P<full2>\d+)",
    r"Current\s*: (?:(?P<width>\d+)x|(?P<speed>\d)$)|"
    r"LnkSta:.*Speed (?P<speed2>\d+).*Width x(?P<width2>\d+)",
    r".*?\S+ (?P<own>[\da-f:]{7,13}\.\d): (?:AER: )?PCIe Bus Error: severity=(?P<corrected>Corr)",
)
_NAME = re.compile(r"Name:\s+(\S+)$")
_VIRTUAL = re.compile(r"(?:lo|docker|cni|veth|cali|flannel|vxlan|virbr|br-|tun|tap|dummy|kube)")
"""Interfaces of containers and machines within a node."""
_NUMBERS = re.compile(r"\d+", re.ASCII)
_VALUE = [re.compile(one) for one in _VALUES]
_IS_GPU = re.compile(r"3D |VGA |Display |Processing |$|NVIDIA |AMD ")
_SEVERAL = ("cpus", "slowed", "corrected")
"""Of these, a device or a node has several."""
_SAMPLED = ("mtu", "rate", "errors")
"""Of these, a device that is named again is read again."""
_SATURATED = ("255", "65535")
_EARLIER = re.compile(r"(?:^|[^a-z])(?:before|pre|start|old|prev\w*|first)(?![a-z])", re.IGNORECASE)
_LATER = re.compile(r"(?:^|[^a-z])(?:after|post|end|new|now|last)(?![a-z])", re.IGNORECASE)
MOST_ERRORS = 100
"""[choice] Fewer errors of a link say nothing, nor do less than ten times those of others."""
MOST_CORRECTED = 10
"""[choice] Fewer errors that PCIe corrected by itself say nothing."""
LEAST_SPEED = 2
"""GT/s, or a generation of PCIe: a link at rest may have fewer lanes, too."""
SLOW_CLOCK = 0.8
"""[choice] Of the median clock of GPUs that no hardware slows."""


@dataclass(frozen=True, slots=True)
class Fact:
    """What a line shows of a device. name: of the value, or of a counter. kind: what lspci calls
    the device, where only equal ones are compared."""

    name: str
    node: str
    device: str
    value: str
    file: str
    line: str
    kind: str = ""

    @property
    def number(self) -> int:
        return int(self.value)

    @property
    def nodes(self) -> str:
        """What names of like nodes have in common."""
        return _NUMBERS.sub("", self.node)

    @property
    def address(self) -> str | None:
        return full_address(self.device.partition("#")[0])

    def cause(self, name: str, detail: str, *, root: bool = True) -> tuple[str, Cause]:
        """root: whether it may be the cause, and is not only worth a look."""
        device = self.device.partition("#")[0] or None
        host, kind = self.node or None, replace(known_cause(name), root=root)
        return self.file, Cause(kind, self.line.strip(), host=host, device=device, detail=detail)


def differing(
    texts: Mapping[str, str], used: Collection[str], hosts: Collection[str]
) -> Iterator[tuple[str, Cause]]:
    """What differs, with the file that shows it.

    texts: of all files. used: how names of devices begin that carry data, as far as logs tell.
    hosts: that logs name.
    """
    names = {node_in(part) for file in texts for part in _names(file)} | {*hosts}
    printed = {file: text for file, text in texts.items() if is_comparable(text)}
    facts: dict[str, list[Fact]] = {}
    for file, text in printed.items():
        for fact in facts_of(file, text, names):
            facts.setdefault(fact.name, []).append(fact)
    for name in ("mtu", "rate") if used else ():
        facts[name] = [f for f in facts.get(name, ()) if f.device.startswith(tuple(used))]
    found = (
        *_links_below(printed),
        *_slower_ports(facts.get("rate", ())),
        *_ports_with_errors(facts.get("errors", ())),
        *_other_mtu(facts.get("mtu", ()), used),
        *_slowed_gpus(facts),
        *_narrow_slots(facts),
        *_fewer_cpus(facts.get("cpus", ())),
    )
    unlike: dict[tuple[str | None, ...], tuple[str, Cause]] = {}
    for file, one in found:
        unlike.setdefault((one.name, one.host, one.device), (file, one))
    yield from unlike.values()


def is_comparable(text: str) -> bool:
    """Whether the text may have facts."""
    return any(mark in text for mark in _MARKS)


def _names(file: str) -> tuple[str, str]:
    return PurePath(file).stem, PurePath(file).parent.name


def _named(body: str, names: Collection[str] | None) -> str:
    """The node of a prompt; or, if names may be, of a heading that is one of these or says so."""
    if prompt := _PROMPT.match(body):
        return node_in(prompt["node"])
    if names is None or (heading := _HEADING.match(body)) is None:
        return ""
    name = node_in(heading["node"])
    return name if heading["says"] or name in names else ""


def facts_of(file: str, text: str, names: Collection[str]) -> Iterator[Fact]:
    """The facts of a file, in its order. names: of nodes, without which a heading may be any."""
    of_file = next(filter(None, map(node_in, _names(file))), "")
    node, device, kind, process = of_file, "", "", ""
    active: bool | None = None
    times: dict[tuple[str, ...], int] = {}
    lines = text.splitlines()
    for before, line in zip(["", *lines], lines, strict=False):
        # Logged twice, or of no concern.
        if line == before or not any(map(line.__contains__, _TELL)):
            continue
        labels, body = split_prefix(line)
        here, body = labels.get("pdsh"), body.strip()
        if link := _IP_LINK.match(line.strip()):
            here, body = link["node"], link["row"]
        node = here or node
        if name := _named(body, None if of_file else names):
            node, device, kind, process, active = name, first(DEVICE, body) or "", "", "", None
        if product := _PRODUCT.match(body):
            kind = product[1]
        if of := _OF_DEVICE.match(body):
            groups = _groups(of)
            device, kind, active = groups["device"], groups.get("kind", ""), None
        if program := _NAME.match(body):
            process = program[1]
        for pattern in _VALUE:
            if (match := pattern.match(body)) is None:
                continue
            groups = _groups(match)
            own = groups.pop("own", device)
            counter = groups.pop("counter", "")
            for name, value in groups.items():
                if name == "state":
                    active = value.lower() == "active"
                tells_nothing = {
                    "state": True,
                    "rate": not active,
                    "errors": active is False or value in _SATURATED,
                    "mtu": bool(_VIRTUAL.match(own)),
                }
                if tells_nothing.get(name):
                    continue
                # Blocks that do not name their device are numbered.
                key = (name, counter, node, own)
                number = times[key] = times.get(key, 0) + 1
                again = name in _SEVERAL or (name in _SAMPLED and own)
                shown = own if again or number == 1 else f"{own}#{number}"
                of_kind = process if name == "cpus" else kind or counter
                yield Fact(name, node, shown, value, file, line, of_kind)


def _groups(match: re.Match[str]) -> dict[str, str]:
    return {key.rstrip("234"): value for key, value in match.groupdict().items() if value}


def _few(odd: Sequence[object], others: Sequence[object]) -> bool:
    """Whether one differs from two or more, or several from three times as many."""
    return bool(odd) and len(others) >= max(2, 3 * (len(odd) > 1) * len(odd))


def _unlike_most(facts: Iterable[Fact]) -> Iterator[tuple[Fact, int]]:
    """Those whose value is not that of most of their name, if they are few, and the value of most:
    of nodes that are alike. Not those that had the usual value in another sample.
    A node whose devices have the values of another's only names them in another order."""
    nodes: dict[str, dict[str, list[Fact]]] = {}
    for one in facts:
        if one.node:
            nodes.setdefault(one.node, {}).setdefault(one.device, []).append(one)
    alike: dict[tuple[object, ...], list[dict[str, list[Fact]]]] = {}
    for devices in nodes.values():
        one = next(iter(devices.values()))[0]
        alike.setdefault((one.nodes, frozenset(devices)), []).append(devices)
    for every in alike.values():
        sets = [sorted(of[-1].number for of in devices.values()) for devices in every]
        for device in every[0]:
            values = [devices[device][-1].number for devices in every]
            usual = max(values, key=values.count)
            odd = [
                devices[device][-1]
                for devices, own in zip(every, sets, strict=True)
                if all(one.number != usual for one in devices[device])
                and sets.count(own) <= len(every) - values.count(usual)
            ]
            if _few(odd, [usual] * values.count(usual)):
                yield from ((one, usual) for one in odd)


def _links_below(texts: Mapping[str, str]) -> Iterator[tuple[str, Cause]]:
    for file, text in texts.items():
        if "==(" not in text or "ould be" not in text:
            continue
        links: dict[str, list[PortLink]] = {}
        for one in link_info(text):
            if one.peer and one.width:
                links.setdefault(_NUMBERS.sub("", one.peer), []).append(one)
        below = [
            one
            for alike in links.values()
            if _few(*([one for one in alike if bool(one.could_be) is odd] for odd in (True, False)))
            for one in alike
            if one.could_be
        ]
        for one in below:
            host, _, device = one.peer.rpartition(" ")
            of_node = host and DEVICE.fullmatch(device)
            line = next(row for row in text.splitlines() if "ould be" in row and one.peer in row)
            yield (
                file,
                Cause(
                    known_cause("link degraded"),
                    line.strip(),
                    host=host if of_node else switch_name(one.node),
                    device=device if of_node else f"port {one.port}",
                    detail=one.fault,
                ),
            )


def _slower_ports(facts: Iterable[Fact]) -> Iterator[tuple[str, Cause]]:
    for one, usual in _unlike_most(facts):
        if one.number < usual:
            yield one.cause("link degraded", f"{one.value} Gbit/s, others {usual}")


def _ports_with_errors(facts: Iterable[Fact]) -> Iterator[tuple[str, Cause]]:
    """Of counters read twice, what was added; one that was read once may be old."""
    samples: dict[tuple[str, ...], dict[str, list[Fact]]] = {}
    for one in facts:
        if one.node:
            port = samples.setdefault((one.kind, one.device, one.nodes), {})
            port.setdefault(one.node, []).append(one)
    for (counter, *_), nodes in samples.items():
        ports: list[tuple[int, Fact, bool]] = []
        for every in nodes.values():
            every.sort(
                key=lambda one: bool(_LATER.search(one.file)) - bool(_EARLIER.search(one.file))
            )
            counts = [one.number for one in every]
            added = sum(max(0, late - early) for early, late in pairwise(counts))
            again = len(counts) > 1
            ports.append((added if again else counts[0], every[-1], again))
        *others, (most, worst, grew) = sorted(ports, key=lambda port: port[0])
        if len(others) > 1 and most >= max(MOST_ERRORS, 10 * others[-1][0]):
            detail = f"{counter} {most}, others at most {others[-1][0]}"
            yield worst.cause("link errors", detail, root=grew)


def _other_mtu(facts: Iterable[Fact], used: Collection[str]) -> Iterator[tuple[str, Cause]]:
    """Of interfaces that carry data, or if no log tells, of those with large packets."""
    for one, usual in _unlike_most(facts):
        if one.number < usual and (used or usual > 1500):
            yield one.cause("MTU differs", f"{one.value}, others {usual}")


def _slowed_gpus(facts: Mapping[str, Sequence[Fact]]) -> Iterator[tuple[str, Cause]]:
    def by_gpu(name: str) -> dict[tuple[str, str, str], Fact]:
        # HW Slowdown is any of the others of hardware.
        every = sorted(
            facts.get(name, ()), key=lambda one: one.value.count(" ") + one.value.startswith("HW")
        )
        return {(f.file, f.node, f.device): f for f in every}

    slowed, clocks, busy = map(by_gpu, ("slowed", "mhz", "busy"))
    works = {at: one for at, one in clocks.items() if at in busy and busy[at].number}
    for kind in {one.kind for one in works.values()}:
        like = {at: one.number for at, one in works.items() if one.kind == kind}
        free = [mhz for at, mhz in like.items() if at not in slowed]
        usual = median(free or [0])
        slow = [at for at, mhz in like.items() if at in slowed and mhz < SLOW_CLOCK * usual]
        for at in slow if _few(slow, free) else ():
            detail = f"{slowed[at].value}, {like[at]} MHz, others {usual:g}"
            yield slowed[at].cause("GPU slowed down", detail)


def _narrow_slots(facts: Mapping[str, Sequence[Fact]]) -> Iterator[tuple[str, Cause]]:
    """Of equal devices, those whose PCIe link has fewer lanes than it could have, or a lower rate
    and many errors: the rate alone falls at rest, too."""

    def by_device(name: str) -> dict[tuple[str, str, str], Fact]:
        return {(f.file, f.node, f.device): f for f in facts.get(name, ())}

    full, caps, speeds, busy = map(by_device, ("full", "cap", "speed", "busy"))
    errors = Counter((one.node, one.address) for one in facts.get("corrected", ()))
    kinds: dict[tuple[str, str, int], list[tuple[Fact, str]]] = {}
    for at, one in by_device("width").items():
        if at not in full or "bridge" in one.kind or not one.number:
            continue
        lanes, speed, cap = full[at].number, speeds.get(at), caps.get(at)
        at_rest = (speed and speed.number <= LEAST_SPEED) or (at in busy and not busy[at].number)
        below = f"x{one.value} of x{lanes}" if one.number < lanes and not at_rest else ""
        if speed and cap and speed.number < cap.number:
            count = errors[one.node, one.address]
            if count >= MOST_CORRECTED:
                rate = f"rate {speed.value} of {cap.value}, {count} corrected errors"
                below = f"{below}, {rate}" if below else rate
        kinds.setdefault((one.kind, one.nodes, lanes), []).append((one, below))
    for (kind, *_), every in kinds.items():
        narrow = [(one, below) for one, below in every if below]
        for one, below in narrow if _few(narrow, every[len(narrow) :]) else ():
            # A slot of every node may have fewer lanes.
            like = [b for other, b in every if other.device == one.device and other != one]
            if 2 * sum(map(bool, like)) > len(like) or not (like or _IS_GPU.match(kind)):
                continue
            yield one.cause("PCIe link degraded", below)


def _fewer_cpus(facts: Iterable[Fact]) -> Iterator[tuple[str, Cause]]:
    """Of processes by nodes: each has less than half of others' CPUs, and so have all together."""
    lists: dict[tuple[str, str], dict[str, list[tuple[frozenset[int], Fact]]]] = {}
    for one in facts:
        if one.node and (cpus := parse_cpulist(one.value)):
            like = lists.setdefault((one.kind, one.nodes), {})
            like.setdefault(one.node, []).append((cpus, one))
    for like in lists.values():
        sizes = {
            node: (mean(len(cpus) for cpus, _ in of), len(frozenset().union(*(c for c, _ in of))))
            for node, of in like.items()
        }
        for node, (each, every) in sizes.items():
            others = [size for other, size in sizes.items() if other != node]
            least = [min(size) for size in zip(*others, strict=True)] if len(others) > 1 else [0, 0]
            if 2 * each < least[0] and 2 * every < least[1]:
                yield like[node][0][1].cause("fewer CPUs", f"{every}, others {least[1]}")
