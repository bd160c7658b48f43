"""Proof that traffic runs on the fabric that was promised, by four facts that must agree.

Pinned (the environment as ranks see it), logged (what each rank's channels or sockets run on),
counted (bytes of the fabric's NICs against what the algorithm must move) and quiet (all other
NICs). `prove` reads them in ranks; `judge` and all beside it are functions from values to values,
so that recorded facts can be judged anywhere. Importing the package does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_mnode.criteria.transport.facts import Facts, Nic, NodeFacts, Port, RankFacts, Socket
    from pytest_mnode.criteria.transport.judging import judge
    from pytest_mnode.criteria.transport.proof import (
        Answer,
        Case,
        Fact,
        FactVerdict,
        Finding,
        Proof,
    )
    from pytest_mnode.criteria.transport.proving import prove

_HOME = {
    "Answer": "proof",
    "Case": "proof",
    "Fact": "proof",
    "FactVerdict": "proof",
    "Facts": "facts",
    "Finding": "proof",
    "Nic": "facts",
    "NodeFacts": "facts",
    "Port": "facts",
    "Proof": "proof",
    "RankFacts": "facts",
    "Socket": "facts",
    "judge": "judging",
    "prove": "proving",
}

__all__ = [
    "Answer",
    "Case",
    "Fact",
    "FactVerdict",
    "Facts",
    "Finding",
    "Nic",
    "NodeFacts",
    "Port",
    "Proof",
    "RankFacts",
    "Socket",
    "judge",
    "prove",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
