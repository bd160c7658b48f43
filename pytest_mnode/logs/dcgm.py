"""Results of DCGM's diagnostics: the JSON of `dcgmi diag` and `dcgmi mndiag`, of DCGM 3 and 4.

Source: NVIDIA/DCGM, dcgmi/Diag.cpp, MnDiag.cpp and nvvs/include/JsonResult.h; dcgm_errors.h.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["pass", "fail", "warn", "skip", "unknown"]
_STATUS: Mapping[str, Status] = {
    **{"pass": "pass", "passed": "pass", "ok": "pass", "fail": "fail", "failed": "fail"},
    **{"warn": "warn", "warning": "warn", "skip": "skip", "skipped": "skip", "not run": "skip"},
}
_OBJECT = re.compile(r'\{\s*"')
_SEVERITIES = {
    **{1: "monitor it", 2: "isolate the GPU", 4: "triage", 5: "a setting"},
    6: "drain and reset the GPU",
}


@dataclass(frozen=True, slots=True)
class DcgmResult:
    """One test on one device. device: "" for the node. host: of mndiag, as it calls it."""

    test: str
    device: str
    status: Status
    reasons: tuple[str, ...] = ()
    host: str = ""


def parse(text: str) -> list[DcgmResult]:
    """Results, with other lines before and after the JSON.

    Raises ValueError, in one line, if there are none: with the program's own words.
    """
    every = list(_documents(text))
    found = [one for document in every for one in _results(document)]
    if found:
        return found
    errors = [" ".join(str(one).split()) for d in every for one in _values(d, "runtime_error")]
    lines = [line.strip() for line in text.splitlines() if line.strip() and not every]
    raise ValueError("; ".join((errors or lines)[:2]) or "no result in its output")


def _documents(text: str) -> Iterator[Any]:
    decoder, at = json.JSONDecoder(), text.find("{")
    while at >= 0:
        try:
            document, end = decoder.raw_decode(text, at)
        except ValueError:
            if _OBJECT.match(text, at):  # what it has inside is no whole result
                raise ValueError("its JSON is cut") from None
            end = at + 1
        else:
            yield document
        at = text.find("{", end)


def _values(within: Any, key: str) -> Iterator[Any]:
    """Values of a key, wherever it is."""
    if isinstance(within, dict):
        for name, value in within.items():
            if name == key:
                yield value
            else:
                yield from _values(value, key)
    elif isinstance(within, list):
        for one in within:
            yield from _values(one, key)


def _results(document: Any) -> Iterator[DcgmResult]:
    hosts = {
        one.get("host_id"): str(one.get("hostname", ""))
        for every in _values(document, "hosts")
        for one in every or ()
        if isinstance(one, dict)
    }
    for tests in _values(document, "tests"):
        for test in tests if isinstance(tests, list) else ():
            if isinstance(test, dict):  # DCGM 3 has null between tests
                yield from _of_test(test, hosts)


def _of_test(test: Mapping[str, Any], hosts: Mapping[Any, str]) -> Iterator[DcgmResult]:
    name, worst = str(test.get("name", "unnamed test")), False
    results = [one for one in test.get("results") or () if isinstance(one, dict)]
    for one in results:
        reasons, status = tuple(_reasons(one)), _status(one)
        if status == "pass" and any(
            isinstance(w, dict) and "error_id" in w for w in _warnings(one)
        ):
            status = "warn"  # as where memory could not be allocated to be tested
        worst |= status != "pass"
        host = hosts.get(one.get("host_id"), "")
        for device in _devices(one):
            yield DcgmResult(name, device, status, reasons, host)
    summary = test.get("test_summary")
    overall: Mapping[str, Any] = summary if isinstance(summary, dict) else test
    if "status" in overall and not worst and (not results or _status(overall) != "pass"):
        more = [*_reasons(overall), *_reasons({"warnings": test.get("mpi_error")})]
        yield DcgmResult(name, "", _status(overall), tuple(more))


def _status(one: Mapping[str, Any]) -> Status:
    return _STATUS.get(str(one.get("status", "")).strip().lower(), "unknown")


def _devices(one: Mapping[str, Any]) -> list[str]:
    if "entity_id" in one:
        group = str(one.get("entity_group", "GPU"))
        return [f"{'accelerator' if group == 'GPU' else group} {one['entity_id']}"]
    ids = str(one.get("gpu_ids", one.get("gpu_id", ""))).replace(" ", "").split(",")
    return [f"accelerator {number}" for number in ids if number] or [""]


def _warnings(one: Mapping[str, Any]) -> list[Any]:
    found = one.get("warnings") or []
    return found if isinstance(found, list) else [found]


def _reasons(one: Mapping[str, Any]) -> Iterator[str]:
    for warning in _warnings(one):
        if not isinstance(warning, dict):
            yield " ".join(str(warning).split())
            continue
        text = " ".join(str(warning.get("warning", "")).split())
        number, severity = (
            warning.get("error_id"),
            _SEVERITIES.get(warning.get("error_severity", 0)),
        )
        about = ", ".join(filter(None, [f"error {number}" if number else "", severity]))
        yield f"{text} ({about})" if about else text
