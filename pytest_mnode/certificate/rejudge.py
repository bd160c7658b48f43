"""A certificate judged by another spec, from the same measurements, without a new run. Pure.

The rows that checks read are judged anew by the rules of these checks, where the evidence of the
run is there. Any other bound keeps the keys of the spec that it is computed from, with their
values: its terms. If a term has another value, the limit changes by the same factor. A bound that
is not such a product, or a measurement that was made in another way than the other spec requires,
cannot be judged again: inconclusive, never passed. A bound without terms, as of versions
that had none, is not judged again where a key of its promise differs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from pytest_mnode.certificate.certificate import Certificate, build_certificate
from pytest_mnode.certificate.gathered import Kept
from pytest_mnode.certificate.results import CaseResult, criterion_name
from pytest_mnode.certificate.run_facts import (
    RunFacts,
    SpecFacts,
    changes,
    facts_of,
    leaves,
    unconfirmed,
)
from pytest_mnode.checks.node.reachable import LOSSY_PATHS
from pytest_mnode.checks.world_check import WorldCheck
from pytest_mnode.criteria.port_counters import watching as ports
from pytest_mnode.criteria.port_counters.judging import located
from pytest_mnode.criteria.preflight.survey_check import of_node
from pytest_mnode.culprit import Culprit
from pytest_mnode.errors import UsageError
from pytest_mnode.evidence.check import CHECKS, CRITERIA, Check, load
from pytest_mnode.evidence.file import NAME
from pytest_mnode.evidence.row import Row
from pytest_mnode.measurement import Bound, HeadlineMark, Measurement, Relation, Term
from pytest_mnode.spec import Spec, doubts
from pytest_mnode.spec.alpha_beta import MODEL_KEYS, expected_again
from pytest_mnode.spec.inventory import COMPARED_ONLY, USED_BY
from pytest_mnode.spec.quantity import DURATION, RATE, SIZE

_NO_INVENTORY = frozenset(
    ["criteria", "name", "confirmed", "emulated", "nodes", "not_promised", "certificate", "power"]
)
"""Parts of a spec that no measurement depends on, and parts that are compared separately."""

Leaves = Mapping[str, Any]
"""Values of a spec by dotted key, such as "criteria.fabric.all_reduce_busbw.repeats"."""


ByRule = Callable[[CaseResult], tuple[Measurement, ...] | str]
"""What the rule of a check finds in the rows of a case, or why it cannot judge them; () for a case
without such rows."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A certificate's cases judged again. undecided: what cannot be judged, and the reasons."""

    cases: tuple[CaseResult, ...]
    undecided: tuple[str, ...]


@dataclass(slots=True)
class _Specs:
    """Two specs: the one measured against and the other."""

    before: Leaves
    after: Leaves
    changed: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        keys = {*self.before, *self.after}
        self.changed = frozenset(k for k in keys if self.before.get(k) != self.after.get(k))

    def keys(self, one: Measurement, asked: Sequence[str]) -> dict[str, str]:
        """Keys that a bound is computed from, leaves or sections, each with the word for it."""
        if one.expected is None:
            return {}
        found = {}
        for word in (term.key for term in one.expected.terms):
            below = [f"criteria.{key}.{word}" for key in asked]
            for key in (word, f"criteria.{word}") if "." in word else below:
                if any(_is_below(leaf, key) for leaf in (*self.before, *self.after)):
                    found[key] = word
                    break
        return found

    def measured_with(self, criterion: str) -> list[str]:
        """Keys of the cluster with other values, with which this criterion measures otherwise."""
        return [
            key
            for key in self.changed - COMPARED_ONLY
            if (section := key.partition(".")[0]) not in _NO_INVENTORY
            and criterion in USED_BY.get(section, (criterion,))
        ]


def rejudge(
    cases: Sequence[CaseResult],
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    by_rule: ByRule = lambda _: (),
) -> Judged:
    """The cases judged by another spec. before, after: the specs as plain values by their keys."""
    specs = _Specs(dict(leaves(before)), dict(leaves(after)))
    bounds = {
        key for case in cases for one in case.measurements for key in specs.keys(one, _asked(case))
    }
    found, undecided = [], []
    for case in cases:
        measured = by_rule(case)
        unusable = measured if isinstance(measured, str) else ""
        if measured and not isinstance(measured, str):
            found.append(_with(case, measured))
            continue
        if not unusable and (why := _unmeasured(case, specs)):
            why = f"cannot be judged again: {why}"
            undecided.append(f"{criterion_name(case.test)}: {why}")
            found.append(replace(case, outcome="skipped", message=why))
            continue
        again = [
            _undecided(one, unusable)
            if unusable and one.expected
            else _judge(one, case, specs, bounds)
            for one in case.measurements
        ]
        undecided += [
            f"{criterion_name(case.test)}: {new.name}: {new.note}"
            for old, new in zip(case.measurements, again, strict=True)
            if old.value is not None and new.value is None
        ]
        found.append(_with(case, tuple(again)))
    return Judged(tuple(found), tuple(undecided))


