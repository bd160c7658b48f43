"""From a YAML file to a `Spec`, or to one line: file, key, value met, accepted form."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from pytest_mnode.errors import SpecError

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails

    from pytest_mnode.spec.models import Spec

Model = TypeVar("Model", bound="BaseModel")

_ACCEPTED = {
    "dict_type": "a mapping of keys to values",
    "mapping_type": "a mapping of keys to values",
    "finite_number": "a finite number",
    "float_type": "a number, such as 0.85",
    "greater_than": "a number above {gt:g}",
    "greater_than_equal": "a number of {ge:g} or more",
    "int_type": "a whole number",
    "less_than": "a number below {lt:g}",
    "less_than_equal": "a number of {le:g} or less",
    "literal_error": "{expected}",
    "model_type": "a mapping of keys to values",
    "string_type": "text",
    "too_short": "a list of {min_length} or more",
    "tuple_type": "a list, such as [a, b]",
}


def default_spec_path() -> Path:
    """The rack's own spec: the copy in the installed package, else the one of the repository."""
    package = Path(__file__).parents[1]
    packaged = package / "clusters" / "rack.yaml"
    return packaged if packaged.exists() else package.parent / "fixtures/clusters/rack.yaml"


def load_spec(path: Path) -> Spec:
    """The promise written in the YAML file `path`.

    Raises SpecError, one line with the file, the dotted key, the value met and the accepted form.
    """
    from pytest_mnode.spec.models import Spec

    return read_model(path, Spec)


def read_model(path: Path, model: type[Model]) -> Model:
    """The YAML file `path` as a model of pydantic's; raises SpecError as `load_spec` does."""
    from pydantic import ValidationError

    from pytest_mnode.spec.page import read_page

    page = read_page(path)
    try:
        return model.model_validate(page)
    except ValidationError as error:
        # an unknown key often explains a missing one
        faults = sorted(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise SpecError(f"{path}: {_fault_line(model, faults[0])}{more}") from None


def _fault_line(model: type[BaseModel], fault: ErrorDetails) -> str:
    from pytest_mnode.spec.fields import PATTERNS
    from pytest_mnode.spec.quantity import shown

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
    form = _ACCEPTED[kind].format(**context) if kind in _ACCEPTED else fault["msg"]
    return f"{key}: {shown(fault['input'])}; accepted: {form}"


def _dotted(loc: Sequence[int | str]) -> str:
    from pytest_mnode.spec.page import plain

    parts = (f"[{part}]" if isinstance(part, int) else f".{plain(part)}" for part in loc)
    return "".join(parts).removeprefix(".")


def _fields(model: type[BaseModel]) -> dict[str, Any]:
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _section(model: type[BaseModel], loc: Sequence[int | str]) -> type[BaseModel]:
    for key in loc:
        if isinstance(key, str):
            model = _model_in(_fields(model)[key].annotation) or model
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    from pydantic import BaseModel

    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)


def _known(model: type[BaseModel], loc: Sequence[int | str]) -> str:
    known = list(_fields(_section(model, loc[:-1])))
    if not known:
        return "accepted: {}"
    close = get_close_matches(str(loc[-1]), known, n=3)
    return f"did you mean {' or '.join(close)}?" if close else f"accepted: {', '.join(known)}"


def _needed(model: type[BaseModel], loc: Sequence[int | str]) -> str:
    field = _fields(_section(model, loc[:-1])).get(str(loc[-1]))
    if field is None:
        return ""
    section = _model_in(field.annotation)
    about = str(field.description or (section and section.__doc__) or "").partition("\n")[0]
    empty = section and not any(field.is_required() for field in section.model_fields.values())
    return f"; needed: {about.rstrip('.')}{', or {} where nothing is to be set' if empty else ''}"
