"""Whether nodes that can be used each by itself can be told apart, and reach each other. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from pytest_mnode.launchers.remote.looking import Look


def mistaken(looks: Mapping[str, Look], addresses: Mapping[str, str]) -> dict[str, str]:
    """What is wrong with nodes among others, a line each, by the names they were given.

    addresses: where the others are to reach each; a single node is reached by itself alone.
    """
    problems: dict[str, str] = {}
    names: dict[str, str] = {}
    taken: dict[str, str] = {}
    for given, look in looks.items():
        address = addresses[given]
        if (first := names.setdefault(look.hostname, given)) != given:
            problems[given] = _same_name(first, looks[first], look)
        elif len(looks) > 1 and _is_loopback(address):
            problems[given] = (
                f"its address is {address}, which is every node's own; name it by one at which "
                "the other nodes reach it"
            )
        elif _needs_a_scope(address):
            problems[given] = (
                f"its address is {address}, which is good on one link only, by the name that each "
                "machine has for that link; name it by one at which the other nodes reach it"
            )
        elif (first := taken.setdefault(address, given)) != given:
            problems[given] = (
                f"its address is {address}, and so is {first}'s; ranks need one that is its own, "
                "at which the other nodes reach it"
            )
    return problems


def _same_name(first: str, known: Look, look: Look) -> str:
    """The kernel's boot tells machines apart; the rack's nodes share it, and differ by name."""
    if None in (known.boot, look.boot):
        return f"it calls itself {look.hostname}, as {first} does: one machine, or two of one name"
    if known.boot == look.boot:
        return f"it is one machine with {first}: {look.hostname}"
    return f"it calls itself {look.hostname}, as {first} does; give them names of their own"


def _needs_a_scope(address: str) -> bool:
    """Of IPv4, such addresses are good wherever packets get by themselves."""
    found = _number(address)
    return found is not None and found.version == 6 and found.is_link_local


def _is_loopback(address: str) -> bool:
    found = _number(address)
    if found is None:
        return address == "localhost" or address.startswith("localhost.")
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback


def _number(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """None for a name."""
    try:
        return ipaddress.ip_address(address)
    except ValueError:
        return None