def _unmeasured(case: CaseResult, specs: _Specs) -> str:
    """Why a case has no measurement to judge by the other spec; "" if it has, or needs none."""

    def says(leaves: Leaves, key: str) -> bool:
        return any(
            _is_below(leaf, key) or _is_below(leaf, f"criteria.{key}")
            for leaf, value in leaves.items()
            if value is not None and value != []
        )

    def changed(*keys: str) -> list[str]:
        return [
            leaf
            for leaf in sorted(specs.changed)
            if any(_is_below(leaf, key) or _is_below(leaf, f"criteria.{key}") for key in keys)
        ]

    if case.lacks and changed(case.lacks) and says(specs.after, case.lacks):
        return f"{case.lacks} was not promised, and not measured"
    judged = any(one.expected for one in case.measurements)
    if case.outcome == "passed" and not judged and (other := changed(*case.promises)):
        return f"its test records no bound, and passed with another {', '.join(other[:3])}"
    return ""


def _judge(one: Measurement, case: CaseResult, specs: _Specs, bounds: set[str]) -> Measurement:
    """The measurement with its new bound; without a value if it cannot be judged again."""
    if one.expected is None or not specs.changed:
        return one
    asked = _asked(case)
    named = specs.keys(one, asked)
    hits = [leaf for leaf in specs.changed if any(_is_below(leaf, key) for key in named)]
    mine = [leaf for leaf in specs.changed if any(_is_below(leaf, f"criteria.{k}") for k in asked)]
    others = [leaf for leaf in mine if not any(_is_below(leaf, key) for key in bounds)]
    exact = one.expected.relation is Relation.EQUALS
    if not exact or hits:
        around = specs.measured_with(criterion_name(case.test))
        others += [leaf for leaf in around if leaf not in hits]
    if others:
        return _undecided(one, f"measured with another {', '.join(sorted(others)[:3])}")
    if not hits:
        if exact or named or not mine:
            return one
        return _undecided(one, "it is not known which keys of the spec its bound is computed from")
    limit = _limit(one.expected, hits, named, specs)
    if limit is None or exact or one.expected.tolerance:
        return _undecided(one, f"its bound is no product of {', '.join(sorted(hits)[:3])}")
    values = ", ".join(
        f"{key} {' → '.join(_with_unit(specs.before.get(key), specs.after.get(key), one.source))}"
        for key in sorted(hits)
    )
    return replace(
        one,
        expected=Bound(one.expected.relation, limit, terms=_terms(one.expected, named, specs)),
        culprit=_culprit(one.culprit, one.expected, limit),
        headline=_headline(one.headline, one.expected, hits, specs),
        source=f"{one.source}; judged again: {values}",
        detection=one.detection if one.detection and one.detection.too_noisy else None,
    )


def _limit(
    bound: Bound, hits: Sequence[str], named: Mapping[str, str], specs: _Specs
) -> float | None:
    """The new limit; None if the old one is not a product of the keys that changed."""
    formula = [term.key for term in bound.terms]
    limit = bound.limit
    if modelled := _modelled(bound, specs):
        limit *= modelled[0]
        hits = [leaf for leaf in hits if named.get(leaf) not in MODEL_KEYS]
    for leaf in hits:
        old: Any = specs.before.get(leaf)
        new: Any = specs.after.get(leaf)
        factors = formula.count(named.get(leaf, ""))
        if factors != 1 or not _is_number(old) or not _is_number(new):
            return None
        if old:
            limit *= new / old
        elif len(formula) == 1 and limit == old:
            limit = new  # such as a limit of errors that was 0 and is 3
        else:
            return None
    return limit if math.isfinite(limit) else None


def _culprit(named: Culprit | None, bound: Bound, limit: float) -> Culprit | None:
    """Who may break another limit: besides those who broke the bound, anybody breaks a stricter
    one, and of several perhaps not all break a looser one."""
    if named is None or limit == bound.limit:
        return named
    if (limit < bound.limit) is (bound.relation is Relation.AT_MOST):
        return Culprit.merged(named, [named, Culprit("")])
    return named.suspected if len(named.nodes) > 1 else named


def _modelled(bound: Bound, specs: _Specs) -> tuple[float, float] | None:
    """Factors by which the model's busbw and its line differ; None for a bound of another kind."""
    before = expected_again(bound.terms, specs.before)
    after = expected_again(bound.terms, specs.after)
    return (after[0] / before[0], after[1] / before[1]) if before and after else None


