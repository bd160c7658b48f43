"""A whole NCCL log, with the queries that a judge needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pytest_mnode.logs.nccl_log.model import (
    Channel,
    Comm,
    GpuDirect,
    NcclDevice,
    NcclGid,
    NcclProcess,
    NcclSetting,
    NetworkUse,
    NoDevice,
    Provider,
    Transport,
    UcxConfig,
    Warn,
)
from pytest_mnode.logs.nccl_log.networks import NetworkKind, family_of, network_of


@dataclass(frozen=True, slots=True)
class RankLog:
    """The lines of one rank.

    cuda_device: known only if one process has several ranks, each on its own device.
    rank, size: in the largest communicator, which is the world if the log contains it.
    channels: those that the rank printed, of all its communicators.
    complete: whether every communicator that it began is complete; None without communicators.
    """

    process: NcclProcess
    cuda_device: int | None
    rank: int | None
    size: int | None
    comms: tuple[Comm, ...]
    channels: tuple[Channel, ...]
    complete: bool | None

    @property
    def net_channels(self) -> tuple[Channel, ...]:
        """Channels that go through a network."""
        return tuple(channel for channel in self.channels if channel.crosses_network)


@dataclass(frozen=True, slots=True)
class NcclLog:
    """All facts of a log in its order; a line printed twice counts once.

    versions: such as `2.27.5+cuda12.9`; several if ranks differ.
    truncated: evidence that lines are missing: a cut last line, bytes that are not text.
    unknown_lines: lines about a channel's transport that cannot be read; then nothing is proven.
    ucx: configurations of UCX, if it logs to the same file.
    """

    versions: tuple[str, ...]
    ranks: tuple[RankLog, ...]
    networks: tuple[NetworkUse, ...]
    providers: tuple[Provider, ...]
    devices: tuple[NcclDevice, ...]
    channels: tuple[Channel, ...]
    gpu_direct: tuple[GpuDirect, ...]
    settings: tuple[NcclSetting, ...]
    no_device: tuple[NoDevice, ...]
    gids: tuple[NcclGid, ...]
    warnings: tuple[Warn, ...]
    truncated: tuple[str, ...]
    unknown_lines: tuple[str, ...]
    ucx: tuple[UcxConfig, ...] = ()

    @property
    def nccl_version(self) -> str | None:
        """The version, if the log shows exactly one."""
        return self.versions[0] if len(self.versions) == 1 else None

    def providers_of(self, process: NcclProcess) -> tuple[str, ...]:
        """Libfabric providers that `process` selected."""
        return tuple(dict.fromkeys(p.name for p in self.providers if p.process == process))

    def kind_of(self, channel: Channel) -> NetworkKind | None:
        """Kind of the network that carries a channel's bytes; None within a node."""
        if not channel.crosses_network or channel.network is None:
            return None
        return network_of(channel.network, self.providers_of(channel.process))

    def networks_of(self, process: NcclProcess) -> tuple[str, ...]:
        """Networks that `process` chose."""
        uses = (use for use in self.networks if use.process == process and not use.failed)
        return tuple(dict.fromkeys(use.name for use in uses))

    def adapters(self, channels: Iterable[Channel]) -> tuple[dict[str, NcclDevice], bool]:
        """Devices of these channels by adapter name, and whether the log names all of them."""
        places = {(d.process, family_of(d.network), d.index): d for d in self.devices}
        found: dict[str, NcclDevice] = {}
        all_named = True
        for channel in channels:
            if channel.network is None or channel.device is None:
                all_named = False
                continue
            place = (channel.process, family_of(channel.network))
            device = places.get((*place, channel.device))
            if channel.transport is Transport.COLLNET:
                device = places.get((*place, None), device)
            if device is None:
                all_named = False
            else:
                found |= dict.fromkeys(device.members, device)
        return found, all_named
