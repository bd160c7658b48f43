"""Certificates kept in the directory of `--mnode-history`, one file per run."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pytest_mnode.certificate import difference
from pytest_mnode.certificate.certificate import SCHEMA_VERSION, Certificate
from pytest_mnode.certificate.coverage import Coverage, NodeCoverage, coverage_of, without_passes
from pytest_mnode.certificate.difference import MOST_RUNS, history_of
from pytest_mnode.certificate.files import json_text, read_certificate, replace_file
from pytest_mnode.certificate.rejudge import by_facts
from pytest_mnode.certificate.run_facts import SpecFacts, changes, in_words
from pytest_mnode.certificate.statement import signing_fault
from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.hosts import compress
from pytest_mnode.launchers.node import count
from pytest_mnode.measurement import listed
from pytest_mnode.path_rates import State
from pytest_mnode.spec import Spec

_NAME = re.compile(r"\d{8}T\d{6}\.\d{6}Z-([0-9a-f]{8})\.json")
_STAMP = "%Y%m%dT%H%M%S.%fZ"


@dataclass(frozen=True, slots=True)
class EarlierRuns:
    """Certificates against one spec, oldest first. left_out: those not believed, and why.

    coverage: what the run that has just ended may take from each of them: see `believed`. notes:
    how some of them were read.
    """

    certificates: tuple[Certificate, ...] = ()
    left_out: tuple[str, ...] = ()
    coverage: tuple[Coverage, ...] = ()
    notes: tuple[str, ...] = ()


def earlier_runs(
    directory: Path | None,
    facts: SpecFacts,
    before: str = "",
    *,
    spec: Spec | None = None,
    key: Path | None = None,
) -> EarlierRuns:
    """The latest certificates against the spec with these facts; none without a directory.

    The spec is the same if the keys that were set are, whatever the defaults of the version that
    judged. Those whose passes may not have expired are all among them. Files that cannot be read or
    believed raise no error, which would lose the run that has just ended. before: name of a kept
    file; it and those after it are left out. spec: the spec itself; each certificate has to promise
    what it promises. key: a public key; each has to be signed by its owner.
    """
    if directory is None:
        return EarlierRuns()
    try:
        files = sorted(directory.iterdir())
    except FileNotFoundError:  # the first run
        return EarlierRuns()
    except OSError as error:
        return EarlierRuns(left_out=(f"{directory}: {(error.strerror or 'unreadable').lower()}",))
    files = [path for path in files if not before or path.name < before]
    kept = [path for path in files if path.name.endswith(f"-{facts.digest[:8]}.json")]
    same, left_out = _of_other_digests(files, kept, facts, spec)
    kept = sorted({*kept, *same})
    found: list[Certificate] = []
    for path in _still_of_use(kept, spec):
        try:
            certificate = read_certificate(path)
        except UsageError as error:
            left_out.append(str(error))
            continue
        if not (facts.page or certificate.run.spec.digest == facts.digest):
            continue  # only the start of the digests is equal
        if why := _doubt(certificate, path, facts, spec) or signing_fault(path, key):
            left_out.append(f"{path}: {why}")
        else:
            found.append(certificate)
    ends = {one.run.end for one in found}
    validity = spec.certificate.valid_for_s if spec else None
    others = [changes(one.run.spec, facts, spec).defaults for one in found]
    coverage = tuple(
        believed(_judged_again(one, facts) if other else one, validity, ends)
        for one, other in zip(found, others, strict=True)
    )
    return EarlierRuns(tuple(found), tuple(left_out), coverage, tuple(_notes(found, others)))


def _judged_again(certificate: Certificate, facts: SpecFacts) -> Certificate:
    """The certificate of a run that judged by other defaults, judged by those of now.

    A pass that cannot be judged again does not count, nor does that of a path.
    """
    cases = iter(by_facts(certificate, facts).cases)
    criteria = tuple(
        replace(one, cases=tuple(next(cases) for _ in one.cases)) for one in certificate.criteria
    )
    paths = tuple(map(without_passes, certificate.coverage.paths))
    coverage = replace(certificate.coverage, paths=paths)
    return replace(certificate, criteria=criteria, coverage=coverage)


def _notes(
    found: Sequence[Certificate], others: Sequence[Mapping[str, tuple[Any, Any]]]
) -> Iterator[str]:
    """How earlier certificates were read, where that is not as they were written. others: defaults
    of each that have another value now."""
    versions = Counter(one.read_version for one in found)
    for version in sorted(versions.keys() - {SCHEMA_VERSION}):
        yield f"{count(versions[version], 'run')} of schema version {version}"
    by_defaults = Counter(tuple(in_words(other)) for other in others if other)
    for changed, number in by_defaults.items():
        yield (
            f"{count(number, 'run')} judged by other defaults ({listed(changed, 4, ', ')}); their "
            "passes count as far as they can be judged again"
        )


def _still_of_use(kept: Sequence[Path], spec: Spec | None) -> list[Path]:
    """The latest MOST_RUNS, and with a spec all whose passes may not have expired."""
    latest = list(kept[-MOST_RUNS:])
    if spec is None:
        return latest
    try:
        oldest = datetime.now(UTC) - timedelta(seconds=spec.certificate.valid_for_s)
    except OverflowError:
        return list(kept)
    return [p for p in kept[:-MOST_RUNS] if p.name >= oldest.strftime(_STAMP)] + latest


def _of_other_digests(
    files: Sequence[Path], kept: Sequence[Path], facts: SpecFacts, spec: Spec | None
) -> tuple[list[Path], list[str]]:
    """Files of other digests whose spec is the same, and why the history of this spec's name ends.

    The reason is given once: no more after the first run that is kept with the new digest.
    """
    if not facts.page:
        return [], []
    groups: dict[str, list[Path]] = {}
    for path in files:
        if (name := _NAME.fullmatch(path.name)) and path not in kept:
            groups.setdefault(name[1], []).append(path)
    same, why = [], []
    for paths in groups.values():
        earlier = _latest_spec(paths)
        if earlier is None or earlier.name != facts.name:
            continue
        changed = in_words(changes(earlier, facts, spec).given)
        if not changed:
            same += paths
        elif not kept or paths[-1].name > kept[-1].name:
            runs = count(len(paths), "run")
            why.append(f"{runs}, as spec {facts.name} was another: {listed(changed, 4, ', ')}")
    return same, why


def _latest_spec(paths: Sequence[Path]) -> SpecFacts | None:
    """The spec of the latest file that can be read; None if all are of another version."""
    for path in reversed(paths):
        with contextlib.suppress(UsageError):
            return read_certificate(path).run.spec
    return None


def _doubt(certificate: Certificate, path: Path, facts: SpecFacts, spec: Spec | None) -> str:
    """Why a kept certificate is not believed; "" if it is."""
    run = certificate.run
    if run.rehearsal is not None or path.name != _kept_name(certificate):
        return "it is a rehearsal" if run.rehearsal else "its name is not that of its run and spec"
    if run.start > run.end or len(set(run.nodes)) < len(run.nodes):
        return "its run ends before it begins, or names a node twice"
    named = {name for one in certificate.criteria for case in one.cases for name in case.nodes}
    if strangers := sorted(named - set(run.nodes)):
        return f"it has tests of nodes that were not in its run: {compress(strangers)}"
    if spec is not None:
        promised = {one.name for one in certificate.criteria if one.promised}
        if missing := [name for name in spec.promised_criteria if name not in promised]:
            return f"it lacks promised criteria: {', '.join(missing)}"
    checked = spec is not None or run.spec.digest != facts.digest
    if checked and (changed := in_words(changes(run.spec, facts, spec).given)):
        return f"its spec was another: {listed(changed, 4, ', ')}"
    return ""


def believed(
    certificate: Certificate, validity_s: float | None, ends: Container[datetime]
) -> Coverage:
    """What a later run may take from a kept certificate: its own run's states, and all bad news.

    The states of its own run have to follow from the criteria in the file, whatever it says of
    nodes, and a pass holds as long as the run's end and the spec's validity allow. Passes of other
    runs need files of their own. ends: ends of all believed runs.
    """
    run, cover = certificate.run, certificate.coverage
    own_run = run if validity_s is None else replace(run, validity_s=validity_s)
    own = {node.name: node for node in coverage_of(own_run, certificate.criteria).nodes}
    blocks = (
        replace(block, rates=block.rates.of(set(run.nodes)))
        if block.date == run.end
        else without_passes(block)
        for block in cover.paths
        if block.date == run.end or block.date not in ends
    )
    return replace(
        cover,
        nodes=(
            *(_believed(node, own.pop(node.name, None)) for node in cover.nodes),
            *own.values(),
        ),
        paths=tuple(block for block in blocks if block.rates.nodes),
    )


def _believed(node: NodeCoverage, own: NodeCoverage | None) -> NodeCoverage:
    """The node's state: of its own run, what the criteria say of it."""
    if own is not None and own.date == node.date:
        return replace(own, rails=node.rails)
    if node.state is not State.PASSED:
        return node
    why = "its pass is in no certificate of its own"
    return replace(node, state=State.NOT_TESTED, date=None, until=None, evidence=why)