def _headline(
    mark: HeadlineMark | None, bound: Bound, hits: Sequence[str], specs: _Specs
) -> HeadlineMark | None:
    """The mark with its whole, such as the rate of the line, which follows the cluster's own keys
    and not those of the promise."""
    if mark is None or mark.of is None:
        return mark
    if modelled := _modelled(bound, specs):
        return replace(mark, of=mark.of * modelled[1])
    of = mark.of
    for leaf in hits:
        if not leaf.startswith("criteria.") and specs.before[leaf]:
            of *= specs.after[leaf] / specs.before[leaf]
    return replace(mark, of=of)


def _terms(bound: Bound, named: Mapping[str, str], specs: _Specs) -> tuple[Term, ...]:
    """The terms of the new bound."""
    leaf_of = {word: leaf for leaf, word in named.items()}
    return tuple(
        replace(term, value=_plain(specs.after.get(leaf_of.get(term.key, ""), term.value)))
        for term in bound.terms
    )


def _plain(value: Any) -> float | str:
    return value if isinstance(value, int | float | str) else ""


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and value >= 0


def _with_unit(before: Any, after: Any, source: str) -> tuple[str, str]:
    """Both values in the unit that the source uses for the first; without one if it uses none."""
    if not (_is_number(before) and _is_number(after)):
        return str(before), str(after)
    one, other = Fraction(str(before)), Fraction(str(after))
    for kind in (RATE, SIZE, DURATION):
        if min(one, other) > 0 and kind.text(one) in source:
            return kind.text(one), kind.text(other)
    return f"{before:.15g}", f"{after:.15g}"


def _undecided(one: Measurement, why: str) -> Measurement:
    return replace(one, value=None, culprit=None, note=f"cannot be judged again: {why}")


def _with(case: CaseResult, measurements: tuple[Measurement, ...]) -> CaseResult:
    """The case with new measurements; they alone decide if only a measurement had failed it."""
    found = replace(case, measurements=measurements)
    return (
        replace(found, outcome="passed", message="", by_bounds=False) if case.by_bounds else found
    )


def _asked(case: CaseResult) -> tuple[str, ...]:
    """Keys of the spec that the test requested, else all of its criterion's, but of a criterion of
    checks none: a test there that requests none, as that of ports, depends on none."""
    name = criterion_name(case.test)
    return case.promises or (() if name in CRITERIA else (name,))


def _is_below(leaf: str, key: str) -> bool:
    return leaf == key or leaf.startswith(f"{key}.")


def by_facts(certificate: Certificate, after: SpecFacts, by_rule: ByRule = lambda _: ()) -> Judged:
    """The cases of a certificate judged by another spec. A key that neither spec sets, and that the
    certificate's version did not have, is no difference: an upgrade must not orphan a history."""
    before = certificate.run.spec
    page = {**dict(leaves(before.page)), **changes(before, after).added}
    cases = [case for criterion in certificate.criteria for case in criterion.cases]
    return rejudge(cases, page, after.page, by_rule)


def _rules(spec: Spec, run: RunFacts, kept: Kept, specs: _Specs) -> ByRule:
    """Judges by a spec what was read on nodes and measured by ranks, whatever the spec was that it
    was judged by before, if it was to be read alike. specs: the other one, and this."""
    load()
    nodes, environments = kept.survey(run.nodes), kept.environments(run.nodes, run.ranks)
    with_paths = nodes is not None and any(node.paths for node in nodes.nodes)
    of_nodes: dict[tuple[str, str], Check] = {}

    def judged(case: CaseResult) -> tuple[Measurement, ...] | str:
        of_ports = case.test.endswith(f"::{ports.TEST}")
        try:
            return by_ports(case) if of_ports else of_rule(case)
        except Exception as error:  # rows of any origin, and the rules of sites
            return f"its rows in {NAME}: {' '.join(f'{type(error).__name__}: {error}'.split())}"

    def of_rule(case: CaseResult) -> tuple[Measurement, ...] | str:
        whole = case.test.partition("::")[2]
        name, _, part = whole.removesuffix("]").partition("[")
        check = CHECKS.get(name)
        measured = case.stopped_by is None and case.outcome != "not promised"
        if check is None or not measured or (check.of_paths and not with_paths):
            return ()
        key = check.key.format(part=part)
        if (promise := spec.value_of(key)) is None or not (
            case.test in kept.rows
            if issubclass(check, WorldCheck)
            else len(case.nodes) == 1 and kept.has(check.on)
        ):
            return ()
        if others := _read_otherwise(check, key, case, specs):
            return (
                () if check.of_paths else f"measured with another {', '.join(sorted(others)[:3])}"
            )
        if issubclass(check, WorldCheck):
            return of_world(check(promise, spec, part), kept.rows[case.test], case.nodes)
        evidence: Any = environments if check.on == "rank" else nodes
        if evidence is None:
            return f"{NAME} does not have what all {check.on}s read"
        [node] = case.nodes
        part = part.removesuffix(node).removesuffix("-")
        # All its cases share what the rule compares.
        one = of_nodes.setdefault((name, part), check(promise, spec, part))
        return tuple(of_node(node, found) for found in one.judge(evidence, node))

    def of_world(
        check: WorldCheck, rows: Sequence[Row], of: Sequence[str]
    ) -> tuple[Measurement, ...] | str:
        if not _whole(rows, of):
            return f"{NAME} does not have the rows of all its ranks"
        return tuple(one for value in check.from_rows(rows) for one in check.by_rule(value))

    def by_ports(case: CaseResult) -> tuple[Measurement, ...] | str:
        rows = kept.rows.get(case.test, ())
        if not rows or case.stopped_by is not None or case.outcome == "not promised":
            return ()
        if others := [k for k in specs.changed if any(_is_below(k, key) for key in ports.READ_BY)]:
            return f"measured with another {', '.join(sorted(others)[:3])}"
        if {one.node for one in rows if one.node} != set(run.nodes):
            return f"{NAME} does not have the rows of all nodes"
        # Which paths lose datagrams is known only of losses that the other spec found.
        paths = [one for one in case.measurements if one.name == LOSSY_PATHS]
        return tuple(located(ports.judged(rows, spec), paths))

    return judged


