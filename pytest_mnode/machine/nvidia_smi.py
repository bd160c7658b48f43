"""NVIDIA accelerators, read by the driver's own program where NVML has no Python binding."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from pytest_mnode.machine.nvml import Accelerator, NvmlAnswer, is_gone, with_remedy
from pytest_mnode.machine.pci import full_address
from pytest_mnode.machine.programs import NVIDIA, NoOutput, output_of

Path: TypeAlias = tuple[str, ...]
_GPU = re.compile(r"\s*GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s*")
_LINE = re.compile(r"( *)(\S.*?)(?:\s*:(?: (.*))?)?")
_LOST = re.compile(r"Unable to determine the device handle for GPU.*?([0-9A-Fa-f:]{7,16}\.[0-7]).*")
_BAD_INFOROM = re.compile(r"WARNING: infoROM is corrupted at gpu ([0-9A-Fa-f:]{7,16}\.[0-7])")
_WORDS = {
    **{"enabled": True, "yes": True, "active": True},
    **{"disabled": False, "no": False, "not active": False},
}
_UNKNOWN = re.compile(
    r"|\[?(n/a|not supported|unknown( error)?|err!.*|insufficient permissions|gpu (?!reset$).*|"
    r"requested functionality .*|function not found|not found|no such .*)\]?",
    re.IGNORECASE,
)
_BROKEN = re.compile(r"err!|unknown error", re.IGNORECASE)
_UNCORRECTED = (
    *(("SRAM Uncorrectable",), ("SRAM Uncorrectable Parity",), ("SRAM Uncorrectable SEC-DED",)),
    *(("DRAM Uncorrectable",), ("Double Bit", "Total")),
)
"""SRAM has two counters since drivers of Hopper, and one before; the last is from before Turing."""
_CORRECTED = (("SRAM Correctable",), ("DRAM Correctable",), ("Single Bit", "Total"))
_REPAIRS = {
    "Channel Repair Pending": "repair of a channel pending",
    "TPC Repair Pending": "repair of a TPC pending",
    "Unrepairable Memory": "memory that cannot be repaired",
}
_REPAIRED = re.compile("^(?:gpu|node) ")
_REASONS = ("Clocks Event Reasons", "Clocks Throttle Reasons")
_SLOWED = {
    "SW Power Cap": "SwPowerCap",
    "HW Slowdown": "HwSlowdown",
    "HW Thermal Slowdown": "HwThermalSlowdown",
    "HW Power Brake Slowdown": "HwPowerBrakeSlowdown",
    "Sync Boost": "SyncBoost",
    "SW Thermal Slowdown": "SwThermalSlowdown",
}
_READ = {
    *("Product Name", "GPU UUID", "FB Memory Usage", "ECC Mode", "Ecc Mode", "ECC Errors"),
    *("Remapped Rows", "Retired Pages", "Persistence Mode", "MIG Mode", "VBIOS Version"),
    *_REASONS,
}


def read_nvidia_smi() -> NvmlAnswer:
    """Accelerators of this machine, by index; never raises.

    Source: nvidia-smi(1), --query.
    """
    # It may end with an error after all that it had to say, as when an infoROM is damaged.
    try:
        printed = output_of("nvidia-smi", "-q", package=NVIDIA, may_fail=True, with_errors=True)
    except NoOutput as error:
        return NvmlAnswer(why=str(error))
    if found := parse_query(printed):
        return NvmlAnswer(found=found)
    said = printed.strip().partition("\n")[0]
    said = said if said and not said.startswith("=") else "no GPU"
    return NvmlAnswer(why=f"nvidia-smi: {with_remedy(said)}")


def parse_query(printed: str) -> tuple[Accelerator, ...]:
    """The accelerators that `nvidia-smi -q` describes, or names as lost, in its order.

    Names of fields changed with the driver, and what a GPU has not is N/A, or left out.
    """
    lines = printed.splitlines()
    lost = [
        (full_address(match[1]), line.strip())
        for line in lines
        if (match := _LOST.match(line.strip()))
    ]
    damaged = {full_address(match[1]) for line in lines if (match := _BAD_INFOROM.search(line))}
    sections = list(_sections(lines))
    every = sorted(
        [*((full_address(at), fields, "") for at, fields in sections)]
        + [(at, {}, said) for at, said in lost],
        key=lambda one: one[0] or "",
    )
    return tuple(
        _accelerator(index, at, fields, said, damaged=at in damaged)
        for index, (at, fields, said) in enumerate(every)
    )


def _sections(lines: Iterable[str]) -> Iterable[tuple[str, Mapping[Path, str]]]:
    """Address and fields of each GPU; a field by the headings above it and its own name."""
    found: list[tuple[str, dict[Path, str]]] = []
    above: list[tuple[int, str]] = []
    for line in lines:
        if match := _GPU.fullmatch(line):
            found.append((match[1], {}))
            above = []
        elif found and (match := _LINE.fullmatch(line.rstrip())) and match[1]:
            depth, name = len(match[1]), match[2]
            above = [one for one in above if one[0] < depth]
            path = (*(heading for _, heading in above), name)
            if match[3] is None:
                above.append((depth, name))
            else:
                found[-1][1].setdefault(path, match[3].strip())
    return found


def _accelerator(
    index: int, address: str | None, fields: Mapping[Path, str], lost: str, *, damaged: bool
) -> Accelerator:
    def text(*path: str) -> str | None:
        value = fields.get(path, "")
        return None if _UNKNOWN.fullmatch(value) else value

    def flag(*path: str) -> bool | None:
        return _WORDS.get((text(*path) or "").lower())

    def total(counter: str, names: Iterable[Path]) -> int | None:
        """Sum of what is counted; None if a counter could not be read, or there is none."""
        there = [fields.get(("ECC Errors", counter, *name), "") for name in names]
        known = [count for value in there if (count := _number(value)) is not None]
        return sum(known) if known and not any(map(_BROKEN.search, there)) else None

    read = [value for path, value in fields.items() if path[0] in _READ]
    said = lost or next((value for value in read if is_gone(value)), "")
    unclear = next(filter(_BROKEN.search, read), "")
    mib = _number(text("FB Memory Usage", "Total"))
    reasons = next((name for name in _REASONS if (name, "HW Slowdown") in fields), _REASONS[0])
    states = {name: flag(reasons, field) for field, name in _SLOWED.items()}
    remapping = ("Remapped Rows", "Bank Remap Availability Histogram", "None")
    pages = (("Retired Pages", f"Pending Page {name}") for name in ("Blacklist", "Retirement"))
    recovery = text("GPU Recovery Action")
    return Accelerator(
        index=index,
        uuid=text("GPU UUID"),
        pci_address=address,
        name=text("Product Name"),
        memory_bytes=mib << 20 if mib else None,
        ecc_enabled=_first(flag("ECC Mode", "Current"), flag("Ecc Mode", "Current")),
        ecc_uncorrected=total("Volatile", _UNCORRECTED),
        ecc_corrected=total("Volatile", _CORRECTED),
        ecc_uncorrected_ever=total("Aggregate", _UNCORRECTED),
        ecc_blocks=tuple(
            (" ".join(name).replace(" Uncorrectable", ""), count)
            for name in _UNCORRECTED
            if (count := _number(text("ECC Errors", "Volatile", *name)))
        ),
        sram_exceeded=flag("ECC Errors", "Aggregate", "SRAM Threshold Exceeded"),
        remapped_rows_pending=flag("Remapped Rows", "Pending"),
        remapped_rows_failed=flag("Remapped Rows", "Remapping Failure Occurred"),
        banks_without_spare=_number(text(*remapping)),
        pages_pending=_first(*(flag(*path) for path in pages)),
        repairs=tuple(words for name, words in _REPAIRS.items() if flag("ECC Errors", name)),
        recovery=_REPAIRED.sub("", recovery.lower()).replace("p2p", "P2P") if recovery else None,
        inforom_valid=False if damaged else None,
        vbios=text("VBIOS Version"),
        gsp=text("GSP Firmware Version"),
        throttled=(
            tuple(name for name, is_so in states.items() if is_so)
            if any(is_so is not None for is_so in states.values())
            else None
        ),
        persistence=flag("Persistence Mode"),
        mig_enabled=flag("MIG Mode", "Current"),
        problem=with_remedy(said or unclear) if said or unclear else "",
        gone=bool(said),
    )


def _first(*flags: bool | None) -> bool | None:
    return next((flag for flag in flags if flag is not None), None)


def _number(value: str | None) -> int | None:
    """The first number, as of "81559 MiB" or "512 bank(s)"."""
    match = re.match(r"\d+", value or "")
    return int(match[0]) if match else None
