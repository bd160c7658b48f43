"""Reads a YAML file into a `Spec`, or raises a line per fault: file, key, value, accepted form.

Stricter than YAML: each key may be given once, and an error names its line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from pytest_mnode.errors import SpecError
from pytest_mnode.spec.fields import PATTERNS, field_docs, keys_of, model_in
from pytest_mnode.spec.models import Spec
from pytest_mnode.spec.profiles import PREFIX, accepted_names, find_profile, spec_file
from pytest_mnode.spec.quantity import shown

Model = TypeVar("Model", bound=BaseModel)

_ACCEPTED = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "a mapping of keys to values",
    "mapping_type": "a mapping of keys to values",
    "finite_number": "a finite number",
    "float_parsing": "a number, such as 0.85",
    "float_type": "a number, such as 0.85",
    "greater_than": "a number above {gt:g}",
    "greater_than_equal": "a number of {ge:g} or more",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number",
    "int_type": "a whole number",
    "less_than": "a number below {lt:g}",
    "less_than_equal": "a number of {le:g} or less",
    "literal_error": "{expected}",
    "model_type": "a mapping of keys to values",
    "multiple_of": "a multiple of {multiple_of:g}",
    "string_type": "text",
    "too_short": "a list of {min_length} or more",
    "tuple_type": "a list, such as [a, b]",
}
_KEY_TAGS = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge")
_NUMBER_TAGS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_NOT_DECIMAL = re.compile(r"[-+]?0[0-9bx]|.*[:_]")
"""Numbers that YAML 1.1 reads in base 2, 8, 16 or 60, so that 010 is 8; and 1_0, which is 10."""


CLAUSE = "requirement"
"""The key beside those of a promise that names the buyer's clause."""
EXTENDS = "extends"
"""The key of a page that names the pages whose keys it takes over: no key of a spec."""
_MOST_BASES = 8
"""Longest chain of pages that extend one another."""


def load_spec(path: Path) -> Spec:
    """The spec in the YAML file `path`, or of a profile (profile:NAME), with what it extends.

    Raises SpecError: for each fault one line with the file in which the key stands, the dotted key,
    the value met and the accepted form.
    """
    merged = _merged(spec_file(path))
    _move_clauses(merged)
    return _validated(merged.page, Spec, merged.file_of)


@cache
def profile_spec(name: str, *over: str) -> Spec:
    """The spec of a profile that ships with the package, read once; raises SpecError.

    over: further ones, each over those before, as a page has that extends a list of them.
    """
    path = spec_file(Path(f"{PREFIX}{name}"))
    found = _merged(path)
    for file in _bases(path, list(over), ()) if over else ():
        found.put(_merged(file))
    _move_clauses(found)
    return _validated(found.page, Spec, found.file_of)


def _move_clauses(merged: _Merged) -> None:
    """Move each `requirement: BM-01` beside the keys of a promise into `requirements`.

    It is no key of the promise: any may have one, and no model of a promise has to know it.
    """
    for at, written in list(_clauses(merged.page.get("criteria"), ())):
        for clause in written if isinstance(written, list) else [written]:
            if not isinstance(clause, str) or not clause:
                where = ("criteria", *at, CLAUSE)
                met = f"{_dotted(where)}: {shown(clause)}; accepted: text, such as BM-01; quote it"
                raise SpecError(f"{merged.file_of(where)}: {met}")
            named = merged.page.setdefault("requirements", {})
            keys = named.get(clause, []) if isinstance(named, dict) else None
            if isinstance(keys, list):
                named[clause] = [*keys, ".".join(at)]


