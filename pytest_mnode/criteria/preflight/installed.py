"""Software and settings of all nodes, as kept in the certificate. Pure."""

from __future__ import annotations

import hashlib
import json

from pytest_mnode.checks.node.same import PARTS, items_of
from pytest_mnode.criteria.preflight.answers import Survey
from pytest_mnode.installed import Fact, Installed
from pytest_mnode.launchers.hosts import compress
from pytest_mnode.spec import Spec

_MOST_VALUES = 8
"""Most values kept of one fact; 512 different values would be useless."""


def installed(survey: Survey, spec: Spec) -> Installed:
    """Versions, firmware, settings and a digest of the code; unread items are left out."""
    facts = []
    for part in PARTS:
        nodes: dict[str, dict[str, list[str]]] = {}
        for node in survey.nodes:
            items = items_of(node, spec, part)
            if part == "code" and items:
                text = json.dumps(dict(items), sort_keys=True)
                items = {part: hashlib.sha256(text.encode()).hexdigest()[:16]}
            for item, value in items.items():
                nodes.setdefault(item, {}).setdefault(value, []).append(node.name)
        for item, values in sorted(nodes.items()):
            most = sorted(values.items(), key=lambda entry: -len(entry[1]))[:_MOST_VALUES]
            facts.append(Fact(part, item, tuple((value, compress(who)) for value, who in most)))
    return Installed(tuple(facts))
