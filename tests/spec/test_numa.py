"""What can be promised of placement, and which sockets the rack can be told to show."""

from __future__ import annotations

import pytest

from pytest_mnode.errors import SpecError
from pytest_mnode.spec import default_spec_path, load_spec
from tests.spec.conftest import Load, Page


def test_the_rack_promises_placement_and_shows_two_sockets() -> None:
    spec = load_spec(default_spec_path())
    numa, topology = spec.criteria.numa, spec.topology
    assert numa is not None
    assert (numa.cpus, numa.nic, numa.cores) == ("near", "nearest", "own")
    assert topology is not None
    assert (topology.sockets, topology.accelerator_sockets) == (2, (0, 1))


def test_what_is_left_out_is_not_promised(load: Load) -> None:
    numa = load("    nic: nearest\n", "").criteria.numa
    assert numa is not None
    assert (numa.cpus, numa.nic) == ("near", None)
    assert (numa.copy_size_bytes, numa.copy_repeats) == (256 << 20, 5)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("cpus: near", "cpus: far", "criteria.numa.cpus: 'far'; accepted: 'near'"),
        (
            "memory_near_fraction: 0.9",
            "memory_near_fraction: 90",
            "criteria.numa.memory_near_fraction: 90; accepted: a number of 1 or less",
        ),
        (
            "copy_near_over_far: 1.05",
            "copy_near_over_far: 0.5",
            "criteria.numa.copy_near_over_far: 0.5; accepted: a number of 1 or more",
        ),
        (
            "    cpus: near\n    nic: nearest\n",
            "    nics: nearest\n",
            "criteria.numa.nics: unknown key; did you mean nic?",
        ),
        ("sockets: 2", "sockets: 1", "topology.sockets: 1; accepted: a number of 2 or more"),
        (
            "fabric_socket: 0",
            "fabric_socket: 2",
            "topology.fabric_socket: socket 2 of 2; accepted: 0 to 1",
        ),
        (
            "accelerator_sockets: [0, 1]",
            "accelerator_sockets: [0, 5]",
            "topology.accelerator_sockets: socket 5 of 2; accepted: 0 to 1",
        ),
        (
            "accelerator_sockets: [0, 1]",
            "accelerator_sockets: []",
            "topology.accelerator_sockets: []; accepted: a list of 1 or more",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(
    page: Page, old: str, new: str, message: str
) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(page(old, new))
    assert message in str(caught.value)


def test_a_criterion_that_asks_nothing_is_refused(page: Page) -> None:
    text = default_spec_path().read_text()
    section = text[text.index("  numa:\n") : text.index("copy_near_over_far: 1.05\n")]
    with pytest.raises(SpecError, match=r"criteria\.numa: promises nothing; accepted: at least "):
        load_spec(page(f"{section}copy_near_over_far: 1.05\n", "  numa: {copy_repeats: 3}\n"))
