from __future__ import annotations

import copy
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_mnode.spec import Spec, default_spec_path, json_schema, load_spec
from pytest_mnode.spec.checked import PreflightCriterion
from pytest_mnode.spec.fabric import BusbwPromise

Page = Callable[[str, str], Path]
Load = Callable[[str, str], Spec]


@pytest.fixture(scope="session")
def validator() -> Any:
    """Of the spec's JSON schema."""
    draft, schema = import_module("jsonschema").Draft202012Validator, json_schema()
    draft.check_schema(schema)
    return draft(schema)


@pytest.fixture
def page(tmp_path: Path) -> Page:
    """The rack's spec with one piece of text replaced, in a separate file."""

    def write(old: str, new: str) -> Path:
        text = default_spec_path().read_text()
        assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in rack.yaml"
        path = tmp_path / "a spec.yaml"
        path.write_text(text.replace(old, new))
        return path

    return write


@pytest.fixture
def load(page: Page) -> Load:
    """The loaded spec that `page` writes."""
    return lambda old, new: load_spec(page(old, new))


def preflight_of(spec: Spec) -> PreflightCriterion:
    assert spec.criteria.preflight is not None
    return spec.criteria.preflight


def busbw_of(spec: Spec) -> BusbwPromise:
    fabric = spec.criteria.fabric
    assert fabric is not None
    assert fabric.all_reduce_busbw is not None
    return fabric.all_reduce_busbw


RACK = yaml.safe_load(default_spec_path().read_text())


def changed(directory: Path, changes: dict[str, str]) -> Spec:
    """The rack's spec with values, as YAML, under dotted keys; "" removes a key."""
    page = copy.deepcopy(RACK)
    if any(key.startswith("criteria.gang") for key in changes):
        page["scheduler"] = {"kind": "slurm"}
    for key, text in changes.items():
        *sections, name = key.split(".")
        section: Any = page
        for one in sections:
            section = section.setdefault(one, {})
        section.pop(name, None)
        if text:
            section[name] = yaml.safe_load(text)
    path = directory / "spec.yaml"
    path.write_text(yaml.safe_dump(page, sort_keys=False))
    return load_spec(path)
