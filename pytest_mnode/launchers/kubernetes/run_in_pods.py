"""What is known of a run whose nodes are pods: a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RunInPods:
    """What pods of a job need to be like the run's own.

    context, namespace: of the API server, "" for the default. manifest: the user's, or the default.
    owner: an owner reference to the run's object, with which goes what belongs to it.
    packages: directory of this package, by node; "" where it is the same as here.
    engine, queue: of the spec's scheduler.
    """

    context: str
    namespace: str
    manifest: Mapping[str, Any]
    owner: Mapping[str, str]
    packages: Mapping[str, str]
    engine: str | None = None
    queue: str | None = None
