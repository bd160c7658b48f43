"""The certificate as metrics, for node_exporter's textfile collector or a Pushgateway."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import count

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily

from pytest_mnode.certificate.certificate import Certificate, CertificateVerdict
from pytest_mnode.certificate.results import CriterionVerdict
from pytest_mnode.certificate.text import fit
from pytest_mnode.path_rates import State

Samples = Iterable[tuple[tuple[str, ...], float | None]]
"""Values of labels, and the value of the sample; None for no sample."""


def _which(kind: type[StrEnum], actual: StrEnum, *labels: str) -> Samples:
    """One sample per member of `kind`: 1 for the actual one, 0 for the others."""
    return [((*labels, one.value), one is actual) for one in kind]


class _Metrics:
    """Every sample has the label `spec`, which says so of a rehearsal: no query for the values of a
    cluster finds those of a virtual one."""

    def __init__(self, certificate: Certificate) -> None:
        self._certificate = certificate

    def collect(self) -> Iterator[GaugeMetricFamily]:
        run = self._certificate.run
        spec = run.spec.name if run.rehearsal is None else f"rehearsal: {run.spec.name}"
        for name, help_, labels, samples in self._families():
            family = GaugeMetricFamily(f"mnode_{name}", help_, labels=("spec", *labels))
            for values, value in samples:
                if value is not None:
                    family.add_metric([fit(v) for v in (spec, *values)], value)
            yield family

    def _families(self) -> Iterator[tuple[str, str, tuple[str, ...], Samples]]:
        """Name, help, labels and samples."""
        one, cover = self._certificate, self._certificate.coverage
        verdict = _which(CertificateVerdict, one.verdict)
        yield "certificate_verdict", "Verdict of the last run.", ("verdict",), verdict
        end = one.run.end.timestamp()
        yield "certificate_end_timestamp_seconds", "End of the last run.", (), [((), end)]
        expiry = one.expiry.timestamp() if one.expiry else None
        help_ = "Until when the whole cluster is certified."
        yield "certificate_expiry_timestamp_seconds", help_, (), [((), expiry)]
        for name, counts in (("nodes", cover.nodes_by_state), ("paths", cover.paths_by_state)):
            samples = [((state.value,), getattr(counts, state.name.lower())) for state in State]
            yield name, f"How many {name} are in each state.", ("state",), samples
        states = [s for node in cover.nodes for s in _which(State, node.state, node.name)]
        yield "node_state", "State of a node.", ("node", "state"), states
        ends = [((node.name,), until.timestamp()) for node in cover.nodes if (until := node.until)]
        yield "node_expiry_timestamp_seconds", "Until when a node's pass expires.", ("node",), ends
        verdicts = [s for c in one.criteria for s in _which(CriterionVerdict, c.verdict, c.name)]
        yield "criterion_verdict", "Verdict.", ("criterion", "verdict"), verdicts
        heads = [(c.name, one) for c in one.criteria for one in c.headline.findings]
        shown = [((name, found.name, found.unit), found) for name, found in heads]
        keys = ("criterion", "measurement", "unit")
        answers = [(named, found.value) for named, found in shown]
        yield "criterion_headline", "What answers the criterion, in `unit`.", keys, answers
        wholes = [(named, found.of) for named, found in shown]
        yield "criterion_headline_of", "The whole that it is a part of.", keys, wholes
        close = [
            ((c.name, low.name), low.margin)
            for c in one.criteria
            if (low := c.headline.least_margin)
        ]
        help_ = "Least distance to a bound, as a share of it, where it is small."
        yield "criterion_least_margin", help_, ("criterion", "measurement"), close
        labels = ("criterion", "test", "measurement", "unit", "where", "number")
        numbers: defaultdict[str, Iterator[int]] = defaultdict(count)
        measured = [
            ((c.name, test, m.name, m.unit, m.where, str(next(numbers[f"{c.name} {test}"]))), m)
            for c in one.criteria
            for case in c.cases
            for test in [case.test.partition("::")[2]]  # not unique: two files may have one name
            for m in case.measurements
        ]
        values = [(named, m.known) for named, m in measured]
        yield "measurement", "What was measured, in `unit`.", labels, values
        margins = [(named, m.margin) for named, m in measured]
        help_ = "Distance to its bound; below 0 where it is broken."
        yield "measurement_margin", help_, labels, margins


def prometheus_text(certificate: Certificate) -> str:
    """Metrics in Prometheus' text format. A value that could not be measured has no sample."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Metrics(certificate))
    return generate_latest(registry).decode()
