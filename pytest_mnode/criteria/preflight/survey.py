"""The survey: starts `node_probe` once on all nodes, sends its orders, and ends it."""

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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from subprocess import PIPE
from typing import IO, TYPE_CHECKING, Any, TypeVar

from pytest_mnode.checks.node.payloads import (
    Payload,
    PayloadsArriveUnchanged,
    is_corrupter_unclear,
    paths_that_change,
)
from pytest_mnode.checks.node.reachable import Reachable, paths_that_lose
from pytest_mnode.criteria.preflight.answers import (
    Directory,
    LastFacts,
    LookOrder,
    NodeFacts,
    NodeSurvey,
    PathFacts,
    PayloadFacts,
    PayloadOrder,
    Peer,
    ProbeOrder,
    ReadingFacts,
    ReadingOrder,
    Survey,
)
from pytest_mnode.criteria.preflight.survey_check import SurveyCheck, promise_of, read_orders
from pytest_mnode.criteria.preflight.tcp import CONNECTIONS
from pytest_mnode.errors import MnodeError
from pytest_mnode.launchers.remote.node_process import Program, start
from pytest_mnode.machine.encoding import decode
from pytest_mnode.measurement import listed
from pytest_mnode.processes import end_programs, last_line
from pytest_mnode.progress import progress
from pytest_mnode.spec.checked import PreflightCriterion
from pytest_mnode.spec.fields import Section
from pytest_mnode.spec.quantity import DURATION

if TYPE_CHECKING:
    from pytest_mnode.evidence.check import Check
    from pytest_mnode.launchers.nodes import Nodes
    from pytest_mnode.measurement import Measurement
    from pytest_mnode.spec import Spec


T = TypeVar("T")
CONTROL_LIMIT_S = 2.0
COUNTED, COUNTED_S = 1000, 0.01
"""Datagrams on a path whose losses are counted, and the time that one may take: of 2 % lost, each
20 wait for those that are late."""
_PARTS = (
    *("boot_id", "hostname", "interfaces", "refusals", "rdma", "pci", "settings", "software"),
)
"""Parts of the machine that are always read."""
END_LIMIT_S = 10.0
_STATUS_S = 1.0
"""Time until the exit status of a survey is known, after its output has ended."""
_PAYLOAD_ROUNDS = 4
"""Of a link that changes a byte now and then, one round may show a single path only."""
_PAYLOAD_SHARE = 0.8
"""Share of the line rate at which payloads are sent."""
PROBE_SLACK_S = 15.0
"""Time beyond the spec's limits, for the search of the largest packet and a busy machine."""
_DOING = {
    "look": "looking at the nodes",
    "probe": "trying all paths",
    "payload": "sending payloads",
    "end": "ending the survey",
}


@dataclass(slots=True)
class _Running:
    """The probe program on one node."""

    index: int
    name: str
    address: str
    process: Program
    stdin: IO[bytes]
    stdout: IO[bytes]
    errors: Path
    unsent: bytes = b""
    buffer: bytes = b""
    problem: str = ""
    answers: dict[str, Any] = field(default_factory=dict)


def survey(
    nodes: Nodes,
    spec: Spec,
    code: Sequence[str],
    checks: Sequence[Check] = (),
    counted: int = 0,
) -> Survey:
    """Inspect every node, and have each node try its paths to all others.

    code: directories whose programs must be the same on all nodes. checks: those to read for.
    counted: see `ProbeOrder`.
    A node that does not answer in time has a problem in words and no facts; the other nodes go on
    without it.
    """
    promise = spec.criteria.preflight
    assert promise is not None
    with contextlib.ExitStack() as stack:
        running: list[_Running] = []
        unreachable = {}
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=nodes.run_id)))
        stack.callback(_end, running)
        for index, name in enumerate(nodes.nodes):
            try:
                running.append(_start(nodes, index, name, directory))
            except (MnodeError, OSError) as error:  # no command can be run there
                unreachable[name] = NodeSurvey(index, name, "", str(error).splitlines()[0])
        run = uuid.uuid4().hex[:16]
        looks = [look_order(promise, spec, run, r.index, code, checks=checks) for r in running]
        _exchange(running, "look", looks, NodeFacts, nodes.limits.reported_s)
        look_answers = {
            r.index: (r.address, r.answers["look"]) for r in running if "look" in r.answers
        }
        directories = looks[0].directories if looks else ()
        probe = replace(probe_order(promise, spec, look_answers, directories), counted=counted)
        connecting_s = CONNECTIONS * probe.connect_limit_s
        limit_s = max(connecting_s, 3 * (probe.look_up_within_s or 0)) + PROBE_SLACK_S
        limit_s += counted * COUNTED_S
        _exchange(running, "probe", [probe] * len(running), PathFacts, limit_s)
        payload = _payload_order(spec)
        for _ in range(_PAYLOAD_ROUNDS):
            if payload is not None:
                _send_payloads(running, payload)
            _exchange(running, "end", [None] * len(running), LastFacts, END_LIMIT_S)
            found = _surveyed(nodes, running, unreachable)
            if payload is None or not is_corrupter_unclear(found, payload):
                break
        named = [(r.name, r.address) for r in running]
        long = [reading_order(checks, named, i) for i in range(len(running))]
        if long and long[0].reads:
            limit_s = long[0].limit_s + PROBE_SLACK_S
            cases = ", ".join(one.case for one in long[0].reads)
            doing = f"running {cases} (at most {DURATION.text(round(long[0].limit_s))})"
            _exchange(running, "read", long, ReadingFacts, limit_s, doing)
            found = _surveyed(nodes, running, unreachable)
    return found


def _payload_order(spec: Spec) -> PayloadOrder | None:
    promised: Payload | None = promise_of(PayloadsArriveUnchanged, spec)
    if promised is None:
        return None
    # Packets beyond the line rate would be dropped, and counted as losses of the link.
    rate = _PAYLOAD_SHARE * spec.fabric.line_rate_mbits_s * 1e6 / 8
    return PayloadOrder(promised.networks, promised.size_bytes, promised.within_s, rate)


def _send_payloads(running: Sequence[_Running], order: PayloadOrder) -> None:
    """Send payloads on all paths; the answer of a node has those of earlier rounds as well."""
    before = {r.index: r.answers.pop("payload", None) for r in running}
    limit_s = order.limit_s + PROBE_SLACK_S
    _exchange(running, "payload", [order] * len(running), PayloadFacts, limit_s)
    for one in running:
        answers = [a for a in (before[one.index], one.answers.get("payload")) if a is not None]
        if answers:
            one.answers["payload"] = PayloadFacts(tuple(s for a in answers for s in a.sent))


def _surveyed(
    nodes: Nodes, running: Sequence[_Running], unreachable: dict[str, NodeSurvey]
) -> Survey:
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
            r.answers.get("read"),
        )
        for r in running
    }
    return Survey(tuple((unreachable | answered)[name] for name in nodes.nodes))


def _start(nodes: Nodes, index: int, name: str, directory: Path) -> _Running:
    [command] = nodes.commands(
        [nodes.python, "-P", "-m", "pytest_mnode.criteria.preflight.node_probe"], (name,)
    )
    errors = directory / str(index)
    env = nodes.env(search_path(nodes.python))
    process = start(command, env, stdin=PIPE, stdout=PIPE, stderr=errors, apart=True)
    assert process.stdin is not None
    assert process.stdout is not None
    os.set_blocking(process.stdin.fileno(), False)
    address = nodes.address(name)
    return _Running(index, name, address, process, process.stdin, process.stdout, errors)


def search_path(python: str) -> dict[str, str]:
    """PYTHONPATH of this process for nodes that run the same Python; {} for another Python."""
    if python != sys.executable:
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _end(running: Sequence[_Running]) -> None:
    """Close the input of the programs, so that they clean up and end; kill those that do not."""
    for one in running:
        one.stdin.close()
        one.stdout.close()  # a program that still writes would block without a reader
    end = time.monotonic() + END_LIMIT_S
    for one in running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            one.process.wait(max(0.0, end - time.monotonic()))
    end_programs([one.process for one in running if one.process.returncode is None])


def _exchange(  # noqa: PLR0917  of one exchange
    running: Sequence[_Running],
    what: str,
    orders: Sequence[Any],
    kind: type[T],
    limit_s: float,
    doing: str = "",
) -> None:
    """Send each program its order, and read answers until all came or the limit is over.

    doing: what is shown meanwhile, if it is not always the same.
    """
    with selectors.DefaultSelector() as selector:
        for one, order in zip(running, orders, strict=True):
            if one.problem:
                continue
            one.unsent = json.dumps({"do": what, **(asdict(order) if order else {})}).encode()
            one.unsent += b"\n"
            selector.register(one.stdin, selectors.EVENT_WRITE, one)
            selector.register(one.stdout, selectors.EVENT_READ, one)
        end = time.monotonic() + limit_s
        late = False
        while selector.get_map() and not late:
            left = end - time.monotonic()
            silent = [r.name for r in running if what not in r.answers and not r.problem]
            shown = f"{doing or _DOING[what]}, no answer yet from {listed(silent, separator=', ')}"
            progress(shown, len(running) - len(silent), len(running))
            late = left <= 0  # set before the last select, so that answers that have come count
            for key, _ in selector.select(max(0.0, left)):
                one = key.data
                sends = key.fileobj is one.stdin
                if _write(one) if sends else _read(one, what, kind):
                    selector.unregister(key.fileobj)
        for key in selector.get_map().values():
            if key.fileobj is key.data.stdout:
                key.data.problem = f"its survey gave no answer to {what!r} within {limit_s:g} s"


def _write(one: _Running) -> bool:
    """Send some of the order; whether nothing is left to send. `_read` detects an ended program."""
    try:
        one.unsent = one.unsent[os.write(one.stdin.fileno(), one.unsent) :]
    except OSError:
        return True
    return not one.unsent


def _read(one: _Running, what: str, kind: type[T]) -> bool:
    """Read some of the answer; whether it is complete or the program has ended."""
    data = os.read(one.stdout.fileno(), 1 << 20)
    if not data:
        one.problem = _why_ended(one)
        return True
    one.buffer += data
    while b"\n" in one.buffer:
        line, _, one.buffer = one.buffer.partition(b"\n")
        if not line.startswith(b"{"):
            continue  # the greeting of a remote shell
        try:
            one.answers[what] = decode(kind, line)
        except ValueError as error:
            first = str(error).replace("\n", " ")[:200]
            one.problem = f"its survey's answer to {what!r} cannot be read: {first}"
        return True
    return False


def _why_ended(one: _Running) -> str:
    with contextlib.suppress(subprocess.TimeoutExpired):
        one.process.wait(_STATUS_S)
    code = one.process.returncode
    how = "closed its output" if code is None else f"ended with status {code}"
    return f"its survey {how}: {last_line(one.errors.read_bytes()) or 'no message'}"


def changed_paths(nodes: Nodes, spec: Spec) -> list[Measurement]:
    """Measurement of the paths that change payloads, where the ranks of a test gave no answer; []
    for one node, which has no path.

    A link that changes bytes undetected by the checksum also changes gloo's or NCCL's own messages.
    The receiver then waits forever for a message that came under another name, or blames its peer.
    The nodes therefore send payloads by plain TCP, where only the payload can change.

    Sends what preflight.payload of the spec promises, or its defaults. Used by `on_failure` of a
    test that already has a culprit: lost payloads alone blame nobody, so that the result is [].
    """
    if len(nodes.nodes) < 2:
        return []
    promise = promise_of(PayloadsArriveUnchanged, spec) or Payload.model_validate({})
    promise = promise.model_copy(update={"networks": ("fabric",)})
    of_payloads = _promising(spec, payload=promise)
    found = paths_that_change(survey(nodes, of_payloads, ()), of_payloads, promise)
    return [] if found.value is None else [found]


