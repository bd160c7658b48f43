"""Whether NCCL lets NVLink's switches reduce (NVLS), by its release, settings and log. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pytest_mnode.spec.alpha_beta import Nvls

_AVAILABLE = re.compile(r"\bNVLS multicast support is (not )?available\b")
_CHANNELS = re.compile(r"\b\d+ coll channels, (\d+) nvls channels\b")
_CHOSEN = re.compile(r"\bAllReduce: (\d+) Bytes -> Algo (\w+) proto\b", re.IGNORECASE)
"""Of NCCL 2.24 and later with NCCL_DEBUG_SUBSYS=TUNING. Source: NCCL, src/enqueue.cc."""
_VERSION = re.compile(r"\b(?:NCCL version |nccl-library=)(\d+(?:\.\d+)?)")
"""In NCCL's log, and in the heading of nccl-tests since 2.17."""
_SINCE = {False: (2, 17), True: (2, 18)}
"""NCCL's release with NVLS inside one domain, and that with NVLSTree over several (False, True).
Source: NCCL's release notes of 2.17.1 and 2.18.1."""
_UNKNOWN = (
    "whether NVLink's switches reduce is not known: NCCL_DEBUG=INFO logs 'NVLS multicast support'; "
    "NCCL_ALGO=Ring pins a ring, NCCL_NVLS_ENABLE=0 excludes them"
)


@dataclass(frozen=True, slots=True)
class NvlsFacts:
    """What is known. version: NCCL's, such as (2, 27); available: by the log, of all its devices.

    chosen: size and name of the algorithm of the largest all-reduce in the log.
    """

    settings: Mapping[str, str]
    version: tuple[int, int] | None = None
    available: bool | None = None
    chosen: tuple[int, str] | None = None

    def with_log(self, lines: Iterable[str]) -> NvlsFacts:
        """These facts and those in lines of NCCL's log."""
        found = self
        for line in lines:
            if (said := _AVAILABLE.search(line)) and found.available is not False:
                found = replace(found, available=not said[1])
            elif (said := _CHANNELS.search(line)) and said[1] == "0":
                found = replace(found, available=False)
            elif said := _CHOSEN.search(line):
                chosen = (int(said[1]), said[2].lower())
                found = replace(found, chosen=max(chosen, found.chosen or chosen))
            elif said := _VERSION.search(line):
                found = replace(found, version=release(said[1]))
        return found

    def used(self, *, across: bool) -> Nvls:
        """Whether it is used for a large all-reduce. across: over several NVLink domains."""
        if self.chosen:
            size, name = self.chosen
            return Nvls(name.startswith("nvls"), f"NCCL's log has {name} for {size} bytes")
        name = "NCCL_NVLS_ENABLE"
        if (value := self.settings.get(name)) is not None and value.strip() == "0":
            return Nvls(used=False, why=f"{name}={value}")
        name = "NCCL_ALGO"
        value = self.settings.get(name, "")
        if (pinned := _pins(value, across=across)) is False:
            return Nvls(pinned, f"{name}={value}")
        since = _SINCE[across]
        if self.version and self.version < since:
            has, needs = (".".join(map(str, one)) for one in (self.version, since))
            return Nvls(used=False, why=f"NCCL {has}, and {needs} is the first that has it")
        if self.available is not None:
            said = "available" if self.available else "not available"
            return Nvls(self.available, f"NCCL's log has NVLS {said}")
        return Nvls(pinned, f"{name}={value}" if pinned else _UNKNOWN)


def release(text: str) -> tuple[int, int] | None:
    """Major and minor of 2.27.5+cuda12.9, or of NCCL's number 22705; None for anything else."""
    if found := re.match(r"v?(\d+)\.(\d+)", text):
        return int(found[1]), int(found[2])
    if not re.fullmatch(r"\d{4,5}", text):
        return None
    # Since 2.9 the number has two digits of each. Source: NCCL, src/nccl.h.in, NCCL_VERSION.
    number = int(text)
    return divmod(number // 100, 100) if len(text) == 5 else divmod(number // 100, 10)


def _pins(algo: str, *, across: bool) -> bool | None:
    """Whether NCCL_ALGO leaves NVLS alone (True), excludes it (False), or neither: a list, one to
    leave out (^), or lists by collective."""
    parts = [part.strip().lower() for part in algo.split(";")]
    of_all = next((part for part in parts if ":" not in part), "")
    own = next((part.partition(":")[2] for part in parts if part.startswith("allreduce:")), of_all)
    named = {name.strip() for name in own.removeprefix("^").split(",")}
    wanted = "nvlstree" if across else "nvls"
    if not own or (wanted in named) is not own.startswith("^"):
        return True if own == wanted else None
    return False
