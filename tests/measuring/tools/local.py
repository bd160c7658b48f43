"""Nodes that are this machine: they run real processes, and see composed trees of /sys."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pytest_mnode.machine.encoding import encode
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.rdma import Port, RdmaDevice
from pytest_mnode.measuring.tools import beside_nic
from pytest_mnode.spec import profile_spec
from pytest_mnode.spec.inventory import Fabric
from tests.lone_nodes import LoneNodes
from tests.programs import write_program

BESIDE_NIC = "pytest_mnode.measuring.tools.beside_nic"


class BesideNic(subprocess.Popen[bytes]):
    """`env NAME=TEXT… python -P -m BESIDE_NIC …` by a fork, which needs no imports."""

    def _execute_child(self, *args: Any, **kwargs: Any) -> None:
        popen: Any = subprocess.Popen
        given = inspect.signature(popen._execute_child).bind(self, *args, **kwargs).arguments
        if BESIDE_NIC not in given["args"]:
            popen._execute_child(self, *args, **kwargs)
            return
        with warnings.catch_warnings():  # other threads of pytest hold no lock that it needs
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid:
            self._child_created = True
            pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
            popen._close_pipe_fds(self, *(given[name] for name in pipes))
            return
        try:
            for fd, own in enumerate((given["p2cread"], given["c2pwrite"], given["errwrite"])):
                os.dup2(own, fd)
            command = given["args"]
            module = command.index(BESIDE_NIC)
            os.environ.update(given["env"])
            os.environ.update(word.split("=", 1) for word in command[1 : module - 3])
            sys.stdout = os.fdopen(1, "w", closefd=False)
            beside_nic.main(command[module + 1 :], Path(os.environ["ROOT"]))
        except SystemExit as end:
            os._exit(int(end.code or 0))
        finally:
            os._exit(1)


FORKING = SimpleNamespace(**{**vars(subprocess), "Popen": BesideNic})
"""In place of the module subprocess for `start`."""


def device(name: str, link_layer: str = "Ethernet", netdev: str = "") -> RdmaDevice:
    """An RDMA device with one port."""
    port = Port(device=name, number=1, link_layer=link_layer, node_type="CA")
    return RdmaDevice(name=name, ports=(port,), netdevs=(netdev,) if netdev else ())


class Local(LoneNodes):
    """Three nodes that differ by NODE in the environment, and by `root`."""

    def __init__(self, directory: Path) -> None:
        super().__init__(("n0", "n1", "n2"))
        self.directory = directory
        self.devices = tuple(map(device, ("mlx5_9", "mlx5_10", "mlx5_bond0")))

    def root(self, node: str) -> Path:
        """Directory that a node sees as /."""
        return self.directory / f"root-{node}"

    def commands(
        self, argv: Sequence[str], nodes: Sequence[str] | str | None = None
    ) -> list[list[str]]:
        if list(argv[3:]) == ["pytest_mnode.machine", "rdma"]:
            argv = ["echo", f"a greeting\n{encode(Machine(rdma=self.devices))}"]
        path = f"PATH={self.directory}:{os.environ['PATH']}"
        return [
            ["env", path, f"DIR={self.directory}", f"NODE={name}", f"ROOT={self.root(name)}", *argv]
            for name in self._names(nodes)
        ]

    def address(self, node: str) -> str:
        return "127.0.0.1"

    @property
    def run_id(self) -> str:
        return str(self.directory)

    @property
    def scratch(self) -> Path:
        return self.directory

    @property
    def python(self) -> str:
        return sys.executable


def program(directory: Path, name: str, text: str) -> None:
    """A shell script on the PATH of these nodes."""
    path = directory / name
    write_program(path, textwrap.dedent(text))


def fabric_of() -> Fabric:
    """RoCE of 400 Gbit/s over mlx5_9 and mlx5_10."""
    rack = profile_spec("rack").fabric
    return rack.model_copy(
        update={"interfaces": ("mlx5_?", "mlx5_10"), "line_rate_bits_s": 400 * 10**9}
    )
