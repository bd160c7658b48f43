"""What differs between nodes that should be alike, in the output of programs of the machine. Pure.

Read are ip, ibstat, ibstatus, iblinkinfo, perfquery, ethtool -S, nvidia-smi -q, lspci -vv, taskset
and /proc/PID/status, of files that name their node, or with prompts or headings that do. A value is
a finding if one node, or few, differ from the others, and those agree. What idle GPUs save, power
caps and old counters accuse nobody.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from statistics import mean, median

from pytest_mnode.logs.causes.culprits import DEVICE, first, split_prefix
from pytest_mnode.logs.causes.table import Cause, known_cause
from pytest_mnode.logs.node_names import node_in
from pytest_mnode.logs.subnet import link_info, switch_name
from pytest_mnode.machine.cpus import parse_cpulist
from pytest_mnode.machine.pci import full_address

_MARKS = (
    *(" mtu ", "CA '", "Infiniband device '", "PortSelect", "_phy: ", "NVSMI LOG", "LnkSta:"),
    *("affinity list: ", "Cpus_allowed_list:", "PCIe Bus Error", "==("),
)
_PROMPT = re.compile(r"\[?(?:[\w.-]+@)?(?P<node>[A-Za-z][\w.-]*)\]?(?:[: ][^\s$#]*)?\]? ?[$#] \S")
_HEADING = re.compile(
    r"[#=*>-]+ *(?:(?:node|host(?:name)?)[: ] *)?(?P<node>[a-z][\w.-]*\d[\w.-]*)(?=[\s:=*-]|$)"
)
_IP_LINK = re.compile(r"(?:(?P<node>[A-Za-z][\w.-]*): +)?(?:\d+: +)?(?P<row>[\w.-]+(?:@\S+)?: <.*)")
"""A prefix could be its number or its name, too."""
_OF_DEVICE = re.compile(
    r"(?:CA|Infiniband device) '(?P<device>\w+)'(?:$| port )|.*\bethtool -S (?P<device2>[\w.-]+)|"
    r"GPU (?P<device3>[\dA-F]{4,8}:[\dA-F:]{5}\.\d)$|"
    r"(?P<device4>(?:[\da-f]{4}:)?[\da-f]{2}:[\da-f]{2}\.[0-7]) (?P<kind>[\w /]+: .+)"
)
_TELL = (
    *("$ ", "# ", "== ", "-- ", "** ", "> ", " mtu ", "LnkC", "LnkS", "Slowdown", "Product Name"),
    *(
        "tate:",
        "ate:",
        "_allowed_list",
        "affinity list",
        "Counter:",
        "Errors:",
        "_phy:",
        "PCIe Bus",
    ),
    *(
        "CA '",
        "device '",
        "GPU ",
        "Gpu ",
        " SM ",
        "Max ",
        "Current ",
        *(f".{n} " for n in range(8)),
    ),
)
"""Most lines of a log have none of these."""
_PRODUCT = re.compile(r"Product Name\s*: (.+)")
_VALUES = (
    r"(?P<own>[\w.-]+)(?:@\S+)?: <[^>]*\bUP\b[^>]*> mtu (?P<mtu>\d+)",
    r"(?P<own>[\w.-]+): flags=\d+<[^>]*\bUP\b[^>]*> +mtu (?P<mtu>\d+)",
    r"[Ss]tate:\s+(?:\d: )?(?P<state>\w+)",
    r"[Rr]ate:\s+(?P<rate>\d+)",
    r"(?:pid \d+'s current affinity list|Cpus_allowed_list):\s*(?P<cpus>[\d,-]+)$",
    r"(?P<counter>SymbolErrorCounter|LocalLinkIntegrityErrors|LinkErrorRecoveryCounter|PortRcvErrors|"
    r"rx_(?:crc_errors|(?:pcs_)?symbol_err)_phy):[. ]*(?P<errors>\d+)$",
    r"(?P<slowed>HW (?:Thermal |Power Brake )?Slowdown|SW Thermal Slowdown)\s*: Active",
    r"SM\s*: (?P<mhz>\d+) MHz|G[Pp][Uu]\s*: (?P<busy>\d+) %",
    r"Max\s*: (?:(?P<full>\d+)x|(?P<cap>\d)$)|LnkCap:.*Speed (?P<cap2>\d+).*Width x(?P<full2>\d+)",
    r"Current\s*: (?:(?P<width>\d+)x|(?P<speed>\d)$)|"
    r"LnkSta:.*Speed (?P<speed2>\d+).*Width x(?P<width2>\d+)",
    r".*?\S+ (?P<own>[\da-f:]{7,13}\.\d): (?:AER: )?PCIe Bus Error: severity=(?P<corrected>Corr)",
)
_VALUE = [re.compile(one) for one in _VALUES]
_IS_GPU = re.compile(r"3D |VGA |Display |Processing |$|NVIDIA |AMD ")
_SEVERAL = ("cpus", "slowed", "corrected")
"""Of these, a device or a node has several."""
MOST_ERRORS = 100
"""[choice] Fewer errors of a link say nothing, nor do less than ten times those of others."""
MOST_CORRECTED = 10
"""[choice] Fewer errors that PCIe corrected by itself say nothing."""
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
    def address(self) -> str | None:
        return full_address(self.device.partition("#")[0])

    def cause(self, name: str, detail: str) -> tuple[str, Cause]:
        device = self.device.partition("#")[0] or None
        host = self.node or None
        return self.file, Cause(
            known_cause(name), self.line.strip(), host=host, device=device, detail=detail
        )


def differing(texts: Mapping[str, str], used: Collection[str]) -> Iterator[tuple[str, Cause]]:
    """What differs, with the file that shows it. used: interfaces that NCCL's logs name."""
    facts: dict[str, list[Fact]] = {}
    for file, text in texts.items():
        for fact in facts_of(file, text):
            facts.setdefault(fact.name, []).append(fact)
    found = (
        *_links_below(texts),
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


def facts_of(file: str, text: str) -> Iterator[Fact]:
    """The facts of a file, in its order."""
    path = PurePath(file)
    of_file = next(filter(None, map(node_in, (path.stem, path.parent.name))), "")
    node, device, kind, active = of_file, "", "", False
    times: dict[tuple[str, ...], int] = {}
    lines = text.splitlines()
    for before, line in zip(["", *lines], lines, strict=False):
        if line == before or not any(
            map(line.__contains__, _TELL)
        ):  # logged twice, or of no concern
            continue
        labels, body = split_prefix(line)
        here, body = labels.get("pdsh"), body.strip()
        if link := _IP_LINK.match(line.strip()):
            here, body = link["node"], link["row"]
        node = here or node
        if (named := _PROMPT.match(body) or _HEADING.match(body)) and (
            name := node_in(named["node"])
        ):
            node, device, kind = name, first(DEVICE, body) or "", ""
        if product := _PRODUCT.match(body):
            kind = product[1]
        if of := _OF_DEVICE.match(body):
            groups = _groups(of)
            device, kind = groups["device"], groups.get("kind", "")
        for pattern in _VALUE:
            if (match := pattern.match(body)) is None:
                continue
            groups = _groups(match)
            own = groups.pop("own", device)
            counter = groups.pop("counter", "")
            for name, value in groups.items():
                if name == "state":
                    active = value.lower() == "active"
                elif name != "rate" or active:
                    # Blocks that do not name their device are numbered.
                    key = (name, counter, node, own)
                    number = times[key] = times.get(key, 0) + 1
                    numbered = number > 1 and name not in _SEVERAL
                    shown = f"{own}#{number}" if numbered else own
                    yield Fact(name, node, shown, value, file, line, kind or counter)


def _groups(match: re.Match[str]) -> dict[str, str]:
    return {key.rstrip("234"): value for key, value in match.groupdict().items() if value}


def _few(odd: Sequence[object], others: Sequence[object]) -> bool:
    """Whether one differs from two or more, or several from three times as many."""
    return bool(odd) and len(others) >= max(2, 3 * (len(odd) > 1) * len(odd))


def _by_device(facts: Iterable[Fact]) -> Iterator[Sequence[Fact]]:
    """Facts of equally named devices, the last one of each node."""
    found: dict[tuple[str, str], dict[str, Fact]] = {}
    for one in facts:
        if one.node:
            found.setdefault((one.device, one.kind), {})[one.node] = one
    return (list(of.values()) for of in found.values())


def _unlike_most(facts: Iterable[Fact]) -> Iterator[tuple[Fact, int]]:
    """Those whose value is not that of most of their name, if they are few, and the value of most.
    A node whose devices have the values of another's only names them in another order."""
    every = list(facts)
    sets: dict[str, list[int]] = {}
    for one in every:
        sets.setdefault(one.node, []).append(one.number)
    counts = Counter(tuple(sorted(numbers)) for numbers in sets.values())
    for like in _by_device(every):
        values = [one.number for one in like]
        usual = max(values, key=values.count)
        odd = [one for one in like if one.number != usual]
        if _few(odd, [usual] * values.count(usual)):
            own = (one for one in odd if counts[tuple(sorted(sets[one.node]))] <= len(odd))
            yield from ((one, usual) for one in own)


def _links_below(texts: Mapping[str, str]) -> Iterator[tuple[str, Cause]]:
    for file, text in texts.items():
        if "==(" not in text or "ould be" not in text:
            continue
        links = [one for one in link_info(text) if one.peer and one.width]
        below = [one for one in links if one.could_be]
        if not _few(below, links[len(below) :]):
            continue
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
    """Of counters read twice, what was added."""
    samples: dict[tuple[str, str, str], list[Fact]] = {}
    for one in facts:
        samples.setdefault((one.kind, one.device, one.node), []).append(one)
    ports: dict[tuple[str, str], list[tuple[int, Fact]]] = {}
    for (counter, device, node), of in samples.items():
        numbers = [one.number for one in of]
        count = max(numbers) - (min(numbers) if len({one.file for one in of}) > 1 else 0)
        if node:
            ports.setdefault((counter, device), []).append((count, of[-1]))
    for (counter, _), every in ports.items():
        *others, (most, worst) = sorted(every, key=lambda one: one[0])
        if len(others) > 1 and most >= max(MOST_ERRORS, 10 * others[-1][0]):
            yield worst.cause("link errors", f"{counter} {most}, others at most {others[-1][0]}")


def _other_mtu(facts: Iterable[Fact], used: Collection[str]) -> Iterator[tuple[str, Cause]]:
    """Of interfaces that NCCL uses, or without its logs, of those with large packets."""
    for one, usual in _unlike_most(facts):
        if one.device in used or (not used and one.number < usual and usual > 1500):
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
    free = [one.number for at, one in works.items() if at not in slowed]
    if not free:
        return
    usual = median(free)
    slow = [at for at in slowed if at in works and works[at].number < SLOW_CLOCK * usual]
    for at in slow if _few(slow, free) else ():
        one = slowed[at]
        yield one.cause("GPU slowed down", f"{one.value}, {works[at].value} MHz, others {usual:g}")


def _narrow_slots(facts: Mapping[str, Sequence[Fact]]) -> Iterator[tuple[str, Cause]]:
    """Of equal devices, those whose PCIe link has fewer lanes than it could have, or a lower rate
    and many errors: the rate alone falls at rest, too."""

    def by_device(name: str) -> dict[tuple[str, str, str], Fact]:
        return {(f.file, f.node, f.device): f for f in facts.get(name, ())}

    full, caps, speeds = map(by_device, ("full", "cap", "speed"))
    errors = Counter((one.node, one.address) for one in facts.get("corrected", ()))
    kinds: dict[tuple[str, int], list[tuple[Fact, str]]] = {}
    for at, one in by_device("width").items():
        if at not in full or "bridge" in one.kind or not one.number:
            continue
        lanes, speed, cap = full[at].number, speeds.get(at), caps.get(at)
        below = f"x{one.value} of x{lanes}" if one.number < lanes else ""
        if speed and cap and speed.number < cap.number:
            count = errors[one.node, one.address]
            if count >= MOST_CORRECTED:
                rate = f"rate {speed.value} of {cap.value}, {count} corrected errors"
                below = f"{below}, {rate}" if below else rate
        kinds.setdefault((one.kind, lanes), []).append((one, below))
    for (kind, _), every in kinds.items():
        narrow = [(one, below) for one, below in every if below]
        for one, below in narrow if _few(narrow, every[len(narrow) :]) else ():
            # A slot of every node may have fewer lanes.
            like = [b for other, b in every if other.device == one.device and other != one]
            if 2 * sum(map(bool, like)) > len(like) or not (like or _IS_GPU.match(kind)):
                continue
            yield one.cause("PCIe link degraded", below)


def _fewer_cpus(facts: Iterable[Fact]) -> Iterator[tuple[str, Cause]]:
    """Of processes by nodes: each has less than half of others' CPUs, and so have all together."""
    lists: dict[str, list[tuple[frozenset[int], Fact]]] = {}
    for one in facts:
        if one.node and (cpus := parse_cpulist(one.value)):
            lists.setdefault(one.node, []).append((cpus, one))
    sizes = {
        node: (mean(len(cpus) for cpus, _ in of), len(frozenset().union(*(c for c, _ in of))))
        for node, of in lists.items()
    }
    for node, (each, every) in sizes.items():
        others = [size for other, size in sizes.items() if other != node]
        least = [min(size) for size in zip(*others, strict=True)] if len(others) > 1 else [0, 0]
        if 2 * each < least[0] and 2 * every < least[1]:
            yield lists[node][0][1].cause("fewer CPUs", f"{every}, others {least[1]}")
