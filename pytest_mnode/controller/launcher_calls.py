"""Requests to the launcher; each runs in its own thread, so that it does not block the hub."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pytest_mnode.controller.leases import NodeState
from pytest_mnode.launchers.node import Launcher
from pytest_mnode.launchers.nodes import RunDescription
from pytest_mnode.launchers.power import recover
from pytest_mnode.protocol.launcher_requests import (
    LauncherRequest,
    NodeCommands,
    PowerOn,
    SwitchPower,
)

BOOT_LIMIT_S = 300.0
Finish = Callable[[Any, Exception | None], None]
"""Called with the launcher's answer, or with the error that it raised."""


class LauncherCalls:
    """Runs requests to the launcher. soon: has the hub's thread call a function."""

    def __init__(
        self,
        launcher: Launcher,
        nodes: Mapping[str, NodeState],
        soon: Callable[[Callable[[], None]], None],
    ) -> None:
        self._launcher = launcher
        self._nodes = nodes
        self._soon = soon
        self._switching: dict[str, threading.Thread] = {}
        """The last thread that switches each node's power; the next one waits for it."""

    def start(self, request: LauncherRequest, finish: Finish) -> None:
        """Send `request` to the launcher; `finish` is called in the hub's thread."""

        def work() -> None:
            value, error = None, None
            if before is not None:
                before.join(BOOT_LIMIT_S)
            try:
                value = self._answer(request)
            except Exception as caught:
                error = caught
            self._soon(partial(finish, value, error))

        name = f"mnode-{type(request).__name__}"
        thread, before = threading.Thread(target=work, name=name, daemon=True), None
        if isinstance(request, SwitchPower):
            before = self._switching.get(request.node)
            self._switching[request.node] = thread
        thread.start()

    def _answer(self, request: LauncherRequest) -> Any:
        match request:
            case NodeCommands():
                nodes = [self._nodes[name].node for name in request.nodes]
                return self._launcher.commands(nodes, request.argv)
            case PowerOn() if not self._launcher.shared_kernel:
                return recover(self._launcher, self._nodes[request.node].node)
            case _:
                return self._launcher.ask(request)

    def description(self, run_dir: str) -> RunDescription:
        """The run's nodes and what they share."""
        launcher = self._launcher
        return RunDescription(
            nodes=tuple(state.node for state in self._nodes.values()),
            shares_kernel=launcher.shared_kernel,
            shares_files=launcher.shared_kernel or launcher.shared_dir is not None,
            scratch=str(launcher.shared_dir or run_dir),
            run_id=run_dir,
            python=launcher.python,
            allocation=launcher.job_id,
            pods=launcher.pods,
            env=launcher.env,
            takes_no_jobs=launcher.takes_no_jobs,
            backend=launcher.name,
        )
