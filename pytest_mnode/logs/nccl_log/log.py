"""An NCCL log as a whole, and the questions that a judge asks of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_mnode.logs.nccl_log.facts import (
    Channel,
    Comm,
    Network,
    Plan,
    Process,
    Transport,
    Tuning,
    Warn,
)
from pytest_mnode.logs.nccl_log.networks import UcxConfig, family_of, network_of
from pytest_mnode.logs.nccl_log.surroundings import (
    Device,
    Gid,
    GpuDirect,
    Interface,
    NetworkUse,
    NoDevice,
    Provider,
    Setting,
    Use,
)


@dataclass(frozen=True, slots=True)
class RankLog:
    """One rank, as far as the log tells who it is.

    `rank` and `size` are those of its largest communicator, hence of the world where that was
    logged; None where no line tells.
    """

    process: Process
    cuda_device: int | None
    """Told only where one process has several ranks, each on a device of its own."""
    rank: int | None
    size: int | None
    comms: tuple[Comm, ...]
    channels: tuple[Channel, ...]
    """Those it printed, of all its communicators."""
    complete: bool | None
    """Whether every communicator it began was completed; None where none was logged."""

    @property
    def net_channels(self) -> tuple[Channel, ...]:
        """Channels that go through a network."""
        return tuple(channel for channel in self.channels if channel.crosses_network)

    @property
    def gdr(self) -> bool | None:
        """Whether all its network channels use GPUDirect RDMA; None where it cannot be told."""
        told = [channel.gdr for channel in self.net_channels]
        if not told or (None in told and False not in told):
            return None
        return all(told)


@dataclass(frozen=True, slots=True)
class NcclLog:
    """All that was read, in the order of the log, each thing once however often it was printed."""

    versions: tuple[str, ...]
    """`2.27.5+cuda12.9`; more than one when ranks differ, or RCCL's own."""
    ranks: tuple[RankLog, ...]
    networks: tuple[NetworkUse, ...]
    providers: tuple[Provider, ...]
    devices: tuple[Device, ...]
    interfaces: tuple[Interface, ...]
    channels: tuple[Channel, ...]
    gpu_direct: tuple[GpuDirect, ...]
    settings: tuple[Setting, ...]
    no_device: tuple[NoDevice, ...]
    gids: tuple[Gid, ...]
    warnings: tuple[Warn, ...]
    plans: tuple[Plan, ...]
    tunings: tuple[Tuning, ...]
    truncated: tuple[str, ...]
    """Evidence that lines are missing: a last line cut off, bytes that are no text."""
    unknown_lines: tuple[str, ...]
    """Lines that speak of a channel's transport and could not be read: then nothing is proven."""
    ucx: tuple[UcxConfig, ...] = ()
    """What UCX runs on, where it logged to the same file."""

    @property
    def nccl_version(self) -> str | None:
        """The version, where all that was logged is of one."""
        return self.versions[0] if len(self.versions) == 1 else None

    @property
    def complete(self) -> bool | None:
        """Whether every communicator that was begun was completed; None where none was logged."""
        known = [rank.complete for rank in self.ranks if rank.complete is not None]
        return all(known) if known else None

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts that printed lines."""
        return tuple(dict.fromkeys(r.process.host for r in self.ranks if r.process.host))

    def ranks_on(self, host: str) -> tuple[RankLog, ...]:
        """Ranks of one host."""
        return tuple(rank for rank in self.ranks if rank.process.host == host)

    def transports_of(self, rank: RankLog) -> tuple[str, ...]:
        """What the channels of `rank` run on: `NET/IB`, `P2P`, `SHM` …, each once."""
        return tuple(dict.fromkeys(_named(channel) for channel in rank.channels))

    @property
    def net_channels(self) -> tuple[Channel, ...]:
        """Channels that go through a network."""
        return tuple(channel for channel in self.channels if channel.crosses_network)

    def providers_of(self, process: Process) -> tuple[str, ...]:
        """Libfabric providers that `process` selected."""
        return tuple(dict.fromkeys(p.name for p in self.providers if p.process == process))

    def kinds_of(self, rank: RankLog) -> tuple[Network, ...]:
        """What carries the bytes of the network channels of `rank`, each kind once."""
        providers = self.providers_of(rank.process)
        names = dict.fromkeys(channel.network or "" for channel in rank.net_channels)
        return tuple(dict.fromkeys(network_of(name, providers) for name in names))

    def kind_of(self, channel: Channel) -> Network | None:
        """What carries a channel's bytes; None within a node."""
        if not channel.crosses_network or channel.network is None:
            return None
        return network_of(channel.network, self.providers_of(channel.process))

    def networks_of(self, process: Process) -> tuple[str, ...]:
        """Networks that `process` chose (`Using network …`, or assigned to a communicator)."""
        chosen = (Use.USING, Use.ASSIGNED)
        uses = (use for use in self.networks if use.process == process and use.use in chosen)
        return tuple(dict.fromkeys(use.name for use in uses))

    def device_of(self, channel: Channel) -> Device | None:
        """The device a network channel runs on; None where the log does not name it."""
        near = (device for device in self.devices if device.process == channel.process)
        return _device_of(channel, _by_place(near))

    def adapters_used(self, process: Process | None = None) -> tuple[str, ...]:
        """Adapters or interfaces that network channels run on, parts of a merged one each."""
        places = _by_place(self.devices)
        used: dict[str, None] = {}
        for channel in self.net_channels:
            if process in (None, channel.process):
                device = _device_of(channel, places)
                used.update(dict.fromkeys(device.members if device else ()))
        return tuple(used)

    def devices_unnamed(self, process: Process | None = None) -> tuple[Channel, ...]:
        """Network channels whose device the log does not name, so that rails cannot be judged."""
        places = _by_place(self.devices)
        return tuple(
            channel
            for channel in self.net_channels
            if process in (None, channel.process) and _device_of(channel, places) is None
        )

    def rails(self, expected: Sequence[str], process: Process | None = None) -> Rails:
        """Adapters used by `process` (or by all) held against those that `expected` names."""
        used = self.adapters_used(process)
        return Rails(
            used=used,
            missing=tuple(name for name in expected if name not in used),
            stray=tuple(name for name in used if name not in expected),
        )


@dataclass(frozen=True, slots=True)
class Rails:
    """Adapters that channels run on, against those promised."""

    used: tuple[str, ...]
    missing: tuple[str, ...]
    stray: tuple[str, ...]


_Places = dict[tuple[Process, str, int | None], Device]


def _by_place(devices: Iterable[Device]) -> _Places:
    return {(device.process, family_of(device.network), device.index): device for device in devices}


def _device_of(channel: Channel, places: _Places) -> Device | None:
    if channel.network is None or channel.device is None:
        return None
    place = (channel.process, family_of(channel.network))
    named = places.get((*place, None)) if channel.transport is Transport.COLLNET else None
    return named or places.get((*place, channel.device))


def _named(channel: Channel) -> str:
    if channel.network is not None:
        return f"{channel.transport}/{channel.network}"
    return channel.detail if channel.transport is Transport.OTHER else channel.transport.value
