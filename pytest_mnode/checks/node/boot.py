"""Parameters that the kernel was booted with: what a node lacks of them shows as slow, or odd."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from pytest_mnode.evidence.check import Check, check
from pytest_mnode.evidence.row import Row, row
from pytest_mnode.evidence.rules import Rows
from pytest_mnode.measurement import Measurement
from pytest_mnode.spec.fields import Section

_PARAMETER = "boot parameter"
_WORD = re.compile(r'(?:[^\s"]|"[^"]*")+')
_OF_A_NODE = (
    *("BOOT_IMAGE", "initrd", "root", "resume", "ip", "BOOTIF", "hostname", "systemd.hostname"),
    *("systemd.machine_id", "rd.luks.uuid", "rd.lvm.lv", "rd.md.uuid", "ds", "nfsroot", "netroot"),
)
"""Names whose values are a node's own, and which `same: all` leaves out."""
Name = Annotated[str, Field(pattern=r'^[^\s="]+$')]
Word = Annotated[str, Field(pattern=r'^[^\s="]+(=[^\s"]*)?$')]


class BootParameters(Section):
    """Parameters of the kernel, in /proc/cmdline."""

    has: tuple[Word, ...] = ()
    """Each of these is there: a name, or a name with a value, such as iommu=pt; of a list of values
    one is enough, so that pci=realloc=off is kept by pci=noaer,realloc=off."""
    has_not: tuple[Word, ...] = ()
    """None of these is there, such as intel_iommu=off, or nomodeset with any value."""
    same: Literal["all"] | tuple[Name, ...] = ()
    """Names with the same values on all nodes; all: of every name, but for those of a node's own
    disks, image and addresses."""


@check("preflight.boot")
class BootParametersAreAsPromised(Check):
    """Was this node's kernel booted with the parameters promised?

    What comes behind `--` is for the first program, and does not count. In names `-` and `_` are
    one letter. Source: Linux, admin-guide/kernel-parameters.
    """

    promise: BootParameters

    def read(self, root: Path) -> Iterator[Row]:
        for name, values in parameters((root / "proc/cmdline").read_text()).items():
            yield row(_PARAMETER, " ".join(values), device=name)

    def rule(self, rows: Rows) -> Iterator[Measurement]:
        promise = self.promise
        for word in promise.has:
            of_name = rows.where(partial(_is_named, _name(word)))
            yield of_name.number(_PARAMETER, word, partial(_is, word), 1, part="has")
        if words := promise.has_not:
            name = f"boot parameters of {', '.join(words)}"
            yield rows.none(
                _PARAMETER, name, lambda one: any(_is(w, one) for w in words), part="has_not"
            )
        if promise.same and len(rows.by_node) > 1:
            yield rows.where(self._is_compared).same(_PARAMETER)

    def _is_compared(self, one: Row) -> bool:
        if self.promise.same == "all":
            return one.device not in {_plain(name) for name in _OF_A_NODE}
        return one.device in {_plain(name) for name in self.promise.same}

    fault = "other_text:{node}:/proc/cmdline:BOOT_IMAGE=/vmlinuz iommu=soft quiet"
    promised_as = '{has_not: ["iommu=soft"]}'

    @classmethod
    def draft(cls, rows: Mapping[str, Sequence[Row]]) -> dict[str, object] | None:
        """`same`, where it holds already."""
        own = {_plain(name) for name in _OF_A_NODE}
        each = {
            frozenset((one.device, one.value) for one in of_node if one.device not in own)
            for of_node in rows.values()
        }
        return {"same": "all"} if len(rows) > 1 and len(each) == 1 else None


def _plain(name: str) -> str:
    return name.replace("-", "_")


def _name(word: str) -> str:
    return _plain(word.partition("=")[0])


def parameters(cmdline: str) -> dict[str, list[str]]:
    """Values by name, in the order of the kernel's command line; "" of a name without a value."""
    found: dict[str, list[str]] = {}
    for word in _WORD.findall(cmdline):
        if word == "--":
            break
        name, _, value = word.strip('"').partition("=")
        found.setdefault(_plain(name), []).append(value.strip('"'))
    return found


def _is_named(name: str, one: Row) -> bool:
    return one.device == name


def _is(word: str, one: Row) -> bool:
    """Whether a parameter is the word: by its name, and by its value or one of a list of values."""
    _, equals, value = word.partition("=")
    if one.device != _name(word):
        return False
    values = str(one.value).split()
    return not equals or any(value in (each, *each.split(",")) for each in values or [""])
