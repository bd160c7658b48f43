"""Programs that tests put in place of real ones."""

from __future__ import annotations

from pathlib import Path


def write_program(path: Path, text: str) -> None:
    """A script that anybody may execute."""
    path.write_text(text)
    path.chmod(0o755)
