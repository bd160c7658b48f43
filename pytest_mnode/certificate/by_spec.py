"""A certificate by another spec. Pure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pytest_mnode.certificate.certificate import Certificate, build_certificate
from pytest_mnode.certificate.rejudge import rejudged
from pytest_mnode.certificate.run_facts import SpecFacts
from pytest_mnode.errors import UsageError
from pytest_mnode.spec import Spec, doubts


def judged_by(
    certificate: Certificate, spec: Spec, path: Path
) -> tuple[Certificate, tuple[str, ...]]:
    """The certificate that the same measurements give by `spec`, and what cannot be judged anew.

    Paths and earlier runs are left out: they were judged by the other spec. Raises UsageError for a
    certificate that does not have the spec it was judged by.
    """
    before = certificate.run.spec.page
    if not before:
        raise UsageError("the certificate does not have the spec that it was judged by")
    cases = [case for criterion in certificate.criteria for case in criterion.cases]
    found = rejudged(cases, before, page_of(spec))
    run = replace(
        certificate.run,
        spec=facts_of(spec, path),
        doubts=tuple(doubts(spec)),
        cluster_nodes=spec.nodes or certificate.run.cluster_nodes,
        validity_s=spec.certificate.valid_for_s,
    )
    again = build_certificate(
        run=run,
        cases=found.cases,
        promised=spec.promised_criteria,
        not_promised={n.question: n.reason for n in spec.not_promised},
    )
    return replace(again, installed=certificate.installed), found.undecided


def facts_of(spec: Spec, path: Path) -> SpecFacts:
    """What a certificate keeps of its spec."""
    return SpecFacts(spec.name, str(path), spec.digest(), page_of(spec))


def page_of(spec: Spec) -> dict[str, object]:
    """All values, defaults too, by the keys of a page; sizes in bytes, times in seconds."""
    page: dict[str, object] = spec.model_dump(mode="json", by_alias=True)
    return page