def _clauses(page: Any, at: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Take the keys `requirement` out of a page; where each stood, and its value."""
    for key, value in list(page.items()) if isinstance(page, dict) else ():
        if key == CLAUSE and at:
            yield at, page.pop(key)
        else:
            yield from _clauses(value, (*at, key))


def read_model(path: Path, model: type[Model]) -> Model:
    """The YAML file `path` as a pydantic model; raises SpecError as `load_spec` does."""
    return _validated(_read_page(path), model, lambda _: path)


def _validated(
    page: dict[Any, Any], model: type[Model], file_of: Callable[[Sequence[int | str]], Path]
) -> Model:
    try:
        return model.model_validate(page)
    except ValidationError as error:
        faults = [fault for fault in error.errors() if not _follows(fault)] or error.errors()
        # an unknown key often explains a missing one
        faults.sort(key=lambda fault: fault["type"] != "extra_forbidden")
        lines = dict.fromkeys(
            f"{file_of(fault['loc'])}: {_fault_line(model, fault)}" for fault in faults
        )
        raise SpecError("\n".join(lines)) from None


@dataclass(slots=True)
class _Merged:
    """A page over the pages that it extends. files: for each key the file that set it last."""

    page: dict[Any, Any]
    files: dict[tuple[Any, ...], Path]

    def file_of(self, loc: Sequence[int | str]) -> Path:
        """The file in which the key `loc` stands, or else the nearest section around it."""
        around = (tuple(loc)[:count] for count in range(len(loc), -1, -1))
        return next(self.files[keys] for keys in around if keys in self.files)

    def put(self, over: _Merged) -> None:
        """Mappings merge, anything else replaces, and a key without a value removes one."""
        self._put(self.page, over.page, (), over)

    def _put(
        self, page: dict[Any, Any], values: dict[Any, Any], at: tuple[Any, ...], over: _Merged
    ) -> None:
        self.files[at] = over.file_of(at)
        for key, value in values.items():
            loc, known = (*at, key), page.get(key)
            if isinstance(known, dict) and not isinstance(value, dict):
                for inner in [one for one in self.files if one[: len(loc)] == loc]:
                    del self.files[inner]
            if isinstance(value, dict):
                page[key] = known if isinstance(known, dict) else {}
                self._put(page[key], value, loc, over)
                continue
            self.files[loc] = over.file_of(loc)
            if value is None and known is not None:
                del page[key]
            else:
                page[key] = value


def _merged(path: Path, extending: tuple[Path, ...] = ()) -> _Merged:
    """The page `path` over what it extends. extending: the pages that led here, first to last."""
    own = _Merged(_read_page(path), {(): path})
    if EXTENDS not in own.page:
        return own
    found = _Merged({}, {(): path})
    try:
        for base in _bases(path, own.page.pop(EXTENDS), extending):
            found.put(_merged(base, (*extending, path)))
        found.put(own)
    except RecursionError:  # an alias of what contains it
        raise SpecError(f"{path}: nested too deep; accepted: a mapping of keys to values") from None
    return found


def _bases(path: Path, written: Any, extending: tuple[Path, ...]) -> list[Path]:
    """Files of the pages that the page `path` extends: profiles, or paths beside it."""
    names = written if isinstance(written, list) and written else [written]
    found = []
    for name in names:
        if not isinstance(name, str):
            raise _no_base(path, name, "")
        file = (
            path.parent / name
            if name.endswith((".yaml", ".yml"))
            else find_profile(name, parts=True)
        )
        if file is None or not file.is_file():
            raise _no_base(path, name, "no such file" if file else "unknown profile")
        above = [one.resolve() for one in (*extending, path)]
        if file.resolve() in above:
            raise _no_base(path, name, "extends itself")
        if len(above) > _MOST_BASES:
            raise _no_base(path, name, f"more than {_MOST_BASES} pages extend one another")
        found.append(file)
    return found


def _no_base(path: Path, name: Any, why: str) -> SpecError:
    met = f"{shown(name)}: {why}" if why else shown(name)
    names = accepted_names(name if isinstance(name, str) else "", parts=True)
    return SpecError(f"{path}: {EXTENDS}: {met}; {names}, a path to a .yaml, or a list of these")


def _follows(fault: ErrorDetails) -> bool:
    """Whether a list is too short only because of other faults: pydantic drops refused items."""
    return fault["type"] == "too_short" and len(fault["input"]) >= fault["ctx"]["min_length"]


def _fault_line(model: type[BaseModel], fault: ErrorDetails) -> str:
    loc, kind, context = fault["loc"], fault["type"], fault.get("ctx", {})
    key = _dotted(loc)
    match kind:
        case "extra_forbidden":
            return f"{key}: unknown key; {_known(model, loc)}"
        case "missing" | "no_value":
            return f"{key}: {'missing' if kind == 'missing' else 'no value'}{_needed(model, loc)}"
        case "value_error":
            return f"{key}: {context['error']}"
        case "string_pattern_mismatch":
            form = PATTERNS[context["pattern"]]
            return f"{key}: {shown(fault['input'])}; accepted: {form}"
        case "string_type" if not isinstance(fault["input"], list | dict | None):
            return f"{key}: {shown(fault['input'])}; accepted: text; quote it"
    form = _ACCEPTED[kind].format(**context) if kind in _ACCEPTED else fault["msg"]
    return f"{key}: {shown(fault['input'])}; accepted: {form}"


def _dotted(loc: Sequence[int | str]) -> str:
    keys = (part for part in loc if part != "[key]")  # pydantic's mark of a key that is refused
    parts = (f"[{part}]" if isinstance(part, int) else f".{_plain(part)}" for part in keys)
    return "".join(parts).removeprefix(".")


def _section(model: type[BaseModel], loc: Sequence[int | str]) -> type[BaseModel]:
    for key in loc:
        if (field := keys_of(model).get(str(key))) is not None:  # else in a list or a mapping
            model = model_in(field.annotation) or model
    return model


def _known(model: type[BaseModel], loc: Sequence[int | str]) -> str:
    known = list(keys_of(_section(model, loc[:-1])))
    if not known:
        return "accepted: {}"
    close = get_close_matches(str(loc[-1]), known, n=3)
    return f"did you mean {' or '.join(close)}?" if close else f"accepted: {', '.join(known)}"


def _needed(model: type[BaseModel], loc: Sequence[int | str]) -> str:
    key, within = str(loc[-1]), _section(model, loc[:-1])
    field = keys_of(within).get(key)
    if field is None:
        return ""
    section = model_in(field.annotation)
    about = (field_docs(within).get(key) or (section and section.__doc__) or "").partition("\n")[0]
    empty = section and not any(field.is_required() for field in section.model_fields.values())
    return f"; needed: {about.rstrip('.')}{', or {} to keep all defaults' if empty else ''}"


class _Refusing(yaml.constructor.SafeConstructor):
    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if node.tag in _NUMBER_TAGS and _NOT_DECIMAL.match(str(node.value)):
            why = f"{shown(node.value)} is no decimal number; write one, or quote what is text"
            raise yaml.constructor.ConstructorError(None, None, why, node.start_mark)
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError):
            # PyYAML's constructors raise these for values like 2026-13-45, without a position
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(
                None, None, f"{shown(node.value)} is no {kind}; quote what is text", node.start_mark
            ) from None


class _Loader(_Refusing, yaml.SafeLoader):
    """In Python: says what is wrong, and where."""


_InC: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FastLoader: Any = type("_FastLoader", (_Refusing, _InC), {})
"""In C, where PyYAML was built with it."""


def _read_page(path: Path) -> dict[Any, Any]:
    """The mapping in the YAML file `path`.

    Raises SpecError for a missing file, no YAML, no mapping, or repeated keys.
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
        try:
            loader = _FastLoader(text)
            node = loader.get_single_node()
        except (yaml.YAMLError, RecursionError):
            loader = _Loader(text)
            node = loader.get_single_node()
        bad_keys = list(_bad_keys(node, "", set()))
        page = None if node is None else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        why = error.problem or error.context or ""
        if why.startswith("but "):
            why = f"{error.context} {why}"
        raise SpecError(f"{path}: {where}not YAML: {why}") from None
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise SpecError(f"{path}: line {line}: not YAML: {error.reason}") from None
    except RecursionError:
        raise SpecError(f"{path}: nested too deep; accepted: a mapping of keys to values") from None
    if bad_keys:
        raise SpecError("\n".join(f"{path}: {fault}" for fault in bad_keys))
    if not isinstance(page, dict):
        met = "it is empty" if page is None else f"met {shown(page)}"
        raise SpecError(f"{path}: {met}; accepted: a mapping of keys to values")
    return page


def _plain(key: str) -> str:
    """`key` as part of a dotted path; quoted if it would break the line."""
    return key if key.isprintable() and len(key) <= 60 else shown(key)


def _bad_keys(node: yaml.Node | None, path: str, seen: set[int]) -> Iterator[str]:
    if id(node) in seen:  # an alias, perhaps of a node that contains it
        return
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
            dotted = f"{path}.{_plain(name)}" if path else _plain(name)
            if key.tag not in _KEY_TAGS:
                yield f"{dotted}: line {line}: this key is not text; accepted: text; quote the key"
                continue
            if name in lines:
                yield (
                    f"{dotted}: key given twice, on lines {lines[name]} and {line}; "
                    f"accepted: each key once"
                )
            lines[name] = line
            children.append((dotted, child))
    for dotted, child in children:
        yield from _bad_keys(child, dotted, seen)
