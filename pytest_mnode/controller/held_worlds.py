"""Ranks that are kept for the fixtures of class, module or session scope that live in them.

A fixture that is built on the ranks, such as a DeviceMesh, lives for its scope, as pytest defines:
no world of another shape replaces its ranks, and no other pytest process gets them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_mnode.controller.world_test import WorldTest
from pytest_mnode.errors import MnodeError
from pytest_mnode.marks import WorldRequest, wide_fixtures_node
from pytest_mnode.other_plugins import in_ranks
from pytest_mnode.outcome.merge import function_error
from pytest_mnode.protocol.messages import Shape, WorldInfo
from pytest_mnode.report_record import error_report

if TYPE_CHECKING:
    from pytest_mnode.controller.session import Run

Chain = list[Any]
"""pytest nodes: collectors from the session down, and perhaps an item."""
Kind = tuple[Shape, bool]
"""A world's shape, and whether its ranks import test modules themselves. Tests of a kind share."""


@dataclass(frozen=True, slots=True)
class Held:
    """A world whose ranks keep fixtures. file: file of its last test."""

    world: WorldInfo
    keep: Keep
    file: str


@dataclass(frozen=True, slots=True)
class Keep:
    """The fixtures and the world that outlive a test.

    chain: the collectors whose fixtures outlive it. widest: the collector until whose end the
    world itself is kept; None: the world need not be kept.
    """

    chain: Chain
    widest: pytest.Collector | None

    @property
    def nodeid(self) -> str | None:
        return self.chain[-1].nodeid if self.chain else None


NOTHING = Keep([], None)


class HeldWorlds:
    """Records which worlds are held, and ends their fixtures in time."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._held: dict[Kind, Held] = {}
        self._own_imports: set[str] = set()
        """Test files that ranks import for themselves, as far as known."""
        self._order: dict[pytest.Item, int] = {}
        """Position of each test in the run; empty until it is first needed."""

    def get(self, item: pytest.Item, need: WorldRequest) -> Held | None:
        """The held world that a test must get, if any."""
        return None if need.reuse == "fresh" else self._held.get(self._kind(item, need))

    def _kind(self, item: pytest.Item, need: WorldRequest) -> Kind:
        return self._run.shape_of(need), str(item.path) in self._own_imports

    def keep(self, item: pytest.Item, nextitem: pytest.Item | None, need: WorldRequest) -> Keep:
        """What outlives this test in its ranks if the test leaves them clean."""
        if nextitem is None or need.reuse == "fresh":
            return NOTHING
        shape, chain = self._run.shape_of(need), _shared(item.listchain(), nextitem)
        held = self._held.get(self._kind(item, need))
        nodes = [n for n in (wide_fixtures_node(item), held.keep.widest if held else None) if n]
        widest = next((node for node in chain if node in nodes), None)
        if widest is not None and self._is_used_later(item, shape, widest):
            return Keep(chain, widest)
        return Keep(chain, None) if self._runs_in(nextitem, shape) else NOTHING

    def note(self, item: pytest.Item, need: WorldRequest, world: WorldInfo, keep: Keep) -> None:
        """After a test, note that its world is held from now on, or no longer."""
        if world.own_imports:
            self._own_imports.add(str(item.path))
        kind = self._kind(item, need)
        if keep.widest is not None:
            self._held[kind] = Held(world, keep, str(item.path))
        elif need.reuse != "fresh":
            self._held.pop(kind, None)

    def _runs_in(self, item: pytest.Item, shape: Shape) -> bool:
        if not in_ranks(item):
            return False
        need = self._run.request_of(item)
        return need.reuse != "fresh" and self._run.shape_of(need) == shape

    def _is_used_later(self, item: pytest.Item, shape: Shape, node: pytest.Collector) -> bool:
        """Whether a later test uses, or may use, ranks of this shape and fixtures of `node`."""
        if hasattr(item.config, "workerinput"):
            return True  # pytest-xdist has not yet decided which test comes after the next one
        later = item.session.items[self._place_after(item) :]
        return any(node in one.listchain() and self._runs_in(one, shape) for one in later)

    def after(self, item: pytest.Item) -> pytest.Item | None:
        """The test after this one in pytest's own order."""
        items, place = item.session.items, self._place_after(item)
        return items[place] if place < len(items) else None

    def _place_after(self, item: pytest.Item) -> int:
        if not self._order:
            self._order = {one: number for number, one in enumerate(item.session.items)}
        return self._order.get(item, -1) + 1

    def leave(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """After a test, end the fixtures in held worlds of each collector that the run leaves."""
        for kind, held in list(self._held.items()):
            chain = [] if stops(item.session) else _shared(held.keep.chain, nextitem)
            if chain == held.keep.chain:
                continue
            keep = replace(held.keep, chain=chain) if held.keep.widest in chain else NOTHING
            if error := self._end_fixtures(kind, held, keep):
                report = error_report(item, error, "teardown")
                item.ihook.pytest_runtest_logreport(report=report)

    def _end_fixtures(self, kind: Kind, held: Held, keep: Keep) -> str:
        """End all fixtures of a held world except those of `keep`; returns the error, or ""."""
        run, world = self._run, held.world
        del self._held[kind]
        label = f"the teardown of fixtures of {held.keep.nodeid or 'the session'}"
        try:
            client = run.have_client()
            lease = client.lease(len(world.nodes), False, label, world.nodes)
            try:
                procs = kind[0].procs_per_node
                found = client.open_world(lease, procs, False, held=world.id, file=held.file)
                if found.id != world.id:  # the ranks died, and the fixtures with them
                    client.close_world(found, reusable=True, new_group=found.new_group)
                    return ""
                driven = WorldTest(client, world, run.settings.timeout_s, run.console)
                outcome = driven.run_function("end_fixtures", keep.nodeid)
                run.give_to_others("", outcome)
                error = "" if outcome.returned else str(function_error(outcome))
                reusable = outcome.clean
                new_group = found.new_group or outcome.new_group
                client.close_world(world, reusable, new_group, keep is not NOTHING and reusable)
            finally:
                client.release(lease)
            if outcome.quit:
                pytest.exit("Quitting debugger")
        except MnodeError as problem:
            return f"{label}: {problem}"
        if keep is not NOTHING and reusable:
            self._held[kind] = replace(held, keep=keep)
        return error and f"{label}:\n{error}"


def stops(session: pytest.Session) -> bool:
    """Whether the run ends before its next test."""
    return bool(session.shouldstop or session.shouldfail)


def _shared(chain: Chain, nextitem: pytest.Item | None) -> Chain:
    """The collectors of `chain` that the next test is in too, from the session down."""
    others = nextitem.listchain() if nextitem is not None else []
    count = 0
    while count < min(len(chain), len(others)) and chain[count] is others[count]:
        count += 1
    return [node for node in chain[:count] if not isinstance(node, pytest.Item)]
