"""Commands on nodes of a rack."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any

from pytest_mnode.launchers.node import Node
from pytest_mnode.launchers.rack import Rack


def run_on(
    rack: Rack, node: Node, argv: Sequence[str], **options: Any
) -> subprocess.CompletedProcess[str]:
    """The completed command on a node."""
    (command,) = rack.commands([node], argv)
    settings: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 20}
    return subprocess.run(command, check=False, **settings, **options)


def output_on(rack: Rack, node: Node, argv: Sequence[str], **options: Any) -> str:
    """The output of a command on a node, which succeeds."""
    done = run_on(rack, node, argv, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout
