"""What a certificate keeps of the spec that it was judged by, and what differs between two. Pure.

A spec is the keys that were set. A key that was not set has the default of the version that judged:
a later version may have another, and its specs are still the same, so that no upgrade ends a
history. What was judged by the other default is known, because every certificate has all values.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass as plain_dataclass
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import computed_field
from pydantic.dataclasses import dataclass

if TYPE_CHECKING:
    from pytest_mnode.spec import Spec

_ABSENT = object()
_DIGITS = 16


@dataclass(frozen=True)
class SpecFacts:
    """The spec that was certified against; the digest, of the keys that were set, tells two specs
    of one name apart.

    page: all of its values by key, so that the same measurements can be judged by another spec.
    given: keys that were set; None if the certificate's version did not note them. The values of
    the other keys are defaults.
    """

    name: str
    path: str
    digest: str
    page: dict[str, Any] = field(default_factory=dict)
    given: tuple[str, ...] | None = None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def defaults(self) -> str | None:
        """Version of the defaults: equal for two certificates of one digest that were judged by
        the same values; None if it is not known which values are defaults."""
        if self.given is None:
            return None
        given = set(self.given)
        values = sorted((key, value) for key, value in leaves(self.page) if key not in given)
        return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:_DIGITS]


def unconfirmed(spec: SpecFacts) -> tuple[str, ...]:
    """Why a run with this spec certifies nothing; () if its values were confirmed."""
    confirmed = spec.page.get("confirmed", True)
    return () if confirmed else (f"confirmed: false in {Path(spec.path).name}",)


def facts_of(spec: Spec, path: Path) -> SpecFacts:
    """The facts about its spec that a certificate keeps."""
    given = leaves(spec.model_dump(mode="json", by_alias=True, exclude_unset=True))
    return SpecFacts(
        spec.name, str(path), spec.digest(), page_of(spec), tuple(key for key, _ in given)
    )


def page_of(spec: Spec) -> dict[str, object]:
    """All values of a spec by key, including defaults; sizes in bytes, times in seconds."""
    page: dict[str, object] = spec.model_dump(mode="json", by_alias=True)
    return page


def leaves(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys of plain values, each with its value."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{at}.{key}" if at else str(key))
    else:
        yield at, value


@plain_dataclass(frozen=True, slots=True)
class Changes:
    """Keys with another value in a later spec, each with both values.

    given: keys that one of the two sets: the specs differ. defaults: keys that neither sets, whose
    default is another. added: keys that neither sets, in sections that both have, which only the
    later version knows.
    """

    given: Mapping[str, tuple[Any, Any]]
    defaults: Mapping[str, tuple[Any, Any]]
    added: Mapping[str, Any]


def changes(before: SpecFacts, after: SpecFacts, spec: Spec | None = None) -> Changes:
    """What differs between the specs of two certificates. spec: the later one itself, if known.

    A certificate of version 4 does not say which keys were set. It is known if its digest is that
    of the later spec by the rule of version 4; else each key that has another value counts as set.
    """
    one, other = dict(leaves(before.page)), dict(leaves(after.page))
    absent = tuple(f"{key}." for key, value in one.items() if value is None)
    # A key that only an older version has counts if it has a value.
    one = {key: value for key, value in one.items() if value or key in other}
    given = set(after.given or ())
    if before.given is not None:
        given |= set(before.given)
    elif spec is None or before.digest != digest_of_version_4(spec):
        given |= one.keys()
    different = {
        key: (one.get(key, _ABSENT), other.get(key, _ABSENT))
        for key in sorted(one.keys() | other.keys() | given)
        if one.get(key, _ABSENT) != other.get(key, _ABSENT)
    }
    unset = {key: values for key, values in different.items() if key not in given}
    added = {k: v[1] for k, v in unset.items() if v[0] is _ABSENT and not k.startswith(absent)}
    return Changes(
        {key: values for key, values in different.items() if key in given},
        {key: values for key, values in unset.items() if key not in added},
        added,
    )


def in_words(changed: Mapping[str, tuple[Any, Any]]) -> list[str]:
    """Changed keys as "key old → new"."""
    return [f"{key} {_shown(old)} → {_shown(new)}" for key, (old, new) in changed.items()]


def _shown(value: Any) -> str:
    return "nothing" if value is _ABSENT else json.dumps(value, ensure_ascii=False)


def digest_of_version_4(spec: Spec) -> str:
    """The digest of a spec by the rule of version 4: of all values but defaults."""
    page = spec.model_dump(mode="json", exclude_defaults=True)
    content = json.dumps(page, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()
