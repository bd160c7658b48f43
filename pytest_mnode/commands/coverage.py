"""Say which clauses of a buyer's list are answered, by which tests, and which are not.

Of a certificate: what its tests found. Of a spec: what it promises. Of neither: what the suite has
a promise for. The list is a YAML page (docs/plan.md), or one that ships with the package: nvidia or
clustermax. The exit status is 1 if a clause is not answered, apart from those that no test of nodes
can answer.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mnode.commands.asked import note_version

if TYPE_CHECKING:
    from pytest_mnode.certificate import Certificate
    from pytest_mnode.spec import Spec
    from pytest_mnode.spec.clauses import ListedClause

_ANSWERED = ("pass", "promised", "can be promised")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "certificate", type=Path, nargs="?", help="certificate.json, or its directory"
    )
    parser.add_argument(
        "--against", required=True, metavar="FILE", help="YAML page, nvidia or clustermax"
    )
    parser.add_argument(
        "--spec", type=Path, metavar="FILE|profile:NAME", help="what this spec promises"
    )


def run(options: argparse.Namespace) -> int:
    from pytest_mnode.certificate.files import read_certificate
    from pytest_mnode.errors import UsageError
    from pytest_mnode.spec import load_spec
    from pytest_mnode.spec.clauses import read_clauses
    from pytest_mnode.table import aligned

    if options.certificate and options.spec:
        raise UsageError("--spec: a certificate has its own; give one of them")
    listed = read_clauses(options.against)
    certificate = read_certificate(options.certificate) if options.certificate else None
    if certificate is not None:
        note_version(certificate, options.certificate)
    spec = load_spec(options.spec) if options.spec else None
    named = _named_by(certificate, spec)
    rows, counted = [("clause", "", "by", "demands")], dict.fromkeys(_WORDS, 0)
    for name, clause in listed.clauses.items():
        state, by = _state(name, clause, (*clause.by, *named.get(name, ())), certificate, spec)
        counted[_group(state)] += 1
        rows.append((name, state, ", ".join(by), clause.text))
    print(*aligned(rows), sep="\n")
    for name in named.keys() - listed.clauses.keys():
        print(f"{name}: named by the spec, and no clause of {listed.name}")
    print("; ".join(f"{_WORDS[group]}: {n}" for group, n in counted.items() if n))
    return int(bool(counted["open"]))


_WORDS = {
    "answered": "answered",
    "open": "not answered",
    "outside": "no test of nodes can answer",
}


def _group(state: str) -> str:
    return "answered" if state in _ANSWERED else "outside" if state == "outside" else "open"


def _named_by(certificate: Certificate | None, spec: Spec | None) -> dict[str, tuple[str, ...]]:
    """Promises by clause, as a spec names them itself."""
    if certificate is not None:
        return {one.name: one.keys for one in certificate.requirements}
    return dict(spec.requirements) if spec is not None else {}


def _state(
    name: str,
    clause: ListedClause,
    keys: tuple[str, ...],
    certificate: Certificate | None,
    spec: Spec | None,
) -> tuple[str, list[str]]:
    """The state of a clause, and by what it is answered, or why it is not."""
    from pytest_mnode.certificate.certificate import clauses_of

    if not keys:
        return ("outside", [clause.outside]) if clause.outside else ("no promise", [])
    if certificate is not None:
        page = certificate.run.spec.page
        [found] = clauses_of({name: tuple(dict.fromkeys(keys))}, certificate.criteria, page)
        left = [f"{key} not judged" for key in found.open]
        return found.verdict.value, [*left, *_functions(found.tests)]
    if spec is None:
        return "can be promised", list(keys)
    left = [f"{key} not promised" for key in keys if spec.value_of(key) is None]
    return ("not promised", left) if left else ("promised", list(keys))


def _functions(tests: tuple[str, ...]) -> Iterator[str]:
    """The functions of tests, each once, with how many of its cases there were."""
    counted: dict[str, int] = {}
    for test in tests:
        function = test.rpartition("/")[2].partition("[")[0]
        counted[function] = counted.get(function, 0) + 1
    for function, number in counted.items():
        yield f"{function} × {number}" if number > 1 else function
