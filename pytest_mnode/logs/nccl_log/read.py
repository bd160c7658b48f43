"""The reader itself: one pass over the lines, and what only the whole log can tell."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TypeVar

from pytest_mnode.logs.nccl_log.channels import cannot_be_read, read_channel
from pytest_mnode.logs.nccl_log.comms import Comms, fitting, ranks_of
from pytest_mnode.logs.nccl_log.devices import (
    list_is_cut,
    named_device,
    read_absence,
    read_devices,
    read_gpu_direct,
    read_interfaces,
    read_provider,
    read_setting,
    read_use,
)
from pytest_mnode.logs.nccl_log.facts import Channel, Comm, Process, Tuning
from pytest_mnode.logs.nccl_log.gids import read_gid
from pytest_mnode.logs.nccl_log.log import NcclLog
from pytest_mnode.logs.nccl_log.networks import UcxConfig, read_ucx
from pytest_mnode.logs.nccl_log.plans import Plans, read_tuning
from pytest_mnode.logs.nccl_log.surroundings import (
    Device,
    Gid,
    GpuDirect,
    Interface,
    NetworkUse,
    NoDevice,
    Provider,
    Setting,
)
from pytest_mnode.logs.nccl_log.text import Line, Text, first_line_is_cut, messages, plain_text
from pytest_mnode.logs.nccl_log.warned import WARNED, Warned

_VERSION = re.compile(
    r"(?<![A-Za-z])([NR]CCL) version ?:? ?(\d{1,3}\.\d{1,3}[\w.+-]{0,40})", re.ASCII
)
_SHOWN = 160
_ONE_LINE_EACH = ("OFI", "SHARP")
"""Networks that print a line for each adapter of one device."""
_Fact = TypeVar("_Fact")


def read_nccl_log(log: str | bytes) -> NcclLog:
    """What `log` tells: an NCCL debug log of any version, of one rank or many, however printed.

    Never raises, in time proportional to the length. What cannot be read is in `unknown_lines`
    and `truncated`, never guessed.
    """
    text = plain_text(log)
    reader = _Reader()
    for line in text.lines:
        reader.version(line)
        _keep(reader.ucx, read_ucx(line))
    head_is_cut = first_line_is_cut(text)
    for message in messages(text, start=1 if head_is_cut else 0):
        reader.take(message)
    return reader.log(text, head_is_cut=head_is_cut)


@dataclass(slots=True)
class _Reader:
    """Facts in the order of the log; dictionaries, so that what is printed twice counts once."""

    versions: dict[str, None] = field(default_factory=dict)
    processes: dict[Process, None] = field(default_factory=dict)
    comms: Comms = field(default_factory=Comms)
    networks: dict[NetworkUse, None] = field(default_factory=dict)
    providers: dict[Provider, None] = field(default_factory=dict)
    devices: dict[tuple[Process, str, int | None], Device] = field(default_factory=dict)
    interfaces: dict[Interface, None] = field(default_factory=dict)
    channels: dict[Channel, None] = field(default_factory=dict)
    gpu_direct: dict[GpuDirect, None] = field(default_factory=dict)
    settings: dict[Setting, None] = field(default_factory=dict)
    no_device: dict[NoDevice, None] = field(default_factory=dict)
    gids: dict[Gid, None] = field(default_factory=dict)
    warned: Warned = field(default_factory=Warned)
    plans: Plans = field(default_factory=Plans)
    tunings: dict[Tuning, None] = field(default_factory=dict)
    cut: Line | None = None
    cut_lists: dict[str, None] = field(default_factory=dict)
    unknown: dict[str, None] = field(default_factory=dict)
    ucx: dict[UcxConfig, None] = field(default_factory=dict)

    def version(self, line: str) -> None:
        if "CCL version" not in line:
            return
        for name, version in _VERSION.findall(line[-_SHOWN * 4 :]):
            self.versions[version if name == "NCCL" else f"RCCL {version}"] = None

    def take(self, line: Line) -> None:
        """Read one message into the facts it holds."""
        process, message = line.process, line.message
        self.processes[process] = None
        came_to = self.comms.read(line)
        comm = self.comms.being_made(line)
        connected = self.plans.read(process, comm, message) if line.whole else False
        self.warned.take(line, progress=connected or came_to in ("COMPLETE", "DESTROYED"))
        if came_to is None and not self._channel(line, comm) and line.whole:
            # Of a line without an end no value is taken: what is cut off would change it.
            self._others(line)
        if not line.whole and came_to not in ("START", "COMPLETE", "DESTROYED"):
            self.cut = line

    def _channel(self, line: Line, comm: str | None) -> bool:
        channel = read_channel(line)
        if channel is not None:
            self.channels[channel if channel.comm else replace(channel, comm=comm)] = None
            return True
        if line.level == "INFO" and line.whole and cannot_be_read(line.message):
            self.unknown[line.message[: 2 * _SHOWN]] = None
            return True
        return False

    def _others(self, line: Line) -> None:
        process, message = line.process, line.message
        _keep(self.gids, read_gid(process, message))
        _keep(self.no_device, read_absence(process, message))
        if line.level in WARNED:
            return
        for device in read_devices(process, message):
            self._device(device)
        if list_is_cut(message):
            self.cut_lists[message[-_SHOWN:]] = None
        self.interfaces |= dict.fromkeys(read_interfaces(process, message))
        _keep(self.networks, read_use(process, message))
        _keep(self.providers, read_provider(process, message))
        _keep(self.gpu_direct, read_gpu_direct(process, message))
        _keep(self.settings, read_setting(process, message))
        _keep(self.tunings, read_tuning(process, message))

    def _device(self, device: Device) -> None:
        place = (device.process, device.network, device.index)
        known = self.devices.get(place)
        if known is None:
            self.devices[place] = device
            return
        # One line tells the speed of a device, another its port and link layer.
        told = {
            name: getattr(device, name)
            for name in ("port", "link_layer", "address", "speed_mbits_s")
            if getattr(known, name) is None
        }
        if device.name not in known.members and device.network in _ONE_LINE_EACH:
            told["name"] = f"{known.name}+{device.name}"
        told["relaxed_ordering"] = known.relaxed_ordering or device.relaxed_ordering
        told["in_network_reduction"] = known.in_network_reduction or device.in_network_reduction
        self.devices[place] = replace(known, **told)

    def log(self, text: Text, *, head_is_cut: bool) -> NcclLog:
        """All that was read, with what only the whole tells."""
        comms = self.comms.all()
        channels = self._channels(comms)
        for fact in self.gpu_direct:
            # Plugins that list no devices name them here.
            if fact.network and fact.device is not None and fact.device_name:
                self.devices.setdefault(
                    (fact.process, fact.network, fact.device), named_device(fact)
                )
        return NcclLog(
            versions=tuple(self.versions),
            ranks=ranks_of(comms, channels, tuple(self.processes)),
            networks=tuple(self.networks),
            providers=tuple(self.providers),
            devices=tuple(self.devices.values()),
            interfaces=tuple(self.interfaces),
            channels=channels,
            gpu_direct=tuple(self.gpu_direct),
            settings=tuple(self.settings),
            no_device=tuple(self.no_device),
            gids=tuple(self._gids()),
            warnings=self.warned.all(),
            plans=self.plans.all(),
            tunings=tuple(self.tunings),
            truncated=tuple(self._truncated(text, head_is_cut=head_is_cut)),
            unknown_lines=tuple(self.unknown),
            ucx=tuple(self.ucx),
        )

    def _channels(self, comms: tuple[Comm, ...]) -> tuple[Channel, ...]:
        of_process: dict[Process, list[Comm]] = {}
        for comm in comms:
            of_process.setdefault(comm.process, []).append(comm)
        found: dict[Channel, None] = {}
        for channel in self._with_the_last_one():
            mine = of_process.get(channel.process, [])
            address = channel.comm or fitting(channel, mine)
            found[channel if address == channel.comm else replace(channel, comm=address)] = None
        return tuple(found)

    def _with_the_last_one(self) -> list[Channel]:
        """Channels; one without an end is taken for whole where another ends as it does."""
        channels = list(self.channels)
        last = read_channel(self.cut) if self.cut is not None else None
        if self.cut is None or last is None or not last.crosses_network:
            return channels
        whole = read_channel(replace(self.cut, whole=True))
        at = next(i for i, channel in enumerate(channels) if _is(channel, last))
        if whole is None or all(channel.detail != whole.detail for channel in channels[:at]):
            return channels
        channels[at] = replace(whole, comm=channels[at].comm)
        self.cut = None
        return channels

    def _gids(self) -> dict[Gid, None]:
        """GIDs with the names of devices that lines only number."""
        named: dict[Gid, None] = {}
        for gid in self.gids:
            device = None
            if gid.device_index is not None:
                device = self.devices.get((gid.process, "IB", gid.device_index))
            named[gid if device is None else replace(gid, device=device.name)] = None
        return named

    def _truncated(self, text: Text, *, head_is_cut: bool) -> list[str]:
        found = []
        if head_is_cut:
            found.append(f"the first line has no beginning: {text.lines[0][:_SHOWN]}")
        if text.zeros:
            found.append(f"{text.zeros} zero bytes between the text")
        found += [f"a list of devices has no end: {end}" for end in self.cut_lists]
        if self.cut is not None:
            found.append(f"the last line has no end: {self.cut.message[-_SHOWN:]}")
        return found


def _is(channel: Channel, last: Channel) -> bool:
    return replace(channel, comm=last.comm) == last


def _keep(facts: dict[_Fact, None], fact: _Fact | None) -> None:
    if fact is not None:
        facts[fact] = None
