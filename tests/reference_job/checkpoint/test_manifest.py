"""A manifest is read back as it was written, or refused in one line that says why."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mnode.reference_job.checkpoint.manifest import (
    FORMAT,
    Manifest,
    ManifestError,
    read_manifest,
    seal,
)
from pytest_mnode.reference_job.checkpoint.names import Name, order, read_name, step_name
from tests.reference_job.checkpoint.made import manifest


def changed(**changes: Any) -> bytes:
    return json.dumps(json.loads(manifest().text()) | changes).encode()


def test_it_is_read_as_it_was_written() -> None:
    written = manifest(step=20, saved_at=1795265026.4965792, own=True)
    assert read_manifest(written.text()) == written
    assert written.total_bytes == 6 + 300 + 99


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "manifest.json is not readable: Expecting value"),
        (b'{"format": 1,', "manifest.json is not readable: "),
        (b"\xff\xfe\x00", "manifest.json is not readable: "),
        (b"[" * 100_000, "manifest.json is not readable: "),
        (b"[]", "manifest.json does not say of which format it is"),
        (changed(format="1"), "manifest.json does not say of which format it is"),
        (changed(format=True), "manifest.json does not say of which format it is"),
        (changed(format=FORMAT + 1), "it is of format 2, and format 1 is read here"),
        (changed(step=-1), "manifest.json: step: Input should be greater than or equal to 0"),
        (changed(step="10"), "manifest.json: step: Input should be a valid integer"),
        (changed(world_size=0), "manifest.json: world_size: Input should be greater than"),
        (changed(saved_at=None), "manifest.json: saved_at: Input should be a valid number"),
        (changed(colour="red"), "manifest.json: colour: Extra inputs are not permitted"),
        (changed(files={}), "manifest.json names no files"),
        (changed(files={"x": {"bytes": 1, "sha256": "0"}}), "manifest.json: files.x.sha256: "),
        (changed(files={"x": {"bytes": -1, "sha256": "0" * 64}}), "manifest.json: files.x.bytes: "),
        (changed(files={"x": {"bytes": 1, "sha256": "0" * 64 + "\n"}}), "files.x.sha256: "),
        (
            changed(files={"../x": {"bytes": 1, "sha256": "0" * 64}}),
            "manifest.json names a file '../x'",
        ),
        (
            changed(files={"COMPLETE": {"bytes": 1, "sha256": "0" * 64}}),
            "manifest.json names a file 'COMPLETE'",
        ),
    ],
)
def test_what_is_wrong_is_said(text: bytes, reason: str) -> None:
    with pytest.raises(ManifestError) as caught:
        read_manifest(text)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.binary(max_size=60) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from([*Manifest.model_fields, "x"]), inner, max_size=9),
).map(lambda page: json.dumps(page).encode()))  # fmt: skip
def test_nothing_else_is_ever_raised(text: bytes) -> None:
    with pytest.raises(ManifestError):
        read_manifest(text)


def test_the_seal_is_of_the_text() -> None:
    text = manifest().text()
    assert seal(text) == seal(text) != seal(text + b" ")
    assert seal(text).endswith(b" manifest.json\n")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("step-00000020", Name(20, None)),
        ("step-123456789", Name(123456789, None)),
        ("step-00000020.partial-0123abcd", Name(20, "partial")),
        ("step-00000020.replaced-0123abcd", Name(20, "replaced")),
        ("step-00000020.removed-0123abcd", Name(20, "removed")),
        ("step-20", None),
        ("step-0000000020", None),  # not as it would be written
        ("step-00000020.partial", None),
        ("step-00000020.partial-XYZ", None),
        ("step-00000020 (copy)", None),
        ("step-٠٠٠٠٠٠٢٠", None),
        ("other", None),
    ],
)
def test_only_names_of_ours_are_read(text: str, name: Name | None) -> None:
    assert read_name(text) == name


def test_later_steps_come_after_and_the_one_in_place_before_others_of_its_step() -> None:
    names = [
        "step-00000010",
        "step-00000020.partial-00000000",
        "step-00000020.replaced-00000000",
        "step-00000020",
        step_name(100_000_000),
    ]
    assert sorted(set(names), key=order) == names
