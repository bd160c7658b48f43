"""The controller's side of a survey: started once on all nodes, given orders, taken down."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeVar

from pytest_mnode.criteria.preflight.facts import (
    LastFacts,
    LookOrder,
    NodeFacts,
    NodeSurvey,
    PathFacts,
    PayloadFacts,
    PayloadOrder,
    Peer,
    Place,
    ProbeOrder,
    Survey,
    decode,
)
from pytest_mnode.errors import MnodeError
from pytest_mnode.launchers.node_env import node_env

if TYPE_CHECKING:
    from pytest_mnode.spec import Spec
    from pytest_mnode.spec.preflight import PreflightCriterion

T = TypeVar("T")
LOOK_LIMIT_S = 30.0
"""From the start of the commands; remote shells take their time."""
END_LIMIT_S = 10.0
PROBE_SLACK_S = 15.0
"""Beyond the spec's own limits: for the search of the largest packet, and a busy machine."""
CONTROL_LIMIT_S = 2.0
SHM = "/dev/shm"


class Nodes(Protocol):
    """What a survey needs of `cluster`."""

    @property
    def nodes(self) -> tuple[str, ...]: ...

    def commands(
        self, argv: Sequence[str], nodes: Sequence[str] | str | None = None
    ) -> list[list[str]]: ...

    def address(self, node: str) -> str: ...

    @property
    def python(self) -> str: ...


@dataclass(slots=True)
class _Running:
    """The survey program of one node."""

    index: int
    name: str
    address: str
    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    unsent: bytes = b""
    buffer: bytes = b""
    problem: str = ""
    answers: dict[str, Any] = field(default_factory=dict)


def survey(nodes: Nodes, spec: Spec, code: Sequence[str]) -> Survey:
    """Look at every node, and have each try its way to all others.

    code: directories whose programs are to be the same everywhere. A node that does not answer in
    time has a problem in words and no facts; the others go on without it.
    """
    started = time.monotonic()
    promise = spec.criteria.preflight
    assert promise is not None
    with contextlib.ExitStack() as stack:
        running: list[_Running] = []
        off = {}
        stack.callback(_end, running)
        for index, name in enumerate(nodes.nodes):
            try:
                running.append(_start(nodes, index, name, stack))
            except MnodeError as error:  # no command can be run there
                off[name] = NodeSurvey(index, name, "", str(error).splitlines()[0])
        run = uuid.uuid4().hex[:16]
        looks = [_look_order(promise, spec, run, r.index, code) for r in running]
        _ask(running, "look", looks, NodeFacts, LOOK_LIMIT_S)
        probe = _probe_order(promise, spec, running)
        limit_s = max(probe.connect_limit_s, 3 * (probe.look_up_within_s or 0)) + PROBE_SLACK_S
        _ask(running, "probe", [probe] * len(running), PathFacts, limit_s)
        if promise.payload is not None:
            asked = promise.payload
            payload = PayloadOrder(asked.networks, asked.size_bytes, asked.within_s)
            limit_s = asked.within_s + PROBE_SLACK_S
            _ask(running, "payload", [payload] * len(running), PayloadFacts, limit_s)
        _ask(running, "end", [None] * len(running), LastFacts, END_LIMIT_S)
    answered = {
        r.name: NodeSurvey(
            r.index,
            r.name,
            r.address,
            r.problem,
            r.answers.get("look"),
            r.answers.get("probe"),
            r.answers.get("end"),
            r.answers.get("payload"),
        )
        for r in running
    }
    found = tuple((off | answered)[name] for name in nodes.nodes)
    return Survey(found, time.monotonic() - started)


def _start(nodes: Nodes, index: int, name: str, stack: contextlib.ExitStack) -> _Running:
    [command] = nodes.commands(
        [nodes.python, "-P", "-m", "pytest_mnode.criteria.preflight.survey"], (name,)
    )
    errors: IO[bytes] = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  the stack's
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env={**node_env(), **search_path(nodes.python)},
        start_new_session=True,  # Ctrl-C is for the controller alone, which ends it in order
    )
    assert process.stdin is not None
    os.set_blocking(process.stdin.fileno(), False)
    return _Running(index, name, nodes.address(name), process, errors)


def search_path(python: str) -> dict[str, str]:
    """What this Python finds, where nodes use it too; another one has packages of its own."""
    if python != sys.executable:
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _end(running: Sequence[_Running]) -> None:
    """Hang up, which ends them and has them clean up; kill those that do not end in time."""
    for one in running:
        assert one.process.stdin is not None
        assert one.process.stdout is not None
        one.process.stdin.close()
        one.process.stdout.close()  # one that still answers would wait for a reader
    end = time.monotonic() + END_LIMIT_S
    for one in running:
        try:
            one.process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            one.process.kill()
            one.process.wait()


