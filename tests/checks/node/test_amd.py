"""AMD GPUs from made trees of what amdgpu and kfd show."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from pytest_mnode.checks.node.amd import AmdGpusAreAsPromised
from tests.checks.node.judged import blamed, judged, rows_of, tree, verdicts

PROMISE = (
    "{compute_partition: SPX, memory_partition: NPS1, errors_at_most: 0, corrected_at_most: 100, "
    "xgmi_peers: 1}"
)
CARD = "sys/class/drm/card{}/device"
KFD = "sys/class/kfd/kfd/topology/nodes"


def server(root: Path, changed: Mapping[str, str] = MappingProxyType({})) -> Path:
    """Two GPUs that are linked, a CPU, and a display; an attribute that is "-" is not there."""
    files = {"sys/class/drm/card9/device/vendor": "0x1a03", f"{KFD}/0/properties": "simd_count 0"}
    for i in range(2):
        card = CARD.format(i)
        files |= {
            f"{card}/vendor": "0x1002",
            f"{card}/current_compute_partition": "SPX",
            f"{card}/current_memory_partition": "NPS1",
            f"{card}/ras/umc_err_count": "ue: 0\nce: 2",
            f"{card}/ras/gfx_err_count": "ue: 0\nce: 0",
            f"{card}/ras/features": "feature mask: 0x5",
        }
        node = f"{KFD}/{i + 1}"
        files |= {
            f"{node}/properties": f"simd_count 1216\nlocation_id {(5 + i) << 8}\ndomain 0",
            f"{node}/io_links/0/properties": "type 2\nnode_to 0",
            f"{node}/io_links/1/properties": f"type 11\nnode_to {2 - i}",
        }
    return tree(root, {name: text for name, text in (files | dict(changed)).items() if text != "-"})


CARD1 = CARD.format(1)


@pytest.mark.parametrize(
    ("changed", "expected", "words"),
    [
        ({}, "ppppp", ""),
        ({f"{CARD1}/current_compute_partition": "CPX"}, "fpppp", "card1: CPX"),
        ({f"{CARD1}/current_memory_partition": "NPS4"}, "pfppp", "card1: NPS4"),
        ({f"{CARD1}/ras/umc_err_count": "ue: 1\nce: 2\nde: 0"}, "ppfpp", "card1 umc: 1"),
        ({f"{CARD1}/ras/gfx_err_count": "ue: 0\nce: 101"}, "pppfp", "card1 gfx: 101"),
        ({f"{KFD}/2/io_links/1/properties": "type 2\nnode_to 1"}, "ppppf", "0000:06:00.0: 0"),
        ({f"{CARD1}/ras/umc_err_count": "Operation not permitted"}, "ppiip", "shows no ue"),
        ({f"{CARD1}/current_memory_partition": "-"}, "pippp", "shows no current_memory"),
        (
            {f"{CARD1}/ras/{part}": "-" for part in ("umc_err_count", "gfx_err_count")},
            "ppiip",
            "a virtual function?",
        ),
    ],
)
def test_faults_of_mi300x(
    tmp_path: Path, changed: Mapping[str, str], expected: str, words: str
) -> None:
    nodes = {"a": server(tmp_path / "a"), "b": server(tmp_path / "b", changed)}
    found = judged(AmdGpusAreAsPromised, PROMISE, nodes)
    assert verdicts(found) == f"ppppp {expected}"
    assert words in " ".join(one.note for one in found["b"])
    assert blamed(found) == ({"b"} if "f" in expected else set())


def test_a_node_without_amdgpu_is_inconclusive(tmp_path: Path) -> None:
    root = tree(tmp_path, {"sys/class/drm/card0/device/vendor": "0x1002"})
    assert verdicts(judged(AmdGpusAreAsPromised, PROMISE, {"a": root})) == "iiiii"


def test_what_is_drafted(tmp_path: Path) -> None:
    rows = rows_of(AmdGpusAreAsPromised, "{}", server(tmp_path)).rows
    drafted = {"compute_partition": "SPX", "memory_partition": "NPS1", "errors_at_most": 0}
    assert AmdGpusAreAsPromised.draft({"a": rows, "b": rows}) == {**drafted, "xgmi_peers": 1}
    assert AmdGpusAreAsPromised.draft({"a": rows, "b": ()}) is None
