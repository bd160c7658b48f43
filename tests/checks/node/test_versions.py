"""Versions against bounds, from texts as kernels and drivers write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mnode.checks.node import versions
from pytest_mnode.checks.node.versions import VersionsAreAsPromised, keeps
from pytest_mnode.errors import SpecError
from pytest_mnode.evidence.reading import CheckRows
from pytest_mnode.evidence.row import Row, row
from pytest_mnode.spec import load_spec
from tests.checks.node.judged import blamed, judged, rows_of, tree, verdicts
from tests.spec.conftest import Page, page  # noqa: F401  a fixture

DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2024"


@pytest.mark.parametrize(
    ("version", "kept", "broken"),
    [
        ("5.15.0-1057-aws", ">=5.15 <=5.15 ==5.15 >=5.4 <5.16 !=5.14 >=5.15.0-1057", ">5.15 <5.15"),
        ("6.1.0-rc3", ">=5.15 <6.2 ==6", "<=5.15 !=6.1"),
        ("550.90.07", ">=550.90.7 >=550.90 >=550.54.15 <560", ">=550.127 ==550.90.8 >=560"),
        ("28.39.2048", ">=28.39.1002 ==28", ">=28.40"),
        ("2.21", ">=2.21.0 <2.21.5", ">=2.21.5"),
        ("2.9.9", "<2.10", ">=2.10"),  # number by number, not as text
        ("dcgmi  version: 3.3.5", ">=3.3", ">=3.3.6"),
        ("24.10-1.1.4", ">=24.10 >=24.10-1.1 <25", ">=24.10-2"),
    ],
)
def test_numbers_are_compared_one_by_one(version: str, kept: str, broken: str) -> None:
    assert [bound for bound in kept.split() if not keeps(version, bound)] == []
    assert [bound for bound in broken.split() if keeps(version, bound)] == []
    assert keeps(version, ",".join(kept.split()))
    assert not keeps(version, ",".join([*kept.split(), broken.split(maxsplit=1)[0]]))


@pytest.mark.parametrize(
    ("driver", "verdict"), [(DRIVER, "p"), (DRIVER.replace("550.90", "535.54"), "f"), ("", "i")]
)
def test_an_old_driver_is_found(tmp_path: Path, driver: str, verdict: str) -> None:
    root = tree(tmp_path, {"proc/driver/nvidia/version": driver, "sys/class": ""})
    found = judged(VersionsAreAsPromised, '{driver: ">=550.90"}', {"a": root})
    assert verdicts(found) == verdict
    assert blamed(found) == ({"a"} if verdict == "f" else set())
    assert "preflight.versions.driver >=550.90" in found["a"][0].source


def nics(root: Path, **firmware: str) -> Path:
    files = {f"sys/class/infiniband/{name}/fw_ver": text for name, text in firmware.items()}
    devices = {f"sys/class/infiniband/{name}/device/vendor": "0x15b3" for name in firmware}
    return tree(root, files | devices)


@pytest.mark.parametrize(
    ("firmware", "verdict", "words"),
    [
        ({"fab0": "28.39.2048", "fab1": "28.39.2048"}, "f", "fab0 (28.39.2048), fab1 ("),
        ({"fab0": "28.40.1000", "fab1": "28.39.2048"}, "f", "a fab1 (28.39.2048)"),
        ({"fab0": "28.40.1000", "other": "16.35.4030"}, "p", ""),  # no NIC of the fabric
        ({"other": "16.35.4030"}, "i", "no firmware was found"),
        ({"fab0": "unknown"}, "i", "'unknown' is no version"),
        ({"fab0": "unknown", "fab1": "28.39.2048"}, "f", "fab1"),
    ],
)
def test_firmware_is_that_of_each_nic_of_the_fabric(
    tmp_path: Path,
    firmware: dict[str, str],
    verdict: str,
    words: str,
) -> None:
    root = nics(tmp_path, **firmware)
    found = judged(VersionsAreAsPromised, '{firmware: ">=28.40"}', {"a": root}, ("fab*",))
    assert verdicts(found) == verdict
    assert words in str(found["a"][0])


def test_nccl_may_be_promised_as_its_number(tmp_path: Path) -> None:
    nodes = {
        "a": CheckRows("", (row("nccl", "2.21.5"),)),
        "b": CheckRows("", (row("nccl", "2.20.5"),)),
    }
    found = judged(VersionsAreAsPromised, '{nccl: ">=22105"}', nodes)
    assert verdicts(found) == "p f"
    assert blamed(found) == {"b"}


def test_a_program_tells_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert "dcgmi is not on PATH" in rows_of(VersionsAreAsPromised, '{dcgm: ">=3"}').rows[0].why
    program = tmp_path / "dcgmi"
    program.write_text('#!/bin/sh\n[ "$1" = --version ] && echo && echo "dcgmi  version: 3.3.5"\n')
    program.chmod(0o755)
    for bound, verdict in ((">=3.3.5", "p"), (">=3.3.6", "f")):
        found = judged(VersionsAreAsPromised, f'{{dcgm: "{bound}"}}', {"a": Path("/")})
        assert verdicts(found) == verdict


def test_a_dcgmi_that_hangs_hides_no_other_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(versions, "_DCGM_LIMIT_S", 0.2)
    program = tmp_path / "dcgmi"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    rows = rows_of(VersionsAreAsPromised, '{dcgm: ">=3", kernel: ">=2"}').rows
    found = {one.metric: one for one in rows}
    assert found["kernel"].value is not None
    assert found["dcgm"].value is None
    assert "dcgmi gave no answer within 0.2 s" in found["dcgm"].why


def test_only_what_is_promised_is_read(tmp_path: Path) -> None:
    root = tree(tmp_path, {"proc/sys/kernel/osrelease": "6.8.0-45-generic"})
    rows = rows_of(VersionsAreAsPromised, '{kernel: ">=5.15"}', root).rows
    assert [(one.metric, one.value) for one in rows] == [("kernel", "6.8.0-45-generic")]


def test_what_is_drafted_is_the_oldest_seen() -> None:
    def of(kernel: str, *firmware: str) -> tuple[Row, ...]:
        return (row("kernel", kernel), *(row("firmware", f, device=f) for f in firmware))

    rows = {"a": of("6.8.0-45", "28.40.1", "28.39.2"), "b": of("5.15.0-1057-aws", "28.40.1")}
    drafted = VersionsAreAsPromised.draft(rows)
    assert drafted == {"kernel": ">=5.15.0", "firmware": ">=28.39.2"}
    rows["b"] = of("6.8.0", "22.1.1")  # another family: no floor fits both
    assert VersionsAreAsPromised.draft(rows) == {"kernel": ">=6.8.0"}


@pytest.mark.parametrize("written", ['"550.90"', "550.90", '">= five"', '">=5.15 <6"', '"~=5.15"'])
def test_what_is_no_bound_is_refused_with_the_form(page: Page, written: str) -> None:  # noqa: F811
    path = page("  preflight:\n", f"  preflight:\n    versions: {{kernel: {written}}}\n")
    with pytest.raises(SpecError) as error:
        load_spec(path)
    [line] = str(error.value).splitlines()
    assert "criteria.preflight.versions.kernel" in line
    assert "accepted" in line
