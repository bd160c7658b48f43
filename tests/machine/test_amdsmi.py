"""AMD's accelerators from a stand-in for amdsmi."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.checks.node.accelerators import AcceleratorsAreAsPromised
from pytest_mnode.machine.amdsmi import read_amdsmi
from pytest_mnode.machine.nvml import Accelerator
from tests.criteria.preflight.made import everyone, healthy, promising, verdicts, with_facts

COOL = dict.fromkeys(
    (
        *("active_prochot_thrm", "active_socket_thrm", "active_vr_thrm", "active_hbm_thrm"),
        "active_ppt_pwr",
    ),
    False,
)
MI300X: dict[str, Any] = {
    "amdsmi_get_gpu_memory_total": 206141652992,
    "amdsmi_get_gpu_ecc_enabled": 0x7FFF,
    "amdsmi_get_gpu_total_ecc_count": {"correctable_count": 2, "uncorrectable_count": 0},
    "amdsmi_get_gpu_device_uuid": "31ff74a1-0000-1000-80d5-4d6bcd7cd9cb",
    "amdsmi_get_gpu_device_bdf": "0000:05:00.0",
    "amdsmi_get_gpu_asic_info": {"market_name": "AMD Instinct MI300X OAM"},
    "amdsmi_get_violation_status": COOL,
}


def amdsmi(**changed: Any) -> Any:
    """Eight devices with these answers; an answer that is an error is raised."""

    def answer(value: Any) -> Any:
        def ask(_: int, *__: Any) -> Any:
            if isinstance(value, Exception):
                raise value
            return value

        return ask

    answers = {name: answer(value) for name, value in {**MI300X, **changed}.items()}
    return SimpleNamespace(
        amdsmi_init=lambda: None,
        amdsmi_shut_down=lambda: None,
        amdsmi_get_processor_handles=lambda: [*range(8)],
        AmdSmiMemoryType=SimpleNamespace(VRAM=0),
        **answers,
    )


def found(**changed: Any) -> tuple[Accelerator, ...]:
    answer = read_amdsmi(amdsmi(**changed))
    assert answer.found is not None, answer.why
    return answer.found


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({}, None),
        ({"amdsmi_get_gpu_total_ecc_count": {"uncorrectable_count": 1}}, "fail"),
        ({"amdsmi_get_gpu_ecc_enabled": 0}, "fail"),
        ({"amdsmi_get_violation_status": {**COOL, "active_hbm_thrm": True}}, "fail"),
        ({"amdsmi_get_violation_status": {**COOL, "active_vr_thrm": "N/A"}}, "inconclusive"),
        ({"amdsmi_get_gpu_memory_total": 68719476736}, "fail"),
        ({"amdsmi_get_gpu_asic_info": RuntimeError("not supported")}, "inconclusive"),
        # By its number, whatever a release and its tables call it.
        ({"amdsmi_get_gpu_asic_info": {"market_name": "Aqua", "device_id": "0x74a1"}}, None),
        ({"amdsmi_get_gpu_asic_info": {"market_name": "N/A", "device_id": 0x74A5}}, "fail"),
    ],
)
def test_mi300x_is_judged_by_amdsmi(changed: dict[str, Any], verdict: str | None) -> None:
    spec = promising(
        "{accelerators: {ecc: 'on', ecc_errors_at_most: 0, throttling: none}}",
        accelerators="8, model: AMD Instinct MI300X OAM, memory: 192 GB",
    )
    survey = everyone(healthy(2), accelerators=found())
    survey = with_facts(survey, 1, accelerators=found(**changed))
    expected = {"gpu1": verdict} if verdict else {}
    assert verdicts(AcceleratorsAreAsPromised, survey, spec) == expected


def test_parts_with_errors_are_named() -> None:
    module = amdsmi(amdsmi_get_gpu_total_ecc_count={"uncorrectable_count": 3})
    blocks = [SimpleNamespace(name="UMC"), SimpleNamespace(name="GFX")]
    module.AmdSmiGpuBlock = blocks
    counts = {"UMC": 3, "GFX": 0}
    module.amdsmi_get_gpu_ecc_count = lambda _, block: {"uncorrectable_count": counts[block.name]}
    gpu = (read_amdsmi(module).found or ())[0]
    assert (gpu.ecc_uncorrected, gpu.ecc_blocks) == (3, (("UMC", 3),))


def test_why_amdsmi_cannot_be_used() -> None:
    broken = amdsmi()
    broken.amdsmi_init = lambda: 1 / 0
    assert "amdsmi did not start: division by zero" in read_amdsmi(broken).why
    assert "install it with ROCm" in read_amdsmi().why
