"""The page of all checks: `python -m pytest_mnode.checks.docs > docs/checks.md`."""

from __future__ import annotations

import inspect
import textwrap
import types
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from pytest_mnode.evidence.check import CRITERIA, Check, catalogue
from pytest_mnode.spec.fields import field_docs

_HEAD = """\
# Checks of nodes, devices and placement

Each check is one class in one file, from which follow its key of the spec, its test, its entry in a
draft of `--mnode-discover`, its red run on the rack, and its place on this page. To write one of
your own, see [own checks](own-checks.md); [preflight](preflight.md) says how those of nodes run,
[the spec](spec.md#each-rank-alone) how devices are compared, and [placement](placement.md) what is
near.

This page is made from the checks: `python -m pytest_mnode.checks.docs > docs/checks.md`.
"""
_WIDTH = 100
_READ = {
    "node": "on each node, with preflight's survey",
    "rank": "in each rank of a world over all nodes",
    "world": "in all ranks of a world together, each on its device",
}
_SEVERAL: dict[Any, str] = {
    **dict.fromkeys((tuple, list), "a list, each {}"),
    Mapping: "a mapping, each {} to {}",
}
_WRITTEN = {"int": "a whole number", "float": "a number", "str": "a text", "bool": "true or false"}


def page() -> str:
    """The text of docs/checks.md."""
    return "\n".join([_HEAD, *(_section(one) for name in CRITERIA for one in catalogue(name))])


def _section(one: type[Check]) -> str:
    question, _, rest = inspect.cleandoc(one.__doc__ or "").partition("\n")
    about = " ".join(rest.split())
    read = "on each node, by itself" if one.on == "node" and one.reads() else _READ[one.on]
    keys = ", ".join(f"`{key}`" for key in one.all_keys())
    promise = " ".join(one.promise_doc().split())
    facts = [
        f"key {keys}: {written(one.promise_type())}. {promise}".rstrip(),
        *(f"`{key}`: {text}" for key, text in _fields(one.promise_type())),
        f"read {read}; test `{one.case()}`, file `{one.__module__.replace('.', '/')}.py`",
    ]
    if one.on != "world" and one.limit_s is not Check.limit_s:
        facts.append(
            "has a limit of its own, and loads what it tests; other readings take 20 s at most"
        )
    if one.drafts():
        facts.append("drafted by `--mnode-discover`")
    if one.fault:
        fault = one.fault.format(node="NODE", other="OTHER")
        promised = f"promised `{one.promised_as}`" if one.promised_as else "as the rack promises"
        facts.append(f"turned red by `--mnode-fault={fault}`, {promised}")
    if one.stops:
        facts.append(f"a failure stops: {', '.join(one.stops)}")
    lines = [f"## {question}", ""]
    lines += [*textwrap.wrap(about, _WIDTH, break_on_hyphens=False), ""] if about else []
    lines += [f"- {fact}" for fact in facts]
    return "\n".join(lines) + "\n"


def _fields(kind: Any) -> Iterator[tuple[str, str]]:
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return
    docs = field_docs(kind)
    for name, field in kind.model_fields.items():
        key = field.alias or name
        yield key, f"{_of_field(field)}. {' '.join(docs.get(key, '').split())}".rstrip()


def _of_field(field: FieldInfo) -> str:
    form = _schema_form(field.metadata)
    return form or written(field.annotation)


def written(kind: Any) -> str:
    """How a promise of a type is written, in words."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return ", ".join(f"`{one}`" for one in args)
    if hasattr(kind, "__metadata__"):
        return _schema_form(kind.__metadata__) or written(kind.__origin__)
    if origin in (Union, types.UnionType):
        return " or ".join(written(one) for one in args if one is not type(None))
    if (form := _SEVERAL.get(origin)) is not None:
        return form.format(*map(written, args))
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return f"`{{{', '.join(f.alias or name for name, f in kind.model_fields.items())}}}`"
    return _WRITTEN.get(getattr(kind, "__name__", ""), str(kind))


def _schema_form(metadata: Any) -> str:
    """The form of a quantity, such as "a size, such as '1 MiB' (units …)"."""
    for one in metadata:
        described = (getattr(one, "json_schema", None) or {}).get("description", "")
        if described.startswith("Form: "):
            return str(described.removeprefix("Form: "))
    return ""


if __name__ == "__main__":
    print(page(), end="")
