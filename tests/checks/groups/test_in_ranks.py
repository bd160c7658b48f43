"""Groups of a researcher's own making, checked in ranks; one run."""

from __future__ import annotations

import pytest

from tests.inner import InnerRun, need_rack, run_pytest, write_files

TESTS = """
    import pytest
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from pytest_mnode.checks import groups

    pytestmark = [
        pytest.mark.mnode(nodes=2, min_procs_per_node=2), pytest.mark.usefixtures("process_group")
    ]
    TP = {"tp": [[0, 1], [2, 3]]}

    @pytest.fixture
    def made():
        made = []
        yield lambda ranks: made.append(dist.new_group(ranks)) or made[-1]
        for group in made:
            if group is not dist.GroupMember.NON_GROUP_MEMBER:
                dist.destroy_process_group(group)

    def test_groups_of_ones_own(world, device, measure, made):
        assert world.size == 4
        both = [made([0, 1]), made([2, 3])]
        mine = {"tp": both[world.rank // 2]}
        for found in groups.members(mine, world, device, expected=TP):
            assert found.passed, found
        assert groups.collectives(mine, world, device, expected=TP).passed
        with pytest.raises(TypeError, match="say which groups there should be"):
            groups.members(mine, world, device)

    def test_a_group_that_only_some_are_in(world, device, made):
        stage = {"embedding": made([0, 3])}
        first = {"embedding": [[0, 3]]}
        assert all(found.passed for found in groups.members(stage, world, device, expected=first))
        assert groups.collectives(stage, world, device, expected=first).passed

    def test_members_of_a_group_that_are_in_unequally_many_others(world, device, made):
        every = {"embedding": [[0, 3]], "dp": [[0, 1], [2, 3]], "last": [[1, 2, 3]]}
        mine = {}
        for name, of_name in every.items():
            for ranks in of_name:
                group = made(ranks)
                if world.rank in ranks:
                    mine[name] = group
        assert all(found.passed for found in groups.members(mine, world, device, expected=every))
        wrong = groups.collectives(mine, world, device, expected=every)
        assert wrong.passed, wrong
        wrong = groups.together({"a": mine}, world, device, expected={"a": every})
        assert wrong.passed, wrong

    def test_a_wrong_group_is_named_and_nobody_waits(world, device, made):
        both = [made([0, 1]), made([2, 3])]
        other = made([1, 3])
        mine = {"tp": other if world.rank == 3 else both[world.rank // 2]}
        members, order = groups.members(mine, world, device, expected=TP)
        assert members.culprit == "rank 3 on node1 is in tp [1, 3], expected [2, 3]"
        assert order.value is None
        values = groups.collectives(mine, world, device, expected=TP)
        assert values.value is None and "ranks disagree on who is in it" in values.note

    def test_a_mesh_of_the_other_way_round(world, device):
        layout = groups.Layout.of(tp=2, dp=2)
        with groups.mesh_of(layout, device) as mesh:
            assert all(found.passed for found in groups.members(mesh, world, device))
            wrong = groups.inside_node(mesh, world)
            assert wrong.culprit == "tp [0, 2] spans node0, node1; tp [1, 3] spans node0, node1"
            other = groups.members(mesh, world, device, expected=groups.Layout.of(dp=2, tp=2))
            assert other[0].value == 8

    def test_one_rank_takes_two_group_results_for_each_other(world, device, monkeypatch):
        right = dist.all_reduce
        def all_reduce(tensor, *args, **kwargs):
            work = right(tensor, *args, **kwargs)
            if world.rank == 1:
                work.wait()
                tensor[5] += 1
            return work
        with groups.mesh_of(groups.Layout.of(dp=2, tp=2), device) as mesh:
            monkeypatch.setattr(dist, "all_reduce", all_reduce)
            wrong = groups.collectives(mesh, world, device)
        assert wrong.value == 2
        assert "rank 1 on node0: all_reduce in dp: position 5 is " in wrong.culprit

    def test_no_names_no_layout(device):
        with groups.mesh_of(groups.Layout.of(dp=4), device):
            mesh = init_device_mesh("cpu", (4,))
            with pytest.raises(ValueError, match="a mesh without names"):
                groups.members(mesh, None, device)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> InnerRun:
    need_rack()
    directory = tmp_path_factory.mktemp("own")
    write_files(directory, test_own=TESTS)
    done = run_pytest(directory, "--mnode-nodes=2")
    assert done.outcomes(), done.output
    return done


@pytest.mark.parametrize(
    "name",
    [
        "test_groups_of_ones_own",
        "test_a_group_that_only_some_are_in",
        "test_members_of_a_group_that_are_in_unequally_many_others",
        "test_a_wrong_group_is_named_and_nobody_waits",
        "test_a_mesh_of_the_other_way_round",
        "test_one_rank_takes_two_group_results_for_each_other",
        "test_no_names_no_layout",
    ],
)
def test_in_ranks(run: InnerRun, name: str) -> None:
    assert run.outcomes()[name] == "passed", run.output


def test_importing_the_rooms_takes_no_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from pytest_mnode.checks import data, groups; groups.Layout, groups.layouts; "
        "data.judge_shards, data.seeds_of_two_runs, data.judge_mean, data.judge_files; "
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
