"""What pytest-xdist workers get from the process that started them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pytest_mnode.controller.xdist import XdistController, join
from pytest_mnode.limits import Limits
from pytest_mnode.protocol.channel import Switchboard


def test_workers_share_no_ordinal(tmp_path: Path) -> None:
    """Otherwise the death of a rank would be charged to the test of another worker."""
    hub = Switchboard(f"{tmp_path}/hub", "token")
    pool = SimpleNamespace(path=hub.path, token=hub.token)
    settings = SimpleNamespace(limits=lambda _: Limits())
    run: Any = SimpleNamespace(
        nodes=2, launcher="", reason="", settings=settings, make_pool=lambda: pool
    )
    controller, spec = XdistController(run), SimpleNamespace(popen=True, via=None)
    found = []
    for name in ("gw0", "gw1"):
        node = SimpleNamespace(gateway=SimpleNamespace(id=name, spec=spec), workerinput={})
        controller.pytest_configure_node(node)
        join(run, node.workerinput)
        found.append(next(run.client.ordinals))
        run.client.close()
    hub.close()
    assert found[0] != found[1]


def test_nodes_of_a_worker_that_ended_are_free() -> None:
    told: list[tuple[str, str]] = []
    client = SimpleNamespace(tell=lambda *message: told.append(message))
    run: Any = SimpleNamespace(client=client)
    worker = {"mnode": {"client": "client/gw1-7"}}
    for given in ({}, worker):
        XdistController(run).pytest_testnodedown(SimpleNamespace(workerinput=given))
    run.client = None  # the run has ended
    XdistController(run).pytest_testnodedown(SimpleNamespace(workerinput=worker))
    assert told == [("forget", "client/gw1-7")]
