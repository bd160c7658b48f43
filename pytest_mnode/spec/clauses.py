"""Lists of a buyer's clauses: YAML pages, and two that ship with the package.

Reads no certificate: what a list says, and which of the promises it names.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import field_validator, model_validator

from pytest_mnode.errors import UsageError
from pytest_mnode.spec.fields import Section, Text
from pytest_mnode.spec.load import read_model
from pytest_mnode.spec.models import unknown_promise
from pytest_mnode.spec.profiles import default_spec_path


class ListedClause(Section):
    """One clause of a list."""

    text: str = ""
    """What it demands, in short."""
    by: tuple[Text, ...] = ()
    """Promises that answer it together, such as [fabric.all_reduce_busbw, preflight.rdma]."""
    outside: str = ""
    """Why no test of nodes answers it, such as: a contract."""

    @field_validator("by")
    @classmethod
    def _are_promises(cls, keys: tuple[str, ...]) -> tuple[str, ...]:
        for key in keys:
            if (why := unknown_promise(key)) is not None:
                raise ValueError(f"{key}: {why}")
        return keys


class ClauseList(Section):
    """A list of clauses, by their names."""

    name: Text = "clauses"
    source: str = ""
    clauses: dict[Text, ListedClause]

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, page: Any) -> Any:
        """A clause may be its text alone, and a list may have names or {id: …} entries."""
        listed = page.get("clauses") if isinstance(page, dict) else None
        if isinstance(listed, list):
            entries = [one if isinstance(one, dict) else {"id": one} for one in listed]
            listed = {
                str(one.get("id", "")): {key: value for key, value in one.items() if key != "id"}
                for one in entries
            }
        if isinstance(listed, dict):
            texts = {
                str(n): {"text": v} if isinstance(v, str) else v or {} for n, v in listed.items()
            }
            return page | {"clauses": texts}
        return page


def read_clauses(named: str) -> ClauseList:
    """The list in a YAML file, or one of the package by its name, such as nvidia.

    Raises SpecError for a fault of the page, UsageError for a name that is neither.
    """
    folder = default_spec_path().parent / "clauses"
    names = sorted(path.stem for path in folder.glob("*.yaml"))
    path = folder / f"{named}.yaml" if named in names else Path(named)
    if not path.is_file():
        close = get_close_matches(named, names, n=1)
        meant = f"did you mean {close[0]}? " if close else ""
        raise UsageError(
            f"--against={named}: no such file; {meant}accepted: a YAML file, or {', '.join(names)}"
        )
    return read_model(path, ClauseList)
