"""Preflight of a virtual cluster: its machines, judged by the checks that judge a survey."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_mnode.certificate import CaseResult
from pytest_mnode.criteria.preflight.answers import Survey
from pytest_mnode.criteria.preflight.survey_check import (
    SurveyCheck,
    of_node,
    promise_of,
    promised_checks,
)
from pytest_mnode.evidence.check import Check, catalogue
from pytest_mnode.virtual.cases import NOT_REHEARSED, case
from pytest_mnode.virtual.cluster import VirtualCluster

_FILE = "acceptance/test_preflight.py"
_BEYOND = ("preflight.payload", "preflight.storage", "preflight.disk")
"""Keys of checks of what no virtual machine has: bytes that arrive, file systems."""


def preflight(cluster: VirtualCluster) -> Iterator[CaseResult]:
    """The cases of every promised check on every node."""
    survey = Survey(tuple(cluster.machines))
    for one in catalogue():
        if promise_of(one, cluster.spec) is None:
            continue
        for check in promised_checks(cluster.spec, [one]):
            yield from _of_check(check, survey)


def _of_check(check: Check, survey: Survey) -> Iterator[CaseResult]:
    test = f"{_FILE}::{check.case()}"
    part = f"{check.part}-" if check.part else ""
    if not isinstance(check, SurveyCheck) or check.key in _BEYOND:
        why = "it reads in ranks" if check.on == "rank" else "no virtual machine has what it reads"
        yield case(test, check.question(), why=f"{NOT_REHEARSED}: {why}")
        return
    for node in survey.names:
        found = [of_node(node, one) for one in check.judge(survey, node)]
        if found:
            yield case(f"{test}[{part}{node}]", check.question(), found, (node,))
