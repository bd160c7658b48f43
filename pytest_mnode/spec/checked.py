"""Criteria whose promises are those of checks: one key per question, which the check declares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import GetCoreSchemaHandler
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema

from pytest_mnode.errors import UsageError
from pytest_mnode.evidence.check import Check, catalogue, on_late_check
from pytest_mnode.spec.inventory import Criterion, Inventory

_KINDS: dict[str, Any] = {}
"""Types of promises by their key, of the keys that checks added."""


class CheckedCriterion(Criterion):
    """Base of a criterion of which checks add the keys: see `pytest_mnode.evidence.check`."""

    of: ClassVar[str]  # the criterion's name

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """What the page promises for the key of a check; None if it is left out."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Built at the first use of a spec: modules of checks may import any other."""
        for one in catalogue(cls.of):
            cls.add(one)
        return handler(source)

    @classmethod
    def add(cls, one: type[Check]) -> bool:
        """Add a check's keys, and whether one is new; raises UsageError for one of another type."""
        kind, new = one.promise_type(), False
        for key in one.all_keys():
            name = key.partition(".")[2]
            if name in cls.model_fields:
                if _KINDS.get(key, kind) != kind:
                    named = f"check {one.__name__} of {one.file}"
                    raise UsageError(f"{named}: {key} has another type of promise")
                continue
            _KINDS[key], new = kind, True
            field = FieldInfo.from_annotation(kind | None)
            field.default = None
            cls.model_fields[name] = field
            cls.__annotations__[name] = kind | None
        return new

    @classmethod
    def added_docs(cls) -> dict[str, str]:
        found: dict[str, str] = {}
        for one in catalogue(cls.of):
            for key in one.all_keys():
                found.setdefault(key.partition(".")[2], one.promise_doc())
        return {name: text for name, text in found.items() if text}

    def asked(self, spec: Any = None) -> Iterator[Any]:
        """The checks that the page promises, each part by itself. spec: the whole one."""
        for one in catalogue(self.of):
            for part in one.each or ("",):
                name = one.key.format(part=part).partition(".")[2]
                if (promise := getattr(self, name)) is not None:
                    yield one(promise, spec, part)

    def doubts(self, cluster: Inventory) -> Iterator[str]:
        """One line for each promise that cannot be right."""
        found = {
            f"criteria.{one.key.format(part=one.part)}{text}": None
            for one in self.asked()
            for text in one.doubts(cluster)
        }
        yield from found


class PreflightCriterion(CheckedCriterion):
    """What holds on every node before anything is run. What is left out is not promised.

    Checks add their keys: see `pytest_mnode.evidence.check`.
    """

    of = "preflight"


def _add_late(one: type[Check]) -> None:
    for criterion in CheckedCriterion.__subclasses__():
        if _KINDS and one.key.partition(".")[0] == criterion.of and criterion.add(one):
            criterion.model_rebuild(force=True)


on_late_check(_add_late)
