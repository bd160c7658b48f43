"""YAML text to plain values, stricter than YAML: a key stands once, and a fault names its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from pytest_mnode.errors import SpecError
from pytest_mnode.spec.quantity import shown

_KEY_TAGS = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge")


class _Loader(yaml.SafeLoader):
    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError):
            # what PyYAML's constructors raise for 2026-13-45 and the like, without a place
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(
                None, None, f"{shown(node.value)} is no {kind}; quote what is text", node.start_mark
            ) from None


def read_page(path: Path) -> dict[Any, Any]:
    """The mapping in the YAML file `path`.

    Raises SpecError, one line, where there is no such file, no YAML, no mapping, or a key twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        met = f"{error.object[error.start : error.start + 1]!r} at byte {error.start}"
        raise SpecError(f"{path}: {met} is not UTF-8; accepted: YAML in UTF-8") from None
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise SpecError(f"{path}: {reason}; accepted: a YAML file that can be read") from None
    try:
        bad_key = _bad_key(yaml.compose(text, _Loader), "", set())
        page = yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise SpecError(f"{path}: {where}not YAML: {error.problem or error.context}") from None
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise SpecError(f"{path}: line {line}: not YAML: {error.reason}") from None
    except RecursionError:
        raise SpecError(f"{path}: nested too deep; accepted: a mapping of keys to values") from None
    if bad_key:
        raise SpecError(f"{path}: {bad_key}")
    if not isinstance(page, dict):
        met = "it is empty" if page is None else f"met {shown(page)}"
        raise SpecError(f"{path}: {met}; accepted: a mapping of keys to values")
    return page


def plain(key: str) -> str:
    """`key` as it stands in a dotted path; quoted where it would break the line."""
    return key if key.isprintable() and len(key) <= 60 else shown(key)


def _bad_key(node: yaml.Node | None, path: str, seen: set[int]) -> str | None:
    if id(node) in seen:  # an alias, perhaps of something that holds it
        return None
    seen.add(id(node))
    children: list[tuple[str, yaml.Node]] = []
    if isinstance(node, yaml.SequenceNode):
        children = [(f"{path}[{i}]", child) for i, child in enumerate(node.value)]
    elif isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, child in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            name, line = str(key.value), key.start_mark.line + 1
            dotted = f"{path}.{plain(name)}" if path else plain(name)
            if key.tag not in _KEY_TAGS:
                return f"{dotted}: line {line}: this key is no text; accepted: text, or quote it"
            if name in lines:
                return (
                    f"{dotted}: key met twice, on lines {lines[name]} and {line}; "
                    f"accepted: each key once"
                )
            lines[name] = line
            children.append((dotted, child))
    found = (_bad_key(child, dotted, seen) for dotted, child in children)
    return next((fault for fault in found if fault), None)
