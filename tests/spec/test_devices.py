"""What may be promised of ranks alone."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from pytest_mnode.spec.devices import CopyPromise, DevicesCriterion, MatmulPromise


def test_a_page_is_read() -> None:
    page = DevicesCriterion.model_validate(
        {
            "matmul": {
                "dtypes": ["bfloat16", "float32"],
                "size": 8192,
                "at_least_fraction": 0.95,
                "at_most_spreads": 6,
                "at_least_tflops": {"bfloat16": 600},
            },
            "host_to_device": {
                "size": "1 GiB",
                "at_least_fraction": 0.9,
                "at_least_gbytes_s": 50,
                "repeats": 5,
            },
        }
    )
    assert page.matmul is not None
    assert page.matmul.at_least_tflops == {"bfloat16": 600}
    assert page.host_to_device is not None
    assert page.host_to_device.size_bytes == 1 << 30
    assert page.memory_copy is None


@pytest.mark.parametrize(
    ("model", "keys", "said"),
    [
        (DevicesCriterion, {}, "promises nothing; accepted: matmul, memory_copy, device_copy"),
        (MatmulPromise, {}, "Field required"),
        (MatmulPromise, {"at_least_fraction": 1.1}, "less than or equal to 1"),
        (MatmulPromise, {"at_least_fraction": 0}, "greater than 0"),
        (MatmulPromise, {"at_least_fraction": 0.9, "dtypes": ["int8"]}, "'float64', 'float32'"),
        (MatmulPromise, {"at_least_fraction": 0.9, "dtypes": []}, "at least 1 item"),
        (
            MatmulPromise,
            {"at_least_fraction": 0.9, "at_least_tflops": {"float16": 1.0}},
            "at_least_tflops for float16, which is not measured; accepted: float32",
        ),
        (CopyPromise, {"at_least_fraction": 0.9, "size": 64}, "has no unit"),
        (CopyPromise, {"at_least_fraction": 0.9, "at_most_spreads": 0}, "greater than 0"),
    ],
)
def test_what_cannot_be_judged_is_refused(model: Any, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        model.model_validate(keys)
