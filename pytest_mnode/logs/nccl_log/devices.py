"""Lines about network devices, interfaces, plugins and what they can do."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from pytest_mnode.logs.nccl_log.facts import Process
from pytest_mnode.logs.nccl_log.surroundings import (
    Absence,
    Device,
    GpuDirect,
    Interface,
    NetworkUse,
    NoDevice,
    Provider,
    Purpose,
    Setting,
    Use,
)

_USING = re.compile(r"NET/(?P<network>[\w -]{1,40}?) ?: ?Using ?(?=\[|;|$)", re.ASCII)
_ITEM = re.compile(
    r"\[(?P<index>\d{1,5})\] ?(?:=\{(?P<group>[^{}]{0,1000})\}|(?P<name>[^\s\[\]{};]{1,200}))",
    re.ASCII,
)
_INTERFACE = re.compile(r"(?P<name>[^:\s<>\[\]]{1,40}):(?:(?P<address>\S{0,80})<\d{1,7}>)?")
_VIRTUAL = re.compile(
    r"NET/(?P<network>\w{1,40}) ?: Made virtual device \[(?P<index>\d{1,5})\] "
    r"name=(?P<name>\S{1,200}) speed=(?P<speed>\d{1,9}) ndevs=(?P<count>\d{1,4})",
    re.ASCII,
)
_SHARP = re.compile(
    r"Sharp rank \d{1,7}/\d{1,7} initialized on (?P<name>\w{1,60}):(?P<port>\d{1,3})"
)
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
    r"(?:by (?P<source>[\w /.-]{1,60}?) )?to ?(?P<value>.*)",
    re.ASCII,
)
_USES = (
    (re.compile(r"Using network (.{1,80})"), Use.USING),
    (re.compile(r"Initialized NET plugin (.{1,80})"), Use.INITIALIZED),
    (re.compile(r"Failed to initialize NET plugin (.{1,80})"), Use.FAILED),
    (re.compile(r"Assigned NET plugin (.{1,80}?) to comm\b"), Use.ASSIGNED),
    (re.compile(r"NET/Plugin ?: Could not find:? (?!lib\w*ccl-net\.so)([\w-]{1,80})"), Use.FAILED),
    (re.compile(r"P2P plugin (?:v\d{1,3} )?(\S{1,80})$"), Use.LOADED),
    (re.compile(r"NET/Plugin ?: Loaded net plugin (.{1,80}?)(?: \(v\d{1,3}\))?$"), Use.LOADED),
)
_PROVIDER = re.compile(
    r"NET/OFI Selected [Pp]rovider is (?P<name>[^\s,()]{1,80})"
    r"[^()]{0,200}(?:\(found (?P<count>\d{1,5}) nics?\))?"
)
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


def read_devices(process: Process, message: str) -> Iterator[Device]:
    """Devices that a message lists; a message of any other kind lists none."""
    virtual = _VIRTUAL.match(message)
    if virtual is not None:
        speed = int(virtual["speed"])
        index = int(virtual["index"])
        yield _device(process, virtual["network"], index, virtual["name"], speed=speed)
        return
    sharp = _SHARP.match(message)
    if sharp is not None:
        yield _device(process, "SHARP", None, sharp["name"], port=int(sharp["port"]), sharp=True)
        return
    group = _OFI_GROUP.match(message)
    if group is not None:
        yield _device(process, "OFI", int(group["index"]), group["name"])
        return
    using = _USING.match(message)
    if using is None:
        return
    listed = message[using.end() :].partition("; OOB")[0]
    is_cut = list_is_cut(message)
    if is_cut and "={" in listed[listed.rfind("}") + 1 :]:
        listed = listed[: listed.rindex("={")]
    ordered = listed.rstrip().endswith("[RO]")
    items = list(_ITEM.finditer(listed))
    # A list with merged devices counts them where they stand, whatever number is printed.
    merged = any(item["group"] is not None for item in items)
    for place, item in enumerate(items):
        index = place if merged else int(item["index"])
        if item["group"] is not None:
            parts = [part["name"] for part in _ITEM.finditer(item["group"]) if part["name"]]
        else:
            parts = [item["name"]]
        if is_cut and item is items[-1] and item.end() == len(listed.rstrip()):
            parts = [_whole_part(part, using["network"]) for part in parts]
        found = _listed(process, using["network"], index, parts, ordered=ordered)
        if found is not None:
            yield found


def list_is_cut(message: str) -> bool:
    """Whether the end of a list of devices is missing: what NCCL or a collector cut off."""
    using = _USING.match(message)
    if using is None:
        return False
    if using["network"].lower().endswith("socket"):
        return not message.endswith(">") or message.endswith("]>")
    return "; OOB" not in message


def _whole_part(part: str, network: str) -> str:
    """What is certain of the last item of a list that is cut."""
    name, _, layer = part.partition("/")
    if network.lower().endswith("socket") or layer.split("/")[0] in ("IB", "RoCE"):
        return part
    return f"{name}/" if "/" in part else ""


def _listed(
    process: Process, network: str, index: int, parts: list[str], *, ordered: bool
) -> Device | None:
    parts = [part.rstrip(",") for part in parts]
    if network.lower().endswith("socket"):
        found = _interface(parts[0]) if parts else None
        return _device(process, network, index, found[0], address=found[1]) if found else None
    words = [part.split("/") for part in parts]
    names = tuple(word[0].partition(":")[0] for word in words)
    if not names or not all(names):
        return None
    port = words[0][0].partition(":")[2]
    layers = dict.fromkeys(word[1] for word in words if len(word) > 1 and word[1])
    return _device(
        process,
        network,
        index,
        "+".join(names),
        port=int(port) if port.isascii() and port.isdigit() and len(port) < 4 else None,
        link_layer="+".join(layers) or None,
        sharp=all("SHARP" in word[2:] for word in words),
        ordered=ordered,
    )


def _device(
    process: Process,
    network: str,
    index: int | None,
    name: str,
    *,
    port: int | None = None,
    link_layer: str | None = None,
    address: str | None = None,
    speed: int | None = None,
    sharp: bool = False,
    ordered: bool = False,
) -> Device:
    return Device(
        process=process,
        network=network,
        index=index,
        name=name,
        port=port,
        link_layer=link_layer,
        address=address,
        speed_mbits_s=speed or None,
        in_network_reduction=sharp,
        relaxed_ordering=ordered,
    )


def _interface(text: str) -> tuple[str, str | None] | None:
    """Name and address of `eth0:10.1.2.3<0>`; no address where it is blanked or cut."""
    found = _INTERFACE.match(text)
    if found is None:
        return None
    address = found["address"] or ""
    try:
        ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return found["name"], None
    return found["name"], address


def read_interfaces(process: Process, message: str) -> Iterator[Interface]:
    """Interfaces of `Bootstrap : Using …`, or the one behind `; OOB` in a list of devices."""
    if message.startswith("Bootstrap"):
        _, used, rest = message.partition(": Using ")
        purpose = Purpose.BOOTSTRAP
    elif message.startswith("NET/"):
        _, used, rest = message.partition("; OOB ")
        purpose = Purpose.OUT_OF_BAND
    else:
        return
    items = [item["name"] or "" for item in _ITEM.finditer(rest)] if rest[:1] == "[" else [rest]
    for found in map(_interface, items if used else []):
        if found is not None:
            yield Interface(process=process, purpose=purpose, name=found[0], address=found[1])


def read_use(process: Process, message: str) -> NetworkUse | None:
    """How far a network plugin came."""
    for pattern, use in _USES:
        found = pattern.match(message)
        if found is not None:
            return NetworkUse(process=process, name=found.group(1).strip(), use=use)
    return None


def read_provider(process: Process, message: str) -> Provider | None:
    """The libfabric provider that the OFI plugin selected."""
    found = _PROVIDER.match(message)
    if found is None:
        return None
    count = found["count"]
    return Provider(
        process=process, name=found["name"], adapters=None if count is None else int(count)
    )


def read_absence(process: Process, message: str) -> NoDevice | None:
    """Why there is no device, if a message says so."""
    for pattern, absence in _ABSENCES:
        if pattern.search(message):
            return NoDevice(process=process, absence=absence, text=message)
    return None


def read_gpu_direct(process: Process, message: str) -> GpuDirect | None:
    """Whether GPUDirect RDMA is used for a GPU, a device, or both, and why not."""
    found = _GPU_DIRECT.match(message)
    if found is None:
        return None
    rest = found["rest"]
    gpu = re.search(r"\bGPU (\w{1,20}(?:\[\w{1,20}\])?)", rest)
    device = re.search(r"\bHCA (\d{1,5})\b(?: '([^']{1,80})')?", rest)
    reason = re.search(r"\(([^()]{1,200})\)", rest)
    return GpuDirect(
        process=process,
        enabled=found["state"].lower() == "enabled",
        network=found["network"],
        gpu=gpu.group(1) if gpu else None,
        device=int(device.group(1)) if device else None,
        device_name=device.group(2) if device else None,
        reason=reason.group(1) if reason else None,
    )


def read_setting(process: Process, message: str) -> Setting | None:
    """An override of a default; some versions print a full stop behind the value."""
    found = _SETTING.match(message)
    if found is None:
        return None
    value = found["value"].strip()
    value = value[:-1] if re.fullmatch(r"-?\w{1,80}\.", value, re.ASCII) else value
    return Setting(process=process, name=found["name"], value=value, source=found["source"])


def named_device(fact: GpuDirect) -> Device:
    """The device that a line about GPUDirect RDMA numbers and names."""
    return _device(fact.process, fact.network or "", fact.device or 0, fact.device_name or "")
