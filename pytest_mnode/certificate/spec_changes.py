"""What differs between the spec of a kept certificate and the spec of a run. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pytest_mnode.certificate.rejudge import leaves, page_of
from pytest_mnode.spec import Spec

_ABSENT = object()


def changed_keys(before: Mapping[str, Any], spec: Spec) -> list[str]:
    """Keys that have another value in `spec` than in the page `before`, as "key old → new".

    A key that the page does not have, because an upgrade added it, is a change only if the spec
    sets it. A key that only the page has counts if it has a value.
    """
    now = dict(leaves(page_of(spec)))
    given = dict(leaves(spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)))
    known = {key: value for key, value in leaves(before) if value or key in now}
    keys = sorted(known.keys() | (now.keys() & given.keys()))
    return [
        f"{key} {_shown(known.get(key, _ABSENT))} → {_shown(now.get(key, _ABSENT))}"
        for key in keys
        if known.get(key, _ABSENT) != now.get(key, _ABSENT)
    ]


def _shown(value: Any) -> str:
    return "nothing" if value is _ABSENT else json.dumps(value, ensure_ascii=False)
