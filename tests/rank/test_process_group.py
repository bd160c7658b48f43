"""The default process group of a rank, when it is recreated."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from pytest_mnode.rank.process_group import GroupKeeper
from tests.inner import run_pytest, write_files


def test_a_later_default_group_can_be_split(tmp_path: Path) -> None:
    """As DeviceMesh does with NCCL; without the list of ranks torch reads past its end."""
    write_files(
        tmp_path,
        test_it="""
            import pytest


            def ranks_known(group):
                options = group._get_backend(group._device_types[0]).options
                return getattr(options, "global_ranks_in_group", [0, 1])


            def test_first(process_group):
                assert ranks_known(process_group) == [0, 1]


            @pytest.mark.mnode(reuse="group")
            def test_later(process_group, rank):
                assert ranks_known(process_group) == [0, 1]
                if hasattr(process_group, "split_group"):
                    alone = process_group.split_group([rank], group_name=f"alone{rank}")
                    assert alone.size() == 1
        """,
    )
    run = run_pytest(tmp_path, "--mnode-nodes=2", "--mnode-launcher=local")
    assert run.outcomes() == {"test_first": "passed", "test_later": "passed"}, run.output


def test_the_port_of_a_store_that_all_opened_is_forgotten() -> None:
    from torch._C._distributed_c10d import HashStore

    keeper = GroupKeeper.__new__(GroupKeeper)
    keeper.world, keeper._store = SimpleNamespace(rank=0), HashStore()  # type: ignore[assignment]
    keeper._store.set("mnode/store/a", "7")
    keeper.forget_store("a")
    assert keeper._store.num_keys() == 0
