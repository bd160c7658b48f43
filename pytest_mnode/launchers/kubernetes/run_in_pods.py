"""Facts about a run whose nodes are pods, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RunInPods:
    """Settings that make the pods of a job like the run's own pods.

    context, namespace: of the API server, "" for the default. manifest: the user's, or the default.
    owner: an owner reference to the run's object; objects that have it are deleted with the run's.
    packages: directory of this package, by node; "" if it is the same as here.
    engine, queue: from the spec's scheduler.
    """

    context: str
    namespace: str
    manifest: Mapping[str, Any]
    owner: Mapping[str, str]
    packages: Mapping[str, str]
    engine: str | None = None
    queue: str | None = None
