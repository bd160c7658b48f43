"""Profiles of common systems: they load, certify nothing unchanged, have a source for each number,
and say only what differs from what they extend."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_mnode.spec import bandwidth, default_spec_path, doubts, load_spec
from pytest_mnode.spec.checked import PreflightCriterion
from pytest_mnode.spec.profiles import find_profile, profile_names

FOLDER = default_spec_path().parent
PROFILES = [FOLDER / f"{name}.yaml" for name in profile_names() if name != "rack"]
PAGES = [*PROFILES, *sorted(FOLDER.glob("parts/*.yaml"))]
_MARK = re.compile(r"\[(\d+|choice)\]")
_UNMARKED = ("name:", "extends:")
profiles = pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.stem)
pages = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)


@profiles
def test_a_profile_loads_and_certifies_nothing_before_it_is_confirmed(path: Path) -> None:
    spec = load_spec(path)
    assert not spec.confirmed
    # A profile cannot know the directory of checkpoints: its copy has to name it.
    unconfirmed, unplaced = doubts(spec)
    assert unconfirmed.startswith("confirmed: false")
    assert unplaced.startswith("criteria.restart: promised, and storage.checkpoints names no")
    assert isinstance(spec.criteria.preflight, PreflightCriterion)
    assert {"preflight", "mesh", "numa", "devices", "fabric", "restart"} <= set(
        spec.promised_criteria
    )


@pages
def test_each_number_of_a_profile_has_a_source(path: Path) -> None:
    lines = path.read_text().splitlines()
    listed = {
        mark[1]
        for line in lines
        if (mark := re.match(r"# \[(\d+|choice)\] \S.*", line)) is not None
    }
    used: set[str] = set()
    above: list[str] = []  # source marks in the comment lines before this one
    body = next(i for i, line in enumerate(lines) if not line.startswith("#"))
    for line in lines[body:]:
        value, _, comment = line.partition(" #") if not line.startswith("#") else ("", "", line)
        marks = _MARK.findall(comment)
        if not value.strip():
            above += marks
            continue
        numbers = re.findall(r"(?<![\w_])\d[\d.]*", value.partition(":")[2])
        assert marks or above or not numbers or value.startswith(_UNMARKED), line
        used |= {*marks, *above}
        above = []
    assert used <= listed, f"no source: {sorted(used - listed)}"
    assert listed <= {*used, "choice"}, f"sources of no value: {sorted(listed - used)}"


def _leaves(page: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(page, dict) and page:
        for key, value in page.items():
            yield from _leaves(value, (*at, key))
    else:
        yield at, page


def _extended(path: Path) -> dict[tuple[str, ...], Any]:
    """Leaves of what a page extends, by dotted key; a test's own merge of the raw pages."""
    found: dict[tuple[str, ...], Any] = {}
    bases = yaml.safe_load(path.read_text()).get("extends", [])
    for name in [bases] if isinstance(bases, str) else bases:
        base = find_profile(name, parts=True)
        assert base is not None
        own = yaml.safe_load(base.read_text())
        own.pop("extends", None)
        for keys, value in (*_extended(base).items(), *_leaves(own)):
            for known in [k for k in found if k[: len(keys)] == keys or keys[: len(k)] == k]:
                del found[known]
            if value is not None:
                found[keys] = value
    return found


@profiles
def test_a_profile_is_short_and_repeats_nothing_of_what_it_extends(path: Path) -> None:
    text = path.read_text()
    own, base = yaml.safe_load(text), _extended(path)
    assert own.pop("extends")
    for keys, value in _leaves(own):
        assert keys not in base or base[keys] != value, ".".join(keys)
        removed = any(known[: len(keys)] == keys for known in base)
        assert value is not None or removed, f"{'.'.join(keys)}: nothing to remove"
    assert len([line for line in text.splitlines() if not line.startswith("#")]) <= 15


@pytest.mark.parametrize(
    ("names", "kind", "per_node", "line_gbytes_s"),
    [
        ("hgx-a100 nd-a100-v4 a100-ib", "infiniband", 8, 200),
        ("hgx-h100 hgx-h200 hgx-b200 nd-h100-v5 nd-h200-v5 h100-ib", "infiniband", 8, 400),
        ("h100-bare-metal", "infiniband", 8, 400),
        ("hgx-b300", "infiniband", 8, 800),
        ("gb200-nvl72 nd-gb200-v6", "infiniband", 4, 200),
        ("gb300-nvl72", "infiniband", 4, 400),
        ("h100-roce hgx-h20 oci-h100 a3-ultra a4 mi300x mi325x mi350x mi355x", "roce", 8, 400),
        ("l40s", "roce", 8, 50),
        ("p4d p4de", "efa", 8, 50),
        ("p5 p5e p5en p6-b200 h100-efa", "efa", 8, 400),
        ("p6e-gb200", "efa", 4, 200),
        ("a3-high", "tcpx", 8, 100),
        ("a3-mega", "tcpxo", 8, 200),
    ],
)
def test_a_profile_is_of_one_system(
    names: str, kind: str, per_node: int, line_gbytes_s: float
) -> None:
    for name in names.split():
        spec = load_spec(Path(f"profile:{name}"))
        assert spec.fabric.kind == kind, name
        assert spec.accelerators.per_node == per_node, name
        assert bandwidth.line_rate_gbytes_s(spec.fabric) == line_gbytes_s, name
        rdma = kind in ("infiniband", "roce")
        preflight, fabric = spec.criteria.preflight, spec.criteria.fabric
        assert isinstance(preflight, PreflightCriterion)
        assert fabric is not None
        assert (preflight.rdma is not None) == rdma, name
        assert (fabric.write_bandwidth is not None) == rdma, name


@pytest.mark.parametrize(
    ("instance", "name"),
    [
        ("p5.48xlarge", "p5"),
        ("P5", "p5"),
        ("Standard_ND96isr_H100_v5", "nd-h100-v5"),
        ("a3-megagpu-8g", "a3-mega"),
        ("BM.GPU.H100.8", "oci-h100"),
    ],
)
def test_an_instance_is_an_alias(instance: str, name: str) -> None:
    assert find_profile(instance) == FOLDER / f"{name}.yaml"


def test_all_profiles_are_documented() -> None:
    page = (Path(__file__).parents[2] / "docs/spec.md").read_text()
    assert [name for name in profile_names() if f"`{name}`" not in page] == []