def _ask(
    running: Sequence[_Running],
    what: str,
    orders: Sequence[Any],
    kind: type[T],
    limit_s: float,
) -> None:
    """Send each its order, and take their answers until all came or the limit is over."""
    with selectors.DefaultSelector() as selector:
        for one, order in zip(running, orders, strict=True):
            if one.problem:
                continue
            one.unsent = json.dumps({"do": what, **(asdict(order) if order else {})}).encode()
            one.unsent += b"\n"
            assert one.process.stdin is not None
            assert one.process.stdout is not None
            selector.register(one.process.stdin, selectors.EVENT_WRITE, one)
            selector.register(one.process.stdout, selectors.EVENT_READ, one)
        end = time.monotonic() + limit_s
        late = False
        while selector.get_map() and not late:
            left = end - time.monotonic()
            late = left <= 0  # before the last look: what has come by then counts
            for key, _ in selector.select(max(0.0, left)):
                one = key.data
                sends = key.fileobj is one.process.stdin
                if _write(one) if sends else _read(one, what, kind):
                    selector.unregister(key.fileobj)
        for key in selector.get_map().values():
            if key.fileobj is key.data.process.stdout:
                key.data.problem = f"its survey gave no answer to {what!r} within {limit_s:g} s"


def _write(one: _Running) -> bool:
    """Whether no more is to be sent; one that has ended says so by its output."""
    assert one.process.stdin is not None
    try:
        one.unsent = one.unsent[os.write(one.process.stdin.fileno(), one.unsent) :]
    except OSError:
        return True
    return not one.unsent


def _read(one: _Running, what: str, kind: type[T]) -> bool:
    """Whether no more is to come: its answer is here, or it has ended."""
    assert one.process.stdout is not None
    data = os.read(one.process.stdout.fileno(), 1 << 20)
    if not data:
        one.problem = _last_words(one)
        return True
    one.buffer += data
    while b"\n" in one.buffer:
        line, _, one.buffer = one.buffer.partition(b"\n")
        if not line.startswith(b"{"):
            continue  # what a remote shell greets with
        try:
            one.answers[what] = decode(kind, line)
        except ValueError as error:
            first = str(error).replace("\n", " ")[:200]
            one.problem = f"its survey's answer to {what!r} cannot be read: {first}"
        return True
    return False


def _last_words(one: _Running) -> str:
    with contextlib.suppress(subprocess.TimeoutExpired):
        one.process.wait(1.0)
    one.errors.seek(0)
    lines = one.errors.read().decode(errors="replace").strip().splitlines()
    code = one.process.returncode
    how = "closed its output" if code is None else f"ended with status {code}"
    return f"its survey {how}: {lines[-1] if lines else 'it said nothing'}"


def _look_order(
    promise: PreflightCriterion, spec: Spec, run: str, index: int, code: Sequence[str]
) -> LookOrder:
    networks = {"fabric": spec.fabric.interfaces}
    if spec.management is not None:
        networks["management"] = spec.management.interfaces
    return LookOrder(
        run=run,
        index=index,
        networks=networks,
        code=tuple(code),
        places=tuple(_places(promise, spec)),
        master_port=_master_port(promise),
        accelerators=spec.accelerators.per_node > 0,
        kernel_log=promise.kernel_log is not None,
    )


def _master_port(promise: PreflightCriterion) -> int | None:
    return promise.reachable.master_port if promise.reachable is not None else None


def _places(promise: PreflightCriterion, spec: Spec) -> list[Place]:
    found = [Place(SHM, SHM)]
    found += [Place(f"disk {disk.path}", disk.path) for disk in promise.disk or ()]
    if promise.storage is None or spec.storage is None:
        return found
    stored = promise.storage
    for key in ("datasets", "checkpoints", "scratch"):
        path = getattr(spec.storage, key)
        if path is not None:
            sampled = key == "datasets"
            found.append(
                Place(
                    key,
                    path,
                    shared=key in stored.shared,
                    writable=key in stored.writable,
                    sample_files=stored.sample_files if sampled else 0,
                    sample_bytes=stored.sample_size_bytes if sampled else 0,
                )
            )
    return found


def _probe_order(
    promise: PreflightCriterion, spec: Spec, running: Sequence[_Running]
) -> ProbeOrder:
    answered = {r.index: r.answers["look"] for r in running if "look" in r.answers}
    peers = tuple(
        Peer(r.index, facts.hostname, r.address, facts.tcp_port, facts.udp_port, facts.rails)
        for r in running
        if (facts := answered.get(r.index)) is not None
    )
    reachable, names, mtu = promise.reachable, promise.names, promise.mtu
    networks = {n for one in (reachable, mtu, promise.payload) if one for n in one.networks}
    sizes = {"fabric": spec.fabric.mtu_bytes}
    if spec.management is not None and spec.management.mtu_bytes is not None:
        sizes["management"] = spec.management.mtu_bytes
    first = answered.get(0)
    master = None
    if reachable is not None and first is not None:
        master = (running[0].address, reachable.master_port or first.tcp_port)
    shared = {"datasets", "checkpoints", "scratch"}
    if promise.storage is not None:
        shared &= set(promise.storage.shared)
    return ProbeOrder(
        peers=peers,
        networks=tuple(sorted(n for n in networks if n == "fabric" or spec.management)),
        mtu={n: sizes[n] for n in (mtu.networks if mtu else ()) if n in sizes},
        master=master,
        connect_limit_s=reachable.within_s if reachable else CONTROL_LIMIT_S,
        look_up_within_s=names.within_s if names else None,
        tokens=tuple(
            place.token
            for facts in answered.values()
            for place in facts.places
            if place.token is not None and place.key in shared
        ),
    )
