"""Output of DCGM's diagnostics, composed as DCGM 3 and 4 write it, with what stands beside it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_mnode.logs.dcgm import parse

GONE = (
    "Error: unable to establish a connection to the specified host: localhost\n"
    "Error: Unable to connect to host engine. Host engine connection invalid/disconnected.\n"
)


def three(*tests: Any) -> dict[str, Any]:
    categories = [{"category": "Deployment", "tests": [*tests]}]
    return {
        "DCGM GPU Diagnostic": {"test_categories": categories, "version": "3.3.9"},
        "Driver Version Detected": "535.183.01",
        "GPU Device IDs": ["2330", "2330"],
    }


def four(*results: Any, name: str = "memory", summary: str = "Pass") -> dict[str, Any]:
    test = {"name": name, "results": [*results], "test_summary": {"status": summary}}
    return {
        "DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": [test]}]},
        "entity_groups": [{"entity_group": "GPU", "entities": [{"entity_id": 0}]}],
        "metadata": {"Driver Version Detected": "580.82.09", "version": "4.2.3"},
    }


def gpu(number: int, status: str = "Pass", **more: Any) -> dict[str, Any]:
    return {
        "entity_group": "GPU",
        "entity_group_id": 1,
        "entity_id": number,
        "status": status,
    } | more


def found(text: str) -> str:
    """Test, device and status of each result."""
    shown = ((one.test, one.device.removeprefix("accelerator "), one.status) for one in parse(text))
    return "; ".join(f"{test} {device or '-'} {status}" for test, device, status in shown)


DENYLIST = {"name": "Denylist", "results": [{"gpu_ids": "0,1", "status": "PASS"}]}
WARNED = {"error_category": 8, "error_id": 29, "error_severity": 5, "warning": "Persistence mode"}


@pytest.mark.parametrize(
    ("document", "results"),
    [
        (three(DENYLIST, None), "Denylist 0 pass; Denylist 1 pass"),
        (three({"name": "PCIe", "results": [{"gpu_ids": "0", "status": "Fail"}]}), "PCIe 0 fail"),
        (three({"name": "Pages", "results": [{"status": "WARN"}]}), "Pages - warn"),
        (four(gpu(0), gpu(1, "Fail")), "memory 0 pass; memory 1 fail"),
        (four(gpu(0, "Skip")), "memory 0 skip"),
        (four(gpu(0, "Not Run")), "memory 0 skip"),
        (four(gpu(0, "Aborted")), "memory 0 unknown"),
        (four(gpu(0), gpu(0, entity_group="CPU")), "memory 0 pass; memory CPU 0 pass"),
        (four(gpu(0), summary="Fail"), "memory 0 pass; memory - fail"),
        (four(summary="Fail"), "memory - fail"),
        (four(gpu(0, warnings=[WARNED])), "memory 0 warn"),  # it passed with an error
        (four(gpu(0, warnings=["slow"], info=["Allocated 98 %"])), "memory 0 pass"),
        ({"tests": [{"name": "pcie", "results": [gpu(0, "pass")]}]}, "pcie 0 pass"),
    ],
)
@pytest.mark.parametrize(
    "before", ["", "Warning: {old} hostengine\nSuccessfully ran diagnostic.\n"]
)
def test_results_of_both_releases(document: dict[str, Any], results: str, before: str) -> None:
    for indent in (None, 2):
        assert found(before + json.dumps(document, indent=indent) + "\n\n") == results


def test_reasons_have_the_error_and_what_it_asks_for() -> None:
    text = json.dumps(
        four(gpu(3, "Fail", warnings=[WARNED, {"warning": "a\nb", "error_severity": 2}]))
    )
    [one] = parse(text)
    assert one.reasons == ("Persistence mode (error 29, a setting)", "a b (isolate the GPU)")
    [old] = parse(
        json.dumps(three({"name": "x", "results": [{"status": "Fail", "warnings": "why"}]}))
    )
    assert old.reasons == ("why",)


def test_results_of_several_nodes_name_their_host() -> None:
    results = [gpu(0) | {"host_id": 0}, gpu(2, "Fail", warnings=[WARNED]) | {"host_id": 1}]
    test = {"name": "mnubergemm", "status": "Fail", "results": results}
    hosts = [{"host_id": 0, "hostname": "n0"}, {"host_id": 1, "hostname": "n1"}]
    document: dict[str, Any] = {"DCGM Diagnostic": "DCGM Multi-Node Diagnostic", "hosts": hosts}
    document["test_categories"] = [{"category": "Multi-Node Tests", "tests": [test]}]
    assert [(one.host, one.device, one.status) for one in parse(json.dumps(document))] == [
        ("n0", "accelerator 0", "pass"),
        ("n1", "accelerator 2", "fail"),
    ]
    mpi = {"name": "mnubergemm", "status": "Fail", "mpi_error": {"warning": "no ssh to n1"}}
    [one] = parse(json.dumps({"test_categories": [{"tests": [mpi]}]}))
    assert (one.host, one.status, one.reasons) == ("", "fail", ("no ssh to n1",))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GONE, "unable to establish a connection to the specified host: localhost"),
        ('{"DCGM Diagnostic": {"runtime_error": "Error: level 4 is not supported"}}', "level 4"),
        (json.dumps(four(gpu(0)))[:-60], "its JSON is cut"),
        ("", "no result in its output"),
        ("{}", "no result in its output"),
        ("Error: could not open /dev/nvidiactl", "nvidiactl"),
    ],
)
def test_output_without_results_says_why(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse(text)