def with_history(certificate: Certificate, earlier: EarlierRuns) -> Certificate:
    """The certificate with its history: of runs that ended before it."""
    end = certificate.run.end
    before = [one for one in earlier.certificates if one.run.end <= end]
    later = (one.run.end for one in earlier.certificates if one.run.end > end)
    wrong = (f"{one:%Y-%m-%d %H:%M}: it ended after this run: a wrong clock" for one in later)
    history = history_of(certificate, before, [*earlier.left_out, *wrong], earlier.notes)
    found = replace(certificate, history=history)
    if not before:
        return found
    since = tuple(difference.changes(before[-1], found))
    return replace(certificate, history=replace(history, since=since))


def read_with_history(path: Path) -> Certificate:
    """The certificate in a file or directory; one of `keep` with all trends of those before it.

    Raises UsageError as `read_certificate` does.
    """
    certificate = read_certificate(path)
    if certificate.history is not None or path.name != _kept_name(certificate):
        return certificate
    earlier = earlier_runs(path.parent, certificate.run.spec, path.name)
    history = history_of(
        certificate, earlier.certificates, earlier.left_out, earlier.notes, most_trends=None
    )
    return replace(certificate, history=history)


def keep(directory: Path, certificate: Certificate) -> Path:
    """Write a certificate for later runs, without its history, which they compute themselves."""
    path = directory / _kept_name(certificate)
    directory.mkdir(parents=True, exist_ok=True)
    replace_file(path, json_text(replace(certificate, history=None)))
    return path


def _kept_name(certificate: Certificate) -> str:
    """Named by the run's end and spec, so that names sort in the order of the runs."""
    return f"{certificate.run.end.strftime(_STAMP)}-{certificate.run.spec.digest[:8]}.json"
