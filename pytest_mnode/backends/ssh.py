"""Hosts of a hostfile, reached by ssh."""

from __future__ import annotations

import os

from pytest_mnode.backends.backend import Backend, Here, NodeRequest
from pytest_mnode.backends.registry import scheduler_of
from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.hosts import Host, first_hosts, read_hostfile
from pytest_mnode.launchers.node import Launcher
from pytest_mnode.launchers.ssh import Ssh
from pytest_mnode.options import Settings


class SshBackend(Backend):
    name = "ssh"
    reads_hostfile = True

    def meant(self, here: Here) -> str | None:
        return f"hostfile {file}" if (file := here.settings.hostfile) else None

    def names(self, here: Here) -> tuple[str, ...]:
        return tuple(host.name for host in _hosts(here.settings))

    def launcher(self, request: NodeRequest) -> Launcher:
        settings = request.settings
        hosts = _hosts(settings)
        used = first_hosts(hosts, request.nodes, settings.on, str(settings.hostfile))
        unused = [host.name for host in hosts if host not in used]
        made = Ssh(used, request.spec, request.remote, unused=unused)
        here = Here(settings, os.environ)
        made.takes_no_jobs = scheduler_of(here, [host.name for host in used])
        return made


def _hosts(settings: Settings) -> tuple[Host, ...]:
    if settings.hostfile is None:
        raise UsageError("--mnode-launcher=ssh: no nodes given: use --mnode-hostfile=FILE")
    return read_hostfile(settings.hostfile)
