"""Size of the evidence of a night of the virtual cluster, by the kind of its rows.

Readings of nodes themselves (`Check.read`) are not among it, as no virtual node makes them, and its
machines are smaller than real ones: they have one package and few PCI functions.
"""

from __future__ import annotations

import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks import table
from pytest_mnode.certificate import CaseResult
from pytest_mnode.certificate.files import json_text
from pytest_mnode.certificate.gathered import CaseRecord, Gathered
from pytest_mnode.certificate.page import page_text
from pytest_mnode.certificate.results import charts_to_json, measurements_to_json
from pytest_mnode.checks.world_check import WorldCheck
from pytest_mnode.criteria.port_counters.watching import TEST
from pytest_mnode.criteria.preflight.answers import Survey, survey_to_json
from pytest_mnode.criteria.preflight.environment import ranks_to_json
from pytest_mnode.evidence import file
from pytest_mnode.evidence.file import EvidenceFile
from pytest_mnode.evidence.row import MeasuredRows, finite
from pytest_mnode.spec import Spec, load_spec
from pytest_mnode.virtual import devices, numa, ports, preflight
from pytest_mnode.virtual.cluster import VirtualCluster
from pytest_mnode.virtual.night import rehearse

SPEC = Path(__file__).parent / "faults.yaml"
"""h100-ib, with promises that no profile has."""


def record_of(case: CaseResult, *more: MeasuredRows) -> CaseRecord:
    """The record of a test that ended so. more: further charts."""
    return CaseRecord(
        outcome=case.outcome,
        duration_s=case.duration_s or 0.0123456789,
        phases=["setup", "call", "teardown"],
        facts={
            "question": case.question,
            "nodes": list(case.nodes),
            "measurements": measurements_to_json(case.measurements),
            "charts": charts_to_json([*case.charts, *case.paths, *more]),
        },
    )


def write(directory: Path, nodes: int) -> Counter[str]:
    """Write the evidence of a night on so many nodes of eight GPUs. Bytes by kind of rows."""
    spec = load_spec(SPEC)
    certificate = rehearse(spec, SPEC, nodes)
    cluster = VirtualCluster.healthy(spec, nodes, 0)
    evidence, sizes = EvidenceFile(directory), Counter[str]()

    def append(label: str, kind: str, *values: Mapping[str, Any]) -> None:
        before = evidence.path.stat().st_size
        evidence.append(kind, *values)
        sizes[label] += evidence.path.stat().st_size - before

    cases = [case for criterion in certificate.criteria for case in criterion.cases]
    run = Gathered(certificate.run, spec.promised_criteria, {}).run_to_json()
    append("run", file.RUN, run)
    append("run", file.COLLECTED, {"tests": [case.test for case in cases]})
    append("nodes", file.ROWS, *survey_to_json(Survey(tuple(cluster.machines))))
    append("environments", file.ROWS, *ranks_to_json(preflight.ranks_of(cluster)))
    of_ranks = dict(_of_ranks(spec, cluster))
    of_ports = MeasuredRows(tuple(ports.counted(cluster)))
    for case in cases:
        append("begun", file.BEGAN, {"test": case.test})
        name = case.test.partition("::")[2]
        measured = of_ports if name == TEST else of_ranks.get(name)
        record = record_of(case, *(() if measured is None else [measured]))
        label = "ports" if name == TEST else "tests" if measured is None else "ranks"
        append(label, file.TEST, {"test": case.test, "record": record.to_json()})
    evidence.close()
    return sizes


def _of_ranks(spec: Spec, cluster: VirtualCluster) -> Iterator[tuple[str, MeasuredRows]]:
    """What ranks measured, by the name of the test."""
    for criterion, made in ((spec.criteria.devices, devices), (spec.criteria.numa, numa)):
        asked: list[WorldCheck] = [] if criterion is None else [*criterion.asked(spec)]
        for check in asked:
            every = (
                [made.measured(cluster, check)] if made is numa else made.measured(cluster, check)
            )
            rows = tuple(finite(row) for found in every for row in check.to_rows(found))
            part = f"[{check.part}]" if check.part else ""
            if rows:
                yield f"{check.case()}{part}", MeasuredRows(rows)


def measure(nodes: int) -> str:
    """The table, for a terminal."""
    title = f"Evidence of {nodes} nodes (below 100 MB asked, and a page below 5 MB)"
    with tempfile.TemporaryDirectory() as name:
        sizes = write(Path(name), nodes)
        stream = zlib.decompressobj(wbits=31)
        plain = len(stream.decompress((Path(name) / file.NAME).read_bytes()))
    certificate = rehearse(load_spec(SPEC), SPEC, nodes)
    rows = [*sizes.most_common(), ("all", sizes.total()), ("all, decompressed", plain)]
    rows += [
        ("certificate.json", len(json_text(certificate))),
        ("certificate.html", len(page_text(certificate))),
    ]
    shown = [(what, f"{size / 1e6:.2f}", f"{size / nodes:.0f}") for what, size in rows]
    return table.terminal(title, ("", "MB", "bytes a node"), shown)
