"""A run of the acceptance suite is repeated only if its certificate advises that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_mnode.measuring.locating.diagnosis import Diagnosis
from pytest_mnode.measuring.locating.locate import Effort, SlowLinks
from tests import red
from tests.acceptance import certified as module
from tests.acceptance.certified import certify
from tests.inner import InnerRun

UNSTEADY = f"pairs of nodes do not keep a rate: …; {module.AGAIN}"


@pytest.mark.parametrize(
    ("culprits", "runs"),
    [
        (["node2 fab0"], 1),
        ([None], 1),
        ([UNSTEADY, "node2 fab0"], 2),
        ([UNSTEADY, UNSTEADY, UNSTEADY], 3),
    ],
)
def test_a_run_is_repeated_only_if_its_certificate_advises_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, culprits: list[str | None], runs: int
) -> None:
    left = iter([*culprits, "one too many"])
    repeats: list[str] = []

    def run_pytest(directory: Path, *_: object, **__: object) -> InnerRun:
        (directory / "report").mkdir(exist_ok=True)
        page = directory / "report/certificate.json"
        assert not page.exists()
        page.write_text(json.dumps({"culprit": next(left)}))
        return InnerRun(1, "", directory / "junit.xml")

    monkeypatch.setattr(module, "need_rack", lambda: None)
    monkeypatch.setattr(module, "run_pytest", run_pytest)
    monkeypatch.setattr(red, "register_repeat", repeats.append)
    assert certify(tmp_path).certificate == {"culprit": culprits[-1]}
    assert len(culprits) - len(list(left)) + 1 == runs
    assert len(repeats) == runs - 1
    assert all(module.AGAIN in why for why in repeats)


def test_the_product_gives_this_advice() -> None:
    unsteady = Diagnosis((), (), (), (), unsteady_mbits_s=(45.0, 190.0))
    assert module.AGAIN in str(SlowLinks(unsteady, None, "", "", Effort()))
