"""The profile that describes nodes, and what a page that extends it need not say again. Pure, but
for reading the profiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import yaml

from pytest_mnode.discover import bounds
from pytest_mnode.discover.cluster import CONFIRM
from pytest_mnode.discover.page import Entry
from pytest_mnode.machine.dmi import Dmi
from pytest_mnode.spec import Spec, profile_spec
from pytest_mnode.spec.profiles import find_profile, profile_names
from pytest_mnode.spec.quantity import bits_per_s, size_bytes

_CLOUDS = {
    "Amazon EC2": ("p4", "p5", "p6"),
    "Google": ("a3-", "a4"),
    "Microsoft Corporation": ("nd-",),
    "OracleCloud.com": ("oci-",),
}
"""How a cloud's profiles begin, by its vendor or asset tag in SMBIOS."""
_MEMORY_SHARE = 0.1
"""[choice] By how much memory that a driver shows differs from what is sold: ECC, GB and GiB."""


@dataclass(frozen=True, slots=True)
class Platform:
    """A profile that describes the nodes. why: what they have in common."""

    name: str
    spec: Spec
    why: str


def platform_of(accelerators: Entry, fabric: Entry, firmware: Dmi | None) -> Platform | None:
    """The profile with the nodes' GPUs and NICs, of their cloud if firmware names it; else None.

    accelerators, fabric: entries of a page, of what most nodes show.
    """
    gpus, nics = _seen(accelerators), _seen(fabric)
    firmware = firmware or Dmi()
    if not gpus.get("model"):
        return None
    specs = {name: profile_spec(name) for name in profile_names()}
    fitting = [name for name, spec in specs.items() if _fits(spec, gpus, nics)]
    clouds = {of for of in _CLOUDS if of in (firmware.vendor, firmware.asset_tag)}
    ours = tuple(start for of in clouds for start in _CLOUDS[of])
    others = tuple(start for starts in _CLOUDS.values() for start in starts)
    instance = find_profile(firmware.product or "")
    # Interfaces tell virtual NICs of one cloud from any other Ethernet only with that cloud's name.
    general = [n for n in fitting if not n.startswith(others) and specs[n].fabric.protocol]
    candidates = [name for name in fitting if ours and name.startswith(ours)] or general
    if instance is not None and instance.stem in fitting:
        candidates = [instance.stem]
    if not candidates:
        return None

    def unlike(name: str) -> tuple[bool, str]:
        patterns = specs[name].fabric.interfaces
        names = nics.get("interfaces", ())
        named = all(any(fnmatchcase(one, pattern) for pattern in patterns) for one in names)
        return (not named, name)

    name = min(candidates, key=unlike)
    found = [f"{gpus['per_node']} {gpus['model']}"]
    found.append(f"{nics['nics_per_node']} NICs ({nics['kind']})")
    found += sorted(clouds) + ([str(firmware.product)] if instance is not None else [])
    return Platform(name, specs[name], ", ".join(found))


def _seen(entry: Entry) -> dict[str, Any]:
    return {
        child.key: yaml.safe_load(child.value) for child in entry.children if not child.left_out
    }


def _fits(spec: Spec, gpus: Mapping[str, Any], nics: Mapping[str, Any]) -> bool:
    kind = spec.fabric.kind if spec.fabric.protocol else "ethernet"
    rate = nics.get("line_rate")
    return (
        (gpus.get("model"), gpus.get("per_node"))
        == (spec.accelerators.model, spec.accelerators.per_node)
        and (nics.get("kind"), nics.get("nics_per_node")) == (kind, spec.fabric.nics_per_node)
        and (rate is None or bits_per_s(rate) == spec.fabric.line_rate_bits_s)
    )


def extending(
    platform: Platform, hardware: Sequence[Entry], machine: bounds.Machine | None
) -> tuple[Entry, ...]:
    """The line that extends the profile, what of the hardware differs from it, and what these nodes
    cannot show of its criteria. hardware: the entries of accelerators and fabric."""
    page = platform.spec.model_dump(mode="json", by_alias=True)
    same: list[str] = []
    differing = []
    for entry in hardware:
        kept = []
        for child in entry.children:
            known = page[entry.key].get(child.key)
            if known is None or not (child.left_out or _equal(child, known)):
                kept.append(child)
            else:
                lacking = "not seen" if child.left_out else child.value
                same.append(f"{entry.key}.{child.key} {lacking}")
        if kept:
            differing.append(replace(entry, children=tuple(kept)))
    about = (
        f"Recognised by {platform.why}. Bounds and their sources are this profile's. It says what "
        f"most nodes show: {'; '.join(same)}. {CONFIRM}. What follows differs, or is the site's."
    )
    extends = Entry("extends", platform.name, about, gap=True)
    nulls = tuple(_removed(platform.spec, machine))
    return (extends, *differing, *([Entry("criteria", "", "", nulls, gap=True)] if nulls else []))


def _equal(child: Entry, known: Any) -> bool:
    if child.key == "memory":
        return bool(abs(size_bytes(child.value) / known - 1) <= _MEMORY_SHARE)
    if child.key == "line_rate":
        return bool(bits_per_s(child.value) == known)
    if child.key == "kind":
        return True  # what carries virtual NICs' traffic is the profile's to say
    return bool(yaml.safe_load(child.value) == known)


def _removed(spec: Spec, machine: bounds.Machine | None) -> Iterator[Entry]:
    """Promises of a profile that these nodes could not be held to."""
    preflight, lacking = spec.criteria.preflight, []
    if machine is not None and preflight is not None:
        lacking = [
            Entry(key, "null", f"Left out: {why}.")
            for key, there, why in (
                ("accelerators", machine.nvml, "the driver's library does not answer on all nodes"),
                ("kernel_log", machine.kernel_log, "not all nodes let this user read the log"),
                ("pcie", machine.pcie_links, "not all nodes show their links"),
            )
            if not there and getattr(preflight, key, None) is not None
        ]
    if lacking:
        yield Entry("preflight", "", "", tuple(lacking))
    if machine is not None and spec.criteria.numa is not None and bounds.numa(machine) is None:
        yield Entry("numa", "null", "Left out: the NUMA node of an accelerator is not known.")
    why = "Left out until storage.checkpoints is named: then delete this line."
    yield Entry("restart", "null", why)
