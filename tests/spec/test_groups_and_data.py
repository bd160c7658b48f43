"""What can be promised of groups and data, and what is refused."""

from __future__ import annotations

import pytest

from pytest_mnode.errors import SpecError
from pytest_mnode.spec import default_spec_path, load_spec
from tests.spec.conftest import Load

GROUPS, DATA = "  groups: {}\n", "  data: {}\n"


def test_the_rack_promises_both_and_sets_nothing() -> None:
    criteria = load_spec(default_spec_path()).criteria
    assert criteria.groups is not None
    assert (criteria.groups.meshes, criteria.groups.inside_node) == (None, ("tp",))
    assert criteria.data is not None
    assert (criteria.data.batch, criteria.data.accumulation, criteria.data.workers) == (8, 2, 2)
    assert (criteria.data.sample_files, criteria.data.sample_size_bytes) == (8, 1 << 20)


def test_meshes_and_sizes_can_be_named(load: Load) -> None:
    groups = load(
        GROUPS, "  groups: {meshes: [{pp: 2, dp: rest}, {tp: 4}], inside_node: []}\n"
    ).criteria.groups
    assert groups is not None
    assert groups.meshes == ({"pp": 2, "dp": "rest"}, {"tp": 4})
    data = load(DATA, "  data: {sample_size: 4 KiB, workers: 0}\n").criteria.data
    assert data is not None
    assert (data.sample_size_bytes, data.workers) == (4096, 0)


def test_a_mesh_may_have_nothing_that_stays_inside_a_node(load: Load) -> None:
    """Tensor parallel groups are looked for where the spec does not say which; of one's own."""
    groups = load(GROUPS, "  groups: {meshes: [{dp: rest}]}\n").criteria.groups
    assert groups is not None
    assert groups.inside_node == ("tp",)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            GROUPS,
            "  groups: {meshes: [{dp: rest, tp: rest}]}\n",
            "criteria.groups.meshes[0]: {dp: rest, tp: rest} leaves two open; "
            "accepted: rest for one of them",
        ),
        (
            GROUPS,
            "  groups: {meshes: [{}]}\n",
            "criteria.groups.meshes[0]: {}; accepted: sizes by name, such as {pp: 2, dp: rest, ",
        ),
        (GROUPS, "  groups: {meshes: []}\n", "criteria.groups.meshes: []; accepted: a list of 1"),
        (
            GROUPS,
            "  groups: {meshes: [{tp: 0}]}\n",
            "criteria.groups.meshes[0]: tp: 0; accepted: a whole number of 1 or more, or rest",
        ),
        (
            GROUPS,
            "  groups: {meshes: [{tp: 2}, {2d: 2}]}\n",
            "criteria.groups.meshes[1]: '2d' is no name of a dimension; accepted: ",
        ),
        (
            GROUPS,
            "  groups: {mesh: []}\n",
            "criteria.groups.mesh: unknown key; did you mean meshes",
        ),
        (
            GROUPS,
            "  groups: {inside_node: [tp, cp]}\n",
            "criteria.groups: inside_node has cp, which is in no mesh; accepted: pp, dp, tp",
        ),
        (
            GROUPS,
            "  groups: {meshes: [{dp: rest, ep: 2}], inside_node: [tp]}\n",
            "criteria.groups: inside_node has tp, which is in no mesh; accepted: dp, ep",
        ),
        (DATA, "  data: {batch: 0}\n", "criteria.data.batch: 0; accepted: a number of 1 or more"),
        (
            DATA,
            "  data: {samples_per_rank: 4}\n",
            "criteria.data.samples_per_rank: 4; accepted: a ",
        ),
        (
            DATA,
            "  data: {accumulation: 1.5}\n",
            "criteria.data.accumulation: 1.5; accepted: a whole",
        ),
    ],
)
def test_what_is_refused(load: Load, old: str, new: str, message: str) -> None:
    with pytest.raises(SpecError) as refused:
        load(old, new)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
