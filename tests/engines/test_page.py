"""The page in a real browser: complete, fits a phone, sends no request, and prints."""

from __future__ import annotations

import shutil
from pathlib import Path

from pytest_mnode.certificate.page import page_text
from tests import browser
from tests.certificate.large import composed
from tests.inner import need

PHONE_PX = 390
HARNESS = """<!doctype html><pre id=out></pre>
<iframe src="certificate.html" width="{width}" height="800" onload="
  const page = this.contentDocument, box = e => e.getBoundingClientRect();
  const pictures = [...page.querySelectorAll('svg')];
  out.textContent = JSON.stringify({{
    width: page.documentElement.scrollWidth,
    pictures: pictures.map(e => Math.round(box(e).height)),
    verdict: page.querySelector('.verdict').innerText,
    verdict_ends: box(page.querySelector('.verdict')).bottom,
    culprit: page.querySelector('.lead').innerText,
    loaded: this.contentWindow.performance.getEntriesByType('resource').map(e => e.name),
  }})"></iframe>
"""


def test_a_browser_shows_the_page_on_a_phone_and_prints_it(tmp_path: Path) -> None:
    need(None if shutil.which(browser.PROGRAM) else "no chromium on the PATH")
    page = tmp_path / "certificate.html"
    page.write_text(page_text(composed(nodes=16, questions=4)))
    found, printed = browser.opened(tmp_path, HARNESS.format(width=PHONE_PX))
    assert found["verdict"] == "NOT certified"
    assert found["verdict_ends"] < 800  # it is on the first screen
    assert "node0013 mlx5_3 tx" in found["culprit"]
    assert found["width"] <= PHONE_PX  # only tables and pictures may scroll sideways
    assert len(found["pictures"]) == 5
    assert min(found["pictures"]) > 50
    assert found["loaded"] == []
    assert "CONSOLE" not in printed, printed  # such as errors of the page's own content policy
    pdf = tmp_path / "certificate.pdf"
    browser.run(tmp_path, f"--print-to-pdf={pdf}", page.as_uri())
    assert pdf.read_bytes().startswith(b"%PDF")
    assert pdf.read_bytes().count(b"/Type /Page") > 2
