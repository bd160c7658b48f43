"""File systems of the network that a node has mounted; reading the table is pure."""

from __future__ import annotations

from pathlib import Path

from pytest_mnode.criteria.preflight.places import NETWORK_FILE_SYSTEMS
from pytest_mnode.discover.facts import SharedMount


def mount_table(root: Path) -> str:
    """Text of mountinfo. Raises OSError where it cannot be read."""
    return (root / "proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")


def shared_mounts(table: str) -> tuple[SharedMount, ...]:
    """File systems of the network in a mount table, by path.

    Source: proc(5), mountinfo.
    """
    found = {}
    for line in table.splitlines():
        fields, _, tail = line.partition(" - ")
        words, kinds = fields.split(), tail.split()
        if len(words) < 6 or len(kinds) < 2 or kinds[0] not in NETWORK_FILE_SYSTEMS:
            continue
        path = _unescaped(words[4])
        writable = "rw" in words[5].split(",")
        found[path] = SharedMount(path, kinds[0], _unescaped(kinds[1]), writable)
    return tuple(found[path] for path in sorted(found))


def _unescaped(word: str) -> str:
    """Blanks and the like are written as \\040."""
    for code in ("040", "011", "012", "134"):
        word = word.replace(f"\\{code}", chr(int(code, 8)))
    return word
