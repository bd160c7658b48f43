"""The page in a real browser: it is whole, fits a phone, asks nobody for anything, and prints."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pytest_mnode.certificate.page import page_text
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


@pytest.fixture(scope="module")
def chromium() -> str:
    program = shutil.which("chromium")
    need(None if program else "no chromium on the PATH")
    return str(program)


def run(chromium: str, directory: Path, *args: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [
            *(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *(f"--user-data-dir={directory / 'profile'}", "--allow-file-access-from-files"),
            *("--disable-dev-shm-usage", "--enable-logging=stderr", "--log-level=0"),
            *("--host-resolver-rules=MAP * ~NOTFOUND", "--disable-background-networking"),
            *args,
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "HOME": str(directory)},
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("slow", [True, False], ids=["failed", "inconclusive"])
def test_a_browser_shows_the_page_on_a_phone_and_prints_it(
    chromium: str, tmp_path: Path, slow: bool
) -> None:
    page = tmp_path / "certificate.html"
    page.write_text(page_text(composed(nodes=16, questions=4, slow=slow)))
    harness = tmp_path / "harness.html"
    harness.write_text(HARNESS.format(width=PHONE_PX))
    done = run(chromium, tmp_path, "--dump-dom", harness.as_uri())
    found = json.loads(re.search(r"<pre id=\"out\">(.*?)</pre>", done.stdout)[1])  # type: ignore[index]
    assert found["verdict"] == ("NOT certified" if slow else "inconclusive")
    assert found["verdict_ends"] < 800  # it is on the first screen
    assert ("node0013 mlx5_3 tx" if slow else "restart inconclusive") in found["culprit"]
    assert found["width"] <= PHONE_PX  # nothing is to be scrolled sideways but tables and pictures
    assert len(found["pictures"]) == 5
    assert min(found["pictures"]) > 50
    assert found["loaded"] == []
    assert "CONSOLE" not in done.stderr, done.stderr  # such as of the page's own content policy
    pdf = tmp_path / "certificate.pdf"
    run(chromium, tmp_path, f"--print-to-pdf={pdf}", page.as_uri())
    assert pdf.read_bytes().startswith(b"%PDF")
    assert pdf.read_bytes().count(b"/Type /Page") > 2