def _whole(rows: Sequence[Row], nodes: Sequence[str]) -> bool:
    """Whether these are rows of all nodes of a test, of as many ranks of each, and of no rank
    without the one before it."""
    each = {(one.node, one.rank) for one in rows if one.node}
    ranks = Counter(node for node, _ in each)
    numbers = sorted(rank for _, rank in each if rank is not None)
    alike = ranks.keys() == set(nodes) and len(set(ranks.values())) == 1
    return alike and numbers == [*range(len(numbers))]


def _read_otherwise(one: type[Check], key: str, case: CaseResult, specs: _Specs) -> list[str]:
    """Keys with another value that decide what was read: see `Check.read_by`."""

    def whole(names: Iterable[str]) -> list[str]:
        return [(n if "." in n else f"criteria.{key}.{n}").rstrip(".") for n in names]

    def below(leaf: str, keys: Iterable[str]) -> bool:
        return any(_is_below(leaf, key) for key in keys)

    read_by = one.read_by | ({"", "*"} if one.of_paths else set())
    others, read, ruled = list[str](), whole(read_by - {"*"}), whole(one.compared_only)
    if "*" in read_by:
        others = specs.measured_with(key.partition(".")[0])
        asked = [f"criteria.{name}" for name in (key, *case.promises)]
        read += [k for k in specs.changed if k != f"criteria.{key}" and below(k, asked)]
    return others + [k for k in specs.changed if below(k, read) and not below(k, ruled)]


def rejudge_certificate(
    certificate: Certificate,
    spec: Spec,
    path: Path,
    kept: Kept | None = None,
) -> tuple[Certificate, tuple[str, ...]]:
    """The certificate of the same measurements judged by `spec`, and what cannot be judged again.

    kept: what was read, from the evidence of the run, which the rules of checks judge anew.
    Paths and earlier runs are left out, because they were judged by the other spec. Raises
    UsageError if the certificate does not contain the spec that it was judged by.
    """
    if not certificate.run.spec.page:
        raise UsageError("the certificate does not have the spec that it was judged by")
    facts = facts_of(spec, path)
    specs = _Specs(dict(leaves(certificate.run.spec.page)), dict(leaves(facts.page)))
    rules: tuple[ByRule, ...] = (_rules(spec, certificate.run, kept, specs),) if kept else ()
    found = by_facts(certificate, facts, *rules)
    run = replace(
        certificate.run,
        spec=facts,
        doubts=tuple(doubts(spec)),
        cluster_nodes=spec.nodes or certificate.run.cluster_nodes,
        validity_s=spec.certificate.valid_for_s,
        cut_short=(
            *unconfirmed(facts),
            *(w for w in certificate.run.cut_short if w not in unconfirmed(certificate.run.spec)),
        ),
    )
    skipped = {  # no test of these had anything to judge
        c.name: c.not_promised
        for c in certificate.criteria
        if c.not_promised and all(k.outcome in ("skipped", "not promised") for k in c.cases)
    }
    again = build_certificate(
        run=run,
        cases=found.cases,
        promised=spec.promised_criteria,
        not_promised=skipped | {n.question: n.reason for n in spec.not_promised},
    )
    return replace(again, installed=certificate.installed), found.undecided
