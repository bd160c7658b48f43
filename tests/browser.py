"""Headless Chromium without network requests."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

PROGRAM = "chromium"


def run(directory: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run Chromium once. directory: of its profile. Raises RuntimeError if it fails."""
    done = subprocess.run(
        [
            *(PROGRAM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
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
    if done.returncode != 0:
        raise RuntimeError(f"{PROGRAM} ended with {done.returncode}: {done.stderr}")
    return done


def opened(directory: Path, harness: str) -> tuple[dict[str, Any], str]:
    """The JSON that a page's script writes to `<pre id=out>`, and Chromium's output."""
    page = directory / "harness.html"
    page.write_text(harness)
    done = run(directory, "--dump-dom", page.as_uri())
    found = re.search(r"<pre id=\"out\">(.*?)</pre>", done.stdout)
    if found is None:
        raise RuntimeError(f"the page left no JSON: {done.stdout[-400:]}")
    return json.loads(found[1]), done.stderr
