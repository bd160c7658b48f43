"""Time to open the certificate's page of 512 nodes in headless Chromium."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks import table
from pytest_mnode.certificate.page import page_text
from tests import browser
from tests.certificate.large import composed

HARNESS = """<!doctype html><pre id=out></pre>
<script>const began = performance.now()</script>
<iframe src="certificate.html" width="1280" height="800" onload="
  const height = this.contentDocument.documentElement.scrollHeight;
  out.textContent = JSON.stringify({took_ms: performance.now() - began, height});
"></iframe>
"""
"""The height forces a complete layout of the page."""


def measure(repeats: int, nodes: int = 512) -> str:
    """The table, for a terminal; or why there is none."""
    title = f"The page of {nodes} nodes in headless Chromium (opens in under 2 s is asked)"
    if shutil.which(browser.PROGRAM) is None:
        return table.terminal(title, ("", ""), [("no chromium on the PATH", "")])
    began = time.perf_counter()
    text = page_text(composed(nodes))
    written_s = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "certificate.html").write_text(text)
        (directory / "blank.html").write_text("<!doctype html>")
        laid_s = [browser.opened(directory, HARNESS)[0]["took_ms"] / 1e3 for _ in range(repeats)]
        shown_s = [
            _shown_s(directory, "certificate.html") - _shown_s(directory, "blank.html")
            for _ in range(repeats)
        ]
    rows = [
        ("size, MB", f"{len(text.encode()) / 1e6:.2f}", ""),
        ("written, s", f"{written_s:.2f}", ""),
        ("loaded and laid out, ms", table.ms(laid_s), table.spread_ms(laid_s)),
        ("start to screenshot, beyond a blank page, ms", *_ms(shown_s)),
    ]
    return table.terminal(title, ("", "median", "10 % – 90 %"), rows)


def _shown_s(directory: Path, page: str) -> float:
    began = time.perf_counter()
    picture = f"--screenshot={directory / 'page.png'}"
    browser.run(directory, picture, "--window-size=1280,800", (directory / page).as_uri())
    return time.perf_counter() - began


def _ms(seconds: list[float]) -> tuple[str, str]:
    """Milliseconds, which may be below 0, because they are differences of two runs."""
    return f"{statistics.median(seconds) * 1e3:.0f}", table.spread_ms(seconds)
