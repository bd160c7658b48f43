"""Helpers of all judges: of measurements without a value, and of nodes without an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_mnode import measurement
from pytest_mnode.criteria.preflight.answers import NodeSurvey
from pytest_mnode.criteria.preflight.node_links import networks_of, rarest_first
from pytest_mnode.culprit import Culprit
from pytest_mnode.evidence.rules import Subject
from pytest_mnode.measurement import Measurement
from pytest_mnode.spec import Spec
from pytest_mnode.spec.preflight import PreflightCriterion

__all__ = ["Subject", "networks_of", "rarest_first"]


def of_node(name: str, one: Measurement) -> Measurement:
    """A judge's measurement of a node: a culprit in plain words is this node's."""
    culprit = one.culprit
    if culprit is None or culprit.nodes or any(culprit.either):
        return one
    return replace(one, culprit=Culprit(culprit, name))


def promises(spec: Spec) -> PreflightCriterion:
    """The spec's promises of preflight; an empty criterion if the spec has no preflight."""
    return spec.criteria.preflight or PreflightCriterion.model_validate({})


def no_answer(node: NodeSurvey) -> str:
    """A node's name, and why its facts are missing."""
    return f"{node.name}: {node.problem or 'its survey gave no answer'}"


def why_unread(node: NodeSurvey, part: str) -> str:
    """A node's name, and why a part of its machine is missing."""
    if node.facts is None:
        return no_answer(node)
    return f"{node.name}: {node.facts.machine.unread.get(part, f'no {part}')}"


def listed(words: Sequence[str], most: int = 4) -> str:
    """Up to `most` distinct words joined by commas, and the number of further ones."""
    return measurement.listed(words, most, ", ")
