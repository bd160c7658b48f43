"""Output of InfiniBand's tools: sminfo, iblinkinfo, ibnetdiscover, ibqueryerrors, ibdiagnet. Pure.

Source: rdma-core, infiniband-diags; ibdiagnet of ibutils2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

PACKAGE = "infiniband-diags"
_SMINFO = re.compile(
    r"sm lid (\d+)\b.*?\bguid (0x[0-9a-f]+).*?activity count \d+.*?priority (\d+)"
    r".*?state (\d+)(?:\s+(\w+))?",
    re.IGNORECASE | re.DOTALL,
)
_NODE = re.compile(r"(?:CA|Ca|Switch|Router|Rt):\s*(?:0x[0-9a-fA-F]+\s+)?(.*?):?\s*")
_LINK = re.compile(
    r'\s*(?:0x[0-9a-fA-F]+\s+)?(?:"(?P<node>[^"]*)"\s+)?\d+\s+(?P<port>\d+)\[[^\]]*\]\s*'
    r"==\((?P<link>.*?)\)==>\s*(?:0x[0-9a-fA-F]+\s+)?(?:(?P<peer_lid>\d+)\s+(?P<peer_port>\d+))?\s*"
    r'\[[^\]]*\]\s*"(?P<peer>[^"]*)"\s*\((?P<could>.*)\)\s*'
)
_STATE = re.compile(
    r"\s*(?:(?P<width>\d+X)\s+(?P<speed>\S.*?)\s+)?(?P<state>\w+)\s*/\s*(?P<phys>\w.*?)\s*"
)
_FOUND_NODE = re.compile(r'(?:Switch|Ca|Rt)\s+\d+\s+"(?P<id>[^"]+)"\s*#\s*"(?P<name>[^"]*)".*')
_FOUND_LINK = re.compile(
    r'\[(?P<port>\d+)\](?:\[[^\]]*\])?(?:\([0-9a-f]+\))?\s+"(?P<id>[^"]+)"\[(?P<peer_port>\d+)\]'
    r"(?:\[[^\]]*\])?(?:\([0-9a-f]+\))?\s*(?:#(?P<note>.*))?"
)
_NAME = re.compile(r'"([^"]*)"')
_RATE = re.compile(r"\b(\d+x)([A-Z]+\d*)\s*$")
_ERRORS_OF = re.compile(r'Errors for (?:0x[0-9a-f]+\s+)?"(?P<node>[^"]*)"', re.IGNORECASE)
_ERRORS_AT = re.compile(r"\s+GUID 0x[0-9a-f]+ port (?P<port>\d+):(?P<counts>.*)", re.IGNORECASE)
_COUNT = re.compile(r"\[(\w+) == (\d+)")
_STAGE = re.compile(r"-I-\s+(?P<stage>\S.*?)\s{2,}(?P<warnings>\d+)\s+(?P<errors>\d+)\b.*")
_ADAPTIVE = re.compile(
    r"Adaptive Routing is (enabled|disabled)(?: on (\d+) switch)?", re.IGNORECASE
)
_BLANKS = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class SubnetManager:
    """The subnet manager that a port sees. state: MASTER, STANDBY, DISCOVER or NOTACT."""

    lid: int
    guid: str
    priority: int
    state: str


@dataclass(frozen=True, slots=True)
class PortLink:
    """A port and what it is connected to.

    node, peer: descriptions, such as "MF0;leaf1:MQM9700/U1" and "node3 mlx5_0"; peer is "" without
    a cable. could_be: widths and speeds that both ends have enabled, and that the link has not.
    guid: the node's, as 16 digits, where ibnetdiscover tells it. peer_lid: as iblinkinfo tells it.
    """

    node: str
    port: int
    width: str = ""
    speed: str = ""
    state: str = ""
    phys_state: str = ""
    peer: str = ""
    peer_port: int | None = None
    could_be: str = ""
    guid: str = ""
    peer_lid: int | None = None

    @property
    def name(self) -> str:
        """Both ends, such as "MF0;leaf1:MQM9700/U1 port 3 – node3 mlx5_0 port 1"."""
        return f"{self.node} port {self.port} – {self.peer or 'nothing'} port {self.peer_port}"

    @property
    def ends(self) -> frozenset[tuple[str, int | None]]:
        """Both ends, by which a link that is listed from each of them is one."""
        return frozenset([(self.node, self.port), (self.peer, self.peer_port)])

    @property
    def fault(self) -> str:
        """Why a link that has a cable does not work as well as it could; "" if it does."""
        if not self.peer:
            return ""
        if self.could_be:
            return f"{self.width} {self.speed}, could be {self.could_be}"
        return "" if self.state.lower() in ("active", "") else f"{self.state}/{self.phys_state}"


def switch_name(description: str) -> str:
    """The name of a switch in its description: leaf1 of "MF0;leaf1:MQM9700/U1"."""
    return description.rpartition(";")[2].partition(":")[0].strip() or description


def subnet_manager(text: str) -> SubnetManager | None:
    """The answer of sminfo; None if there is none in it."""
    found = _SMINFO.search(text)
    if found is None:
        return None
    lid, guid, priority, state, word = found.groups()
    names = ("NOTACT", "DISCOVER", "STANDBY", "MASTER")
    name = (word or "").upper().removeprefix("SMINFO_")
    if name not in names:
        name = names[int(state)] if int(state) < len(names) else state
    return SubnetManager(int(lid), guid.lower(), int(priority), name)


def link_info(text: str) -> Iterator[PortLink]:
    """The links of iblinkinfo, with and without --line."""
    node = ""
    for line in text.splitlines():
        if found := _LINK.fullmatch(line):
            state = _STATE.fullmatch(found["link"])
            could = _BLANKS.sub(" ", found["could"]).replace("Could be", "").strip()
            yield PortLink(
                _plain(found["node"] or node),
                int(found["port"]),
                state["width"] or "" if state else "",
                state["speed"] or "" if state else "",
                state["state"] if state else "",
                state["phys"] if state else "",
                _plain(found["peer"]),
                int(found["peer_port"]) if found["peer_port"] else None,
                _BLANKS.sub(" ", could),
                peer_lid=int(found["peer_lid"]) if found["peer_lid"] else None,
            )
        elif header := _NODE.fullmatch(line.strip()):
            node = header[1]


def net_discovered(text: str) -> Iterator[PortLink]:
    """The links of ibnetdiscover, from each end that it lists."""
    names = {
        found["id"]: _plain(found["name"])
        for line in text.splitlines()
        if (found := _FOUND_NODE.fullmatch(line.strip()))
    }
    node = guid = ""
    for line in text.splitlines():
        if header := _FOUND_NODE.fullmatch(line.strip()):
            node, guid = names[header["id"]], header["id"].rpartition("-")[2]
        elif node and (found := _FOUND_LINK.fullmatch(line.strip())):
            note = found["note"] or ""
            rate, said = _RATE.search(note), _NAME.search(note)
            yield PortLink(
                node,
                int(found["port"]),
                rate[1].upper() if rate else "",
                rate[2] if rate else "",
                # Only the comment names a node that the output, or a part of it, does not list.
                peer=names.get(found["id"]) or (_plain(said[1]) if said else found["id"]),
                peer_port=int(found["peer_port"]),
                guid=guid,
            )


def port_errors(text: str) -> dict[tuple[str, int, str], int]:
    """Counts of ibqueryerrors by node, port and counter. Sums over all ports are left out."""
    counts, node = dict[tuple[str, int, str], int](), ""
    for line in text.splitlines():
        if header := _ERRORS_OF.match(line.strip()):
            node = _plain(header["node"])
        elif found := _ERRORS_AT.match(line):
            for name, count in _COUNT.findall(found["counts"]):
                counts[node, int(found["port"]), name] = int(count)
    return counts


def diagnosed(text: str) -> tuple[dict[str, int], list[str]]:
    """Number of errors by stage of ibdiagnet's summary, and the lines of its errors."""
    stages = {
        found["stage"]: int(found["errors"])
        for line in text.splitlines()
        if (found := _STAGE.fullmatch(line.strip()))
    }
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith("-E-")]
    return stages, [line.removeprefix("-E-").strip() for line in lines]


def adaptive_switches(text: str) -> int | None:
    """Number of switches on which ibdiagnet found adaptive routing; None if it says nothing."""
    found = _ADAPTIVE.search(text)
    if found is None:
        return None
    return int(found[2] or 1) if found[1].lower() == "enabled" else 0


def _plain(name: str) -> str:
    return _BLANKS.sub(" ", name).strip()
