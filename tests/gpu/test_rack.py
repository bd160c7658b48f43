"""The whole acceptance suite on two nodes of the rack that share a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.acceptance.certified import certify, spec_edited
from tests.inner import need_rack


def _with_gpu(page: dict[str, Any]) -> None:
    """Promise the GPU that is here, and what NCCL's sockets carry on the rack's links."""
    page["accelerators"] = {"per_node": 1, "model": torch.cuda.get_device_name(0)}
    page["topology"] = {**page["topology"], "accelerator_sockets": [0]}
    page["not_promised"] = [p for p in page["not_promised"] if p["question"] != "accelerators"]
    shared = "the two nodes share a GPU"
    page["not_promised"].append({"question": "scaling", "reason": shared})
    criteria = page["criteria"]
    del criteria["scaling"]
    criteria["preflight"]["accelerators"] = {"ecc_errors_at_most": 0, "throttling": "none"}
    criteria["preflight"]["same"] += ["nccl", "driver"]
    criteria["launch"]["rendezvous"]["ranks"] = 2  # one per accelerator
    # Two nodes compute on one device by turns.
    criteria["devices"] = {
        "matmul": {"dtypes": ["bfloat16"], "size": 4096, "at_least_fraction": 0.5},
        "training_step": {"dtype": "bfloat16"},
        "device_copy": {"size": "256 MiB", "at_least_fraction": 0.5},
        "host_to_device": {"size": "256 MiB", "at_least_fraction": 0.5},
        "device_to_host": {"size": "256 MiB", "at_least_fraction": 0.5},
    }


def test_two_nodes_that_share_a_gpu_are_certified(tmp_path: Path) -> None:
    need_rack()
    done = certify(tmp_path, spec_edited(tmp_path, _with_gpu), "--mnode-nodes=2", limit_s=500)
    assert done.run.returncode == 0, done.run.output
    assert done.certificate["verdict"] == "certified"
    verdicts = {c["name"]: c["verdict"] for c in done.certificate["criteria"]}
    assert {name for name, verdict in verdicts.items() if verdict != "pass"} == {
        *("storage", "gang", "scaling")
    }
    assert done.measurements("fabric")["all_reduce 4 MiB busbw"]["verdict"] == "pass"