def lossy_paths(nodes: Nodes, spec: Spec) -> list[Measurement]:
    """Measurement of the fabric's paths that lose datagrams, of `COUNTED` on each; [] for one node.

    For a run whose counters of TCP rose: these tell of no node to whom it sent what it lost.
    """
    if len(nodes.nodes) < 2:
        return []
    found = survey(nodes, _promising(spec, reachable=Reachable.model_validate({})), (), (), COUNTED)
    return [paths_that_lose(found, spec)]


def _promising(spec: Spec, **promises: Section) -> Spec:
    """The spec with nothing but these keys of preflight."""
    preflight = PreflightCriterion.model_validate(promises)
    criteria = spec.criteria.model_copy(update={"preflight": preflight})
    return spec.model_copy(update={"criteria": criteria})


def look_order(
    promise: PreflightCriterion,
    spec: Spec,
    run: str,
    index: int,
    code: Sequence[str],
    *,
    checks: Sequence[Check] = (),
) -> LookOrder:
    """The first order. checks: those whose parts and rows are to be read."""
    networks = {"fabric": spec.fabric.interfaces}
    if spec.management is not None:
        networks["management"] = spec.management.interfaces
    surveyed = [one for one in checks if isinstance(one, SurveyCheck)]
    parts = (*_PARTS, *(part for one in surveyed for part in one.parts))
    directories = (place for one in surveyed for place in one.directories())
    return LookOrder(
        run=run,
        index=index,
        parts=tuple(dict.fromkeys(parts)),
        networks=networks,
        code=tuple(code),
        directories=tuple(dict.fromkeys(directories)),
        master_port=promise.reachable and promise.reachable.master_port,
        reads=tuple(one for one in read_orders(checks, "node") if one.limit_s is None),
    )


def reading_order(
    checks: Sequence[Check], nodes: Sequence[tuple[str, str]], index: int
) -> ReadingOrder:
    """The order for long readings. nodes: name and address of each node; index: of this one."""
    long = (one for one in read_orders(checks, "node") if one.limit_s is not None)
    return ReadingOrder(tuple(replace(one, nodes=tuple(nodes), index=index) for one in long))


def probe_order(
    promise: PreflightCriterion,
    spec: Spec,
    look_answers: Mapping[int, tuple[str, NodeFacts]],
    directories: Sequence[Directory] = (),
) -> ProbeOrder:
    """The second order. look_answers: address and facts of each node that answered, by index.

    directories: those that nodes inspected.
    """
    peers = tuple(
        Peer(
            index,
            facts.machine.hostname or "",
            address,
            facts.tcp_port,
            facts.udp_port,
            facts.rails,
        )
        for index, (address, facts) in look_answers.items()
    )
    reachable, names, mtu = promise.reachable, promise.names, promise.mtu
    networks = {n for one in (reachable, mtu, promise.payload) if one for n in one.networks}
    sizes = {"fabric": spec.fabric.mtu_bytes}
    if spec.management is not None and spec.management.mtu_bytes is not None:
        sizes["management"] = spec.management.mtu_bytes
    master = None
    if reachable is not None and 0 in look_answers:
        address, first = look_answers[0]
        master = (address, reachable.master_port or first.tcp_port)
    shared = {one.key for one in directories if one.shared}
    return ProbeOrder(
        peers=peers,
        networks=tuple(sorted(n for n in networks if n == "fabric" or spec.management)),
        mtu={n: sizes[n] for n in (mtu.networks if mtu else ()) if n in sizes},
        master=master,
        connect_limit_s=reachable.within_s if reachable else CONTROL_LIMIT_S,
        look_up_within_s=names.within_s if names else None,
        tokens=tuple(
            one.token
            for _, facts in look_answers.values()
            for one in facts.directories
            if one.token is not None and one.key in shared
        ),
    )
