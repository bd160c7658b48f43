"""Parameters that kernels were booted with."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mnode.checks.node.boot import BootParametersAreAsPromised, parameters
from tests.checks.node.judged import blamed, judged, rows_of, tree, verdicts

USUAL = (
    "BOOT_IMAGE=/vmlinuz-6.8.0 root=UUID=1f ro console=tty0 console=ttyS0,115200 iommu=pt "
    'pci=noaer,realloc=off init_on_alloc=0 dyndbg="file a.c +p" -- single iommu=off'
)


def booted(root: Path, line: str = USUAL) -> Path:
    return tree(root, {"proc/cmdline": line})


def test_a_line_is_read_as_the_kernel_does() -> None:
    found = parameters(USUAL)
    assert found["console"] == ["tty0", "ttyS0,115200"]
    assert found["dyndbg"] == ["file a.c +p"]
    assert (found["ro"], found["iommu"], "single" in found) == ([""], ["pt"], False)
    assert parameters("default-hugepagesz=1G") == {"default_hugepagesz": ["1G"]}


@pytest.mark.parametrize(
    ("promise", "verdict", "words"),
    [
        ("{has: [iommu=pt]}", "p", ""),
        ("{has: [pci=realloc=off]}", "p", ""),  # one of a list
        ("{has: [init-on-alloc=0, ro]}", "pp", ""),
        ("{has: [iommu=on]}", "f", "iommu (pt)"),
        ("{has: [hugepages]}", "f", ""),
        ("{has: [single]}", "f", ""),  # of the first program
        ("{has_not: [iommu=off, nomodeset]}", "p", ""),
        ("{has_not: [iommu]}", "f", "iommu (pt)"),
        ("{has_not: [pci=noaer]}", "f", "pci (noaer,realloc=off)"),
        ("{has: [console=tty0], has_not: [quiet]}", "pp", ""),
    ],
)
def test_words_that_must_be_there_or_not(
    tmp_path: Path, promise: str, verdict: str, words: str
) -> None:
    found = judged(BootParametersAreAsPromised, promise, {"a": booted(tmp_path)})
    assert verdicts(found) == verdict
    assert words in " ".join(map(str, found["a"])) + " ".join(one.note for one in found["a"])
    assert blamed(found) == ({"a"} if "f" in verdict else set())


@pytest.mark.parametrize(
    ("promise", "change", "expected"),
    [
        ("{same: all}", ("root=UUID=1f", "root=UUID=2e"), "p p p"),  # each has its own disk
        ("{same: all}", ("iommu=pt", "iommu=off"), "p p f"),
        ("{same: all}", ("ro ", ""), "p p f"),
        ("{same: [iommu, pci]}", ("ro ", ""), "p p p"),
        ("{same: [iommu, pci]}", ("pci=noaer,", "pci="), "p p f"),
    ],
)
def test_the_odd_node_is_found(
    tmp_path: Path, promise: str, change: tuple[str, str], expected: str
) -> None:
    nodes = {name: booted(tmp_path / name) for name in "ab"}
    nodes["c"] = booted(tmp_path / "c", USUAL.replace(*change))
    found = judged(BootParametersAreAsPromised, promise, nodes)
    assert verdicts(found) == expected
    assert blamed(found) == ({"c"} if "f" in expected else set())


def test_what_is_drafted_holds_already(tmp_path: Path) -> None:
    def rows(line: str) -> object:
        return rows_of(BootParametersAreAsPromised, "{}", booted(tmp_path, line)).rows

    alike, other = rows(USUAL), rows(USUAL.replace("iommu=pt", "iommu=off"))
    draft = BootParametersAreAsPromised.draft
    assert draft({"a": alike, "b": alike}) == {"same": "all"}  # type: ignore[dict-item]
    assert draft({"a": alike, "b": other}) is None  # type: ignore[dict-item]


def test_without_a_line_it_is_inconclusive(tmp_path: Path) -> None:
    found = judged(BootParametersAreAsPromised, "{has: [quiet]}", {"a": tmp_path})
    assert verdicts(found) == "i"
