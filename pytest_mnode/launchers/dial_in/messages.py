"""Messages between the bridge and a node's program: a kind, a command's number, and data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Self

from pytest_mnode.protocol.channel import Keys

HELLO, BEAT, OUT, ERR, EXIT = (bytes([c]) for c in b"hboex")
"""From a node. HELLO: its names as JSON. EXIT: a command's status as text."""
START, DATA, WRITTEN, END = (bytes([c]) for c in b"SDWE")
"""To a node, besides BEAT. START: an argv as JSON. DATA: input; empty at its end, which also ends
the command. WRITTEN: OUT or ERR, of which more is now wanted. END, with number 0, ends all."""
CHUNK_BYTES = 1 << 16
BEAT_S = 1.0


def message(kind: bytes, number: int = 0, data: bytes = b"") -> bytes:
    return kind + number.to_bytes(4, "big") + data


def parts(payload: bytes) -> tuple[bytes, int, bytes]:
    return payload[:1], int.from_bytes(payload[1:5], "big"), payload[5:]


@dataclass(frozen=True, slots=True)
class DialOrder:
    """What a node's program has to know, from a file or its standard input.

    addresses: of this machine, to be tried in this order. silence_s: how long it may hear nothing.
    """

    addresses: Sequence[str]
    port: int
    keys: Keys
    silence_s: float

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Self:
        found = json.loads(text)
        return cls(**{**found, "keys": Keys(**found["keys"])})
