"""Imports torch and the test modules once, then forks an agent for every node it serves.

Stays single-threaded and never touches a device: both would break in a forked child. It collects
as the controller did, through pytest's own `Config.fromdictargs`, and serves instead of running.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
import traceback
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.agent import agent, process
from pytest_mnode.agent.supervisor import sys_path_here
from pytest_mnode.errors import WorldError
from pytest_mnode.machine import namespaces
from pytest_mnode.other_plugins import other_loops
from pytest_mnode.protocol.messages import (
    AgentLost,
    BootAgent,
    Collect,
    GateFailed,
    GateOrder,
    Launch,
    NodeEntry,
    PartLost,
    StopWorld,
    TakeStacks,
)
from pytest_mnode.rank.session import Follower

# What selects, prints, writes files or starts processes is the controller's business alone.
_NOT_IN_RANKS: dict[str, Any] = {
    "keyword": "",
    "markexpr": "",
    "deselect": None,
    "lf": False,
    "failedfirst": False,
    "newfirst": False,
    "stepwise": False,
    "stepwise_skip": False,
    "cacheclear": False,
    "cacheshow": None,
    "collectonly": False,
    "maxfail": 0,
    "usepdb": False,
    "trace": False,
    "xmlpath": None,
    "pastebin": None,
    "dist": "no",
    "tx": [],
    "numprocesses": None,
    "maxprocesses": None,
    "looponfail": False,
    "no_cov": True,
    "htmlpath": None,
    "json_report": False,
    "force_sugar": False,
}


def main(order: GateOrder, gate: Connection) -> None:
    """Entry of the forked process; never returns to the gate's code."""
    namespaces.set_process_name("mnode-forge")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    forge = Forge(order, gate)
    try:
        forge.prepare()
        collect = pickle.loads(gate.recv_bytes())
        forge.collect(collect)
    except EOFError:
        os._exit(0)
    except WorldError as error:
        forge.fail(str(error))
    except BaseException:
        forge.fail(f"could not import or collect the tests:\n{traceback.format_exc()}")
    sys.stderr.flush()
    os._exit(0)


