"""Governors of CPU frequency: a CPU that saves power holds up every rank of its job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from pytest_mnode.evidence.check import Check, check
from pytest_mnode.evidence.row import Row, row, seen
from pytest_mnode.evidence.rules import Rows
from pytest_mnode.machine import sysfs
from pytest_mnode.machine.cpus import format_cpulist, read_cpus
from pytest_mnode.measurement import Measurement

_GOVERNOR, _PREFERENCE = "CPU governor", "energy preference of CPUs"
_NONE = "none"
_FILES = {_GOVERNOR: "scaling_governor", _PREFERENCE: "energy_performance_preference"}
_CPUS = "sys/devices/system/cpu"


@check("preflight.cpu_governor")
class CpuGovernorIsAsPromised(Check):
    """Do all CPUs of this node have the frequency governor promised?

    Of CPUs that are online. With the governor `performance`, intel_pstate and amd_pstate fix the
    energy preference (`energy_performance_preference`) too, so it is compared for `same` only. A
    virtual machine usually shows no governor, because its host has it: a promised one is then
    inconclusive, and `same` compares that there is none. Source: Linux, admin-guide/pm.
    """

    promise: Literal[
        "same", "performance", "schedutil", "ondemand", "conservative", "powersave", "userspace"
    ]
    """Governor of all CPUs; same: those of the other nodes, and their energy preferences."""
    read_by = frozenset(("",))

    def read(self, root: Path) -> Iterator[Row]:
        online = read_cpus(root).online
        if not online:
            raise OSError(f"no CPUs in /{_CPUS}/online")
        compares = self.promise in (None, "same")
        for metric, file in _FILES.items() if compares else [(_GOVERNOR, _FILES[_GOVERNOR])]:
            cpus: defaultdict[str, set[int]] = defaultdict(set)
            for cpu in online:
                cpus[sysfs.text(root / _CPUS / f"cpu{cpu}/cpufreq/{file}") or _NONE].add(cpu)
            without = set() if compares else cpus.pop(_NONE, set())
            if cpus:
                yield row(metric, _text(cpus))
            if without:
                why = f"CPUs {format_cpulist(without)} have no cpufreq/{file}: a virtual machine?"
                yield row(metric, why=why)

    def rule(self, rows: Rows) -> Iterator[Measurement]:
        same = self.promise == "same"
        yield rows.same() if same else rows.equals(_GOVERNOR, self.promise)

    fault = f"other_text:{{node}}:/{_CPUS}/cpu0/cpufreq/scaling_governor:userspace"
    promised_as = "same"

    @classmethod
    def draft(cls, rows: Mapping[str, Sequence[Row]]) -> str | None:
        if (governors := seen(rows, _GOVERNOR)) == ["performance"]:
            return "performance"
        return "same" if governors and len(rows) > 1 else None


def _text(cpus: Mapping[str, set[int]]) -> str:
    """ "performance", or "performance on CPUs 1-3, powersave on CPUs 0"."""
    if len(cpus) == 1:
        return next(iter(cpus))
    return ", ".join(f"{name} on CPUs {format_cpulist(cpus[name])}" for name in sorted(cpus))
