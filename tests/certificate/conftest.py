"""A run to certify."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pytest_mnode.certificate import (
    CaseResult,
    Certificate,
    Commit,
    RunFacts,
    SpecFacts,
    Versions,
    build_certificate,
)
from pytest_mnode.certificate.coverage import Coverage
from pytest_mnode.measurement import Measurement, equals

FACTS = RunFacts(
    launcher="rack",
    launcher_reason="no scheduler and no hostfile",
    nodes=("node0", "node1", "node2", "node3"),
    ranks=4,
    backend="gloo",
    spec=SpecFacts("rack", "fixtures/clusters/rack.yaml", "sha256:1f"),
    versions=Versions("3.12.1", "Linux 6.1", "9.0.1", "0.1.0", None),
    start=datetime(2026, 11, 21, 2, 0, tzinfo=UTC),
    end=datetime(2026, 11, 21, 2, 6, tzinfo=UTC),
    commit=Commit("79cf144", dirty=True),
)

RIGHT = Measurement("wrong sums", 0, "", equals(0), "a sum of whole numbers is exact")
"""A value that keeps its bound: a promised criterion without one is inconclusive."""


def certify(
    *cases: CaseResult,
    promised: Sequence[str] = (),
    not_promised: Mapping[str, str] | None = None,
    earlier: Sequence[Coverage] = (),
    **facts: Any,
) -> Certificate:
    """The certificate of these cases. facts: facts of the run other than FACTS."""
    return build_certificate(
        run=replace(FACTS, **facts),
        cases=cases,
        promised=promised,
        not_promised=not_promised or {},
        earlier=earlier,
    )