class Forge:
    """Imports, collects, forks agents, relays between them and the gate."""

    def __init__(self, order: GateOrder, gate: Connection) -> None:
        self.order = order
        self.gate = gate
        self.agents: dict[str, Connection] = {}

    def fail(self, text: str) -> None:
        self.gate.send_bytes(pickle.dumps(GateFailed(self.order.gate, text, self.order.life)))

    def prepare(self) -> None:
        try:
            # What ranks would import one by one after the fork, each for itself.
            import encodings.idna  # noqa: F401
            import multiprocessing.popen_fork
            import multiprocessing.queues  # noqa: F401

            import torch.distributed.launcher.api  # noqa: F401
            from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs  # noqa: F401
            from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

            import pytest_mnode.rank.loop  # noqa: F401
            from pytest_mnode.agent.elastic import BACKEND, OurRendezvous
            from pytest_mnode.rank import recorder
        except ImportError as error:
            raise WorldError(
                f"torch cannot be imported by {sys.executable}: {error}; install torch>=2.6"
            ) from None
        rendezvous_handler_registry.register(BACKEND, OurRendezvous)
        recorder.install()

    def collect(self, collect: Collect) -> None:
        if self.order.remote:  # temporary files of ranks go with the run, for nobody sees them
            collect = replace(collect, basetemp=f"{self.order.run_dir}/tmp")
        os.chdir(collect.cwd)
        sys.path[:] = sys_path_here(collect.sys_path, self.order)
        options = {**collect.options, **_NOT_IN_RANKS}
        options.pop("file_or_dir", None)
        # As words of the command line, so that their order means what it meant there.
        plugins = [*options.pop("plugins", []), "no:terminal"]
        options["plugins"] = []
        args = [word for name in plugins for word in ("-p", name)] + list(collect.args)
        # That a plugin was imported before pytest could rewrite its asserts is no fault in ranks.
        quiet = "ignore::pytest.PytestAssertRewriteWarning"
        options["pythonwarnings"] = [*(options.get("pythonwarnings") or ()), quiet]
        options["basetemp"] = collect.basetemp
        options["capture"] = "fd"  # with -s the controller shows what was captured
        options["inifilename"] = collect.inifile
        options["rootdir"] = collect.rootdir
        config = pytest.Config.fromdictargs(options, args)
        config.args = list(collect.args)
        _without_other_loops(config)
        config.pluginmanager.register(Follower(self, collect), "mnode-follower")
        config.hook.pytest_cmdline_main(config=config)

    def serve(self, follower: Follower) -> None:
        """Called by pytest's run loop, with everything collected: fork and relay for ever."""
        self.follower = follower
        check_can_fork("the test modules were imported")
        gc.collect()
        gc.freeze()  # a collection in a child would touch, and so copy, every page
        for entry in self.order.nodes:
            self.boot(entry)
        while True:
            self.turn()
            process.reap()

    def turn(self) -> None:
        """Wait for messages, and relay them."""
        for ready in wait([self.gate, *self.agents.values()]):
            if ready is self.gate:
                self._from_gate(self.gate.recv_bytes())
                continue
            # None: the agent was lost, or replaced, earlier in this turn.
            node = next((name for name, its in self.agents.items() if its is ready), None)
            if node is not None:
                self._from_agent(node)

    def _from_gate(self, payload: bytes) -> None:
        message = pickle.loads(payload)
        match message:
            case BootAgent(entry):
                self.boot(entry)
            case Launch(node=node) if node not in self.agents:
                lost = PartLost(node, message.world.id, "its agent has ended")
                self.gate.send_bytes(pickle.dumps(lost))
            case Launch(node=node) | StopWorld(node=node) | TakeStacks(node=node):
                if (connection := self.agents.get(node)) is not None:
                    try:
                        connection.send_bytes(payload)
                    except OSError:
                        self._lost(node)

    def _from_agent(self, node: str) -> None:
        try:
            payload = self.agents[node].recv_bytes()
        except (EOFError, OSError):  # OSError: it ended in the middle of a message
            self._lost(node)
            return
        self.gate.send_bytes(payload)

    def _lost(self, node: str) -> None:
        self.agents.pop(node).close()
        self.gate.send_bytes(pickle.dumps(AgentLost(node)))

    def boot(self, entry: NodeEntry) -> None:
        if (old := self.agents.pop(entry.name, None)) is not None:
            old.close()
        ours, theirs = Pipe()
        forge_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            process.close_all_but({theirs.fileno(), *self._inherited()})
            process.die_with_parent(forge_pid)
            process.run_and_exit(lambda: agent.main(self.order, entry, theirs, self.follower))
        theirs.close()
        self.agents[entry.name] = ours

    def _inherited(self) -> set[int]:
        """Descriptors that tests opened at import, which their ranks may use."""
        mine = {self.gate.fileno(), *(c.fileno() for c in self.agents.values())}
        return {int(path.name) for path in Path("/proc/self/fd").iterdir()} - mine


def _without_other_loops(config: pytest.Config) -> None:
    """Take out plugins that are only there to run tests in a way of their own.

    How often a test runs is for the controller to decide; such a plugin may also keep threads.
    """
    for name, plugin in other_loops(config.pluginmanager).items():
        of_fixtures = ("_fixture_function_marker", "_pytestfixturefunction")
        values = [getattr(plugin, attribute, None) for attribute in dir(plugin)]
        defined = any(hasattr(v, a) for v in values for a in of_fixtures)
        if not defined and not name.endswith("conftest.py"):
            config.pluginmanager.unregister(plugin)


def check_can_fork(when: str) -> None:
    """Raise WorldError if a forked child would inherit a thread's locks or a device's state."""
    names = process.threads()
    if len(names) > 1:
        import threading

        python = [t.name for t in threading.enumerate() if t is not threading.main_thread()]
        raise WorldError(
            f"after {when} {len(names) - 1} more threads run ({', '.join(python or names[1:])}); "
            "ranks are forked from this process and need it single-threaded: start threads in a "
            "fixture or in the test, not when a module is imported"
        )
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise WorldError(
            f"after {when} a CUDA device is in use; ranks are forked from this process and could "
            "not use it: touch devices in a fixture or in the test, not when a module is imported"
        )
