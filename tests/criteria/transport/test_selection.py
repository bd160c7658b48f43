"""Lists of names as NCCL reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mnode.criteria.transport.settings import Selection

THERE = ("eth0", "eth1", "eth10", "docker0", "ib0")


@pytest.mark.parametrize(
    ("written", "taken"),
    [
        ("eth", ("eth0", "eth1", "eth10")),
        ("eth1", ("eth1", "eth10")),
        ("=eth1", ("eth1",)),
        ("=eth0,eth1", ("eth0", "eth1")),
        ("^docker,ib", ("eth0", "eth1", "eth10")),
        ("^=eth1", ("eth0", "eth10", "docker0", "ib0")),
        ("", THERE),
        ("eth1, ib,docker", ("eth1", "eth10", "docker0")),
        ("^", ()),
        ("nothing", ()),
    ],
)
def test_names_selected_by_a_list(written: str, taken: tuple[str, ...]) -> None:
    assert tuple(filter(Selection.of(written).takes, THERE)) == taken


def test_ports_in_a_list() -> None:
    one = Selection.of("=mlx5_0:1,mlx5_1")
    assert one.takes("mlx5_0", 1)
    assert not one.takes("mlx5_0", 2)
    assert one.takes("mlx5_1", 2)
    assert not Selection.of("^mlx5_0:2").takes("mlx5_0", 2)
    assert Selection.of("^mlx5_0:2").takes("mlx5_0", 1)
    planes = Selection.of("=mlx5_0:1:0:0,mlx5_1::0:1")  # with rail and plane, since 2.30
    assert planes.takes("mlx5_0", 1)
    assert not planes.takes("mlx5_0", 2)
    assert planes.takes("mlx5_1", 2)


@given(st.text(max_size=40), st.text(max_size=12))
def test_any_text_is_a_list_and_its_negation_selects_the_rest(written: str, name: str) -> None:
    one = Selection.of(written)
    if one.names and not one.excludes:
        assert Selection.of(f"^{written}").takes(name) is not one.takes(name)
