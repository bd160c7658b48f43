"""The device of each rank, and the error if its node has too few."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from pytest_mnode.rank import process_group as group  # noqa: E402
from pytest_mnode.rank.process_group import GroupKeeper  # noqa: E402
from pytest_mnode.rank.world import World  # noqa: E402
from pytest_mnode.spec import default_spec_path  # noqa: E402
from tests.inner import run_pytest, write_files  # noqa: E402

SHARED = (
    "found by torch, and each rank needs an accelerator of its own; give --mnode-procs-per-node"
)
REMEDY = "check the driver, CUDA_VISIBLE_DEVICES and torch's build there, or correct the spec"


@pytest.mark.parametrize(
    ("node", "missing", "device"),
    [
        ((8, 8, 8, "nccl"), "", "cuda:3"),
        ((8, 0, 8, "nccl"), f"8 promised, 0 found by torch; {REMEDY}", "cpu"),
        ((8, 4, 8, "nccl"), f"8 promised, 4 found by torch; {REMEDY}", "cuda:3"),
        ((8, 0, 4, "gloo"), f"8 promised, 0 found by torch; {REMEDY}", "cpu"),
        ((8, 4, 4, "nccl"), "", "cuda:3"),  # one each; preflight judges the promise
        ((2, 2, 4, "gloo"), "", "cuda:1"),  # more ranks than promised devices share them
        ((2, 1, 4, "gloo"), f"2 promised, 1 found by torch; {REMEDY}", "cuda:0"),
        ((0, 0, 4, "gloo"), "", "cpu"),
        ((0, 8, 4, "gloo"), "", "cpu"),
        ((0, 0, 4, "nccl"), "backend nccl: 0 accelerators found; give --mnode-backend=gloo", "cpu"),
        ((0, 8, 4, "nccl"), "", "cuda:3"),
        ((1, 1, 4, "nccl"), f"backend nccl: 4 ranks and 1 {SHARED}=1", "cuda:0"),
        ((0, 2, 4, "nccl"), f"backend nccl: 4 ranks and 2 {SHARED}=2", "cuda:1"),
        ((0, 0, 4, "mpi"), "", "cpu"),
    ],
)
def test_a_rank_has_an_accelerator_or_an_error_names_its_node(
    monkeypatch: pytest.MonkeyPatch, node: tuple[int, int, int, str], missing: str, device: str
) -> None:
    promised, found, ranks, backend = node
    monkeypatch.setattr(group, "_accelerators", lambda: ("cuda" if found else "cpu", found))
    world = World(3, ranks, 3, ranks, "node0", ("node0",))
    keeper = GroupKeeper(world, backend, promised)
    reported = keeper.missing_accelerators()
    assert reported.removeprefix("accelerators.per_node: ") == missing
    assert keeper.device == torch.device(device)


def test_a_machine_without_accelerators_is_one_line(tmp_path: Path) -> None:
    page = default_spec_path().read_text().replace("  per_node: 0", "  per_node: 8")
    lines = [line for line in page.splitlines() if not line.startswith("    compute: ")]
    (tmp_path / "spec.yaml").write_text("\n".join(lines))
    write_files(
        tmp_path,
        test_it="""
            def test_group(process_group): pass
            def test_device(device): pass
        """,
    )
    args = ("--mnode-spec=spec.yaml", "--mnode-nodes=2", "--mnode-launcher=local")
    run = run_pytest(tmp_path, *args, "--mnode-procs-per-node=2", env={"CUDA_VISIBLE_DEVICES": ""})
    assert run.outcomes() == {"test_group": "error", "test_device": "error"}
    for case in run.cases().values():
        [error] = case
        world, _, why = str(error.text).partition(" did not start: ")
        assert world == "a world of 2×2 ranks on local0, local1"
        node, _, what = why.partition(": ")
        assert node in ("local0", "local1")
        assert what == f"accelerators.per_node: 8 promised, 0 found by torch; {REMEDY}"
