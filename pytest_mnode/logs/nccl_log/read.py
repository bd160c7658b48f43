"""The reader: one pass over the lines, then the facts that only the whole log shows."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TypeVar

from pytest_mnode.logs.nccl_log.channels import is_unreadable_channel, read_channel
from pytest_mnode.logs.nccl_log.devices import (
    list_is_cut,
    read_absence,
    read_devices,
    read_gpu_direct,
    read_provider,
    read_setting,
    read_use,
)
from pytest_mnode.logs.nccl_log.gids import read_gid
from pytest_mnode.logs.nccl_log.model import (
    Channel,
    Comm,
    GpuDirect,
    NcclDevice,
    NcclGid,
    NcclLog,
    NcclProcess,
    NcclSetting,
    NetworkUse,
    NoDevice,
    Provider,
    UcxConfig,
    Warn,
)
from pytest_mnode.logs.nccl_log.ranks import Comms, fitting, ranks_of
from pytest_mnode.logs.nccl_log.text import Message, Text, first_line_is_cut, messages, plain_text

# Each function that an error passes on its way out prints `file:line -> code`, from 2.30 on
# `file:line (function) -> code`. 0 is success and 7 means in progress.
_ERROR_PASSED_ON = re.compile(
    r"(?:\[[\w ]{1,40}\] )?[\w./-]{1,160}:\d{1,6}(?: \(.{1,200}\))? -> (?![07]\b)\d{1,3}\b",
    re.ASCII,
)
_RETRIES = re.compile(r"\bretrying\b", re.IGNORECASE)
_ABOUT_A_CONNECTION = re.compile(r"socket|connect|\bpoll\b|\baccept\b", re.IGNORECASE)
# NCCL calls events of a port after which it continues "async error event" or "non-fatal".
_GAVE_UP = re.compile(
    r"\babort|async(?:hronous)? error\b(?! event)|unhandled|timed out|time-?out|"
    r"(?<!non-)\bfatal\b|catastrophic|"
    r"\bport error\b|Got completion (?:from peer|with)|Call to ibv_\w+ failed|Duplicate GPU|"
    r"network .{1,80} not found|no socket interface",
    re.IGNORECASE,
)
_LONGEST = 2000
_VERSION = re.compile(
    r"(?<![A-Za-z])([NR]CCL) version ?:? ?(\d{1,3}\.\d{1,3}[\w.+-]{0,40})", re.ASCII
)
_UCX = re.compile(
    r"\[(?P<host>[\w.-]{1,255}):(?P<pid>\d{1,9}) {0,9}:\w{1,9}\].{0,100} UCX +INFO +"
    r".{0,100}?(?:inter-node cfg#\d{1,5} ?|ep_cfg\[\d{1,5}\]: )(?P<lanes>.+)"
)
_UCX_LANE = re.compile(r"\b([a-z]\w{1,30})/([\w.:-]{1,80})")
_UCX_RDMA = re.compile(r"(?:rc|dc|ud|gga|srd)(?:_\w+)?")
_UCX_WITHIN_NODE = ("self", "sysv", "posix", "mm", "cma", "knem", "xpmem", "cuda_ipc", "rocm_ipc")
_SHOWN = 160
_ONE_LINE_PER_ADAPTER = ("OFI", "SHARP")
_Fact = TypeVar("_Fact")


@dataclass(slots=True)
class Warnings:
    """Warnings read so far; messages are counted to compare which came later."""

    last: dict[tuple[NcclProcess, int | None, str], int] = field(default_factory=dict)
    progressed: dict[NcclProcess, int] = field(default_factory=dict)
    gave_up: dict[NcclProcess, int] = field(default_factory=dict)
    retried: dict[NcclProcess, int] = field(default_factory=dict)
    count: int = 0

    def read(self, line: Message, *, progress: bool) -> None:
        """Read `line`; progress: a communicator was created, connected or destroyed."""
        self.count += 1
        if line.place.startswith("ras/"):
            return  # its monitor only: one process of a node gets its port
        if is_warning(line):
            self.last[line.process, line.cuda_device, line.message[:_LONGEST]] = self.count
        elif progress:
            self.progressed[line.process] = self.count
        elif _ERROR_PASSED_ON.match(line.message):
            self.gave_up[line.process] = self.count
        elif _RETRIES.search(line.message):
            self.retried[line.process] = self.count

    def all(self) -> tuple[Warn, ...]:
        return tuple(
            Warn(process, device, text, self._recovered(process, text, when))
            for (process, device, text), when in self.last.items()
        )

    def _recovered(self, process: NcclProcess, text: str, when: int) -> bool | None:
        if self.progressed.get(process, 0) > when:
            return True
        if _RETRIES.search(text):
            return None
        retried = self.retried.get(process, 0) if _ABOUT_A_CONNECTION.search(text) else 0
        if self.gave_up.get(process, 0) > max(when, retried):
            return False
        if retried > when:
            return None
        if _GAVE_UP.search(text):
            return False
        return None


def is_warning(line: Message) -> bool:
    """Whether NCCL printed the line with level WARN or ERROR."""
    return line.level in ("WARN", "ERROR")


def read_nccl_log(log: str | bytes) -> NcclLog:
    """Read an NCCL debug log of any version, of one rank or many, however it was collected.

    Never raises, in time proportional to the length. What cannot be read is in `unknown_lines`
    and `truncated`, never guessed.
    """
    text = plain_text(log)
    reader = _Reader()
    for line in text.lines:
        reader.read_any(line)
    head_is_cut = first_line_is_cut(text)
    for message in messages(text, start=1 if head_is_cut else 0):
        reader.read(message)
    return reader.log(text, head_is_cut=head_is_cut)


@dataclass(slots=True)
class _Reader:
    """Facts in the order of the log; dictionaries, so that a line printed twice counts once."""

    versions: dict[str, None] = field(default_factory=dict)
    processes: dict[NcclProcess, None] = field(default_factory=dict)
    comms: Comms = field(default_factory=Comms)
    facts: dict[object, None] = field(default_factory=dict)
    devices: dict[tuple[NcclProcess, str, int | None], NcclDevice] = field(default_factory=dict)
    channels: dict[Channel, None] = field(default_factory=dict)
    warnings: Warnings = field(default_factory=Warnings)
    cut: Message | None = None
    cut_lists: dict[str, None] = field(default_factory=dict)
    unknown: dict[str, None] = field(default_factory=dict)

    def read_any(self, line: str) -> None:
        """Read facts from lines with or without NCCL's prefix: versions, and UCX's lines."""
        if "CCL version" in line:
            for name, version in _VERSION.findall(line[-_SHOWN * 4 :]):
                self.versions[version if name == "NCCL" else f"RCCL {version}"] = None
        self._keep(_ucx_config(line))

    def read(self, line: Message) -> None:
        """Read one message into the facts that it contains."""
        self.processes[line.process] = None
        state = self.comms.read(line)
        comm = self.comms.created_by(line)
        connected = line.whole and line.message.startswith("Connected all ")
        self.warnings.read(line, progress=connected or state in ("COMPLETE", "DESTROYED"))
        if state is None and not self._channel(line, comm) and line.whole:
            # No value is read from a line without an end: the missing part could change it.
            self._others(line)
        if not line.whole and state not in ("START", "COMPLETE", "DESTROYED"):
            self.cut = line

    def _channel(self, line: Message, comm: str | None) -> bool:
        channel = read_channel(line)
        if channel is not None:
            if channel.comm:
                comm = self.comms.named(channel.process, channel.comm)
            self.channels[replace(channel, comm=comm)] = None
            return True
        if line.level == "INFO" and line.whole and is_unreadable_channel(line.message):
            self.unknown[line.message[: 2 * _SHOWN]] = None
            return True
        return False

    def _others(self, line: Message) -> None:
        process, message = line.process, line.message
        self._keep(read_gid(process, message))
        self._keep(read_absence(process, message))
        if is_warning(line):
            return
        for device in read_devices(process, message):
            self._device(device)
        if list_is_cut(message):
            self.cut_lists[message[-_SHOWN:]] = None
        for read in (read_use, read_provider, read_gpu_direct, read_setting):
            self._keep(read(process, message))

    def _keep(self, fact: object) -> None:
        if fact is not None:
            self.facts[fact] = None

    def _of(self, kind: type[_Fact]) -> tuple[_Fact, ...]:
        return tuple(fact for fact in self.facts if isinstance(fact, kind))

    def _device(self, device: NcclDevice) -> None:
        key = (device.process, device.network, device.index)
        known = self.devices.setdefault(key, device)
        name = known.name
        if device.name not in known.members and device.network in _ONE_LINE_PER_ADAPTER:
            name = f"{name}+{device.name}"
        link_layer = known.link_layer or device.link_layer
        self.devices[key] = replace(known, name=name, link_layer=link_layer)

    def log(self, text: Text, *, head_is_cut: bool) -> NcclLog:
        """All facts, with those that only the whole log shows."""
        comms = self.comms.all()
        channels = self._channels(comms)
        for fact in self._of(GpuDirect):
            # Plugins that list no devices name them in these lines.
            if fact.network and fact.device is not None and fact.device_name:
                key = (fact.process, fact.network, fact.device)
                self.devices.setdefault(key, NcclDevice(*key, fact.device_name))
        adapters = self._adapters()
        return NcclLog(
            versions=tuple(self.versions),
            ranks=ranks_of(comms, channels, tuple(self.processes)),
            networks=self._of(NetworkUse),
            providers=self._of(Provider),
            devices=tuple(self.devices.values()),
            channels=channels,
            gpu_direct=self._of(GpuDirect),
            settings=self._of(NcclSetting),
            no_device=self._of(NoDevice),
            gids=tuple(
                dict.fromkeys(
                    replace(gid, device=gid.device or adapters.get((gid.process, gid.device_index)))
                    for gid in self._of(NcclGid)
                )
            ),
            warnings=self.warnings.all(),
            truncated=tuple(self._truncated(text, head_is_cut=head_is_cut)),
            unknown_lines=tuple(self.unknown),
            ucx=self._of(UcxConfig),
        )

    def _channels(self, comms: tuple[Comm, ...]) -> tuple[Channel, ...]:
        of_process: dict[NcclProcess, list[Comm]] = {}
        for comm in comms:
            of_process.setdefault(comm.process, []).append(comm)
        found: dict[Channel, None] = {}
        for channel in self._channels_with_the_last():
            own = of_process.get(channel.process, [])
            found[replace(channel, comm=channel.comm or fitting(channel, own))] = None
        return tuple(found)

    def _channels_with_the_last(self) -> list[Channel]:
        """All channels; a cut last one counts as whole if an earlier one has the same `detail`."""
        channels = list(self.channels)
        last = read_channel(self.cut) if self.cut is not None else None
        if self.cut is None or last is None or not last.crosses_network:
            return channels
        whole = read_channel(replace(self.cut, whole=True))
        at = next(
            i for i, channel in enumerate(channels) if replace(channel, comm=last.comm) == last
        )
        if whole is None or all(channel.detail != whole.detail for channel in channels[:at]):
            return channels
        channels[at] = replace(whole, comm=channels[at].comm)
        self.cut = None
        return channels

    def _adapters(self) -> dict[tuple[NcclProcess, int | None], str]:
        """Names of verbs adapters by their number, also of those that a merged device has."""
        found: dict[tuple[NcclProcess, int | None], str] = {}
        for (process, network, index), device in self.devices.items():
            numbers = device.numbers or ((index,) if len(device.members) == 1 else ())
            if network == "IB":
                found.update(
                    ((process, n), m) for n, m in zip(numbers, device.members, strict=False)
                )
        return found

    def _truncated(self, text: Text, *, head_is_cut: bool) -> list[str]:
        found = []
        if head_is_cut:
            found.append(f"the first line has no beginning: {text.lines[0][:_SHOWN]}")
        if text.zeros:
            found.append(f"{text.zeros} zero bytes between the text")
        if text.left_out:
            found.append(f"{text.left_out} lines stand for others, which Ray left out")
        found += [f"a list of devices has no end: {end}" for end in self.cut_lists]
        if self.cut is not None:
            found.append(f"the last line has no end: {self.cut.message[-_SHOWN:]}")
        return found


def _ucx_config(line: str) -> UcxConfig | None:
    """The configuration in a line of UCX_LOG_LEVEL=info; None within a node.

    `ep_cfg[2]: …` of UCX before 1.14 does not show the peer: with shared memory it is on the same
    node. Source: UCX, src/ucp/core/ucp_worker.c.
    """
    found = _UCX.search(line) if "UCX" in line else None
    lanes = _UCX_LANE.findall(found["lanes"]) if found is not None else []
    if found is None or any(name in _UCX_WITHIN_NODE for name, _ in lanes):
        return None
    rdma = dict.fromkeys(device for name, device in lanes if _UCX_RDMA.fullmatch(name))
    tcp = dict.fromkeys(device for name, device in lanes if name == "tcp")
    process = NcclProcess(host=found["host"], pid=int(found["pid"]))
    return UcxConfig(process, tuple(rdma), tuple(tcp)) if rdma or tcp else None
