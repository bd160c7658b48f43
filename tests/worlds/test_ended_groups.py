"""Ended groups leave keys in the store of the default group: later tests never read them."""

from __future__ import annotations

import pytest

from tests.inner import InnerRun, run_pytest, write_files

FILES = {
    "use": """
        import os
        import torch
        import torch.distributed as dist

        GROUPS = []

        def use(ends):
            \"\"\"Make a group of a name that torch gives again; (default group is new, pid).\"\"\"
            is_new = dist.group.WORLD not in GROUPS
            GROUPS.append(dist.group.WORLD)
            group = dist.new_group([0, 1], use_local_synchronization=True)
            total = torch.ones(1)
            dist.all_reduce(total, group=group)
            assert int(total) == 2
            if ends:
                dist.destroy_process_group(group)
            return is_new, os.getpid()
    """,
    "conftest": """
        import pytest
        from use import use

        @pytest.fixture(scope="session")
        def held(world):
            \"\"\"Has the ranks held; what else lives in them ends with the module.\"\"\"

        @pytest.fixture
        def used(process_group, record_property):
            def record(ends):
                is_new, pid = use(ends)
                record_property("new", is_new)
                record_property("pid", pid)
            return record
    """,
    "test_a": """
        def test_left(held, used): used(False)

        def test_with_which_the_run_leaves_the_module(cluster): pass
    """,
    "test_b": """
        from use import GROUPS, use

        def test_after_held_fixtures(held, used): used(True)

        def test_after_one_that_ended_its_own(used): used(True)

        def test_of_functions(cluster):
            with cluster.world() as world:
                assert [new for new, _ in world.run(use, True, group=True)] == [True, True]

        def test_after_functions(used): used(True)

        def test_that_ends_none(process_group): GROUPS.append(process_group)

        def test_after_one_that_ended_none(process_group):
            assert process_group is GROUPS[-1]
    """,
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> InnerRun:
    directory = tmp_path_factory.mktemp("ended_groups")
    write_files(directory, **FILES)
    args = ("--mnode-nodes=2", "--mnode-launcher=local", "--mnode-timeout=30")
    return run_pytest(directory, *args)


@pytest.mark.parametrize(
    "name", ["after_held_fixtures", "after_one_that_ended_its_own", "after_functions"]
)
def test_the_next_group_meets_no_keys(ran: InnerRun, name: str) -> None:
    assert ran.outcomes()[f"test_{name}"] == "passed", ran.output
    assert ran.properties(f"test_{name}")["new"] == "True"


def test_functions_of_a_world_meet_no_keys(ran: InnerRun) -> None:
    assert ran.outcomes()["test_of_functions"] == "passed", ran.output


def test_the_ranks_are_the_same(ran: InnerRun) -> None:
    names = ("left", "after_held_fixtures", "after_one_that_ended_its_own", "after_functions")
    found = [ran.properties(f"test_{name}") for name in names]
    assert len({(one["pid (rank 0)"], one["pid (rank 1)"]) for one in found}) == 1


def test_the_group_is_kept_if_no_group_ended(ran: InnerRun) -> None:
    assert ran.outcomes()["test_after_one_that_ended_none"] == "passed", ran.output
