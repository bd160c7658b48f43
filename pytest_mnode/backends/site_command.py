"""Nodes that a command of the site reaches: `--mnode-exec`, for all nodes or for each."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

from pytest_mnode.backends.backend import Here, NodeRequest
from pytest_mnode.backends.dial_in import DialInBackend, Start
from pytest_mnode.backends.registry import listed_nodes
from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.node import Launcher
from pytest_mnode.options import Settings


class SiteCommandBackend(DialInBackend):
    """`{host}` in a word makes it one command for each node; `{hosts}` is their list with commas,
    and `{nodes}` their number."""

    name = "exec"
    reads_hostfile = True

    def option(self, settings: Settings) -> str | None:
        return f"--mnode-exec={' '.join(settings.exec)}" if settings.exec else None

    def meant(self, here: Here) -> str | None:
        return self.option(here.settings)

    def names(self, here: Here) -> tuple[str, ...] | None:
        return listed_nodes(here)

    def launcher(self, request: NodeRequest) -> Launcher:
        words = request.settings.exec
        if not words:
            raise UsageError("--mnode-launcher=exec: no command given: use --mnode-exec=COMMAND")
        given = self.option(request.settings)
        if shutil.which(words[0]) is None:
            raise UsageError(f"{given}: no program {words[0]} here")
        if listed_nodes(Here(request.settings, os.environ)) is not None:
            return super().launcher(request)
        if any("{host}" in word or "{hosts}" in word for word in words):
            raise UsageError(f"{given}: no nodes given: use --mnode-hostfile=FILE")
        return self.dialing(request)

    def commands(self, start: Start) -> list[list[str]]:
        words = start.settings.exec
        each = start.hosts if any("{host}" in word for word in words) else ("",)
        lists = {"{hosts}": ",".join(start.hosts), "{nodes}": str(start.nodes)}
        filled = [[_filled(word, {"{host}": one, **lists}) for word in words] for one in each]
        return [[*command, *start.argv] for command in filled]


def _filled(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word
