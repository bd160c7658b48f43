"""Training programs of others on the rack, of tests/frameworks.txt.

torchtitan knows accelerators only: its device is made the CPU from outside.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.acceptance.certified import Certified, certify, spec_of
from tests.inner import released_frameworks

OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
WORDS = ["the", "fabric", "carries", "gradients", "while", "one", "slow", "rank", "waits"]
MODEL = """
    import sys
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    end, *words = "<|end|>", *sys.argv[2].split()
    numbers = {word: number for number, word in enumerate([end, "<|begin|>", "?", *words])}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"bos_token": "<|begin|>", "eos_token": end, "pad_token": end}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(sys.argv[1])
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
    config = LlamaConfig(vocab_size=64, num_attention_heads=4, **sizes)
    LlamaForCausalLM(config).save_pretrained(sys.argv[1])
"""
TITAN = """
    import runpy
    from types import SimpleNamespace
    import torch._utils

    torch._utils._get_available_device_type = lambda: "cpu"
    for name, value in {
        "get_device_name": "CPU",
        "get_device_properties": SimpleNamespace(total_memory=1 << 34),
        "current_device": 0,
        "memory_stats": {},
        "reset_peak_memory_stats": None,
        "empty_cache": None,
    }.items():
        setattr(torch.cpu, name, lambda *_, value=value: value)
    runpy.run_module("torchtitan.train", run_name="__main__")
"""
SFT = """
    import sys
    from datasets import load_dataset
    from trl import SFTConfig, SFTTrainer

    out, model, data = sys.argv[2::2]
    config = SFTConfig(
        output_dir=out,
        max_steps=14,
        logging_steps=1,
        save_steps=7,
        per_device_train_batch_size=2,
        max_length=64,
        use_cpu=True,
        bf16=False,
        report_to="none",
    )
    data = load_dataset("json", data_files=data, split="train")
    SFTTrainer(model, args=config, train_dataset=data).train()
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a tiny model, its tokenizer, and lines to train on."""
    monkeypatch.setenv("PYTHONPATH", str(released_frameworks()))
    folder = tmp_path / "model"
    argv = [sys.executable, "-c", dedent(MODEL), str(folder), " ".join(WORDS)]
    subprocess.run(argv, check=True, capture_output=True, timeout=300)
    (tmp_path / "data").mkdir()
    lines = [{"text": " ".join([*WORDS[n % 7 :], *WORDS] * 8)} for n in range(500)]
    text = "".join(json.dumps(one) + "\n" for one in lines)
    (tmp_path / "data/train.jsonl").write_text(text)
    return folder


def certified(tmp_path: Path, command: list[str], options: Mapping[str, Any]) -> Certified:
    written = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    workload = {
        "command": [*command, *written],
        "env": {
            **OFFLINE,
            "PYTHONPATH": os.environ["PYTHONPATH"],
            "HF_HOME": str(tmp_path / "home"),
        },
        "nodes": [2],
        "within": "300 s",
        "at_most": {"stalled": 0.9},
        "loss": {"curve": [[12, 2.5]], "within": 2.4},
    }
    page = spec_of(tmp_path, criteria={"workload": workload})
    return certify(tmp_path, page, files=["test_workload.py"], limit_s=400)


def test_torchtitan(tmp_path: Path, model: Path) -> None:
    script = tmp_path / "on_cpu.py"
    script.write_text(dedent(TITAN))
    places = {
        "model.hf-assets-path": model,
        "training.dataset-path": tmp_path / "data",
        "job.dump-folder": tmp_path / "out",
    }
    of_model = {"model.name": "llama3", "model.flavor": "debugmodel", "training.dataset": "c4_test"}
    steps = {
        "training.steps": 14,
        "training.seq-len": 64,
        "training.local-batch-size": 2,
        "lr-scheduler.warmup-steps": 2,
        "metrics.log-freq": 1,
        "parallelism.data-parallel-replicate-degree": 2,
        "parallelism.data-parallel-shard-degree": 1,
        "checkpoint.interval": 7,
    }
    command = [str(script), "--checkpoint.enable"]
    done = certified(tmp_path, command, {**of_model, **places, **steps})
    found = done.measurements("workload")
    assert found["loss of step 12"]["verdict"] == "pass", done.run.output
    assert found["communicating, of the wall time"]["value"] > 0
    assert found["checkpointing, of the wall time"]["value"] > 0


def test_a_trainer_of_hugging_face(tmp_path: Path, model: Path) -> None:
    script = tmp_path / "sft.py"
    script.write_text(dedent(SFT))
    places = {"out": tmp_path / "out", "model": model, "data": tmp_path / "data/train.jsonl"}
    done = certified(tmp_path, [str(script)], places)
    found = done.measurements("workload")
    assert done.criterion("workload")["verdict"] == "pass", done.run.output
    assert found["communicating, of the wall time"]["value"] > 0
    assert found["checkpointing, of the wall time"]["value"] > 0
