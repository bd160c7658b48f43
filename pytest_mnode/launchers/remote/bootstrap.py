"""How remote_exec gets onto a node, and a command's order with its variables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pytest_mnode.launchers.node_env import DEFAULTS, OF_THE_SESSION, SET, is_passed, node_env
from pytest_mnode.launchers.remote import command_process, remote_exec, wire
from pytest_mnode.launchers.remote.node_command import as_sent
from pytest_mnode.protocol import listening_clock

BOOTSTRAP = 'f=open(0,"rb",0,closefd=False);exec(f.readline())'
_FUTURE = b"from __future__ import annotations\n"
"""Python accepts this import only at the beginning of a text."""


def source(silence_s: float = wire.SILENCE_S, alive: str = wire.ALIVE) -> bytes:
    """Bytes that BOOTSTRAP reads: a line that reads the program, then the program.

    silence_s: how long the stream may carry nothing before the program ends its commands.
    alive: see wire.ALIVE.
    """
    text = _FUTURE
    for module in (listening_clock, wire, command_process, remote_exec):
        text += Path(module.__file__ or "").read_bytes().replace(_FUTURE, b"")
        if module is wire:
            text += f"SILENCE_S = {silence_s!r}\nALIVE = {alive!r}\n".encode()
    read = (
        f"b=b''\nwhile len(b)<{len(text)}:\n c=f.read({len(text)}-len(b))\n"
        " if not c:raise SystemExit\n b+=c\nexec(compile(b,'remote_exec','exec'))"
    )
    return f"exec({read!r})\n".encode() + text


@dataclass(frozen=True, slots=True)
class Sent:
    """Variables for a command on a node, by what they count there (see launchers.node_env).

    env: what the user set for the run. passed: of pytest's environment. defaults: what counts last.
    removed: of pytest's environment when the run began, and not of the command's.
    """

    env: Mapping[str, str]
    passed: Mapping[str, str]
    defaults: Mapping[str, str]
    removed: Mapping[str, str] = field(default_factory=dict)


def sent(environ: Mapping[str, str], inherited: Mapping[str, str]) -> Sent:
    """The variables of a local command that the node gets.

    environ: of the command. inherited: pytest's environment when the run began.
    """
    named, last = (environ.get(kind, "").split(",") for kind in (SET, DEFAULTS))
    env, passed, defaults = {}, {}, {}
    for name, value in environ.items():
        # By PYTHONPATH, nodes find the modules that pytest has found.
        if name in named or name == "PYTHONPATH":
            env[name] = value
        elif name in last:
            defaults[name] = value
        elif name in (SET, DEFAULTS) or name.startswith(OF_THE_SESSION):
            continue
        elif inherited.get(name) != value:
            env[name] = value
        elif is_passed(name, value):
            passed[name] = value
    began = node_env(inherited)
    removed = {n: v for n, v in began.items() if n not in environ and is_passed(n, v)}
    return Sent(env, passed, defaults, removed)


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment, by `as_sent`."""
    return {as_sent(name): as_sent(value) for name, value in environ.items()}


def order(
    node: str,
    argv: Sequence[str],
    directory: str,
    environ: Mapping[str, str],
    inherited: Mapping[str, str],
) -> bytes:
    """The order that makes remote_exec run a local command's command.

    directory, environ: of the local command. inherited: pytest's environment when the run began.
    """
    made: dict[str, Any] = {"argv": list(argv), "cwd": directory, "where": node}
    return json.dumps({**made, **asdict(sent(environ, inherited))}).encode()
