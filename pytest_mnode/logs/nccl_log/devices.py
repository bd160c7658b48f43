"""Lines about network devices, plugins, GPUDirect and settings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from pytest_mnode.logs.nccl_log.model import (
    Absence,
    GpuDirect,
    NcclDevice,
    NcclProcess,
    NcclSetting,
    NetworkUse,
    NoDevice,
    Provider,
)

_USING = re.compile(r"NET/(?P<network>[\w -]{1,40}?) ?: ?Using ?(?=\[|;|$)", re.ASCII)
_ITEM = re.compile(
    r"\[(?P<index>\d{1,5})\] ?(?:=\{(?P<group>[^{}]{0,1000})\}|(?P<name>[^\s\[\]{};]{1,200}))",
    re.ASCII,
)
_INTERFACE = re.compile(r"(?P<name>[^:\s<>\[\]]{1,40}):")
_VIRTUAL = re.compile(
    r"NET/(?P<network>\w{1,40}) ?: Made virtual device \[(?P<index>\d{1,5})\] "
    r"name=(?P<name>\S{1,200}) speed=\d{1,9} ndevs=\d{1,4}",
    re.ASCII,
)
_SHARP = re.compile(r"Sharp rank \d{1,7}/\d{1,7} initialized on (?P<name>\w{1,60}):\d{1,3}")
_OFI_GROUP = re.compile(
    r"NET/OFI NIC group (?P<index>\d{1,5}) device #\d{1,5} (?P<name>[0-9a-fA-F:.]{7,16})", re.ASCII
)
_GPU_DIRECT = re.compile(
    r"(?:NET/(?P<network>[\w -]{1,40}?) ?: )?GPU Direct RDMA (?:\([\w -]{1,40}\) )?"
    r"(?P<state>[Ee]nabled|[Dd]isabled)\b"
    r"(?P<rest>.{0,400})",
    re.ASCII,
)
_SETTING = re.compile(
    r"(?P<name>[A-Z][A-Z0-9]{1,20}(?:_[A-Z0-9]{1,40}){1,10}) set "
    r"(?:by [\w /.-]{1,60}? )?to ?(?P<value>.*)",
    re.ASCII,
)
_CHOSEN = (
    re.compile(r"Using network (.{1,80})"),
    re.compile(r"Assigned NET plugin (.{1,80}?) to comm\b"),
)
_FAILED = (
    re.compile(r"Failed to initialize NET plugin (.{1,80})"),
    re.compile(r"NET/Plugin ?: Could not find:? (?!lib\w*ccl-net\.so|none\b)([\w-]{1,80})"),
)
_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is (?P<name>[^\s,()]{1,80})")
_ABSENCES = (
    (re.compile(r"NET/\w{1,40} ?: No device found"), Absence.NO_DEVICE),
    (re.compile(r"Failed to open libibverbs\.so"), Absence.NO_LIBRARY),
    (
        re.compile(
            r"NET/OFI .{0,200}?(?:fi_getinfo\(\) call failed|"
            r"[Nn]o (?:eligible )?providers?\b|optimal provider)"
        ),
        Absence.NO_PROVIDER,
    ),
    (
        re.compile(r"(?:NET/Socket|Bootstrap) ?: [Nn]o (?:socket )?interface found"),
        Absence.NO_INTERFACE,
    ),
)


def read_devices(process: NcclProcess, message: str) -> Iterator[NcclDevice]:
    """Devices in a message; none in a message of another kind."""
    if found := _VIRTUAL.match(message):
        yield NcclDevice(process, found["network"], int(found["index"]), found["name"])
    elif found := _SHARP.match(message):
        yield NcclDevice(process, "SHARP", None, found["name"])
    elif found := _OFI_GROUP.match(message):
        yield NcclDevice(process, "OFI", int(found["index"]), found["name"])
    elif found := _USING.match(message):
        yield from _listed_devices(process, message, found)


def _listed_devices(
    process: NcclProcess, message: str, using: re.Match[str]
) -> Iterator[NcclDevice]:
    listed = message[using.end() :].partition("; OOB")[0]
    is_cut = list_is_cut(message)
    if is_cut and "={" in listed[listed.rfind("}") + 1 :]:
        listed = listed[: listed.rindex("={")]
    items = list(_ITEM.finditer(listed))
    # In a list with merged devices the position counts, not the printed number.
    merged = any(item["group"] is not None for item in items)
    for position, item in enumerate(items):
        if item["group"] is not None:
            own = [part for part in _ITEM.finditer(item["group"]) if part["name"]]
        else:
            own = [item]
        parts = [part["name"] for part in own]
        if is_cut and item is items[-1] and item.end() == len(listed.rstrip()):
            parts = [_certain_part(part, using["network"]) for part in parts]
        index = position if merged else int(item["index"])
        device = _device(process, using["network"], index, [part.rstrip(",") for part in parts])
        if device is not None:
            numbers = tuple(int(part["index"]) for part in own) if merged else ()
            yield replace(device, numbers=numbers)


def list_is_cut(message: str) -> bool:
    """Whether the end of a list of devices is missing: NCCL or a collector cut it off."""
    using = _USING.match(message)
    if using is None:
        return False
    if _is_socket(using["network"]):
        return not message.endswith(">") or message.endswith("]>")
    return "; OOB" not in message


def _is_socket(network: str) -> bool:
    return network.lower().endswith("socket")


def _certain_part(part: str, network: str) -> str:
    """The certain part of the last item in a cut list."""
    name, _, layer = part.partition("/")
    if _is_socket(network) or layer.split("/")[0] in ("IB", "RoCE"):
        return part
    return f"{name}/" if "/" in part else ""


def _device(process: NcclProcess, network: str, index: int, parts: list[str]) -> NcclDevice | None:
    if _is_socket(network):
        found = _INTERFACE.match(parts[0]) if parts else None
        return NcclDevice(process, network, index, found["name"]) if found else None
    words = [part.split("/") for part in parts]
    names = [word[0].partition(":")[0] for word in words]
    if not names or not all(names):
        return None
    layers = dict.fromkeys(word[1] for word in words if len(word) > 1 and word[1])
    return NcclDevice(process, network, index, "+".join(names), "+".join(layers) or None)


def read_use(process: NcclProcess, message: str) -> NetworkUse | None:
    """The network plugin that a process chose, or that failed."""
    for patterns, failed in ((_CHOSEN, False), (_FAILED, True)):
        for pattern in patterns:
            if found := pattern.match(message):
                return NetworkUse(process, found.group(1).strip(), failed)
    return None


def read_provider(process: NcclProcess, message: str) -> Provider | None:
    """The libfabric provider that the OFI plugin selected."""
    found = _PROVIDER.match(message)
    return Provider(process, found["name"]) if found else None


def read_absence(process: NcclProcess, message: str) -> NoDevice | None:
    """Reason why a process has no device; None for any other message."""
    for pattern, absence in _ABSENCES:
        if pattern.search(message):
            return NoDevice(process, absence)
    return None


def read_gpu_direct(process: NcclProcess, message: str) -> GpuDirect | None:
    """Whether GPUDirect RDMA is used for a GPU, a device, or both, and why not."""
    found = _GPU_DIRECT.match(message)
    if found is None:
        return None
    rest = found["rest"]
    device = re.search(r"\bHCA (\d{1,5})\b(?: '([^']{1,80})')?", rest)
    reason = re.search(r"\(([^()]{1,200})\)", rest)
    return GpuDirect(
        process=process,
        enabled=found["state"].lower() == "enabled",
        network=found["network"],
        device=int(device.group(1)) if device else None,
        device_name=device.group(2) if device else None,
        reason=reason.group(1) if reason else None,
    )


def read_setting(process: NcclProcess, message: str) -> NcclSetting | None:
    """An override of a default; some versions print a full stop after the value."""
    found = _SETTING.match(message)
    if found is None:
        return None
    value = found["value"].strip()
    value = value[:-1] if re.fullmatch(r"-?\w{1,80}\.", value, re.ASCII) else value
    return NcclSetting(process, found["name"], value)
