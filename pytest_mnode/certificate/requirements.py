"""Clauses of a buyer's list, by the tests that answer them. Pure.

A clause names promises by their keys. It is kept only if each of them was judged and kept: of a
clause about two promises, one of which the spec does not make, nobody knows half.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic.dataclasses import dataclass

from pytest_mnode.certificate.results import CaseResult, CriterionResult, CriterionVerdict

_WORST_FIRST = (
    CriterionVerdict.FAIL,
    CriterionVerdict.INCONCLUSIVE,
    CriterionVerdict.DID_NOT_RUN,
    CriterionVerdict.NOT_REHEARSED,
    CriterionVerdict.NOT_PROMISED,
    CriterionVerdict.PASS,
)


@dataclass(frozen=True)
class Clause:
    """A clause. keys: of its promises. open: those that no test answered. tests: ids of the tests
    that did."""

    name: str
    keys: tuple[str, ...]
    verdict: CriterionVerdict
    open: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()

    def __str__(self) -> str:
        left = f" ({', '.join(self.open)} not judged)" if self.open else ""
        return f"{self.name} {self.verdict.value}{left}"


def clauses_of(
    requirements: Mapping[str, Sequence[str]],
    criteria: Sequence[CriterionResult],
    page: Mapping[str, Any],
) -> tuple[Clause, ...]:
    """Clauses by what a run found. requirements: keys by clause. page: the spec, all its values."""
    return tuple(_clause(name, tuple(keys), criteria, page) for name, keys in requirements.items())


def asks_for(case: CaseResult, criterion: str, key: str) -> bool:
    """Whether a test is about the promise `key`, or about a part of it.

    A test of fabric.all_reduce_busbw answers for fabric, and for a key below that; one that asks
    for the whole criterion does not answer for a key of it.
    """
    if key == criterion:
        return True
    asked = [case.lacks, *case.promises]
    return any(
        one == key or one.startswith(f"{key}.") or ("." in one and key.startswith(f"{one}."))
        for one in asked
        if one
    )


def _clause(
    name: str,
    keys: tuple[str, ...],
    criteria: Sequence[CriterionResult],
    page: Mapping[str, Any],
) -> Clause:
    found = {key: tuple(_answers(key, criteria)) if _is_promised(key, page) else () for key in keys}
    return Clause(
        name,
        keys,
        _worst(_verdict(key, cases, criteria) for key, cases in found.items()),
        tuple(key for key, cases in found.items() if not cases),
        tuple(dict.fromkeys(case.test for cases in found.values() for case in cases)),
    )


def _is_promised(key: str, page: Mapping[str, Any]) -> bool:
    """Whether a spec has the key: a test of preflight.versions judges only what it promises."""
    value: Any = page.get("criteria", {})
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value is not None


def _answers(key: str, criteria: Sequence[CriterionResult]) -> Iterator[CaseResult]:
    """The tests about a promise that were judged."""
    for criterion in criteria:
        if criterion.name == key.partition(".")[0] and criterion.excuse is None:
            yield from (one for one in criterion.judged if asks_for(one, criterion.name, key))


def _verdict(
    key: str, cases: Sequence[CaseResult], criteria: Sequence[CriterionResult]
) -> CriterionVerdict:
    whole = (
        one.verdict for one in criteria if one.name == key
    )  # such as: its tests judged nothing
    return _worst([*(case.verdict for case in cases), *(whole if cases else ())])


def _worst(verdicts: Iterable[CriterionVerdict]) -> CriterionVerdict:
    """The worst of verdicts; not promised if there are none."""
    return min(verdicts, key=_WORST_FIRST.index, default=CriterionVerdict.NOT_PROMISED)
