"""The certificate as metrics, for node_exporter's textfile collector or a Pushgateway."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily

from pytest_mnode.certificate.certificate import Certificate, CertificateVerdict
from pytest_mnode.certificate.results import CriterionVerdict
from pytest_mnode.path_rates import State


class _Metrics:
    """Every sample has the label `spec`. Of a verdict or state, the one that applies is 1."""

    def __init__(self, certificate: Certificate) -> None:
        self._certificate = certificate

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield from self._of_cluster()
        yield from self._of_nodes()
        yield from self._of_criteria()

    def _family(self, name: str, help_: str, *labels: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"mnode_{name}", help_, labels=("spec", *labels))

    def _add(self, family: GaugeMetricFamily, value: float, *labels: str) -> None:
        family.add_metric((self._certificate.run.spec.name, *labels), value)

    def _of_cluster(self) -> Iterator[GaugeMetricFamily]:
        one, cover = self._certificate, self._certificate.coverage
        verdict = self._family("certificate_verdict", "Verdict of the last run.", "verdict")
        for possible in CertificateVerdict:
            self._add(verdict, one.verdict is possible, possible.value)
        yield verdict
        end = self._family("certificate_end_timestamp_seconds", "End of the last run.")
        self._add(end, one.run.end.timestamp())
        yield end
        expiry = self._family(
            "certificate_expiry_timestamp_seconds", "Until when the whole cluster is certified."
        )
        if one.expiry is not None:
            self._add(expiry, one.expiry.timestamp())
        yield expiry
        for name, counts in (("nodes", cover.nodes_by_state), ("paths", cover.paths_by_state)):
            family = self._family(name, f"How many {name} are in each state.", "state")
            for state in State:
                self._add(family, getattr(counts, state.name.lower()), state.value)
            yield family

    def _of_nodes(self) -> Iterator[GaugeMetricFamily]:
        state = self._family("node_state", "State of a node.", "node", "state")
        expiry = self._family(
            "node_expiry_timestamp_seconds", "Until when a node's pass holds.", "node"
        )
        for node in self._certificate.coverage.nodes:
            for possible in State:
                self._add(state, node.state is possible, node.name, possible.value)
            if node.until is not None:
                self._add(expiry, node.until.timestamp(), node.name)
        yield state
        yield expiry

    def _of_criteria(self) -> Iterator[GaugeMetricFamily]:
        verdict = self._family("criterion_verdict", "Verdict.", "criterion", "verdict")
        labels = ("criterion", "test", "measurement", "unit", "where", "number")
        value = self._family("measurement", "What was measured, in `unit`.", *labels)
        margin = self._family(
            "measurement_margin", "Distance to its bound; below 0 where it is broken.", *labels
        )
        for criterion in self._certificate.criteria:
            for possible in CriterionVerdict:
                self._add(verdict, criterion.verdict is possible, criterion.name, possible.value)
            for case in criterion.cases:
                for number, one in enumerate(case.measurements):
                    test = case.test.partition("::")[2]
                    named = (criterion.name, test, one.name, one.unit, one.where, str(number))
                    if one.value is not None:
                        self._add(value, one.value, *named)
                    if one.margin is not None:
                        self._add(margin, one.margin, *named)
        yield verdict
        yield value
        yield margin


def prometheus_text(certificate: Certificate) -> str:
    """Prometheus' text format. What could not be measured has no sample."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Metrics(certificate))
    return generate_latest(registry).decode()
