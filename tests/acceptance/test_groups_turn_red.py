"""Groups with wrong ranks, order, nodes or values, each named."""

from __future__ import annotations

from pathlib import Path

from tests.acceptance.certified import Certified, certify, spec_of
from tests.red import turns_red

BUILT_WRONG = """
    import pytest

    def another(turned):
        "A mesh over the same ranks, numbered otherwise: its groups are really made so."
        import torch
        from torch.distributed.device_mesh import DeviceMesh
        def init_device_mesh(kind, sizes, mesh_dim_names):
            ranks = turned(torch.arange(4).reshape(sizes))
            return DeviceMesh(kind, ranks, mesh_dim_names=mesh_dim_names)
        return init_device_mesh

    @pytest.fixture(autouse=True)
    def meshes_are_numbered_otherwise(request, monkeypatch):
        from pytest_mnode.checks.groups import check
        if "right_groups" in request.node.name:
            flipped = another(lambda ranks: ranks.flip(-1))  # neighbours in each other's place
            monkeypatch.setattr(check, "init_device_mesh", flipped)
        else:
            import torch
            # The first dimension runs over neighbours, and the last over nodes.
            by_column = another(lambda ranks: torch.arange(4).reshape(ranks.shape[::-1]).mT
                if ranks.ndim == 2 else torch.arange(4).reshape(ranks.shape[::-1]).permute(2, 1, 0))
            monkeypatch.setattr(check, "init_device_mesh", by_column)
"""
BEHAVES_WRONG = """
    import pytest

    @pytest.fixture(autouse=True)
    def one_thing_wrong(request, monkeypatch):
        if "process_group" not in request.fixturenames:
            return  # runs in the controller
        world = request.getfixturevalue("world")
        import torch.distributed as dist
        from torch.distributed.device_mesh import DeviceMesh
        name = request.node.name
        if "right_groups" in name:
            right = DeviceMesh.get_group
            def get_group(mesh, dimension=None):
                wrong = world.rank == 3 and dimension == "tp"
                return right(mesh, "dp" if wrong else dimension)
            monkeypatch.setattr(DeviceMesh, "get_group", get_group)
        elif "inside_groups" in name:
            right = dist.all_to_all_single
            def all_to_all_single(into, parts, *args, **kwargs):
                if world.rank == 2:
                    parts = parts.roll(len(parts) // 2)  # the parts of others
                return right(into, parts, *args, **kwargs)
            monkeypatch.setattr(dist, "all_to_all_single", all_to_all_single)
        elif "mix" in name:
            right = dist.broadcast
            class Mixed:
                def __init__(self, work, into, other):
                    self.work, self.into, self.other = work, into, other

                def wait(self):
                    self.work.wait()
                    self.into.copy_(self.other)

            first = []

            def broadcast(into, *args, **kwargs):
                work = right(into, *args, **kwargs)
                first.append(into)  # the first group's gets into all others
                return work if world.rank != 3 else Mixed(work, into, first[0])

            monkeypatch.setattr(dist, "broadcast", broadcast)
        elif "slices" in name:
            right = DeviceMesh.get_group

            def get_group(mesh, dimension=None):
                if mesh.mesh_dim_names == ("pp", "tp"):
                    dimension = {"pp": "tp", "tp": "pp"}[dimension]
                return right(mesh, dimension)

            monkeypatch.setattr(DeviceMesh, "get_group", get_group)
"""


def _with(directory: Path, fault: str, **groups: object) -> Certified:
    spec = spec_of(directory, criteria={"groups": groups})
    return certify(
        directory, spec, "--mnode-nodes=2", fault=fault, files=["test_groups.py"], cold=False
    )


@turns_red(
    "groups",
    "test_every_rank_is_in_the_right_groups",
    "test_tensor_parallel_groups_stay_inside_a_node",
)
def test_meshes_with_another_numbering_are_found(tmp_path: Path) -> None:
    done = _with(tmp_path, BUILT_WRONG, meshes=[{"dp": "rest", "tp": 2}])
    assert done.certificate["verdict"] == "not certified"
    failed = done.failed("groups")
    order = failed["dp 2 × tp 2: ranks at a wrong place in their group"]
    assert order.startswith("rank 0 on node0 is at place 0 of tp [0, 1], and 1 in the mesh; rank 1")
    # Numbered by column, tp groups really span nodes; so the hosts of their ranks show it.
    inside = failed["dp 2 × tp 2: tp groups over more than one node"]
    assert inside == "tp [0, 2] spans node0, node1; tp [1, 3] spans node0, node1"
    measured = done.measurements("groups")
    values = measured["dp 2 × tp 2: wrong values inside groups"]
    assert (values["verdict"], values["value"]) == ("inconclusive", None)
    assert "tp not tried: it has wrong ranks" in values["note"]


@turns_red(
    "groups",
    "test_every_rank_is_in_the_right_groups",
    "test_collectives_inside_groups_are_right",
    "test_groups_do_not_mix",
    "test_slices_of_a_mesh_are_right",
)
def test_one_fault_is_named_with_its_rank(tmp_path: Path) -> None:
    done = _with(tmp_path, BEHAVES_WRONG)
    assert set(done.run.outcomes().values()) == {"failure", "passed"}
    assert done.run.outcomes()["test_tensor_parallel_groups_stay_inside_a_node"] == "passed"
    failed = done.failed("groups")
    wrong = failed["dp 2 × tp 2: ranks in a wrong group"]
    assert wrong == "rank 3 on node1 is in tp [1, 3], expected [2, 3]"
    # Rank 2 sends each rank the data of another: it is in all groups with wrong values.
    assert failed["dp 2 × tp 2: wrong values inside groups"] == "; ".join(
        f"rank {where}: position {at} is what rank 2 sends elsewhere"
        for where, at in (
            ("2 on node1: all_to_all in dp", 64),
            ("2 on node1: all_to_all in tp", 0),
        )
    )
    mixed = failed[
        "pp 2 × dp 1 × tp 2, replicate 2 × shard 2: wrong values with all groups busy at once"
    ]
    assert mixed.startswith("rank 3 on node1: broadcast in ")
    assert "rank 2 on" not in mixed
    sliced = failed["pp 2 × dp 1 × tp 2, sliced: ranks in a wrong group"]
    assert sliced.startswith("rank 0 on node0 is in [pp, tp] pp [0, 1], expected [0, 2]; ")
