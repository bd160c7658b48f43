"""Promises about the nodes themselves, before anything runs on them: one key per question."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pydantic import GetCoreSchemaHandler
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema

from pytest_mnode.errors import UsageError
from pytest_mnode.evidence.check import Check, catalogue, on_late_check
from pytest_mnode.spec.inventory import Criterion, Inventory

_KINDS: dict[str, Any] = {}
"""Types of promises by their key, of the keys that checks added."""


class PreflightCriterion(Criterion):
    """What holds on every node before anything is run. What is left out is not promised.

    Checks add their keys: see `pytest_mnode.evidence.check`.
    """

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """What the page promises for the key of a check; None if it is left out."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Built at the first use of a spec: modules of checks may import any other."""
        for one in catalogue():
            cls.add(one)
        return handler(source)

    @classmethod
    def add(cls, one: type[Check]) -> bool:
        """Add a check's key, and whether it is new; raises UsageError for one of another type."""
        name, kind = one.key.removeprefix("preflight."), one.promise_type()
        if name in cls.model_fields:
            if _KINDS.get(name, kind) != kind:
                named = f"check {one.__name__} of {one.file}"
                raise UsageError(f"{named}: {one.key} has another type of promise")
            return False
        _KINDS[name] = kind
        field = FieldInfo.from_annotation(kind | None)
        field.default, field.description = None, one.promise_doc() or None
        cls.model_fields[name] = field
        cls.__annotations__[name] = kind | None
        return True

    def doubts(self, cluster: Inventory) -> Iterator[str]:
        """One line for each promise that cannot be right."""
        for key in dict.fromkeys(one.key for one in catalogue()):
            promise = getattr(self, key.removeprefix("preflight."))
            for one in catalogue() if promise is not None else ():
                if one.key == key:
                    yield from (f"criteria.{key}{text}" for text in one(promise).doubts(cluster))


def _add_late(one: type[Check]) -> None:
    if _KINDS and PreflightCriterion.add(one):
        PreflightCriterion.model_rebuild(force=True)


on_late_check(_add_late)
